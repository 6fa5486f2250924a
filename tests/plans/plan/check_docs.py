#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_docs.py TOOL: what the manual pages, docs/plan-format.md and the schema list is what the program has. TAP."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, report  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def text_of(*path):
    with open(os.path.join(SOURCE, *path)) as file:
        return file.read()


PAGE, MANUAL, FORMAT = (text_of("docs", name) for name in ("plan-format.md", "metashard-plan.1", "metashard-plan.5"))
SCHEMA = json.loads(text_of("docs", "plan-schema.json"))


def same(what, seen, wanted):
    return [] if seen == wanted else [f"{what}: {seen}, expected {wanted}"]


def help_of(tool):
    """The usage, and what explains it."""
    text = subprocess.run([tool, "--help"], check=True, capture_output=True, text=True).stdout
    return text.split("\n\n", 1)


def usage_of(tool):
    """One string for each form of a command."""
    text = help_of(tool)[0]
    forms = re.sub(r"\s+", " ", text).replace("usage: ", "").split("metashard-plan ")
    return [form.strip() for form in forms if form]


def options_of(form):
    return set(re.findall(r"--?\w+", form.replace(" -h ", " ")))


def check_page(tool):
    block = re.search(r"```\n(metashard-plan make.*?)```", PAGE, re.DOTALL)[1]
    seen = [line.removeprefix("metashard-plan ") for line in block.splitlines()]
    return same("docs/plan-format.md", seen, [form for form in usage_of(tool) if not form.startswith("--help")])


def check_synopsis(tool):
    synopsis = MANUAL.split(".Sh SYNOPSIS")[1].split(".Sh ")[0]
    faults = []
    forms = [form for form in synopsis.split(".Nm\n") if form.strip()]
    usage = usage_of(tool)
    for form, wanted in zip(forms, usage):
        words = {name for name in re.findall(r"Fl (\S+)", form)}
        faults += same(f"metashard-plan.1, {wanted}", {"-" + word for word in words}, options_of(wanted))
        command = re.search(r"^\.Cm (\w+)", form, re.M)
        faults += same("metashard-plan.1", command[1] if command else "--help", wanted.split()[0])
    commands = [form.split()[0] for form in usage if not form.startswith("-")]
    sections = re.findall(r"^\.Ss (\w+)", MANUAL, re.M)
    return faults + same("forms", len(forms), len(usage)) + same("sections", sections, list(dict.fromkeys(commands)))


def check_described(tool):
    """Each option has a place in the manual where it is explained."""
    described = {"-" + name for name in re.findall(r"^\.It Fl (-\w+)", MANUAL, re.M)}
    wanted = set().union(*(options_of(form) for form in usage_of(tool))) - {"--help", "--version", "-o"}
    said = set(re.findall(r"^  (?:-\w, )?(--\w+)", help_of(tool)[1], re.M)) - {"--help", "--version"}
    return same("metashard-plan.1, options", described, wanted) + same("--help, options", said - {"--output"}, wanted)


def check_strategies(tool):
    wanted = re.search(r"--strategy (\S+)", usage_of(tool)[0])[1].split("|")
    part = MANUAL.split(".It Fl -strategy")[1].split(".El")[0]
    return same("metashard-plan.1, strategies", sorted(re.findall(r"^\.It Cm (\w+)", part, re.M)), sorted(wanted))


def check_dtypes(_):
    bits = {name: int(size) for name, size in re.findall(r"ROW\((\w+), (\d+)\)", text_of("runtime", "checkpoint", "tensor.h"))}
    entry = SCHEMA["$defs"]["entry"]["properties"]
    part = PAGE.split("**Dtypes**")[1].split("\n\n")[0]
    named = [word for word in " ".join(re.findall(r"`([^`]*)`", part)).split() if word.isupper()]
    return same("plan-schema.json", entry["dtype"]["enum"], list(bits)) + \
        same("docs/plan-format.md", sorted(named), sorted(bits))


def check_keys(_):
    faults = []
    for title, properties in (("The document", SCHEMA["properties"]),
                              ("Entries", SCHEMA["$defs"]["entry"]["properties"])):
        manual = FORMAT.split(f".Ss {title}")[1].split(".Ss ")[0]
        page = PAGE.split(f"## {title}")[1].split("\n## ")[0]
        in_manual = {key for line in re.findall(r"^\.It Cm (.*)", manual, re.M) for key in line.split(" , ")}
        in_page = {key for line in re.findall(r"^\| (`.*?) \|", page, re.M) for key in re.findall(r"`(\w+)`", line)}
        faults += same(f"metashard-plan.5, {title}", in_manual, set(properties))
        faults += same(f"plan-format.md, {title}", in_page, set(properties))
    return faults


def main():
    tests = [check_page, check_synopsis, check_described, check_strategies, check_dtypes, check_keys]
    for test in tests:
        report(test.__name__[6:], "\n".join(test(os.path.abspath(sys.argv[1]))))
    return end()


if __name__ == "__main__":
    sys.exit(main())
