#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lists.py PROGRAM KERNELS SHIM: one launch over many tensors, and launches over a part of one."""
from scenarios import main

SMALL = {"METASHARD_MIN_BYTES": "4096"}  # so that the small tensors here are deferred as large ones are
SLOW = {"SIMCUDA_DELAY_US": "3000"}
MODEL = 5 * 300007 * 4  # of `passes`


def lists(test):
    for scenario, recorded, what in (
            ("scaled", 3 + 3, "a launch over three tensors is three"),
            ("one_in_memory", 3 + 2, "the tensor that is in memory is left to a launch"),
            ("copied", 4 + 2, "copies of a list are recorded, and their sources go"),
            ("copied_elsewhere", 4, "from or to what is in memory, and within a block, the launch runs"),
            ("columns_scaled", 2, "columns that are scaled in place are recorded"),
            ("turned", 1, "a loop over one tensor that moves its elements runs"),
            ("diagonal_filled", 2, "a diagonal that is filled is recorded")):
        _, dump = test.both(scenario)
        test.check(what, dump["recorded_launches"] == recorded, dump)
        test.both(scenario, SLOW)
    for scenario in ("passes", "passes_in_memory"):
        _, dump = test.both(scenario, SMALL)
        test.check(f"{scenario}: copies of a model are sent twice at most, whatever their number",
                   dump["h2d_bytes"] <= 2 * MODEL, dump)
        test.both(scenario, dict(SMALL, **SLOW))
    _, dump = test.both("passes", SMALL)
    test.check("and no launch is recorded for them", dump["recorded_launches"] == 0, dump)
    _, dump = test.both("many", SMALL)
    test.check("each of many tensors is recorded", dump["recorded_launches"] == 3 * 110, dump)
    test.check("tensors that are not read have no memory", dump["backed_bytes_peak"] <= 6 << 20, dump)


main(lists)
