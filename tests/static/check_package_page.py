#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_package_page.py: PyPI shows README.md, where no link into the sources and no diagram in Mermaid works. TAP."""
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(SOURCE, "tests", "harness"), os.path.join(SOURCE, "tools", "python")]
import package_page  # noqa: E402
from tap import check, end, equal  # noqa: E402
from text import read  # noqa: E402

HEAD = "Name: metashard\nProject-URL: Changelog, https://there.example/source/CHANGELOG.md\n\n"
PLACE = "https://there.example/source/"
MOST_WORDS = 1500


def main():
    readme = read(SOURCE, "README.md")
    equal("a link, a picture, an address and a place on the page", package_page.with_addresses(
        HEAD + "[a](docs/a.md#b) ![c](d.svg) [e](https://f.example) [g](#h)"),
        HEAD + f"[a]({PLACE}docs/a.md#b) ![c]({PLACE}d.svg?raw=true) [e](https://f.example) [g](#h)")
    text = package_page.with_addresses(HEAD + readme)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    check("each link of the README is an address", len(links) > 10 and all(re.match("https://|#", link) for link in links), links)
    places = [re.sub(r"[?#].*", "", link.removeprefix(PLACE)) for link in links if link.startswith(PLACE)]
    missing = [place for place in places if not os.path.exists(os.path.join(SOURCE, place))]
    check("each is of a file that is there", len(places) > 10 and not missing, missing)
    check("its diagrams are pictures", "```mermaid" not in readme and "![" in readme)
    check(f"the README has at most {MOST_WORDS} words", len(readme.split()) <= MOST_WORDS, len(readme.split()))
    return end()


if __name__ == "__main__":
    sys.exit(main())
