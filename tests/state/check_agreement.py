#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_agreement.py DUMP PROGRAM KERNELS PRELOAD: at the end of random programs with a caching allocator, the state page
says the same as the JSON of METASHARD_DUMP, which is made from the lineages themselves. TAP."""
import json
import os
import subprocess
import sys
import tempfile

DUMP, PROGRAM, KERNELS, PRELOAD = sys.argv[1:]
RULES = "write-only fill32\nwrite-only uniform32\nfrom-other copy32\n"
FIGURES = ("requested_bytes", "deferred_bytes", "backed_bytes", "backed_bytes_peak", "h2d_bytes", "materialised_bytes",
           "snapshot_bytes", "observed_blocks", "deferred_allocations", "deferred_frees", "recorded_launches")


def run(folder, scenario, seed):
    """The page and the dump of one program."""
    settings = {"LD_PRELOAD": PRELOAD, "METASHARD_STATE_DIR": folder, "METASHARD_DUMP": os.path.join(folder, "dump"),
                "METASHARD_KERNEL_RULES": os.path.join(folder, "rules"), "METASHARD_SETTLE_MS": "100",
                "BLOCKS_SEED": str(seed), "METASHARD_MIN_BYTES": "1" if seed % 2 else "2M"}
    done = subprocess.run([PROGRAM, KERNELS, scenario, os.path.join(folder, "data")], env=dict(os.environ, **settings),
                          capture_output=True, text=True, timeout=120)
    with open(os.path.join(folder, "dump")) as file:
        dump = json.load(file)
    page = os.path.join(folder, f"metashard-{dump['pid']}.state")
    shown = subprocess.run([DUMP, "show", page, "--json"], capture_output=True, text=True)
    os.unlink(page)
    return done.returncode, shown.returncode, json.loads(shown.stdout), dump


def kinds_of(lineage):
    """Bytes by kind, cached and away ones; a snapshot that is one, and so on."""
    sums, cached, away = {}, 0, 0
    for begin, end, kind, *_ in lineage:
        words = kind.split()
        sums[words[-1]] = sums.get(words[-1], 0) + end - begin
        cached += (end - begin) * ("cached" in words)
        away += (end - begin) * ("away" in words)
    return sums, cached, away


def faults_of(page, dump):
    for name in FIGURES:
        if page[name] != dump[name]:
            yield f"{name}: {page[name]} in the page, {dump[name]} in the dump"
    wholes = {block["id"]: block for block in page["blocks"] if block["kind"] != "part"}
    if page["live_bytes"] != sum(block["bytes"] for block in dump["blocks"]):
        yield f"live_bytes: {page['live_bytes']}"
    if set(wholes) != {block["id"] for block in dump["blocks"]}:
        yield f"allocations {sorted(wholes)}"
        return
    for wanted in dump["blocks"]:
        seen = wholes[wanted["id"]]
        parts = [block for block in page["blocks"] if block["kind"] == "part" and block["id"] == wanted["id"]]
        if (seen["bytes"], seen["backed_bytes"]) != (wanted["bytes"], wanted["backed_bytes"]):
            yield f"allocation {wanted['id']}: {seen}"
        deferred = "taken" not in wanted or seen["deferred_bytes"] > 0
        if not deferred:
            continue # of a settled one, what the caching allocator does is not told
        if (seen["lineage_bytes"], seen["cached_bytes"], seen["remote_bytes"]) != kinds_of(wanted["lineage"]):
            yield f"lineage of {wanted['id']}: {seen}, {kinds_of(wanted['lineage'])}"
        begins = [[int(part["address"], 16) - int(wanted["address"], 16),
                   int(part["address"], 16) - int(wanted["address"], 16) + part["bytes"]] for part in parts]
        if begins != wanted.get("taken", []):
            yield f"parts of {wanted['id']}: {begins}, {wanted.get('taken')}"
        for part in parts:
            if sum(part["lineage_bytes"].values()) != part["bytes"]:
                yield f"part {part}"


def main():
    failed = number = 0
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "rules"), "w") as file:
            file.write(RULES)
        for scenario, seed in [("carved", 0), ("one_block", 0), ("written_before", 1), ("after_settling", 0),
                               ("little_before", 0), ("stale", 0), ("silent", 0)] + \
                [("random", seed) for seed in range(1, 9)]:
            status, shown, page, dump = run(folder, scenario, seed)
            faults = list(faults_of(page, dump))
            good = (status, shown) == (0, 0) and not faults
            number += 1
            failed += not good
            print(f"{'ok' if good else 'not ok'} {number} {scenario} {seed}")
            for fault in faults[:10]:
                print(f"# {fault}")
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
