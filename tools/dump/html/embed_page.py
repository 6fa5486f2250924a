#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embed_page.py PAGE STYLE SCRIPT...: the page as two C strings, for html.c: what is before its data, and what is behind."""
import base64
import hashlib
import sys

ESCAPES = {"\\": "\\\\", '"': '\\"', "?": "\\?", "\n": "\\n"}


def read(path, enders):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for ender in enders:
        if ender in text.lower():
            sys.exit(f"{path}: {ender} would end its element")
    return text


def define(name, text):
    print(f"extern const char {name}[];\nconst char {name}[] =")
    for line in text.splitlines(keepends=True):
        print('    "' + "".join(ESCAPES.get(letter, letter) for letter in line) + '"')
    print("    ;")


def main():
    page, style = read(sys.argv[1], []), read(sys.argv[2], ["</style"])
    script = "".join(read(path, ["</script", "<script", "<!--"]) for path in sys.argv[3:])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    before, behind = page.replace("@STYLE@", style).replace("@HASH@", "sha256-" + digest).split("@DATA@")
    print("/* Made from tools/dump/html. */")
    define("dump_page_begin", before)
    define("dump_page_end", behind.replace("@SCRIPT@", script))


if __name__ == "__main__":
    main()
