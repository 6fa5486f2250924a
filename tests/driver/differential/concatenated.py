#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""concatenated.py PROGRAM KERNELS SHIM: torch.cat in any dimension, taken for the copies that it is."""
from scenarios import main

SHARD = 8 << 20  # of `experts`
SMALL = {"METASHARD_MIN_BYTES": "4096"}  # so that the small tensors here are deferred as large ones are
SLOW = dict(SMALL, SIMCUDA_DELAY_US="3000")


def concatenated(test):
    for scenario in ("values", "strided_values"):
        seen, _ = test.both(scenario)
        wrong = [line for line in seen.stdout.splitlines() if "are wrong" in line and ": 0 elements" not in line]
        test.check(f"{scenario}: as the host makes them", "elements" in seen.stdout and not wrong, "\n".join(wrong))
    _, dump = test.both("experts")
    test.check("no more than this rank's experts had memory", dump["backed_bytes_peak"] <= SHARD, dump)
    test.check("and they were copied once", dump["h2d_bytes"] <= SHARD, dump)
    _, dump = test.both("drawn_experts")
    test.check("initialised experts are recorded, too", dump["backed_bytes_peak"] <= 2 * SHARD and
               dump["recorded_launches"] == 16, dump)
    _, dump = test.both("drawn_whole", SMALL)
    test.check("and none of them runs for each row", dump["replayed_launches"] <= 2, dump)
    for scenario, loaded in (("short_rows", 64 * 64 * 12 * 4), ("many_rows", 4096 * 3 * 32 * 4)):
        _, dump = test.both(scenario, SMALL)
        test.check(f"{scenario}: the kernel ran", dump["forwarded_lineage_bytes"] == loaded, dump)
    seen, dump = test.run("many_pieces", {"SIMCUDA_MEMORY_MIB": "256", "METASHARD_OVERCOMMIT": "100"})
    lines = seen.stdout.splitlines()
    test.check("many pieces: one of them", (seen.returncode, len(lines), len(set(lines))) == (0, 2, 1), seen.stdout + seen.stderr)
    test.check("as many pieces as there are granules stay deferred", dump["backed_bytes_peak"] <= 4 << 20, dump)
    _, dump = test.both("strided", SMALL)
    test.check("the columns alone were copied", dump["h2d_bytes"] <= 4 * 96 * 64 * 4, dump)
    for settings in ({}, SMALL, SLOW):
        test.both("in_memory", settings)
        test.both("into_a_part", settings)
    for scenario in ("values", "experts", "strided"):
        test.both(scenario, SMALL)
        test.both(scenario, SLOW)


main(concatenated)
