# SPDX-License-Identifier: Apache-2.0
"""The head of a page of docs/results: what made it, of which version and when, on which machine, at which settings.

    # Title

    | made by | `command`, or several |
    | --- | --- |
    | version | 0.2.0, commit 1a2b3c4d, 2026-11-27 |
    | machine | 2 cores, 24 GiB of memory, no GPU, gcc 12.2.0, Python 3.11.7, PyTorch 2.15.0 |
    | settings | every variable has its default |

A program that writes a page begins it with head(); one that changes a table of a page gives it a new head with replace().
tests/static/check_results.py reads all of them, tests/setup/result_pages says which are old.
"""
import datetime
import os
import platform
import re
import subprocess

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = os.path.join(SOURCE, "docs", "results")
TABLE = os.path.join(SOURCE, "tests", "setup", "result_pages.txt")
DEFAULTS = "every variable has its default"
ROWS = ("made by", "version", "machine", "settings")
HEAD = re.compile(r"^# (?P<title>.+)\n\n\| made by \| (?P<made_by>.+) \|\n\| --- \| --- \|\n\| version \| (?P<version>.+) \|\n"
                  r"\| machine \| (?P<machine>.+) \|\n\| settings \| (?P<settings>.+) \|\n\n")
VERSION = re.compile(r"^\d+\.\d+\.\d+, commit (?P<commit>[0-9a-f]{8,40})\+?, (?P<date>\d{4}-\d\d-\d\d)(?P<rest>; .+)?$")


def output_of(*command):
    try:
        return subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def version(note=""):
    """The version of the sources as they are now; with a + where they differ from the commit."""
    with open(os.path.join(SOURCE, "meson.build"), encoding="utf-8") as file:
        number = re.search(r"version: '([\d.]+)'", file.read())[1]
    changed = output_of("git", "status", "--porcelain", "--", "shim", "runtime", "tools", "tests")
    commit = output_of("git", "rev-parse", "--short=8", "HEAD") or "0" * 8
    return f"{number}, commit {commit}{'+' if changed else ''}, {datetime.date.today().isoformat()}" + (f"; {note}" if note else "")


def machine(python=None, more=()):
    """A description of this machine, which nobody has to itself; with a Python, its PyTorch. more: other packages, "name 1.2"."""
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = round(int(file.readline().split()[1]) / (1 << 20))
    torch = output_of(python, "-c", "import torch; print(torch.__version__)") if python else ""
    words = [f"{os.cpu_count()} cores that other work shares", f"{memory} GiB of memory", "no GPU",
             "gcc " + (output_of("gcc", "-dumpfullversion") or "none"), f"Python {platform.python_version()}",
             f"PyTorch {torch}" if torch else "", *more]
    return ", ".join(word for word in words if word)


def settings_of(environment, granules="2 MiB"):
    """The preload's variables that a run sets, as a page says them."""
    said = ", ".join(f"{name}={value}" for name, value in sorted(environment.items())) or DEFAULTS
    why = ", so that peaks do not depend on how fast this machine is" if "METASHARD_IDLE_MS" in environment else ""
    return f"{said}{why}; granules of {granules}"


def table(title, made_by, version_, machine_, settings):
    """made_by: a command, or several."""
    commands = [made_by] if isinstance(made_by, str) else made_by
    rows = [f"| {name} | {value} |" for name, value in zip(ROWS, (", ".join(f"`{command}`" for command in commands), version_,
                                                                  machine_, settings))]
    return "\n".join([f"# {title}", "", rows[0], "| --- | --- |", *rows[1:]]) + "\n\n"


def head(title, made_by, settings=DEFAULTS, python=None, more=(), note=""):
    """note: what the version says besides."""
    return table(title, made_by, version(note), machine(python, more), settings)


def read(text):
    """{title, made_by, version, machine, settings} of a page, or None."""
    found = HEAD.match(text)
    return found and found.groupdict()


def read_table():
    """How pages are made again: {page: [minutes, needs, [command]]}"""
    pages, last = {}, None
    with open(TABLE, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("+ "):
                pages[last][2].append(line[2:].strip())
            elif line.startswith("  "):
                pages[last][2][-1] += " " + line.strip()
            elif line.strip() and not line.startswith("#"):
                cells = [cell.strip() for cell in line.split("|", 3)]
                if len(cells) != 4:
                    raise SystemExit(f"{TABLE}:{number}: expected \"page | minutes | needs | command\"")
                last = cells[0]
                pages[last] = [int(cells[1]), cells[2], [cells[3]]]
    return pages


def replace(text, *arguments, **options):
    """The page with another head; what follows the head stays."""
    found = HEAD.match(text)
    return head(found["title"], *arguments, **options) + text[found.end():]


def renew(text):
    """The page with the version, the day and the machine of now in its head."""
    found = HEAD.match(text)
    return (text[:found.start("version")] + version() + text[found.end("version"):found.start("machine")] + machine() +
            text[found.end("machine"):])


def add_row(page, section, row):
    """Adds the row to a page of runs, as the last one of the table behind the line `section`."""
    path = os.path.join(PAGES, page)
    with open(path, encoding="utf-8") as file:
        before, line, after = file.read().partition(section + "\n")
    table = re.match(r"(?:(?!\|).*\n)*(?:\|.*\n)+", after)
    if not line or table is None:
        raise SystemExit(f"{path}: expected a table behind \"{section}\"")
    with open(path, "w", encoding="utf-8") as file:
        file.write(renew(before) + line + table[0] + "| " + " | ".join(map(str, row)) + " |\n" + after[table.end():])
