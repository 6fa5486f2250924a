#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_wheel.py [--wheel FILE | --torch RELEASE] [--code [--known FILE]] [--keep] [RULES [LAYOUTS [STAND-IN...]]]: what the shim expects of
PyTorch, held against the installed wheel, the file of one, or a release from PyPI, which is deleted afterwards. TAP.

The block observer: libc10 exports the function that the shim interposes, and libc10_cuda calls it from
outside. So it is with the check of CUDA's results. The kernel rules: each of the release's generation names kernels that
are there, their parameters lie where the rule's class expects pointers, and kernels that copy, fill, draw or initialise
have a rule or are in families.txt. With LAYOUTS, writes the layouts of all kernels there for the simulated driver.
STAND-IN is one for the CUDA runtime or cuBLAS: it has all that PyTorch's libraries import of it.
--code reads the machine code too, by nvdisasm: some minutes.
--known FILE keeps what was read of each kernel: what has the same bytes in another release is not read again.
--keep writes what was found into releases.json (releases.py makes of it what the shim knows, and a page).
"""
import argparse
import collections
import glob
import os
import re
import subprocess
import sys

import releases
import wheels
from torch_check import disassembly, fatbin, machine_code, promises

# Kernels of such names should have a rule, or a reason to have none (families.txt). Libraries bring their own.
FAMILY = re.compile(r"copy|fill|distribution|cat|range|init", re.I)
LIBRARIES_WITHIN = ("cutlass", "thrust", "at_cuda_detail", "gloo")
SPACES = ("at", "native", "c10", "cuda", "detail", "torch", "internal", "distributed")

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
RULES = os.path.join(SOURCE, "runtime", "kernel", "kernel-rules.txt")


class Tap:
    def __init__(self):
        self.number = self.failed = 0

    def check(self, name, good, detail="", is_harmless=False):  # of a release in the table nothing else is expected
        del is_harmless
        self.number += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.number} {name}")
        if not good:
            print("# " + str(detail)[:2000].replace("\n", "\n# "))

    def end(self):
        print(f"1..{self.number}")
        sys.exit(self.failed > 0)


def words(name):
    """The identifiers in a mangled name, without those that only tell a file's name."""
    name, found, at = re.sub(r"L[a-z]n?\d+E", "", name), [], 0
    while number := re.compile(r"\d+").search(name, at):
        at = number.end()
        word = name[at:at + int(number[0])]
        if len(word) == int(number[0]) and re.fullmatch(r"[A-Za-z_]\w+", word):
            found += [] if word.startswith(("_GLOBAL__N", "_INTERNAL")) else [word]
            at += len(word)
    return found


def family(name):
    """The kernel, and the first thing in its name that sounds like a family. None: neither does, or it is a library's."""
    outer, *others = [word for word in words(name) if word not in SPACES] or ["?"]
    others = [word for word in others if FAMILY.search(word)][:1]
    if outer.startswith(LIBRARIES_WITHIN) or not (others or FAMILY.search(outer)):
        return None
    return " ".join([outer] + others)


def check_nccl(tap, wheel):
    """libtorch_cuda calls NCCL through its symbols, from a library of its own."""
    with open(os.path.join(SOURCE, "shim", "nccl.def"), encoding="utf-8") as file:
        hooked = set(re.findall(r"^MS_NCCL(?:_COLLECTIVE|_WITH_CONFIG)?\((nccl\w+),", file.read(), flags=re.M))
    called = {name for name in wheel.undefined("libtorch_cuda.so") if name.startswith("nccl")}
    for name in ("ncclBcast", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclSend", "ncclRecv"):
        tap.check(f"{name} is called and hooked", name in called and name in hooked)
    tap.check("the symbol that tells of NCCL in PyTorch",
              "_ZN4c10d16ProcessGroupNCCL10groupStartEv" in wheel.defined("libtorch_cuda.so"))


def imports(path, soname):
    listed = subprocess.run(["nm", "-D", "--undefined-only", path], check=True, capture_output=True, text=True)
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if "@" + soname in line}


def check_stand_in(tap, wheel, stand_in):
    listed = subprocess.run(["nm", "-D", "--defined-only", stand_in], check=True, capture_output=True, text=True)
    there = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    soname = os.path.basename(stand_in)
    # Libraries that are loaded for linear algebra alone, with cuSOLVER, do not run here.
    users = [path for path in glob.glob(wheel.library("*.so")) if not ("cublas" in soname and "linalg" in path)]
    wanted = set().union(*(imports(path, soname) for path in users))
    tap.check(f"the stand-in {soname} has what is imported: {len(wanted)} functions",
              wanted and wanted <= there, sorted(wanted - there))


def check_families(tap, unnamed):
    with open(os.path.join(HERE, "families.txt"), encoding="utf-8") as file:
        known = {line.strip() for line in file if not line.startswith("#")}
    found = {family(name) for name in unnamed} - {None}
    tap.check(f"{len(found)} families without a rule are known", found <= known,
              "a rule, or a line of families.txt:\n" + "\n".join(sorted(found - known)))


def check_names(tap):
    """The symbols that the shim interposes are those that tools/check_torch looks for."""
    with open(os.path.join(SOURCE, "shim", "torch_errors.c"), encoding="utf-8") as file:
        names = set(re.findall(r"^#define CHECK\w* (\w+)$", file.read(), flags=re.M))
    tap.check("the shim's checks of results are known", names == {promises.CHECK + check for check in promises.CHECKS}, names)


def check(tap, wheel, kernels, rules):
    """Returns what --keep keeps."""
    check_names(tap)
    hook, matched = promises.check(tap, wheel, rules, kernels)
    check_nccl(tap, wheel)
    tap.check(f"{len(kernels)} kernels with layouts", len(kernels) > 10000 and
              sum(not parameters for parameters in kernels.values()) <= 10)
    check_families(tap, matched[None])
    counts = collections.Counter(rules[number][0] for number, names in matched.items() if number is not None for _ in names)
    return {"cuda": wheel.cuda, "commit": wheel.commit, "build_id": wheel.build_id(),
            "check": hook, "kernels": len(kernels), "rules": dict(sorted(counts.items()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--wheel", metavar="FILE")
    parser.add_argument("--torch", metavar="RELEASE")
    parser.add_argument("--code", action="store_true")
    parser.add_argument("--known", metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("rules", nargs="?", default=RULES)
    parser.add_argument("layouts", nargs="?")
    parser.add_argument("stand_ins", nargs="*")
    options = parser.parse_args()
    tap = Tap()
    with wheels.opened(options.wheel, options.torch) as wheel:
        print(f"# PyTorch {wheel.version}, CUDA {wheel.cuda}, {wheel.commit}", flush=True)
        kernels = fatbin.kernels(wheel.library("libtorch_cuda.so"))
        rules = promises.read_rules(options.rules)
        found = check(tap, wheel, kernels, rules)
        if options.code:
            recorded = promises.classes(rules, promises.match(rules, kernels))
            found["code"] = machine_code.check(tap, disassembly.find(), wheel.library("libtorch_cuda.so"), 90, recorded,
                                               machine_code.Known(options.known))
        for stand_in in options.stand_ins:
            check_stand_in(tap, wheel, stand_in)
        if options.layouts:
            fatbin.write_layouts(kernels, options.layouts)
        if options.keep and tap.failed == 0:
            releases.keep(wheel.version.split("+", maxsplit=1)[0], found)
    tap.end()


if __name__ == "__main__":
    main()
