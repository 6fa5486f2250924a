#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_documents.py: what README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md, tests/README.md, docs/*.md, docs/design/*.md and docs/systems/*.md quote is there: links
and their headings, messages, variables."""
import glob
import os
import re
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A call of ms_log: its level, or one of two, and its format, of which the parts are strings and macros of <inttypes.h>.
CALL = re.compile(r'ms_log\(\s*(?:[^;"]*\? MS_(\w+) : )?MS_(\w+),\s*((?:"(?:[^"\\]|\\.)*"\s*|PRI\w+\s*)+)', re.S)
CONVERSION = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?[a-zA-Z]")
VARIABLE = re.compile(r"\bMETASHARD_[A-Z_]*[A-Z]\b")
faults = []


def read(path):
    with open(path) as file:
        return file.read()


def sources(*folders):
    for folder in folders:
        for kind in ("*.c", "*.h"):
            yield from glob.glob(os.path.join(SOURCE, folder, "**", kind), recursive=True)


def without_code(text):
    return re.sub(r"^[ \t]*```.*?^[ \t]*```", "", text, flags=re.M | re.S)


def anchors(path):
    """The names that GitHub gives to headings."""
    names = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(read(path)), re.M):
        text = LINK.sub(lambda link: link[0][1:link[0].index("]")], heading).lower()
        names.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return names


def check_links(page, text):
    count = 0
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", without_code(text))):
        if re.match(r"[a-z]+:", link):
            continue
        count += 1
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(target):
            faults.append(f"{os.path.relpath(page, SOURCE)}: no such file: {link}")
        elif anchor and anchor not in anchors(target):
            faults.append(f"{os.path.relpath(page, SOURCE)}: no such heading: {link}")
    return count


def check_tables(page, text):
    """A blank line within a table makes text of the rest of it."""
    lines = without_code(text).splitlines()
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""]):
        if line.startswith("|") and not before.startswith("|") and not re.fullmatch(r"\|[ :|-]+\|", after.strip()):
            faults.append(f"{os.path.relpath(page, SOURCE)}: a row without a table's head: {line[:60]}")


def messages():
    """Level and pattern of each message that is in the sources. A format may stand in a macro, with its backslashes."""
    found = []
    for path in sources("shim", "runtime"):
        for other, level, parts in CALL.findall(read(path).replace("\\\n", "\n")):
            text = "".join("u" if macro else string
                           for string, macro in re.findall(r'"((?:[^"\\]|\\.)*)"|(PRI\w+)', parts))
            pieces = CONVERSION.split(text)
            pattern = re.compile(".*".join(re.escape(piece) for piece in pieces), re.S)
            found += [(level.lower(), pattern), (other.lower(), pattern)]
    return found


def check_messages(page, text, known):
    count = 0
    for level, message in re.findall(r"^\s*metashard\[(?:rank \d+ )?pid \d+\] (error|warn|info|debug|trace): (.*)$", text, re.M):
        count += 1
        if not any(level == known_level and pattern.fullmatch(message) for known_level, pattern in known):
            faults.append(f"{os.path.relpath(page, SOURCE)}: no message of the sources, at level {level}: {message}")
    return count


def check_variables(page, text, known):
    for name in sorted(set(VARIABLE.findall(text)) - known):
        faults.append(f"{os.path.relpath(page, SOURCE)}: no variable in runtime/config/options.def: {name}")


# The contract, wherever it stands, and the table of its exceptions.
CONTRACT = re.compile(r"(?:every|no)\s+byte\s+(?:that\s+)?(?:a|the)\s+program\s+can\s+observe|ever\s+silently\s+different", re.I)
EXCEPTIONS = "Where it can be silently different"
ANCHOR = "#where-it-can-be-silently-different"
SHOWN_BY = re.compile(r"\[[^\]]*\]\((\S+)\): `([^`]+)`")


def check_contract(page, text):
    """Whoever promises that nothing is different names the table of exceptions."""
    where = os.path.relpath(page, SOURCE)
    if CONTRACT.search(text) and ANCHOR not in text and EXCEPTIONS not in text:
        faults.append(f"{where}: promises what the program can observe, and does not name '{EXCEPTIONS}' of docs/limits.md")
    return CONTRACT.search(text) is not None


def check_exceptions():
    """Silent differences stand in that table of docs/limits.md alone; each row names a test that is there."""
    page = os.path.join(SOURCE, "docs", "limits.md")
    head, table, rest = re.fullmatch(rf"(.*?\n)(## {EXCEPTIONS}\n.*?)(\n## .*)", read(page), re.S).groups()
    for line in (head + rest).replace(ANCHOR, "").splitlines():
        if "silent" in line.lower():
            faults.append(f"docs/limits.md: silent, and not in the table: {line}")
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        shown = SHOWN_BY.search(row.split(" | ")[-1])
        path = os.path.normpath(os.path.join(os.path.dirname(page), shown[1])) if shown else ""
        if not os.path.isfile(path) or shown[2] not in read(path):
            faults.append(f"docs/limits.md: a row of the table names no test that is there: {row[:60]}...")
    return len(rows)


# The users' pages: all that the README names under "To use it". Output and commands do not count.
USERS = ("README.md", *(f"docs/{page}.md" for page in ("dry-run", "environment", "faq", "launchers", "limits", "plan-format", "suspend",
                                                         "troubleshooting", "tutorial")))
MOST_WORDS = 22000


def count_words():
    pages = [*(os.path.join(SOURCE, page) for page in USERS), *glob.glob(os.path.join(SOURCE, "docs", "systems", "*.md"))]
    words = sum(len(without_code(read(page)).split()) for page in pages)
    if words > MOST_WORDS:
        faults.append(f"the users' pages have {words} words, at most {MOST_WORDS} wanted: say nothing twice")
    return words


# Where the command that administrators type puts the library and the rest.
PLACED = re.compile(r"--prefix=(/opt/metashard) --libdir=(\w+)")
PLACE = re.compile(r"/opt/metashard(/[\w./]*\w)?")
# A folder of a version, and the whole of it, as it is mounted.
WHOLE = ("", "/VERSION", "/.")


def check_places():
    """Files that are installed to be copied, and all pages, have the paths that the command of administrators.md gives."""
    prefix, libdir = PLACED.search(read(os.path.join(SOURCE, "docs", "administrators.md"))).groups()
    known = {f"{prefix}/{libdir}/libmetashard.so", f"{prefix}/bin", f"{prefix}/share/man"}
    snippets = [path for path in glob.glob(os.path.join(SOURCE, "tools", "packaging", "**"), recursive=True) if os.path.isfile(path)]
    pages = [*(os.path.join(SOURCE, page) for page in USERS), os.path.join(SOURCE, "docs", "administrators.md"),
             *glob.glob(os.path.join(SOURCE, "docs", "systems", "*.md")), *glob.glob(os.path.join(SOURCE, "docs", "*.[1-8]"))]
    count = 0
    for path in snippets + pages:
        for found in PLACE.finditer(read(path)):
            count += 1
            if (found[1] or "") not in WHOLE and found[0] not in known:
                faults.append(f"{os.path.relpath(path, SOURCE)}: expected one of {sorted(known)}, found {found[0]}")
    # The module file joins them.
    joined = set(re.findall(r'pathJoin\(root, "([^"]*)"\)', read(os.path.join(SOURCE, "tools", "packaging", "metashard.lua"))))
    if joined != {"bin", "share/man", f"{libdir}/pkgconfig", f"{libdir}/libmetashard.so"}:
        faults.append(f"tools/packaging/metashard.lua: other folders than administrators.md installs into: {sorted(joined)}")
    return count


# Words of those who write MetaShard, in pages for users.
OWN_WORDS = re.compile(r"\b(?:settl\w+|parked|steps? aside|if nothing is said|"
                       r"(?:comes?|came|brought|brings?) (?:it |them )?into memory)\b", re.I)
SHOWN = re.compile(r"^\.Bd -literal.*?^\.Ed$", re.M | re.S)  # output, in a manual page


def check_words(page, text):
    sentences = re.sub(r"\]\([^)]*\)|`[^`]*`", "", SHOWN.sub("", without_code(text)))
    for found in OWN_WORDS.findall(" ".join(sentences.split())):
        faults.append(f"{os.path.relpath(page, SOURCE)}: a reader has another word for: {found}")


GROUPS = ["Added", "Changed", "Fixed", "Removed"]
LONGEST_CHANGE = 160
# Words of those who write MetaShard; a reader has others.
PRIVATE = re.compile(r"\b(?:granules?|settl\w+|seal\w*|parked|shim|a line|comes? into memory|materiali[sz]ed?)\b", re.I)


def check_changelog(text):
    """Each version has groups, and each change is one line, a sentence in the reader's words."""
    count = 0
    for heading, version in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.M):
        groups = re.findall(r"^### (.*)$", version, re.M)
        if not groups or groups != [group for group in GROUPS if group in groups]:
            faults.append(f"CHANGELOG.md: {heading}: expected groups out of {GROUPS}, in this order, found {groups}")
        for line in version.partition("\n### ")[2].splitlines()[1:]:
            if line == "" or line.startswith("### "):
                continue
            count += 1
            if not line.startswith("- ") or not line.endswith(".") or len(line) > LONGEST_CHANGE:
                faults.append(f"CHANGELOG.md: {heading}: expected a sentence of one line, at most {LONGEST_CHANGE} characters: {line}")
            for found in PRIVATE.findall(re.sub(r"`[^`]*`", "", line)):
                faults.append(f"CHANGELOG.md: {heading}: {found!r} is no word of a reader: {line}")
    return count


def main():
    words, places = count_words(), check_places()
    changes = check_changelog(read(os.path.join(SOURCE, "CHANGELOG.md")))
    table = read(os.path.join(SOURCE, "runtime", "config", "options.def"))
    variables = set(re.findall(r"^MS_OPTION\(\w+, \w+, (METASHARD\w*),", table, re.M))
    known = messages()
    documents = [*(os.path.join(SOURCE, page) for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "tests/README.md")),
                 *sorted(glob.glob(os.path.join(SOURCE, "docs", "*.md"))),
                 *sorted(glob.glob(os.path.join(SOURCE, "docs", "design", "*.md"))),
                 *sorted(glob.glob(os.path.join(SOURCE, "docs", "systems", "*.md")))]
    manuals = sorted(glob.glob(os.path.join(SOURCE, "docs", "*.[1-8]")))
    links = quoted = promises = 0
    for page in [*(os.path.join(SOURCE, page) for page in USERS), *glob.glob(os.path.join(SOURCE, "docs", "systems", "*.md")), *manuals]:
        check_words(page, read(page))
    for page in documents + manuals:
        promises += check_contract(page, read(page))
    rows = check_exceptions()
    for page in documents:
        text = read(page)
        check_tables(page, text)
        links += check_links(page, text)
        quoted += check_messages(page, text, known)
    for page in documents + manuals:
        # A message about a name that is no variable does not claim that there is such a variable.
        check_variables(page, re.sub(r"^.* is not a variable of MetaShard.*$", "", read(page), flags=re.M),
                        variables)
    if links == 0 or quoted == 0 or words == 0 or places < 10 or not known or not variables or promises < 4 or rows == 0 or changes == 0:
        faults.append(f"looked at {promises} promises, {rows} exceptions, {changes} changes, {links} links, {quoted} messages of {len(known)}, {len(variables)} variables")
    print("\n".join(faults) or f"{links} links, {quoted} messages and the variables of {len(documents)} documents and "
          f"{len(manuals)} manual pages are there; {words} words for users, {places} paths of an installation, {changes} changes")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
