#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""queued.py PROGRAM KERNELS SHIM: memory is allocated while queued work, which was not examined, may come to it."""
from scenarios import main

EACH = ("copies", "of_managed", "kernels", "kernels_of_managed", "host_functions", "graphs")
TENSOR = 5 << 19
REASON = 24  # MS_REASON_UNEXAMINED


def queued(test):
    for scenario in (*EACH, "made_before", "in_another_context", "by_another_thread", "in_a_window", "handed_out"):
        for settings in ({}, {"METASHARD_IDLE_MS": "0"}):
            _, dump = test.both(scenario, settings)
            test.check(f"{scenario}: it is said why", any(cause["reason"] == REASON for cause in dump["causes"]), dump["causes"])
    for scenario in ("beside_what_is_read", "beside_what_is_used"):
        _, dump = test.both(scenario, {"METASHARD_IDLE_MS": "5000"})
        test.check(f"{scenario}: no more than the granule is in memory", dump["backed_bytes_peak"] == 2 << 20, dump)
    test.both("beside_what_was_there")
    for scenario, bytes_sent in (("copied_back", 3 * TENSOR), ("copied_back_in_part", 2 * TENSOR + (1 << 20))):
        for settings in ({}, {"METASHARD_SNAPSHOT_BYTES": "6M"}):
            _, dump = test.both(scenario, dict(settings, METASHARD_IDLE_MS="5000"))
            test.check(f"{scenario}, {settings}: no tensor is sent twice, only what its granules need",
                       dump["h2d_bytes"] <= bytes_sent, dump)
    test.both("copied_back_behind_a_kernel")
    _, dump = test.both("over_by_then")
    test.check("over_by_then: what came later is deferred", dump["backed_bytes_peak"] == 0 and
               dump["deferred_allocations"] == 1, dump)


main(queued)
