#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_agreement.py DUMP PROGRAM KERNELS PRELOAD: at the end of random programs with a caching allocator, what
METASHARD_DUMP leaves is what metashard-dump shows, and agrees with itself. TAP."""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from state_page import read_dump  # noqa: E402
import tap  # noqa: E402

DUMP, PROGRAM, KERNELS, PRELOAD = sys.argv[1:]
SCRATCH = 4 << 20  # memory of replays, which is in no block (fill/scratch.h)
REPLAYING = ("carved", "random")  # scenarios that replay parts of blocks
RULES = "write-only fill32\nwrite-only uniform32\nfrom-other copy32\n"
FIGURES = ("requested_bytes", "deferred_bytes", "backed_bytes", "backed_bytes_peak", "h2d_bytes", "materialised_bytes",
           "snapshot_bytes", "observed_blocks", "deferred_allocations", "deferred_frees", "recorded_launches")


def run(folder, scenario, seed):
    """The page and the dump of one program."""
    settings = {"LD_PRELOAD": PRELOAD, "METASHARD_DUMP": os.path.join(folder, "dump"),
                "METASHARD_KERNEL_RULES": os.path.join(folder, "rules"), "METASHARD_SETTLE_MS": "100",
                "BLOCKS_SEED": str(seed), "METASHARD_MIN_BYTES": "1" if seed % 2 else "2M"}
    done = subprocess.run([PROGRAM, KERNELS, scenario, os.path.join(folder, "data")], env=dict(os.environ, **settings),
                          capture_output=True, text=True, timeout=120)
    dump = read_dump(os.path.join(folder, "dump"))
    shown = subprocess.run([DUMP, "show", os.path.join(folder, "dump"), "--json"], capture_output=True, text=True)
    return done.returncode, shown.returncode, json.loads(shown.stdout), dump


def faults_of(shown, dump, scratch):
    """The figures are counted apart from the table of blocks; what is told of parts, apart from what is of the whole."""
    for name in FIGURES:
        if shown[name] != dump[name]:
            yield f"{name}: {shown[name]} is shown, {dump[name]} in the dump"
    blocks = dump["blocks"]
    for name, key, besides in (("live_bytes", "bytes", 0), ("deferred_bytes", "deferred_bytes", 0),
                               ("backed_bytes", "backed_bytes", scratch)):
        if not 0 <= dump[name] - sum(block[key] for block in blocks) <= besides:
            yield f"{name}: {dump[name]}, and of the blocks together {[block[key] for block in blocks]}"
    wholes = {block["id"]: block for block in shown["blocks"] if block["kind"] != "part"}
    if set(wholes) != {block["id"] for block in blocks}:
        yield f"allocations {sorted(wholes)}"
    for block in blocks:
        if sum(block["kinds"].values()) != block["bytes"]:
            yield f"kinds of {block}"
        if wholes[block["id"]]["lineage_bytes"] != block["kinds"]:
            yield f"{wholes[block['id']]} is shown, {block} in the dump"
        if block["deferred_bytes"] == 0:
            continue # of a settled one, what the caching allocator does is not told
        at = 0
        for begin, end in block.get("taken", []):
            if not at <= begin < end <= block["bytes"]:
                yield f"parts of {block}"
            at = end
        for part in block["parts"]:
            if sum(part["kinds"].values()) != part["bytes"]:
                yield f"part {part}"
        if "taken" in block and block["bytes"] - block["kinds"].get("dead", 0) != sum(
                part["bytes"] for part in block["parts"]):
            yield f"what is not dead is no part of {block}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "rules"), "w") as file:
            file.write(RULES)
        for scenario, seed in [("carved", 0), ("one_block", 0), ("written_before", 1), ("after_settling", 0),
                               ("little_before", 0), ("stale", 0), ("silent", 0)] + \
                [("random", seed) for seed in range(1, 9)]:
            status, shown, page, dump = run(folder, scenario, seed)
            faults = list(faults_of(page, dump, SCRATCH if scenario in REPLAYING else 0))
            tap.check(f"{scenario} {seed}", (status, shown) == (0, 0) and not faults, "\n".join(faults[:10]))
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
