#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""blocks.py PROGRAM KERNELS SHIM: what a caching allocator reports is the unit of deferral."""
import json
import os

from scenarios import SMALL, main

MIB = 1 << 20
RULES = "write-only fill32\nwrite-only uniform32\nfrom-other copy32\nfrom-first send32\n"


def kinds(dump):
    """The kinds of bytes in the live allocations."""
    return {kind for block in dump["blocks"] for kind in block["kinds"]}


def outside(allocation):
    """The kinds of bytes that lie in none of the allocation's blocks."""
    inside = [part["kinds"] for part in allocation["parts"]]
    return {kind for kind, size in allocation["kinds"].items() if size > sum(kinds.get(kind, 0) for kinds in inside)}


def alone(test):
    _, dump = test.both("carved")
    test.check("only the shards had memory, and one granule at a time beside them",
               dump["backed_bytes_peak"] <= (16 + 4 + 4) * MIB, dump)
    test.check("every block was seen", dump["observed_blocks"] == 1 + 4 + 4, dump)
    test.check("and those that are left are told", dump["deferred_bytes"] == 0 and
               [block["taken"] for block in dump["blocks"]] ==
               [[], [[at * MIB, (at + 4) * MIB] for at in (0, 4, 8, 12)]], dump)
    _, dump = test.both("experts")
    test.check("only the parts that were read of 18,432 experts had memory", dump["backed_bytes_peak"] <= 2 * MIB,
               dump["backed_bytes_peak"])
    _, dump = test.both("shredded", {"METASHARD_SETTLE_MS": "0"})
    test.check("a block in too many pieces is in memory, and no other", 16 * MIB < dump["backed_bytes_peak"] <= 18 * MIB,
               dump["backed_bytes_peak"])
    test.check("and that is said", dump["fallbacks"] == 1, dump["fallbacks"])
    _, dump = test.both("one_block")
    test.check("a block and the part that was read of another had memory",
               dump["backed_bytes_peak"] <= (16 + 2 + 2) * MIB, dump)
    test.both("neighbours")
    test.both("outside")
    _, dump = test.both("written_before")
    test.check("an allocation that was used as a whole stays whole", "dead" not in kinds(dump), dump)
    test.both("undefined_input")
    test.both("little_before")
    _, dump = test.both("across_a_gap")
    test.check("nothing is deferred between two blocks", outside(dump["blocks"][0]) <= {"dead", "resident"}, dump)
    _, dump = test.both("stale")
    test.check("a stale address costs nothing", dump["backed_bytes_peak"] == 4 * MIB, dump)
    test.both("within")
    _, dump = test.both("first_is_source")
    test.check("a launch that sends a block on to another is recorded", dump["recorded_launches"] == 2 + 2, dump["recorded_launches"])
    _, dump = test.both("chain")
    test.check("a chain of copies has no more than two that wait", dump["recorded_launches"] == 1 + 2, dump)
    _, dump = test.both("described")
    test.check("a map's tensor had memory, and no other",
               dump["backed_bytes_peak"] <= (16 + 4) * MIB and
               dump["deferred_bytes"] == (16 + 16 + 12) * MIB, dump)
    _, dump = test.both("described_elsewhere")
    test.check("the block at a map's new address had memory, and no other",
               dump["backed_bytes_peak"] <= 16 * MIB and dump["deferred_bytes"] == 48 * MIB, dump)
    test.both("odd_reports")
    seen, dump = test.both("silent")
    test.check("the log tells, once, that no blocks are reported", dump["observed_blocks"] == 0 and
               seen.stderr.count("does not report the blocks") == 1, seen.stderr)


def with_time(test):
    for delay in ("0", "2000"):
        _, dump = test.both("freed_but_queued", dict(SMALL, SIMCUDA_DELAY_US=delay), alone={})
        test.check("the memory of dead blocks came back", dump["evicted_bytes"] > 0, dump)
    patient = {"METASHARD_IDLE_MS": "5000"}
    for delay in ("0", "2000"):
        _, dump = test.both("left_behind", dict(patient, SIMCUDA_DELAY_US=delay), alone={})
        test.check("blocks have memory one at a time", dump["backed_bytes_peak"] == 24 * MIB, dump["backed_bytes_peak"])
    _, dump = test.both("left_in_use")
    test.check("memory in use stays", dump["backed_bytes_peak"] == (24 + 4 + 24) * MIB and dump["evicted_bytes"] == 0,
               (dump["backed_bytes_peak"], dump["evicted_bytes"]))
    _, dump = test.both("left_behind", dict(patient, METASHARD_DEAD_BYTES="24M"), alone={})
    test.check("dead memory stays up to its limit, but not under a new block",
               dump["backed_bytes_peak"] == 48 * MIB and dump["evicted_bytes"] == 48 * MIB,
               (dump["backed_bytes_peak"], dump["evicted_bytes"]))
    _, dump = test.both("for_ever", patient, alone={})
    test.check("a program that goes on and on gives back once what it always wants again", dump["evicted_bytes"] == 24 * MIB,
               dump["evicted_bytes"])
    _, dump = test.both("for_the_next", patient, alone={})
    test.check("and goes on to give back what it does not want again, up to four times what it has",
               3 * 64 * MIB < dump["evicted_bytes"] <= 4 * 64 * MIB + 24 * MIB, dump["evicted_bytes"])
    _, dump = test.both("after_settling")
    test.check("settled", dump["settles"] == 1, dump)
    test.check("a block that was handed out later has memory, and what is dead has none",
               kinds(dump) == {"resident", "dead"} and
               dump["backed_bytes_peak"] <= (8 + 4 + 2) * MIB, dump)
    _, dump = test.both("described_again", dict(SMALL, **patient), alone={})
    test.check("memory under a tensor map stays, and other memory is given back",
               dump["evicted_bytes"] >= 16 * MIB, dump["evicted_bytes"])
    test.both("captured", SMALL, alone={})
    _, dump = test.both("ready_when_short", SMALL, alone={})
    test.check("only what was given back made room", dump["evicted_bytes"] >= 8 * MIB, dump["evicted_bytes"])
    test.check("each block was counted", dump["observed_blocks"] == 16 * 4 + 1 + 2, dump["observed_blocks"])
    for delay in ("0", "2000"):
        test.both("ready_and_queued", dict(SMALL, SIMCUDA_DELAY_US=delay), alone={})
    test.both("ready_then_deferred")
    _, dump = test.both("ready_and_copied")
    test.check("a stale address reaches nothing that is deferred", dump["deferred_bytes"] == 4 * MIB, dump)
    # Without the shim there is no room for the other one.
    seen, _ = test.run("exported", SMALL)
    test.check("memory that was exported stays where it is",
               seen.stdout == "no room: 2\nthrough the handle: 4\n", seen.stdout + seen.stderr)


def peak_of(test, scenario, with_shim):
    """The peak of the device's memory, as the driver counts it."""
    stats = os.path.join(test.folder, "stats")
    test.run(scenario, {"SIMCUDA_STATS": stats, "METASHARD_SELFCHECK": "off"}, with_shim)
    with open(stats, encoding="utf-8") as file:
        return json.load(file)["physical_bytes_peak"]


def late(test):
    """Replays take scratch memory while the program has less memory than it had."""
    for scenario in ("read_late", "read_late_odd"):
        _, dump = test.both(scenario)
        test.check("all was recorded", dump["recorded_launches"] == 6 * 3 and dump["fallbacks"] == 0, dump)
        peaks = [peak_of(test, scenario, with_shim) for with_shim in (False, True)]
        test.check("the device never holds more than without", peaks[1] <= peaks[0], peaks)


def at_random(test):
    for seed in range(1, 13):
        settings = {"BLOCKS_SEED": str(seed)}
        if seed % 3 == 1:
            settings["METASHARD_MIN_BYTES"] = "1"
        if seed % 3 == 2:
            settings["SIMCUDA_DELAY_US"] = "300"
        if seed % 4 == 3:
            settings["SIMCUDA_MEMORY_MIB"] = "48"
        _, dump = test.both("random", settings, alone={"BLOCKS_SEED": str(seed)})
        test.check("launches were recorded and replayed", dump["recorded_launches"] > 0 and
                   dump["replayed_launches"] > 0, dump)


def blocks(test):
    with open(os.path.join(test.folder, "rules"), "w") as file:
        file.write(RULES)
    alone(test)
    with_time(test)
    late(test)
    at_random(test)


main(blocks)
