#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""loaders.py PROGRAM KERNELS SHIM: what a loader reads is a reference to its file, as what it maps, at any limit of host copies."""
from scenarios import main

MIB = 1 << 20
TENSOR = 4 * MIB
ALL = 8 * TENSOR
LIMIT = {"METASHARD_SNAPSHOT_BYTES": "1M"}
READERS = ("with_pread", "with_read", "in_parts", "with_preadv", "with_readv", "with_preadv2", "fortified", "with_fread",
           "with_fortified_fread", "buffered", "by_threads", "staged", "whole", "copied_on", "directly", "directly_in_parts",
           "directly_by_threads", "directly_with_preadv", "unseen")
OPERATING_SYSTEM_ERROR = 304


def all_scenarios(test):
    for scenario in READERS:
        _, dump = test.both(scenario, LIMIT)
        test.check(f"{scenario}: all is the file's", dump["recorded_file_bytes"] == ALL, dump)
        test.check(f"{scenario}: only what was used has memory", dump["backed_bytes_peak"] <= TENSOR, dump["backed_bytes_peak"])
        test.check(f"{scenario}: nothing is kept on the host", dump["recorded_snapshot_bytes"] == 0, dump)
    _, dump = test.both("halves", LIMIT)
    test.check("a part of what was read is the file's", dump["recorded_file_bytes"] == ALL // 2, dump)
    test.check("and only what was used has memory", dump["backed_bytes_peak"] <= TENSOR // 2, dump["backed_bytes_peak"])
    for scenario in ("changed", "mapped_anew", "number_of_another", "directly_changed", "directly_read_over", "directly_mapped_anew",
                     "unseen_changed"):
        for settings in ({}, LIMIT):
            test.both(scenario, settings)
    for scenario in ("changed", "directly_changed"):
        _, dump = test.both(scenario)
        test.check(f"{scenario}: what was is not the file's", dump["recorded_file_bytes"] == 0, dump)
    for settings in ({}, LIMIT, {"METASHARD_LEASES": "off"}):
        test.both("written_since", settings)
        test.both("directly_written_since", settings)
        test.both("unseen_written_since", settings)
    _, dump = test.both("unseen_by_one_of_four", LIMIT)
    test.check("pieces between those of others are the file's", dump["recorded_file_bytes"] == ALL // 4, dump)
    seen, _ = test.run("unseen_changed_a_little")
    test.check("a change that no sample shows fails when its bytes are needed", f"result {OPERATING_SYSTEM_ERROR}" in seen.stdout and
               "METASHARD_UNSEEN_READS=off" in seen.stderr, seen.stdout + seen.stderr)
    _, dump = test.both("unseen_changed_a_little", {"METASHARD_UNSEEN_READS": "off"})
    test.check("and is kept with the setting", dump["recorded_snapshot_bytes"] == TENSOR, dump)


main(all_scenarios)
