#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""installed_page.py PAGE INSTALLED...: a page of docs/ as it is installed, INSTALLED being paths below docs/. Links to what is not
installed become words that say where it is."""
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

MANUAL = re.compile(r"[\w-]+\.\d")


def replace(link, folder, installed):
    text, target = link.groups()
    path = target.partition("#")[0]
    if path == "" or "://" in path:
        return link[0]
    place = os.path.normpath(os.path.join(folder, path))
    if os.path.relpath(place, "docs") in installed:
        return link[0]
    if MANUAL.fullmatch(path):
        return text
    return f"{text} (`{place}` in the sources)"


def main():
    page, *installed = sys.argv[1:]
    with open(page, encoding="utf-8") as file:
        text = file.read()
    folder = os.path.relpath(os.path.dirname(os.path.abspath(page)), SOURCE)
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", lambda link: replace(link, folder, installed), text))


if __name__ == "__main__":
    main()
