#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embed_page.py STYLE SCRIPT: both as C strings, for html.c, with what the page's security policy calls
the script."""
import base64
import hashlib
import sys

ESCAPES = {"\\": "\\\\", '"': '\\"', "?": "\\?", "\n": "\\n"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def define(name, text):
    print(f"extern const char {name}[];\nconst char {name}[] =")
    for line in text.splitlines(keepends=True) or [""]:
        print('    "' + "".join(ESCAPES.get(letter, letter) for letter in line) + '"')
    print("    ;")


def main():
    style, script = read(sys.argv[1]), read(sys.argv[2])
    for path, text in zip(sys.argv[1:], (style, script)):
        if "</" in text or "<!--" in text:
            sys.exit(f"{path}: would end its element")
    print("/* Made from page.css and page.js. */")
    define("dump_page_style", style)
    define("dump_page_script", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    define("dump_page_script_hash", "sha256-" + digest)


if __name__ == "__main__":
    main()
