#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""addresses.py PROGRAM KERNELS SHIM: what is taken for an address, wherever the driver puts reservations and
whatever the device can read. The figures are the same everywhere."""
from scenarios import main

GRANULE = 2 << 20
LOW = {"SIMCUDA_LOW": "1"}
HMM = {"SIMCUDA_PAGEABLE": "1"}
# Settings of the driver, by name.
DRIVERS = {"as it is": {}, "low addresses": LOW, "HMM": HMM, "both": {**LOW, **HMM},
           "hints declined": {"SIMCUDA_HINTS": "0"}, "hints refused": {"SIMCUDA_HINTS": "2"},
           "low addresses, hints declined": {**LOW, "SIMCUDA_HINTS": "0"},
           "both, hints declined": {**LOW, **HMM, "SIMCUDA_HINTS": "0"}}


def addresses(test):
    peaks = {}
    for scenario, deferred, most in (("strided", "48", 56 << 20), ("strided_in_memory", "1", 24 << 20)):
        for name, driver in DRIVERS.items():
            _, dump = test.both(scenario, {**driver, "SIMCUDA_MEMORY_MIB": "4096", "DEFERRED_GIB": deferred},
                                alone={"DEFERRED_GIB": "0"})
            peak = dump["backed_bytes_peak"]
            peaks.setdefault(scenario, peak)  # of the first driver
            test.check(f"{scenario}, {name}: no more memory than it needs",
                       peak <= most and abs(peak - peaks[scenario]) <= GRANULE, f"{peak} of {peaks[scenario]} bytes")
    room = {**HMM, "SIMCUDA_MEMORY_MIB": "4096", "DEFERRED_GIB": "1"}
    _, dump = test.both("closed_memory", room, alone={"DEFERRED_GIB": "0"})
    test.check("memory without access leads nowhere", dump["backed_bytes_peak"] <= 4 << 20, dump["backed_bytes_peak"])
    _, dump = test.both("open_memory", room, alone={"DEFERRED_GIB": "0"})
    test.check("readable memory leads everywhere", dump["backed_bytes_peak"] > 1 << 30, dump["backed_bytes_peak"])
    seen, _ = test.run("open_memory", {**room, "METASHARD_EXPLAIN": "on"})
    test.check("and is a cause of its own, which is explained",
               "HMM or ATS" in seen.stderr, seen.stderr)
    for scenario in ("packed_parameter", "packed_records", "records_of_a_snapshot", "in_two_copies"):
        for settings in ({}, HMM, LOW):
            test.both(scenario, {**settings, "SIMCUDA_POISON": "2"})


main(addresses)
