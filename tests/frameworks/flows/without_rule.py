#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""without_rule.py --results PAGE FILE...: the kernels that no rule names and that programs launched on deferred memory while they
loaded or initialised: what they use came into memory whole. FILEs are what flows/run and systems/run wrote with --json.

A program that loads or initialises meets none but those of KNOWN, each with the reason; the runs check it. Programs of
families.py are there to meet some, and those that train compute.
"""
import argparse
import collections
import json
import os
import re
import sys
from typing import NamedTuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

MADE_BY = ("tests/frameworks/flows/run --json FILE", "tests/frameworks/systems/run --json FILE",
           "tests/frameworks/flows/without_rule.py --results PAGE FILE...")

# In a dump, of the events that brought something into memory those of a launch without a rule (runtime/state/format.h).
FALLBACK, NO_RULE = 11, 2
MIB = 1 << 20
FAMILIES = "families"
COMPUTES = re.compile(r"training|gates-|lora$|triton|single:step|pieces|fsdp2-passes")  # flows and rows of systems


class Kernel(NamedTuple):
    pattern: str
    words: str
    reason: str
    most: float = float("inf")  # bytes that it may bring in


TRUNCATED = ("`trunc_normal_` of PyTorch 2.12 and newer looks at all that it has drawn, and composes it anew where something is out of "
             "bounds")
OBJECTS = "numbers of bytes of the objects that torch.distributed sends (`all_gather_object`, `broadcast_object_list`)"
KNOWN = [
    Kernel(r"13reduce_kernelI\w*(11sum_functorIlllE|13MaxNanFunctorIlE)", "sum and maximum of integers", OBJECTS, MIB),
    Kernel(r"CompareKernels_cu\w*14CompareFunctorIlE", "integers compared", OBJECTS, MIB),
    Kernel(r"^_ZN2at6native13reduce_kernelI\w*14or_kernel_cuda", "any", TRUNCATED),
    Kernel(r"TensorCompare_cu\w*17where_kernel_impl", "where", TRUNCATED),
    Kernel(r"BinaryFunctorI\w*BitwiseOrFunctor", "or", TRUNCATED),
    Kernel(r"PowKernel_cu\w*pow_tensor_tensor", "a power of two tensors",
           "the table of a rotary embedding, computed on the device: some KiB", MIB),
]
# Kernels of the programs of families.py, and why no rule names them.
NOBODY = "none of the programs above loads or initialises so"
RARE = [
    Kernel(r"18elementwise_kernelI", "other loops of any strides", NOBODY),
    Kernel(r"16triu_tril_kernelI", "`triu`, `tril`", "of masks, as GPT-Neo and nanoGPT make them, it would save nothing: they are on every "
           "rank, whole, and the peak is no further above that than where there is a rule. Of parameters it would; none of the programs above makes such"),
    Kernel(r"25multi_tensor_apply_kernelI", "other `_foreach_*`", NOBODY),
    Kernel(r"24index_elementwise_kernelI|indexSelect|gather_kernel|14index_kernel|20indexSelectLargeIndex", "index, gather",
           "which rows it reads stands in device memory; " + NOBODY),
    Kernel(r"13BinaryFunctorI|13reduce_kernelI", "comparisons, reductions", "they compute, and bring some tensors into memory here"),
    Kernel(r"roll_cuda_kernel", "`roll`", NOBODY),
    Kernel(r"split_with_sizes_copy_out|chunk_cat", "FSDP2's gathered parameters",
           "a program that gathers a parameter computes with it, and has it in memory whole then"),
    Kernel(r"transpose_copy_tiled", "a transposed copy", "its source could not be restored"),
]


def met(dump):
    """{kernel: [launches that brought something into memory, bytes]}"""
    found = {}
    for cause in dump.get("causes", []):
        if (cause["kind"], cause["reason"]) == (FALLBACK, NO_RULE):
            total = found.setdefault(cause["text"], [0, 0])
            total[0] += cause["count"]
            total[1] += cause["bytes"]
    return found


def find(kernels, name, size):
    return next((kernel for kernel in kernels if re.search(kernel.pattern, name) and size <= kernel.most), None)


def unknown(program, found):
    """Kernels that a program must not meet."""
    if COMPUTES.search(program) or program.startswith(FAMILIES):
        return []
    return [f"{name}: {launches} launches, {size} bytes" for name, (launches, size) in found.items() if find(KNOWN, name, size) is None]


# --- the page


PAGE = """What programs meet that load or initialise, of {flows} programs of `tests/frameworks/flows` and {systems} rows of
`tests/frameworks/systems`, on the simulated driver. Each run fails if a program meets another kernel. A launch counts if it brought something into memory; MiB are of the rank with the most. Programs
that train are not in it: they compute.

| kernel | met by | launches | MiB into memory | why no rule names it |
| --- | --- | --- | --- | --- |
{known}
No other kernel without a rule is met: not by {others}.

## What further rules would save

Each row is a script that initialises four layers of 16 MiB (`tests/frameworks/flows/families.py`), and shards them over eight
ranks: shards of 8 MiB. The values are the same without and with the preload. All four are initialised before the first is
sharded, so what a kernel without a rule uses is in memory together; with a rule it is restored layer by layer, as in the row
`transposed`. No rule saves more than the peak with MetaShard is above what the rank keeps: its shards, and buffers.

| script | kernel | MiB into memory | peak without | peak with | the rank keeps | rule |
| --- | --- | --- | --- | --- | --- | --- |
{rare}
"""


def worst(ranks):
    """{kernel: [launches, bytes]} of the rank with the most"""
    found = {}
    for rank in ranks:
        for name, (launches, size) in (rank.get("without_rule") or {}).items():
            found[name] = max(found.get(name, [0, 0]), [launches, size], key=lambda total: total[1])
    return found


def read(paths):
    """{program: (ranks without, ranks with)} of flows and of systems"""
    programs, torch = ({}, {}), "?"
    for path in paths:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
        for record in run.get("flows", []):
            if record["with"]:
                before, after = programs[0].setdefault(record["flow"], ([], []))
                before.append(record["without"])
                after.append({**record["with"], "ideal_bytes": record["ideal_bytes"]})
            elif record["flow"].startswith(FAMILIES):
                programs[0].setdefault(record["flow"], ([], []))
        for record in run.get("records", []):
            if not record["skipped"] and not COMPUTES.search(record["row"]):
                before, after = programs[1].setdefault(record["row"], ([], []))
                before += record["ways"]["without"]
                after += [rank for way, ranks in record["ways"].items() if way != "without" for rank in ranks]
        torch = run.get("torch", torch)
    return programs, torch


def known_rows(programs):
    rows, total = collections.defaultdict(lambda: [[], 0, 0]), ""
    for program, (_, after) in programs.items():
        for name, (launches, size) in worst(after).items():
            kernel = find(KNOWN, name, size) or Kernel("", f"`{name[:80]}`", "**not known**")
            row = rows[kernel.words, kernel.reason]
            row[0] += [] if program in row[0] else [program]
            row[1], row[2] = row[1] + launches, max(row[2], size)
    for (words, reason), (names, launches, size) in rows.items():
        total += f"| {words} | {', '.join(names)} | {launches} | {size / MIB:.2f} | {reason} |\n"
    return total or "| none | | | | |\n"


def rare_rows(programs):
    total = ""
    for program, (before, after) in programs.items():
        if not after:
            total += f"| {program.partition(':')[2]} | not run: a stand-in for its kernel is missing | | | | | {NOBODY} |\n"
            continue
        sizes = [max(rank[name] for rank in ranks) for ranks, name in ((before, "peak_bytes"), (after, "peak_bytes"), (after, "ideal_bytes"))]
        found, script = collections.defaultdict(int), program.partition(":")[2]
        reasons = []
        for name, (_, size) in worst(after).items():
            kernel = find(RARE, name, size) or Kernel("", f"`{name[:80]}`", "")
            found[kernel.words] += size
            reasons += [] if kernel.reason in reasons else [kernel.reason]
        total += (f"| {script} | {', '.join(found) or 'none without a rule'} | {sum(found.values()) / MIB:.1f} | {' | '.join(f'{size / MIB:.0f}' for size in sizes)} | "
                  f"{'; '.join(reasons) or 'there is one'} |\n")
    return total


def main():
    from figures import SETTINGS  # which asks this file about kernels
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--results", required=True, metavar="PAGE")
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args()
    (flows, systems), torch = read(options.files)
    rare = {name: flows.pop(name) for name in list(flows) if name.startswith(FAMILIES)}
    all_others = {name for name, (_, after) in {**flows, **systems}.items() if not COMPUTES.search(name) and not worst(after)}
    text = PAGE.format(flows=len(flows), systems=len(systems), known=known_rows({**flows, **systems}),
                       others=", ".join(sorted(all_others)), rare=rare_rows(rare))
    head = result_page.head("Kernels without a rule", MADE_BY, result_page.settings_of(SETTINGS["patient"]), more=[f"PyTorch {torch}"])
    with open(options.results, "w", encoding="utf-8") as file:
        file.write(head + text)
    return "**not known**" in text


if __name__ == "__main__":
    sys.exit(main())
