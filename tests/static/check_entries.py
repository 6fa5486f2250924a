#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_entries.py CUDA_H [STUB]: the entry table against the installed CUDA, both ways.

Every function that cuda.h declares, and every symbol that the toolkit's stub of libcuda exports
where it is given, must have a row in shim/entries.def, and every row must stand for one of them: a
new CUDA cannot slip by. The committed list of CUDA 13.0's exports must be covered exactly.
"""
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROW = re.compile(r"^MS_ENTRY\((OWN|OBSERVE|SEAL|PASS), (\w+), (\w+), (\d+), ([01])\)$")


def read_rows():
    rows = []
    with open(os.path.join(SOURCE, "shim", "entries.def")) as file:
        for number, line in enumerate(file, 1):
            if not line.startswith("MS_ENTRY("):
                continue
            match = ROW.match(line.rstrip("\n"))
            if not match:
                sys.exit(f"shim/entries.def:{number}: expected MS_ENTRY(class, symbol, base, "
                         f"version, per_thread), got {line.strip()}")
            rows.append(match.groups())
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


def main():
    rows = read_rows()
    symbols = [row[1] for row in rows]
    faults = [f"{name} has more than one row" for name in set(symbols) if symbols.count(name) > 1]
    with open(os.path.join(SOURCE, "tests", "sim", "data", "cuda13-stub-exports.txt")) as file:
        listed = set(file.read().split())
    faults += [f"{name} is exported by CUDA 13.0 and has no row" for name in listed - set(symbols)]
    faults += [f"{name} has a row but is no export of CUDA 13.0" for name in set(symbols) - listed]
    header = declared(sys.argv[1])
    if len(header) < 500:
        faults.append(f"{sys.argv[1]}: only {len(header)} declarations found, that cannot be right")
    faults += [f"{name} is declared in cuda.h and has no row" for name in header - set(symbols)]
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
