#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""environment_page.py [--write]: docs/environment.md, made from runtime/config/options.def.

Without --write it compares, and fails when the committed page is stale.
"""
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(SOURCE, "docs", "environment.md")
OPTION = re.compile(r'^MS_OPTION\((\w+), (\w+), (\w+), "(.*?)", "(.*?)",\s*((?:"[^"]*"\s*)+)\)',
                    re.M)
HEAD = """# Environment variables

Made from `runtime/config/options.def`, the one table that the parser reads too
(`tests/static/environment_page.py --write`).

The environment is read once, at the program's first successful `cuInit`. A value that is not
understood costs one warning and the default is used; an unknown `METASHARD_` name costs one
warning. Programs with raised privileges (setuid) get the defaults.

| variable | value | default | meaning |
|---|---|---|---|
"""


def page():
    with open(os.path.join(SOURCE, "runtime", "config", "options.def")) as file:
        text = file.read()
    options = OPTION.findall(text)
    if len(options) != text.count("\nMS_OPTION("):
        sys.exit("runtime/config/options.def: a row has another shape than MS_OPTION(type, field, "
                 "variable, \"default\", \"unit\", \"description\")")
    lines = []
    for _, _, variable, default, unit, description in options:
        meaning = "".join(re.findall(r'"([^"]*)"', description))
        unit = unit.replace("|", "\\|")
        lines.append(f"| `{variable}` | {unit} | {f'`{default}`' if default else 'none'} "
                     f"| {meaning} |\n")
    return HEAD + "".join(lines)


def main():
    if "--write" in sys.argv:
        with open(PAGE, "w") as file:
            file.write(page())
        return 0
    with open(PAGE) as file:
        fresh = file.read() == page()
    print("docs/environment.md is " + ("as the table says" if fresh else
          "stale: run tests/static/environment_page.py --write"))
    return not fresh


if __name__ == "__main__":
    sys.exit(main())
