# SPDX-License-Identifier: Apache-2.0
"""Checks whether the kernels of a PyTorch may be recorded: by names of symbols and kernels, and by where parameters
lie. `findings` has check(name, is_good, detail="", is_harmless=False); what is harmless costs memory, and no values.
"""
import collections
import fnmatch
import os
import re

from . import library

OBSERVER = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
CHECK = "_ZN3c104cuda29c10_cuda_check_implementation"
INT, POINTER = 4, 8
STRIDED = "18elementwise_kernelI"  # a loop over tensors of any strides
CALCULATOR_OF_ONE = 408  # OffsetCalculator<1>, and what aligns a pointer behind it
CALCULATOR_OF_TWO = 4 + 25 * 12 + 25 * 2 * 4  # OffsetCalculator<2>: dims, dividers, strides

# Loops over lists of tensors: {bytes of the metadata: (lists, tensors in each)} (runtime/kernel/tensor_list.c).
LISTED = "25multi_tensor_apply_kernelI"
LISTS = {25768: (1, 770), 24200: (2, 448), 3368: (1, 110), 3144: (2, 64)}

# Kernels that must not be recorded: several inputs, a whole tensor for each element, pointers in device memory.
NEVER = [r"(St5arrayIPcLm|6detail5ArrayIPcLi)[3-9]E", r"13reduce_kernelI", LISTED + r"(?!\w+?TensorListMetadataILi[12]EEE\w{4,8}(Zero|BinaryOpScalar|Copy|UnaryOp)Functor)",
         r"47_amp_foreach_non_finite_check_and_unscale_cuda_",
         r"24index_elementwise_kernelI", r"34_scatter_gather_elementwise_", r"39_amp_non_finite_check_and_unscale_cuda_",
         r"42_sparse_binary_op_intersection_kernel_impl", r"21_flatten_indices_impl"]

# Pieces of the patterns of rules that only some releases have, with the first and the last of them. Casts in loops over any
# strides have a name of what they make, since 2.15 of what they do, and before 2.6 none.
CASTS = ["27converting_copy_kernel_cudaI", "24float16_copy_kernel_cuda", "25bfloat16_copy_kernel_cuda"]
LAST = (9, 0)
TRANSPOSED = "27transpose_copy_tiled_kernelI"
GENERATIONS = {TRANSPOSED: ((2, 15), LAST), "6detail5ArrayIPcLi": ((2, 4), (2, 5)), "St5arrayIPcLm": ((2, 6), LAST), CASTS[0]: ((2, 15), LAST),
               CASTS[1]: ((2, 6), (2, 14)), CASTS[2]: ((2, 6), (2, 14))}

# The symbols of the check of results, behind CHECK (shim/torch_errors.c).
CHECKS = {"EiPKcS2_ib", "EiPKcS2_jb", "EiPKcS2_jbPNS0_19CUDAErrorLogCaptureE"}


def rules_path():
    """Beside this package, where it is installed; else in the sources."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    beside = os.path.join(here, "kernel-rules.txt")
    return beside if os.path.exists(beside) else os.path.join(here, "..", "..", "runtime", "kernel", "kernel-rules.txt")


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
    if class_ == "each":
        lists = re.search(r"TensorListMetadataILi(\d)E", name)
        return lists is not None and sizes and LISTS.get(sizes[0], (0, 0))[0] == int(lists[1])
    if class_ == "from-first":
        return sizes == [POINTER, POINTER, 8, 8, 8, 8]  # (in, out, sizes and strides)
    if STRIDED in name:  # (numel, {calculator, {out, in}, functor}); the two are not aligned to anything but themselves
        room = CALCULATOR_OF_ONE + POINTER if class_ == "write-only" else CALCULATOR_OF_TWO + 2 * POINTER
        return len(sizes) == 2 and sizes[0] == INT and sizes[1] >= room
    if class_ == "write-only":
        return sizes[:1] == [INT] and sizes[2:3] == [POINTER]
    return class_ == "in-place" and sizes[:1] == [INT] and sizes[2:3] == [2 * POINTER]


def casts_named(matched):
    """Types to which loops over any strides cast float."""
    loops = [name for names in matched.values() for name in names if "18elementwise_kernelI" in name]
    found = {"half" for name in loops if CASTS[1] in name or CASTS[0] + "N3c104HalfEf" in name}
    return found | {"bfloat16" for name in loops if CASTS[2] in name or CASTS[0] + "N3c108BFloat16Ef" in name}


def check_observer(findings, torch):
    """libc10 exports the function that the shim interposes, and libc10_cuda calls it from outside."""
    findings.check("libc10 exports the report of blocks", OBSERVER in torch.defined(library.BASE))
    findings.check("the allocator calls it through its symbol", OBSERVER in torch.undefined(library.CUDA))
    findings.check("it defines none of its own", OBSERVER not in torch.defined(library.CUDA))


def check_errors(findings, torch):
    """The check of CUDA's results, and the allocator that is asked to throw (shim/torch_errors.c)."""
    there = {name for name in torch.defined(library.CUDA) if name.startswith(CHECK)}
    known = {CHECK + signature for signature in CHECKS}
    findings.check("libc10_cuda exports the check of results, and no other", len(there) == 1 and there <= known,
                   f"{sorted(there)}, expected one of {sorted(known)}")
    findings.check("libtorch_cuda calls it through its symbol", there <= torch.undefined(library.KERNELS))
    findings.check("libc10 exports the way to an allocator",
                   "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE" in torch.defined(library.BASE))
    return "".join(name[len(CHECK):] for name in there)


def match(rules, names):
    """{number of a rule: the names that it decides on}; None: no rule."""
    matched = collections.defaultdict(list)
    for name in names:
        matched[first_match(rules, name)].append(name)
    return matched


def classes(rules, matched):
    """{name: class} of the kernels that are recorded"""
    return {name: rules[number][0] for number, names in matched.items() for name in names
            if number is not None and rules[number][0] != "run"}


def check_rules(findings, rules, matched, kernels, release):
    for number, (class_, pattern) in enumerate(rules):
        names = matched[number]
        first, last = generation(pattern)
        if not first <= release <= last:
            findings.check(f"{class_} {pattern}: not in this release", not names, names[:3], is_harmless=True)
        else:
            findings.check(f"{class_} {pattern}: {len(names)} kernels", names, "no kernel has such a name", is_harmless=True)
        odd = [(name, kernels[name]) for name in names if not pointers_fit(class_, name, kernels[name], release)]
        findings.check(f"{class_} {pattern}: parameters are as expected", not odd, odd[:3])
    findings.check("strided casts to 2-byte types are named", casts_named(matched) ==
                   ({"bfloat16", "half"} if release >= (2, 6) else set()), is_harmless=True)
    recorded = classes(rules, matched)
    for pattern in NEVER:
        found = [name for name in recorded if re.search(pattern, name)]
        findings.check(f"there are kernels {pattern}", any(re.search(pattern, name) for name in kernels), is_harmless=True)
        findings.check(f"no rule records {pattern}", not found, found[:3])


def check(findings, torch, rules, kernels):
    """Returns (the signature of the check of results, what `match` returns)."""
    check_observer(findings, torch)
    hook = check_errors(findings, torch)
    matched = match(rules, kernels)
    check_rules(findings, rules, matched, kernels, torch.release)
    return hook, matched
