#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_entries.py CUDA_H [STUB]: the entry table against the installed CUDA, both ways.

Every function that cuda.h declares, and every symbol that the toolkit's stub of libcuda exports
where it is given, must have a row in shim/entries.def, and every row must stand for one of them: a
new CUDA cannot slip by. The committed lists of CUDA 13.0's exports, of what a driver exports
besides, and of what cuda.h of 13.1 to 13.5 added, must be covered exactly. No row is newer than the table says it is. The spare thunks are enough
for all that libraries look up, even if a driver were so new that the table knew none of it. And every
row must give a reason that says something: that a call is passed on is a claim, not a default.
"""
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(SOURCE, "shim", "entries.def")
CHAPTER = r"/\* (?P<chapter>.+) \*/$"
REASON = r'#define (?P<name>MS_WHY_\w+)\s+(?:\\\n\s*)?"(?P<text>[^"\n]*)"$'
ROW = (r"MS_ENTRY\((?P<class_>OWN|OBSERVE|SEAL|FORWARD), (?P<symbol>\w+), (?P<base>\w+), "
       r"(?P<version>\d+), (?P<per_thread>[01])(?:,\s+(?P<reason>\w+|\"[^\"\n]*\"))?\)$")
TWINS = re.compile(r'^MS_ENTRY_TWINS\((\w+), (\w+), (\w+), (\d+), (\w+), (\d+),\s+(\w+|"[^"\n]*")\)$', re.M)
SHORTEST_REASON = 20
DATA = os.path.join(SOURCE, "tools", "simcuda", "data")
# Names that libcudart 13.5.37, cuda-bindings 13.5.0 and NCCL 2.32.3 look up: those in their files (strings).
LOOKED_UP = ("libcudart-13.5-names.txt", "cuda-bindings-13.5-names.txt", "nccl-2.32.3-names.txt")


class Row:
    """One row, with its chapter; the reason is spelled out, and "" where there is none."""

    def __init__(self, match, chapter, reasons):
        self.chapter = chapter
        self.class_, self.symbol, self.base = match["class_"], match["symbol"], match["base"]
        self.version, self.per_thread = match["version"], match["per_thread"]
        reason = match["reason"] or ""
        if not reason.startswith('"') and reason != "" and reason not in reasons:
            sys.exit(f"shim/entries.def: {self.symbol}: {reason} is not defined")
        self.reason = reasons.get(reason, reason.strip('"'))


def read_rows(text=None):
    if text is None:
        with open(TABLE) as file:
            text = file.read()
    text = re.sub(r"^#define MS_ENTRY_(?:TWINS|PLAIN)(?:.*\\\n)+.*\n", "", text, flags=re.M)
    text = re.sub(r"^MS_ENTRY_PLAIN\((\w+), (\w+), (\d+),", r"MS_ENTRY(\1, \2, \2, \3, 0,", text, flags=re.M)
    text = re.sub(r"^MS_ENTRY_PLAIN_TWINS\((\w+), (\w+),", r"MS_ENTRY_TWINS(\1, \2, \2,", text, flags=re.M)
    text = TWINS.sub(r"MS_ENTRY(\1, \2, \3, \4, 0, \7)\nMS_ENTRY(\1, \2\5, \3, \6, 1, \7)", text)
    rows, reasons, chapter = [], {}, ""
    for match in re.finditer(f"^(?:{CHAPTER}|{REASON}|{ROW})", text, re.M):
        if match["chapter"] is not None:
            chapter = match["chapter"]
        elif match["name"] is not None:
            reasons[match["name"]] = match["text"]
        else:
            rows.append(Row(match, chapter, reasons))
    if len(rows) != len(re.findall(r"^\s*MS_ENTRY", text, re.M)):
        understood = {row.symbol for row in rows}
        lost = [line for line in re.findall(r"^\s*MS_ENTRY.*", text, re.M)
                if not understood & set(re.findall(r"\w+", line)[2:3])]
        sys.exit("shim/entries.def: expected MS_ENTRY(class, symbol, base, version, per_thread, "
                 f"reason), got {lost}")
    return rows


def declared(header):
    text = subprocess.run(["cc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c", header],
                          check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text))


def exported(library):
    text = subprocess.run(["nm", "-D", "--defined-only", library], check=True,
                          capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines()
            if line.split()[-1].startswith("cu")}


def simulated():
    """The rows of the simulated driver, which has the same functions."""
    with open(os.path.join(SOURCE, "tools", "simcuda", "driver", "functions.def")) as file:
        return re.findall(r"^SIM_FUNCTION\((\w+), (\w+), (\d+), ([01])\)$", file.read(), re.M)


def read_names(file):
    with open(os.path.join(DATA, file)) as names:
        return set(names.read().split())


def constant(file, pattern):
    with open(os.path.join(SOURCE, "shim", file)) as source:
        return int(re.search(pattern, source.read(), re.M)[1])


def check_spare_thunks(rows):
    """Each name, and its per-thread twin where it has one, may need a thunk."""
    names = set().union(*map(read_names, LOOKED_UP))
    needed = len(names) + sum(row.per_thread == "1" and row.base in names for row in rows)
    count = constant("entries.h", r"MS_SPARE_COUNT = (\d+)")
    print(f"{len(names)} names are looked up, {needed} functions, {count} spare thunks; the table does not know "
          f"{len(names - {row.base for row in rows} - {row.symbol for row in rows})}")
    faults = [f"{count} spare thunks, {needed} are needed"] if count < needed else []
    if constant("trampoline.S", r"^#define SPARE_COUNT (\d+)$") != count:
        faults.append("SPARE_COUNT of shim/trampoline.S is not MS_SPARE_COUNT of shim/entries.h")
    return faults


def main():
    rows = read_rows()
    symbols = [row.symbol for row in rows]
    faults = [f"{name} has more than one row" for name in set(symbols) if symbols.count(name) > 1]
    faults += [f"{row.symbol}: class {row.class_} needs a reason that says something, this is "
               f'"{row.reason}"' for row in rows if len(row.reason) < SHORTEST_REASON]
    faults += [f"{row.symbol} does not begin with its base {row.base}, as shim/entries.h has it"
               for row in rows if not row.symbol.startswith(row.base)]
    listed = read_names("cuda13-stub-exports.txt") | read_names("driver-580-more-exports.txt")
    added = read_names("cuda-13.5-added.txt")
    faults += [f"{name} is exported by CUDA 13.0 and has no row" for name in listed - set(symbols)]
    faults += [f"{name} is in cuda.h of CUDA 13.5 and has no row" for name in added - set(symbols)]
    faults += [f"{name} has a row but is no export of CUDA 13.0, and not in cuda.h of 13.5"
               for name in set(symbols) - listed - added]
    newest = constant("entries.h", r"MS_TABLE_VERSION = (\d+)")
    faults += [f"{row.symbol} is of {row.version}, MS_TABLE_VERSION of shim/entries.h is {newest}"
               for row in rows if int(row.version) > newest]
    faults += check_spare_thunks(rows)
    header = declared(sys.argv[1])
    if len(header) < 500:
        faults.append(f"{sys.argv[1]}: only {len(header)} declarations found, that cannot be right")
    faults += [f"{name} is declared in cuda.h and has no row" for name in header - set(symbols)]
    ours = {(row.symbol, row.base, row.version, row.per_thread) for row in rows}
    faults += [f"tools/simcuda/driver/functions.def and shim/entries.def differ: {row}" for row in ours ^ set(simulated())]
    for stub in sys.argv[2:]:
        if os.path.exists(stub):
            faults += [f"{name} is exported by {stub} and has no row"
                       for name in exported(stub) - set(symbols)]
    for fault in sorted(faults):
        print(fault)
    print(f"{len(rows)} rows, {len(header)} declarations, {len(faults)} faults")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
