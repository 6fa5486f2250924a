#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""refused.py PROGRAM KERNELS SHIM: what the driver refuses is refused with the shim, whatever is in memory."""
from scenarios import main

TWO = {"SIMCUDA_DEVICES": "2"}


def refused(test):
    for scenario in ("no_context", "no_context_resident", "destroyed_context", "destroyed_stream"):
        test.both(scenario)
    for scenario in ("no_context", "no_context_resident", "destroyed_context"):
        test.both(scenario, {"SIMCUDA_FREE_ANYWHERE": "1"})
    for scenario in ("far_set", "far_set_resident", "far_set_async", "far_set_by_peer"):
        test.both(scenario, TWO)
    test.both("called_host")
    test.both("overruns")
    _, dump = test.both("overruns_resident")
    test.check("and no more was brought into memory than there is", dump["seals"] == 0, dump)
    test.both("overruns_small")
    test.both("freed_in_stream")
    test.both("freed_beside_capture")
    test.both("beside")
    test.both("retained")
    _, dump = test.both("batches")
    test.check("memory that a batch does not touch stays deferred", 0 < dump["backed_bytes_peak"] <= 16 << 20 and
               dump["live_bytes_peak"] == 24 << 20, dump)


main(refused)
