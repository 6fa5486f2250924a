#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_width.py BUILD [--write | --list FIGURE]: how wide the doors between the runtime's files are.

MEANINGS says what is counted, and width.txt how much there is. The figures may only shrink: more is a fault, and so is a row
that says more than there is. --write sets the rows to what is found, --list prints what is counted.
"""
import collections
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_structure  # noqa: E402

LIMITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "width.txt")
MEANINGS = {
    "crossing": "functions of the runtime that another file of runtime or shim uses",
    "one_user": "those of them that one file uses",
    "rooms": "those that another folder uses",
    "strangers": "those that do not bear the name of their file",
    "memory": "those of memory/ that another folder uses: the door to what an allocation is",
    "concerns": "calls of what CONCERNS has, outside of the file that defines it",
    "by_hand": "places that set or clear a field of an extent's state, or a mark, by hand",
    "together": "functions that name two of these fields",
    "marks": "places that name a mark outside of memory/ and of the files that own it",
}
# Calls that whoever writes an entry point or a kind of call has to remember.
CONCERNS = {
    "strays": r"ms_pointer_strays|ms_space_strays",
    "gate": r"ms_order_add_gate\w*",
    "payload": r"ms_payload_\w+",
    "may record": r"ms_order_\w*record\w*|ms_order_may_record\w*",
    "claim": r"ms_space_(?:try_)?claim\w*|ms_space_release|ms_space_claim_same|ms_claims_begin",
    "use": r"ms_carve_add_use",
    "placement": r"ms_placement_query",
    "retry": r"ms_evict_try_again|ms_evict_try_bytes_again",
    "hold": r"ms_evict_hold|ms_evict_let_go",
    "why": r"ms_why_begin|ms_why_end",
    "shadow": r"ms_shadow_(?!address\b)\w+",
    "window": r"ms_window_\w+",
    "publish": r"ms_publish_\w+",
    "capture": r"ms_is_capturing|ms_stream_is_capturing",
    "recurring": r"is_recurring",
    "is anything deferred": r"ms_defers_any",
}
# The state of an extent, and the marks of the rooms, with the files outside of memory/ that may name each (runtime/memory/lineage.h).
# States of several fields (MS_REMOTE_COPY) are not fields, nor are questions (MS_IN_SEQUENCE): ms_lineage_any answers for them.
MARKS = {"is_shadowed": ("runtime/fill/shadow.c", "runtime/fill/compare.c"), "is_in_sequence": ()}
MAY_BE_NONE = {"strangers", "marks"}
FIELDS = "locality|cached|is_remote_copy|" + "|".join(MARKS)
NAMES = re.compile(r"(?:->|\.)(%s)\b" % FIELDS)
SETS = re.compile(r"\w(?:->|\.)(?:%s)\s*[&|]?=(?!=)" % FIELDS)
FUNCTION = re.compile(r"^[A-Za-z][^\n;{}]*?\b(\w+)\([^;{}]*\)\s*\n\{\n(.*?)^\}", re.M | re.S)
IMPLEMENTATIONS = {"heap_jemalloc", "heap_libc"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def is_ours(path):
    return path.startswith(("runtime/", "shim/"))


def users_of(references, sources):
    """{(function, its file): files that use it}"""
    users = collections.defaultdict(set)
    for (begin, end), names in references.items():
        if end.startswith("runtime/") and is_ours(begin):
            for name in names:
                users[name, end].add(begin)
    return users


def bears_name(name, path):
    """The prefix is the file, in singular or plural; of one implementation of several, its first word."""
    stem = os.path.basename(path)[:-2]
    stem = stem.split("_")[0] if stem in IMPLEMENTATIONS else stem
    return name.startswith((f"ms_{stem}", f"ms_{stem.removesuffix('s')}_", f"ms_{stem.removesuffix('es')}_"))


def list_texts():
    """{path: its text without comments}"""
    return {path: COMMENT.sub("", text) for path, text in check_structure.list_files().items() if is_ours(path)}


def find(build):
    """{figure: what is counted}"""
    references, sources = check_structure.read_references(build)
    texts = list_texts()
    owner = {name: path for path, text in texts.items() if path.endswith(".c")
             for name in re.findall(r"^[A-Za-z][\w \*]*?\b(\w+)\([^;]*?\)\s*\n\{", text, re.M)}
    users = {key: files for key, files in users_of(references, sources).items() if key[0] in owner}
    concern = re.compile(r"\b(?:%s)\b" % "|".join(CONCERNS.values()))
    found = {
        "crossing": [f"{path}: {name}" for name, path in sorted(users)],
        "one_user": [f"{path}: {name}, of {min(files)}" for (name, path), files in sorted(users.items()) if len(files) == 1],
        "rooms": [f"{path}: {name}" for (name, path), files in sorted(users.items())
                  if {os.path.dirname(file) for file in files} != {os.path.dirname(path)}],
        "strangers": [f"{path}: {name}" for name, path in sorted(users) if not bears_name(name, path)],
        "concerns": [],
    }
    found.update(find_fields(texts))
    found["memory"] = [row for row in found["rooms"] if row.startswith("runtime/memory/")]
    for path, text in sorted(texts.items()):
        if not path.endswith(".c"):
            continue
        found["concerns"] += [f"{path}: {match[0]}" for match in concern.finditer(text) if owner.get(match[0]) != path]
    return found


def find_fields(texts):
    """What the figures by_hand, together and marks count, in the folders that know what an extent is."""
    found = {"by_hand": [], "together": [], "marks": []}
    floors = check_structure.FLOOR
    for path, text in sorted(texts.items()):
        if floors[os.path.dirname(path)] > floors["runtime/memory"]:
            continue
        found["by_hand"] += [f"{path}: {match[0]}" for match in SETS.finditer(text)]
        found["together"] += [f"{path}: {name}" for name, body in FUNCTION.findall(text) if len(set(NAMES.findall(body))) > 1]
        found["marks"] += [f"{path}: {match[1]}" for match in NAMES.finditer(text)
                           if path not in MARKS.get(match[1], texts) and not path.startswith("runtime/memory/")]
    return found


def check_marks(texts):
    """Each mark is a field of an extent, and its files do name it: else nothing would be counted."""
    return [f"{path} does not name the mark {mark}" for mark, files in MARKS.items() for path in ("runtime/memory/lineage.h", *files)
            if mark not in NAMES.findall(texts.get(path, ""))]


def read_limits():
    with open(LIMITS, encoding="utf-8") as file:
        rows = [line.split(None, 2) for line in file if line.strip() and not line.startswith("#")]
    return {row[0]: int(row[1]) for row in rows}


def write_limits(found):
    with open(LIMITS, "w", encoding="utf-8") as file:
        print("# How wide the doors between the runtime's files are. Made by tests/static/check_width.py --write.", file=file)
        for name, meaning in MEANINGS.items():
            print(f"{name:<10} {len(found[name]):>4}  {meaning}", file=file)


def main():
    build, options = sys.argv[1], sys.argv[2:]
    found = find(build)
    if options[:1] == ["--list"]:
        print("\n".join(found[options[1]]))
        return 0
    if options[:1] == ["--write"]:
        write_limits(found)
        return 0
    limits, faults = read_limits(), check_marks(list_texts())
    for name in MEANINGS:
        count, limit = len(found[name]), limits.get(name, 0)
        if count > limit:
            faults.append(f"{name}: {count} {MEANINGS[name]}; width.txt has {limit}, and it may only shrink (--list {name})")
        elif count < limit:
            faults.append(f"{name}: {count}, and width.txt has {limit}: --write takes the smaller one")
        if count == 0 and name not in MAY_BE_NONE:
            faults.append(f"{name}: nothing is counted, that cannot be right")
    print("\n".join(faults) or ", ".join(f"{len(found[name])} {name}" for name in MEANINGS))
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
