#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_front_end.py PRELOAD JOB KERNELS TOOL...: every tool and command has the same front end, as the tools' own tables say
(tools/completions/tool_table.py): help, suggestions, exit statuses, --json, --quiet, NO_COLOR. TAP."""
import json
import os
import pty
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(SOURCE, "tests", "harness"), os.path.join(SOURCE, "tools", "completions")]
import check_mistakes  # noqa: E402
from tap import check, end, equal  # noqa: E402
from tool_table import ALONE, table  # noqa: E402

TABLES = ("tools/plan/main.c", "tools/dump/main.c", "tools/verify/metashard-verify", "tools/check_torch/torch_check/command.py",
          "tools/python/metashard/__main__.py")
# Commands that print figures.
JSON = {"metashard-plan": {"estimate", "check", "explain", "fit"}, "metashard-dump": {"list", "show", "diff"}, "metashard-verify": {ALONE},
        "metashard-check-torch": {ALONE}, "metashard": {"run", "dry-run", "fit", "doctor", "suspend", "resume"}}
# Commands whose exit status has their result. The other ones print what they are asked for, or nothing.
QUIET = {"metashard-plan": {"check", "fit", "send"}, "metashard-dump": set(), "metashard-verify": {ALONE}, "metashard-check-torch": {ALONE},
         "metashard": {"run", "dry-run", "fit", "doctor", "suspend", "resume"}}
NO_TOOL = ("completion", "path")  # of `metashard`: they have no options to misspell


class Place:
    def __init__(self, folder, preload, job, kernels, tools):
        self.folder, self.preload = folder, preload
        check_mistakes.make_place(folder, job, kernels, preload, tools)
        code = f"import sys; sys.path[:0] = ['{SOURCE}/tools', '{SOURCE}/tools/check_torch']; from torch_check import command; " \
               "sys.exit(command.main(sys.argv[1:], 'VERSION'))"
        start = check_mistakes.write(folder + "/bin/metashard-check-torch", f'#!/bin/sh\nexec {sys.executable} -B -c "{code}" "$@"\n')
        os.chmod(start, 0o755)

    def run(self, *words, **settings):
        """(exit status, standard output, standard error)"""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("METASHARD") and name != "LD_PRELOAD"}
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, check=False, env={
            **kept, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "METASHARD_STATE_DIR": self.folder + "/state", "METASHARD_SELFCHECK": "off",
            **settings})
        return done.returncode, done.stdout, done.stderr


def check_command(place, tool, command):
    words = [tool.name] + [command] * (command != ALONE)
    name, options = " ".join(words), tool.options_of(command)
    status, out, errors = place.run(*words, "--help")
    check(f"{name} --help prints its usage", (status, errors) == (0, "") and out.lower().startswith(f"usage: {tool.name}"), (status, out, errors))
    equal(f"{name} -h is the same", place.run(*words, "-h"), (status, out, errors))
    check(f"{name} says its exit statuses", "exit status" in out.lower(), out)
    said = set(re.findall(r"^ +(?:-\w(?: \w+)?, )?--([\w-]+)", out, re.M))
    equal(f"{name} explains its options, and no others", sorted(options - said), [])
    if command in NO_TOOL:
        return
    known = re.compile(r"--hlep is no option; did you mean --help\?\n")
    status, out, errors = place.run(*words, "--hlep")
    check(f"{name} --hlep: a suggestion in one line", (status, out) == (2, "") and known.search(errors) and errors.count("\n") == 1,
          (status, out, errors))
    equal(f"{name}: --json where figures are printed", "json" in options, command in JSON[tool.name])
    equal(f"{name}: --quiet where the exit status has the result", "quiet" in options, command in QUIET[tool.name])


def check_tool(place, tool):
    status, out, errors = place.run(tool.name, "--version")
    check(f"{tool.name} --version", (status, errors) == (0, "") and out.startswith(tool.name + " "), (status, out, errors))
    if tool.commands != [ALONE]:
        status, out, errors = place.run(tool.name, "zzzzzz")
        check(f"{tool.name} zzzzzz", (status, out) == (2, "") and errors.endswith(f"zzzzzz is no command; {tool.name} --help lists them\n"),
              (status, out, errors))
    for command in tool.commands:
        if command not in tool.others:
            check_command(place, tool, command)
    with open(os.path.join(SOURCE, "docs", tool.name + ".1"), encoding="utf-8") as file:
        check(f"{tool.name}(1) has its exit statuses", re.search(r"^\.Sh EXIT STATUS\n", file.read(), re.M))


def check_quiet(place):
    """Nothing of a good result; a fault as before."""
    place.run("metashard-plan", "make", "model", "--strategy", "fsdp2", "--world", "2", "-o", "good.json")
    for words in (("metashard-plan", "check", "good.json", "model"), ("metashard-plan", "fit", "model", "--memory", "80GiB"),
                  ("metashard-verify", f"--preload={place.preload}", "--", "true"), ("metashard-verify", f"--preload={place.preload}", "--", "job"),
                  ("metashard", "run", "--", "true"), ("metashard", "doctor", "true")):
        loud, quiet = place.run(*words), place.run(*words[:2], "--quiet", *words[2:])
        equal(f"{' '.join(words)} --quiet: the exit status is the same", quiet[0], loud[0])
        lines = [line for line in (quiet[1] + quiet[2]).splitlines() if not line.startswith("metashard[pid ")]  # the library's own
        expected = [line for line in (loud[1] + loud[2]).splitlines() if line.startswith("no ") or "nothing was compared" in line]
        equal(f"{' '.join(words)} --quiet prints only faults", lines, expected)
        check(f"{' '.join(words)} prints something else", loud[1] + loud[2] != "", loud)
    equal("with --json, that document", place.run("metashard-plan", "check", "--quiet", "--json", "good.json", "model"),
          place.run("metashard-plan", "check", "--json", "good.json", "model"))
    equal("a fault", place.run("metashard-plan", "check", "--quiet", "missing.json"),
          (1, "", "missing.json: cannot be opened: No such file or directory\n"))
    status, out, errors = place.run("metashard", "suspend", "--quiet", "no-such-job")
    check("nothing to suspend", (status, out) == (1, "") and errors.startswith("metashard suspend: no-such-job is neither"), (status, out, errors))
    equal("tensors without an entry", place.run("metashard-plan", "check", "--quiet", "other.json", "model"),
          (1, "", "other.json: tensors that no entry matches: 2\n"))


def check_run(place):
    """The document is alone on standard output."""
    status, out, errors = place.run("metashard", "run", "--json", "--", "sh", "-c", "echo said; job; exit 3")
    found = json.loads(out)
    equal("metashard run --json has the command's status, and what show says of its process",
          (status, found["format"], found["command_status"], found["reason"], found["show"]["command"].endswith("test_kernels.so")),
          (3, "metashard-run/1", 3, None, True))
    check("the command's output is on standard error", "said\n" in errors, errors)
    status, out, errors = place.run("metashard", "run", "--json", "--", "true")
    found = json.loads(out)
    check("or why there is nothing", (status, errors, found["show"]) == (0, "", None) and "deferred" in found["reason"], (out, errors))


def check_color(place):
    place.run("job", METASHARD_DUMP="color.state", METASHARD_STATE_DIR="")
    for words in (("metashard-dump", "show", "color.state"), ("metashard-dump", "diff", "color.state", "color.state")):
        colored, plain = place.run(*words, "--color", "always"), in_terminal(place, words, NO_COLOR="1")
        check(f"{' '.join(words[:2])} has colors", colored[0] == 0 and "\x1b[" in colored[1], colored)
        check(f"{' '.join(words[:2])} has them on a terminal", "\x1b[" in in_terminal(place, words), in_terminal(place, words))
        check(f"{' '.join(words[:2])} obeys NO_COLOR there", plain != "" and "\x1b[" not in plain, plain)


def in_terminal(place, words, **settings):
    """What is printed on a terminal."""
    master, slave = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LD_PRELOAD")}
    subprocess.run(words, cwd=place.folder, stdout=slave, stdin=subprocess.DEVNULL, timeout=120, check=True,
                   env={**kept, "PATH": f"{place.folder}/bin:{os.environ['PATH']}", "TERM": "xterm", **settings})
    os.close(slave)
    text = b""
    while True:
        try:
            some = os.read(master, 65536)
        except OSError:  # all has been read
            break
        text += some
    os.close(master)
    return text.decode()


def main():
    preload, job, kernels, *tools = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(folder, preload, *map(os.path.abspath, (job, kernels)), list(map(os.path.abspath, tools)))
        for path in TABLES:
            check_tool(place, table(os.path.join(SOURCE, path)))
        check_quiet(place)
        check_run(place)
        check_color(place)
    return end()


if __name__ == "__main__":
    sys.exit(main())
