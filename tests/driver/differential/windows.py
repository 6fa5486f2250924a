#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""windows.py PROGRAM KERNELS SHIM: settling and memory pressure; the dump must show them at work."""
import os

from scenarios import SMALL, main

OPERATING_SYSTEM_ERROR = 304


def is_deferred(dump):
    """For each live block, whether some of the block is not in memory."""
    return ["file" in block["kinds"] for block in dump["blocks"]]


def settling(test):
    seen, dump = test.both("overwrite_after")
    test.check("settled once, and why", dump["settles"] == 1 and
               "launches work" in dump["settle_cause"] and dump["settled_allocations"] == 1, dump)
    test.check("a bad rule is one line with its place", [
        line.split("rules:")[1].split(":")[0] for line in seen.stderr.splitlines()
        if "rules:" in line] == ["5", "6"], seen.stderr)
    _, dump = test.run("overwrite_after", {"METASHARD_SETTLE_MS": "0"})
    test.check("settling can be switched off", dump["settles"] == 0, dump)

    _, dump = test.both("slow_work")
    test.check("a few launches do not settle", dump["settles"] == 0, dump)

    seen, dump = test.run("overwrite_before", {"METASHARD_LEASES": "off"})
    test.check("overwritten too early is an error of the call that reads",
               f"before settling: result {OPERATING_SYSTEM_ERROR}" in seen.stdout, seen.stdout)
    test.check("and tells the file", os.path.join(test.folder, "data") in seen.stderr, seen.stderr)
    test.check("and nothing else fails", "another: result 0" in seen.stdout, seen.stdout)

    seen, dump = test.run("overwrite_one", {"METASHARD_LEASES": "off"})
    test.check("settling goes on behind a block that is lost", dump["settles"] == 1 and
               is_deferred(dump) == [True, False] and dump["settled_allocations"] == 1, dump)
    test.check("the log tells of a lost block when settling, and when a read needs it", seen.stderr.count("changed after") == 2,
               seen.stderr)
    test.check("and the other is right", "kept: result 0" in seen.stdout, seen.stdout)

    _, dump = test.both("overwrite_captured")
    test.check("settled for the capture", dump["settles"] == 1 and
               "capture" in dump["settle_cause"], dump)
    test.both("overwrite_read")

    _, dump = test.both("second_window")
    test.check("the second window defers again", dump["recorded_launches"] == 1 and
               dump["replayed_launches"] == 1, dump)
    test.check("only the part that was read had memory", dump["backed_bytes_peak"] <= (8 + 2) << 20,
               dump)

    _, dump = test.both("unload")
    test.check("the launch was recorded", dump["recorded_launches"] == 1, dump)


def pressure(test):
    _, dump = test.both("pressure", SMALL, alone={})
    test.check("memory of reads was given back", dump["evicted_bytes"] > 0, dump)
    test.both("pressure_for_others", SMALL, alone={})
    test.both("pageable_table", {"SIMCUDA_PAGEABLE": "1"})

    seen, _ = test.run("out_of_memory", SMALL)
    alone, _ = test.run("out_of_memory", with_shim=False)
    test.check("a launch without memory says so", "the second launch: 2" in seen.stdout, seen.stdout)
    test.check("and nothing is lost", seen.stdout.replace("launch: 2", "launch: 0") == alone.stdout,
               f"{alone.stdout}{seen.stdout}{seen.stderr}")

    seen, _ = test.run("allocate_until_failure", dict(SMALL, METASHARD_OVERCOMMIT="3"))
    test.check("allocations end at the bound", seen.stdout == "allocated 24, then 2\n", seen.stdout)


def all_scenarios(test):
    settling(test)
    pressure(test)


main(all_scenarios)
