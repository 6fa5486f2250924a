# SPDX-License-Identifier: Apache-2.0
"""The claims of README.md and docs/faq.md, and tests/install/claims.txt, which says of each what shows it."""
import os
import re

from text import read

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = ("README.md", os.path.join("docs", "faq.md"))
MADE = re.compile(r"<!-- Made by tests/static/readme_figures.py --write: ([\w ]+) -->\n.*?<!-- until here -->", re.S)
OUTPUT = re.compile(r"^```\n\$ .*?^```$", re.M | re.S)
RULE = re.compile(r"[|:\s-]+")


def parts():
    """Paragraphs, rows and items of the pages, each in one line; without output of programs."""
    for page in PAGES:
        text = MADE.sub(lambda found: f"@figures {found[1]}@", read(SOURCE, page))
        for paragraph in re.split(r"\n\s*\n", OUTPUT.sub("", text).partition("## Reading on")[0]):
            rows = re.split(r"\n(?=\||- )", paragraph) if paragraph.startswith(("|", "- ")) else [paragraph]
            yield from (" ".join(row.split()) for row in rows if row.strip() and not RULE.fullmatch(row))


def sentences(part):
    return [part] if part.startswith("|") else re.split(r"(?<=[.:;?])\s+(?=[A-Z*`\[])", part)


def claims():
    """(what a page says, how it is shown, by what)"""
    for line in read(SOURCE, "tests", "install", "claims.txt").splitlines():
        if " || " in line:
            text, _, shown = line.rpartition(" || ")
            kind, _, by = shown.partition(" ")
            yield " ".join(text.split()), kind, by
