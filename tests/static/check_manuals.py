#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_manuals.py SOURCE...: manual pages are well formed, and those of the tools say what the tools' tables say. SOURCE is as
tool_table.py takes it."""
import glob
import os
import re
import shutil
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tools", "completions"))
from tool_table import ALONE, table  # noqa: E402

faults = []
# mandoc's complaints about pages that are not installed, and about an .Os that is not an operating system.
ACCEPTED = ("referenced manual not found", "operating system explicitly specified", "outdated mandoc.db")


def sections(text):
    parts = re.split(r"^\.Sh (.+)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def options_in(text):
    """Long options and letters that stand behind Fl, also where it is called by another macro."""
    found = re.findall(r"\bFl (-?[\w-]+)", text)
    return {name[1:] for name in found if name[0] == "-"}, {name for name in found if name[0] != "-"}


def check_synopsis(page, tool, synopsis):
    """The options of each command, and the commands themselves, as the table has them."""
    letters = {letter: name for name, (_, _, letter) in tool.options.items() if letter is not None}
    seen = {}
    for part in re.split(r"^\.Nm$", synopsis, flags=re.M)[1:]:
        line = re.search(r"^\.Cm ([\w| -]+?)(?= Fl |$)", part, re.M)
        if line is None and tool.commands != [ALONE]:
            continue
        long, short = options_in(part)
        for command in line[1].split(" | ") if line else [ALONE]:
            seen.setdefault(command, set()).update((long | {letters.get(letter, letter) for letter in short}) - {"help", "version", ""})
    if set(seen) != set(tool.commands):
        faults.append(f"{page}: the synopsis has the commands {sorted(seen)}, {tool.name} has {sorted(tool.commands)}")
    for command in seen.keys() & set(tool.commands):
        wanted = tool.options_of(command) - {"help", "version"}
        if seen[command] != wanted:
            faults.append(f"{page}: the synopsis of {command} has the options {sorted(seen[command])}, {tool.name} takes "
                          f"{sorted(wanted)}")


def check_tool(path):
    tool = table(path)
    page = os.path.join(SOURCE, "docs", tool.name + ".1")
    with open(page) as file:
        parts = sections(file.read())
    name = os.path.basename(page)
    check_synopsis(name, tool, parts["SYNOPSIS"])
    long, short = options_in(parts["DESCRIPTION"])
    letters = {letter for _, _, letter in tool.options.values() if letter is not None}
    # Those two have the same text everywhere.
    usual = set() if path.endswith(".c") else {"help", "version"}
    for kind, said, known in (("options", long - usual - {""}, set(tool.options) - usual), ("letters", short, letters - {"h"} if usual else letters)):
        if said != known:
            faults.append(f"{name}: the description has the {kind} {sorted(said)}, {tool.name} has {sorted(known)}")
    for option in sorted(set(tool.options) - {"help"} if path.endswith(".c") else ()):
        if not re.search(rf"--{option}\b", tool.usage) and tool.options[option][2] is None:
            faults.append(f"{tool.name}: the usage does not say --{option}")
    statuses = sorted(re.findall(r"^\.It (\d)$", parts["EXIT STATUS"], re.M))
    if statuses != ["0", "1", "2"] and not tool.others:
        faults.append(f"{name}: the exit statuses are {statuses}, expected 0, 1 and 2")


def complaints(command, text):
    done = subprocess.run(command, capture_output=True, text=True,
                          env=dict(os.environ, MANWIDTH="80", LC_ALL="C.UTF-8"))
    lines = (done.stderr if command[0] == "man" else done.stdout).splitlines()
    return [line for line in lines if not any(words in line for words in ACCEPTED)]


def check_form(page):
    with open(page) as file:
        text = file.read()
    name = os.path.basename(page)
    for tool, command in (("man", ["man", "--warnings", "-l", page]),
                          ("mandoc", ["mandoc", "-Tlint", "-Wwarning", page])):
        if shutil.which(tool) and (tool != "man" or shutil.which("troff")):
            faults.extend(f"{name}: {line}" for line in complaints(command, text))
    for referred, section in re.findall(r"\bXr (metashard[\w-]*) (\d)", text):
        if not os.path.exists(os.path.join(SOURCE, "docs", f"{referred}.{section}")):
            faults.append(f"{name}: there is no page {referred}({section})")


def main():
    pages = sorted(glob.glob(os.path.join(SOURCE, "docs", "*.[1-8]")))
    if not pages or len(sys.argv) < 2:
        sys.exit("no manual page, or no tool, to look at")
    for page in pages:
        check_form(page)
    for path in sys.argv[1:]:
        check_tool(path)
    print("\n".join(faults) or f"{len(pages)} manual pages are well formed, and those of {len(sys.argv) - 1} tools are "
          "as their tables say")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
