#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_wheel.py RULES [LAYOUTS [STAND-IN...]]: what the shim expects of PyTorch, held against the installed wheel. TAP.

The block observer: libc10 exports the function that the shim interposes, and libc10_cuda calls it from
outside. So it is with the check of CUDA's results. The kernel rules: each names kernels that are there, and their
parameters lie where the rule's class expects pointers. With LAYOUTS, writes the layouts of all kernels there for the
simulated driver. STAND-IN is one for the CUDA runtime or cuBLAS: it has all that PyTorch's libraries import of it.
"""
import collections
import fnmatch
import glob
import importlib.util
import os
import re
import subprocess
import sys

import fatbin

OBSERVER = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
INT, POINTER = 4, 8
CALCULATOR_OF_TWO = 4 + 25 * 12 + 25 * 2 * 4  # OffsetCalculator<2>: dims, dividers, strides

# What must not be recorded: several inputs, a whole tensor for each element, pointers in device memory.
NEVER = [r"St5arrayIPcLm[3-9]E", r"13reduce_kernelI", r"25multi_tensor_apply_kernelI",
         r"24index_elementwise_kernelI", r"34_scatter_gather_elementwise_"]


# Releases name casts differently: 2.11 by what they make, 2.15 by what they do.
CASTS = ["27converting_copy_kernel_cudaI", "24float16_copy_kernel_cuda", "25bfloat16_copy_kernel_cuda"]

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


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


def library(name):
    return os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "lib", name)


def symbols(name, kind):
    listed = subprocess.run(["nm", "-D", kind, library(name)], check=True, capture_output=True, text=True)
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}


def read_rules(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    return [(line[0], line[1]) for line in lines]


def first_match(rules, name):
    for number, (_, pattern) in enumerate(rules):
        if fnmatch.fnmatchcase(name, pattern):
            return number
    return None


def pointers_fit(class_, name, parameters):
    """The parameters have room for the pointers of the class: alone, or inside of a closure or an array."""
    sizes = [size for _, size in parameters]
    if "43distribution_elementwise_grid_stride_kernel" in name:
        # (numel, PhiloxCudaState, distribution, {out, ...})
        return len(sizes) == 4 and sizes[0] == 8 and sizes[1] == 32 and sizes[3] >= POINTER + INT
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


def casts_named(matched):
    """Types to which loops over any strides cast float."""
    loops = [name for names in matched.values() for name in names if "18elementwise_kernelI" in name]
    found = {"half" for name in loops if CASTS[1] in name or CASTS[0] + "N3c104HalfEf" in name}
    return found | {"bfloat16" for name in loops if CASTS[2] in name or CASTS[0] + "N3c108BFloat16Ef" in name}


def check_observer(tap):
    tap.check("libc10 exports the report of blocks", OBSERVER in symbols("libc10.so", "--defined-only"))
    tap.check("the allocator calls it through its symbol",
              OBSERVER in symbols("libc10_cuda.so", "--undefined-only"))
    tap.check("it defines none of its own", OBSERVER not in symbols("libc10_cuda.so", "--defined-only"))


def check_errors(tap):
    """The check of CUDA's results, and the allocator that is asked to throw (shim/torch_errors.c)."""
    with open(os.path.join(SOURCE, "shim", "torch_errors.c"), encoding="utf-8") as file:
        names = set(re.findall(r"^#define CHECK\w* (\w+)$", file.read(), flags=re.M))
    hooked = names & symbols("libc10_cuda.so", "--defined-only")
    tap.check("libc10_cuda exports the check of results", len(hooked) == 1, sorted(names))
    tap.check("libtorch_cuda calls it through its symbol", hooked <= symbols("libtorch_cuda.so", "--undefined-only"))
    tap.check("libc10 exports the way to an allocator",
              "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE" in symbols("libc10.so", "--defined-only"))


def check_nccl(tap):
    """libtorch_cuda calls NCCL through its symbols, from a library of its own."""
    with open(os.path.join(SOURCE, "shim", "nccl.def"), encoding="utf-8") as file:
        hooked = set(re.findall(r"^MS_NCCL(?:_COLLECTIVE)?\((nccl\w+),", file.read(), flags=re.M))
    called = {name for name in symbols("libtorch_cuda.so", "--undefined-only") if name.startswith("nccl")}
    for name in ("ncclBcast", "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclSend", "ncclRecv"):
        tap.check(f"{name} is called and hooked", name in called and name in hooked)
    tap.check("the symbol that tells of NCCL in PyTorch",
              "_ZN4c10d16ProcessGroupNCCL10groupStartEv" in symbols("libtorch_cuda.so", "--defined-only"))


def imports(path, soname):
    listed = subprocess.run(["nm", "-D", "--undefined-only", path], check=True, capture_output=True, text=True)
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if "@" + soname in line}


def check_stand_in(tap, stand_in):
    listed = subprocess.run(["nm", "-D", "--defined-only", stand_in], check=True, capture_output=True, text=True)
    there = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    soname = os.path.basename(stand_in)
    # What is loaded for linear algebra alone, with cuSOLVER, is not run here.
    users = [path for path in glob.glob(library("*.so")) if not ("cublas" in soname and "linalg" in path)]
    wanted = set().union(*(imports(path, soname) for path in users))
    tap.check(f"the stand-in {soname} has what is imported: {len(wanted)} functions",
              wanted and wanted <= there, sorted(wanted - there))


def check_rules(tap, rules, kernels):
    matched = collections.defaultdict(list)
    for name in kernels:
        number = first_match(rules, name)
        if number is not None:
            matched[number].append(name)
    for number, (class_, pattern) in enumerate(rules):
        names = matched[number]
        if not names and ("6detail5ArrayIPcLi" in pattern or any(cast in pattern for cast in CASTS)):
            continue  # of other releases
        tap.check(f"{class_} {pattern}: {len(names)} kernels", names, "no kernel has such a name")
        odd = [(name, kernels[name]) for name in names if not pointers_fit(class_, name, kernels[name])]
        tap.check("their parameters are as expected", not odd, odd[:3])
    tap.check("strided casts to 2-byte types are named", {"bfloat16", "half"} <= casts_named(matched))
    for pattern in NEVER:
        found = [name for names in matched.values() for name in names if re.search(pattern, name)]
        there = any(re.search(pattern, name) for name in kernels)
        tap.check(f"no rule names {pattern}", there and not found, found[:3] or "there is none")


def main():
    tap = Tap()
    check_observer(tap)
    check_errors(tap)
    check_nccl(tap)
    kernels = fatbin.kernels(library("libtorch_cuda.so"))
    tap.check(f"{len(kernels)} kernels with layouts", len(kernels) > 10000 and
              sum(not parameters for parameters in kernels.values()) <= 10)
    check_rules(tap, read_rules(sys.argv[1]), kernels)
    for stand_in in sys.argv[3:]:
        check_stand_in(tap, stand_in)
    if len(sys.argv) > 2:
        fatbin.write_layouts(kernels, sys.argv[2])
    tap.end()


if __name__ == "__main__":
    main()
