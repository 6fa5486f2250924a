#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_wheel.py [--wheel FILE | --torch RELEASE] [--keep] [RULES [LAYOUTS [STAND-IN...]]]: what the shim expects of
PyTorch, held against the installed wheel, the file of one, or a release from PyPI, which is deleted afterwards. TAP.

The block observer: libc10 exports the function that the shim interposes, and libc10_cuda calls it from
outside. So it is with the check of CUDA's results. The kernel rules: each of the release's generation names kernels that
are there, their parameters lie where the rule's class expects pointers, and kernels that copy, fill, draw or initialise
have a rule or are in families.txt. With LAYOUTS, writes the layouts of all kernels there for the simulated driver.
STAND-IN is one for the CUDA runtime or cuBLAS: it has all that PyTorch's libraries import of it.
--keep writes what was found into releases.json (releases.py makes of it what the shim knows, and a page).
"""
import argparse
import collections
import fnmatch
import glob
import os
import re
import subprocess
import sys

import fatbin
import releases
import wheels

OBSERVER = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
CHECK = "_ZN3c104cuda29c10_cuda_check_implementation"
INT, POINTER = 4, 8
CALCULATOR_OF_TWO = 4 + 25 * 12 + 25 * 2 * 4  # OffsetCalculator<2>: dims, dividers, strides

# What must not be recorded: several inputs, a whole tensor for each element, pointers in device memory.
NEVER = [r"(St5arrayIPcLm|6detail5ArrayIPcLi)[3-9]E", r"13reduce_kernelI", r"25multi_tensor_apply_kernelI",
         r"24index_elementwise_kernelI", r"34_scatter_gather_elementwise_", r"39_amp_non_finite_check_and_unscale_cuda_",
         r"42_sparse_binary_op_intersection_kernel_impl", r"21_flatten_indices_impl"]

# Pieces of the patterns of rules that only some releases have, with the first and the last of them. Casts in loops over any
# strides have a name of what they make, since 2.15 of what they do, and before 2.6 none.
CASTS = ["27converting_copy_kernel_cudaI", "24float16_copy_kernel_cuda", "25bfloat16_copy_kernel_cuda"]
LAST = (9, 0)
GENERATIONS = {"6detail5ArrayIPcLi": ((2, 4), (2, 5)), "St5arrayIPcLm": ((2, 6), LAST), CASTS[0]: ((2, 15), LAST),
               CASTS[1]: ((2, 6), (2, 14)), CASTS[2]: ((2, 6), (2, 14))}

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

    def check(self, name, good, detail=""):
        self.number += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.number} {name}")
        if not good:
            print("# " + str(detail)[:2000].replace("\n", "\n# "))

    def end(self):
        print(f"1..{self.number}")
        sys.exit(self.failed > 0)


def read_rules(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    return [(line[0], line[1]) for line in lines]


def first_match(rules, name):
    for number, (_, pattern) in enumerate(rules):
        if fnmatch.fnmatchcase(name, pattern):
            return number
    return None


def generation(pattern):
    """The first and the last release that have such kernels."""
    return next((span for piece, span in GENERATIONS.items() if piece in pattern), ((2, 4), LAST))


def pointers_fit(class_, name, parameters, release):
    """The parameters have room for the pointers of the class: alone, or inside of a closure or an array."""
    sizes = [size for _, size in parameters]
    if class_ == "run":
        return True
    if "43distribution_elementwise_grid_stride_kernel" in name:
        # (numel, PhiloxCudaState, distribution, {out, ...})
        return len(sizes) == 4 and sizes[0] == (8 if release >= (2, 6) else INT) and \
            sizes[1] == (32 if release >= (2, 10) else 24) and sizes[3] >= POINTER + INT
    if "29elementwise_kernel_with_index" in name:
        return len(sizes) == 3 and sizes[2] == POINTER
    if class_ == "concatenate":
        # (out, metadata of N inputs of which S have shapes, shape of the output, dimension, stride of it); runtime/kernel/
        # concatenate.c leaves those of 64-bit indices alone.
        found = re.search(r"10OpaqueTypeILj\d+EEE([jm])Li\d+ELi(\d+)ELi(\d+)E", name)
        if found is None or found[1] == "m":
            return found is not None
        metadata = (int(found[2]) * 21 + 3) // 4 * 4 + int(found[3]) * 32
        return sizes == [POINTER, (metadata + 7) // 8 * 8, 32, 4, 4]
    if class_ == "write-only":
        return sizes[0] == INT and sizes[2] == POINTER
    if class_ == "in-place":
        return sizes[0] == INT and sizes[2] == 2 * POINTER
    # (numel, {calculator, {out, in}, functor}); the two are not aligned to anything but themselves
    return len(sizes) == 2 and sizes[1] >= CALCULATOR_OF_TWO + 2 * POINTER


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


def casts_named(matched):
    """Types to which loops over any strides cast float."""
    loops = [name for names in matched.values() for name in names if "18elementwise_kernelI" in name]
    found = {"half" for name in loops if CASTS[1] in name or CASTS[0] + "N3c104HalfEf" in name}
    return found | {"bfloat16" for name in loops if CASTS[2] in name or CASTS[0] + "N3c108BFloat16Ef" in name}


def check_observer(tap, wheel):
    tap.check("libc10 exports the report of blocks", OBSERVER in wheel.symbols("libc10.so", "--defined-only"))
    tap.check("the allocator calls it through its symbol",
              OBSERVER in wheel.symbols("libc10_cuda.so", "--undefined-only"))
    tap.check("it defines none of its own", OBSERVER not in wheel.symbols("libc10_cuda.so", "--defined-only"))


def check_errors(tap, wheel):
    """The check of CUDA's results, and the allocator that is asked to throw (shim/torch_errors.c)."""
    with open(os.path.join(SOURCE, "shim", "torch_errors.c"), encoding="utf-8") as file:
        names = set(re.findall(r"^#define CHECK\w* (\w+)$", file.read(), flags=re.M))
    there = {name for name in wheel.symbols("libc10_cuda.so", "--defined-only") if name.startswith(CHECK)}
    tap.check("libc10_cuda exports the check of results, and no other", len(there) == 1 and there <= names,
              f"{sorted(there)}, expected one of {sorted(names)}")
    tap.check("libtorch_cuda calls it through its symbol", there <= wheel.symbols("libtorch_cuda.so", "--undefined-only"))
    tap.check("libc10 exports the way to an allocator",
              "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE" in wheel.symbols("libc10.so", "--defined-only"))
    return "".join(name[len(CHECK):] for name in there)


def check_nccl(tap, wheel):
    """libtorch_cuda calls NCCL through its symbols, from a library of its own."""
    with open(os.path.join(SOURCE, "shim", "nccl.def"), encoding="utf-8") as file:
        hooked = set(re.findall(r"^MS_NCCL(?:_COLLECTIVE)?\((nccl\w+),", file.read(), flags=re.M))
    called = {name for name in wheel.symbols("libtorch_cuda.so", "--undefined-only") if name.startswith("nccl")}
    for name in ("ncclBcast", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclSend", "ncclRecv"):
        tap.check(f"{name} is called and hooked", name in called and name in hooked)
    tap.check("the symbol that tells of NCCL in PyTorch",
              "_ZN4c10d16ProcessGroupNCCL10groupStartEv" in wheel.symbols("libtorch_cuda.so", "--defined-only"))


def imports(path, soname):
    listed = subprocess.run(["nm", "-D", "--undefined-only", path], check=True, capture_output=True, text=True)
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if "@" + soname in line}


def check_stand_in(tap, wheel, stand_in):
    listed = subprocess.run(["nm", "-D", "--defined-only", stand_in], check=True, capture_output=True, text=True)
    there = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    soname = os.path.basename(stand_in)
    # What is loaded for linear algebra alone, with cuSOLVER, is not run here.
    users = [path for path in glob.glob(wheel.library("*.so")) if not ("cublas" in soname and "linalg" in path)]
    wanted = set().union(*(imports(path, soname) for path in users))
    tap.check(f"the stand-in {soname} has what is imported: {len(wanted)} functions",
              wanted and wanted <= there, sorted(wanted - there))


def check_rules(tap, rules, kernels, release):
    """Returns the names that each rule decides on."""
    matched = collections.defaultdict(list)
    for name in kernels:
        matched[first_match(rules, name)].append(name)
    for number, (class_, pattern) in enumerate(rules):
        names = matched[number]
        first, last = generation(pattern)
        if not first <= release <= last:
            tap.check(f"{class_} {pattern}: not in this release", not names, names[:3])
            continue
        tap.check(f"{class_} {pattern}: {len(names)} kernels", names, "no kernel has such a name")
        odd = [(name, kernels[name]) for name in names if not pointers_fit(class_, name, kernels[name], release)]
        tap.check("their parameters are as expected", not odd, odd[:3])
    tap.check("strided casts to 2-byte types are named", casts_named(matched) ==
              ({"bfloat16", "half"} if release >= (2, 6) else set()))
    recorded = [name for number, names in matched.items() for name in names
                if number is not None and rules[number][0] != "run"]
    for pattern in NEVER:
        found = [name for name in recorded if re.search(pattern, name)]
        there = any(re.search(pattern, name) for name in kernels)
        tap.check(f"no rule records {pattern}", there and not found, found[:3] or "there is none")
    return matched


def check_families(tap, unnamed):
    with open(os.path.join(HERE, "families.txt"), encoding="utf-8") as file:
        known = {line.strip() for line in file if not line.startswith("#")}
    found = {family(name) for name in unnamed} - {None}
    tap.check(f"{len(found)} families without a rule are known", found <= known,
              "a rule, or a line of families.txt:\n" + "\n".join(sorted(found - known)))


def check(tap, wheel, kernels, rules):
    """Returns what --keep keeps."""
    check_observer(tap, wheel)
    hook = check_errors(tap, wheel)
    check_nccl(tap, wheel)
    tap.check(f"{len(kernels)} kernels with layouts", len(kernels) > 10000 and
              sum(not parameters for parameters in kernels.values()) <= 10)
    matched = check_rules(tap, rules, kernels, wheel.release)
    check_families(tap, matched[None])
    counts = collections.Counter(rules[number][0] for number, names in matched.items() if number is not None for _ in names)
    return {"cuda": wheel.cuda, "commit": wheel.commit, "build_id": wheel.build_id(),
            "check": hook, "kernels": len(kernels), "rules": dict(sorted(counts.items()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--wheel", metavar="FILE")
    parser.add_argument("--torch", metavar="RELEASE")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("rules", nargs="?", default=RULES)
    parser.add_argument("layouts", nargs="?")
    parser.add_argument("stand_ins", nargs="*")
    options = parser.parse_args()
    tap = Tap()
    with wheels.opened(options.wheel, options.torch) as wheel:
        print(f"# PyTorch {wheel.version}, CUDA {wheel.cuda}, {wheel.commit}", flush=True)
        kernels = fatbin.kernels(wheel.library("libtorch_cuda.so"))
        found = check(tap, wheel, kernels, read_rules(options.rules))
        for stand_in in options.stand_ins:
            check_stand_in(tap, wheel, stand_in)
        if options.layouts:
            fatbin.write_layouts(kernels, options.layouts)
        if options.keep and tap.failed == 0:
            releases.keep(wheel.version, found)
    tap.end()


if __name__ == "__main__":
    main()
