#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pools.py PROGRAM KERNELS SHIM: stream-ordered memory without and with the shim; the dump must show that it is deferred."""
from scenarios import SMALL, main

MIB = 1 << 20
ALL = ("sliced", "stands_still", "handed_on", "figures", "current_pool", "refused", "freed_meanwhile", "train_and_load",
       "threads")


def all_scenarios(test):
    for scenario in ALL:
        for settings in ({}, {"METASHARD_MIN_BYTES": "1"}, {"SIMCUDA_DELAY_US": "500"}):
            test.both(scenario, settings)
    test.both("shared", {"SIMCUDA_DEVICES": "2"})
    for scenario in "in_another_context", "on_another_device", "freed_in_what_ends":
        for settings in ({}, {"METASHARD_MIN_BYTES": "1"}):
            test.both(scenario, dict(settings, SIMCUDA_DEVICES="2"))
    for scenario in "outlives_context", "outlives_reset", "outlives_release", "outlives_only_context":
        _, dump = test.both(scenario)
        test.check("most of it is deferred when its context ends", dump["backed_bytes_peak"] <= 24 * MIB, dump)
    for settings in ({}, {"METASHARD_MIN_BYTES": "1"}, {"SIMCUDA_DELAY_US": "500"}):
        _, dump = test.both("warmed_up", dict(settings, SIMCUDA_MEMORY_MIB="256"))
        test.check("memory that is only warmed up is not backed", 0 < dump["backed_bytes_peak"] <= 64 * MIB, dump)

    _, dump = test.both("sliced")
    test.check("only the part that was read had memory", dump["backed_bytes_peak"] <= 2 * MIB, dump)

    _, dump = test.both("train")
    test.check("a training loop settles", dump["settles"] == 1 and "launches work" in dump["settle_cause"], dump)
    test.check("and then the driver serves it", dump["deferred_allocations"] < 500, dump["deferred_allocations"])
    _, dump = test.both("train", {"METASHARD_SETTLE_MS": "0"})
    test.check("a training loop without settling has all of it deferred", dump["deferred_allocations"] >= 600, dump["deferred_allocations"])

    _, dump = test.both("train_and_load")
    test.check("settled once", dump["settles"] == 1, dump)
    test.check("the next model is deferred, and working memory is not",
               dump["deferred_allocations"] == 2 and dump["backed_bytes_peak"] <= 18 * MIB, dump)

    _, dump = test.both("captured_early")
    test.check("an allocation after a capture is deferred", dump["deferred_allocations"] == 2 and
               dump["backed_bytes_peak"] <= 4 * MIB, dump)

    test.both("short_of_memory", SMALL, alone={})
    test.both("short_of_memory", dict(SMALL, SIMCUDA_DELAY_US="2000"), alone={})


main(all_scenarios)
