# SPDX-License-Identifier: Apache-2.0
"""The completions of bash, fish and zsh behind a tool's name, asked of the shells themselves."""
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, equal, skip  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tools", "completions"))
from tool_table import ALONE, table  # noqa: E402, F401

SECONDS = 60
ZSH = ("fpath=({} $fpath); autoload -Uz compinit; compinit -u -D; setopt noautolist; finish() {{ print -r -- $BUFFER >$OUT.new; mv $OUT.new $OUT; exit }}; "
       "zle -N finish; bindkey '^I' complete-word '^X' finish; print rea''dy\n")


def run(command, **settings):
    """Its output, or what went wrong."""
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **settings), timeout=SECONDS, check=False)
    return done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stdout}{done.stderr}"


def in_bash(script, tool, words):
    """Bash's completions of the last of the words."""
    text = ('. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }\n'
            f'_{tool.replace("-", "_")} 2>&1; printf "%s\\n" "${{COMPREPLY[@]}}"')
    return run(["bash", "-c", text, "bash", script, *words]).split()


def in_fish(datadir, bindir, line):
    with tempfile.TemporaryDirectory() as home:
        text = run(["fish", "-c", f"complete -C '{line}'"], HOME=home, XDG_CONFIG_HOME=home, XDG_DATA_HOME=home,
                   XDG_DATA_DIRS=f"{datadir}:/usr/local/share:/usr/share", PATH=f"{bindir}:{os.environ['PATH']}")
    return sorted(word.split("\t")[0] for word in text.splitlines())


def in_zsh(datadir, bindir, line):
    """The line after the key for completion."""
    with tempfile.TemporaryDirectory() as home:
        out = os.path.join(home, "out")
        child, terminal = pty.fork()
        if child == 0:
            os.environ.update(ZDOTDIR=home, TERM="dumb", OUT=out, PATH=f"{bindir}:{os.environ['PATH']}")
            os.execvp("zsh", ["zsh", "-f", "-i"])
        os.write(terminal, ZSH.format(os.path.join(datadir, "zsh", "site-functions")).encode())
        said, end, is_asked = b"", time.monotonic() + SECONDS, False
        while time.monotonic() < end and not os.path.exists(out):
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    said += os.read(terminal, 65536)
                except OSError:  # it has ended
                    break
            if not is_asked and b"ready\r\n" in said:
                os.write(terminal, line.encode() + b"\t\x18")
                is_asked = True
        os.close(terminal)
        os.waitpid(child, 0)
        if not os.path.exists(out):
            return said.decode(errors="replace")
        with open(out, encoding="utf-8") as file:
            return file.read().strip("\n")


def first_of(tool):
    """The words of a command that takes options of its own, and one of those options."""
    command = next(command for command in tool.commands if tool.options_of(command) - {"help", "version"})
    option = sorted(tool.options_of(command) - {"help", "version"}, key=lambda name: -len(name))[0]
    return ([command] if command != ALONE else []), option


def check_bash(folder, tools, bindir):
    for name, tool in tools.items():
        script, program = os.path.join(folder, name), os.path.join(bindir, name)
        equal(f"bash can read the completion of {name}", run(["bash", "-n", script]), "")
        if tool.commands != [ALONE]:
            equal(f"the commands of {name} are completed", in_bash(script, name, [program, ""]), tool.commands)
        for command in (command for command in tool.commands if command not in tool.others):
            wanted = {f"--{option}" for option in tool.options_of(command)}
            found = set(in_bash(script, name, [program, *([command] if command != ALONE else []), "--"]))
            equal(f"the options of {name} {command}".rstrip() + " are completed", found, wanted)
        lists = {option: value for option, value in tool.values.items() if "|" in value and not value.isupper()}
        seen = {(option, tuple(in_bash(script, name, [program, *words]))) for option in lists
                for words in ([tool.commands[0], f"--{option}", ""], [f"--{option}", "=", ""], [f"--{option}", "="])}
        equal(f"the values of options of {name} are completed", seen, {(option, tuple(value.split("|"))) for option, value in lists.items()})


def check_others(folder, tool, tools):
    """A command that is another tool completes as that one does."""
    script = os.path.join(folder, tool.name)
    for command, name in tool.others.items():
        before = [command] if command in tool.kept else []
        ask = (lambda words: in_bash(script, tool.name, [tool.name, command, *words]))
        asks = (lambda words: in_bash(os.path.join(folder, name), name, [name, *before, *words]))
        equal(f"{tool.name} {command} is completed as {name} is", ask(["--"]), asks(["--"]))
        if tools[name].commands != [ALONE] and not before:
            equal("and its commands", ask([""]), tools[name].commands)
    for words in (["run", "--", "mkdi"], ["run", "mkdi"], ["run", "--plan", "x", "mkdi"], ["run", "--plan", "=", "x", "mkdi"], ["verify", "--", "mkdi"]):
        check(f"{tool.name} {' '.join(words)} is completed as a command", "mkdir" in in_bash(script, tool.name, [tool.name, *words]))


def check_fish(datadir, tools, bindir):
    for name, tool in tools.items():
        words, option = first_of(tool)
        place = os.path.join(datadir, "fish", "vendor_completions.d", name + ".fish")
        equal(f"fish can read the completion of {name}, and completes by it",
              (run(["fish", "-n", place]), in_fish(datadir, bindir, " ".join([name, *words, f"--{option[:-1]}"]))), ("", [f"--{option}"]))
    for line, wanted in (("metashard plan ma", ["make"]), ("metashard show --bri", ["--brief"]), ("metashard dry-run --gpu h", ["h100-80", "h200"]),
                         ("metashard verify --prel", ["--preload"])) if "metashard" in tools else ():
        equal(f"fish completes {line}", in_fish(datadir, bindir, line), wanted)


def check_zsh(datadir, tools, bindir):
    for name, tool in tools.items():
        words, option = first_of(tool)
        place, line = os.path.join(datadir, "zsh", "site-functions", "_" + name), " ".join([name, *words, f"--{option}"])
        equal(f"zsh can read the completion of {name}, and completes by it",
              (run(["zsh", "-n", place]), in_zsh(datadir, bindir, line[:-1]).rstrip(" =")), ("", line))
    for line in ("metashard plan make", "metashard show --brief", "metashard run -- mkdir", "metashard dry-run --gpu h200") if "metashard" in tools else ():
        equal(f"zsh completes {line}", in_zsh(datadir, bindir, line[:-1] if line[-1] != "0" else line[:-2]).rstrip(" "), line)


def check_other_shells(datadir, tools, bindir):
    for shell, checks in (("zsh", check_zsh), ("fish", check_fish)):
        if shutil.which(shell) is None:
            skip(f"{shell} completes", f"{shell} is not installed")
        else:
            checks(datadir, tools, bindir)
