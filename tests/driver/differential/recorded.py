#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recorded.py PROGRAM KERNELS SHIM: recorded launches, played in place, in parts and elsewhere."""
from scenarios import SMALL, main

SLOW = {"SIMCUDA_DELAY_US": "3000"}


def recorded(test):
    _, dump = test.both("chain")
    test.check("all launches of the chain but the last were recorded",
               dump["recorded_launches"] == 3, dump)
    _, dump = test.both("in_pieces")
    test.check("pieces of a launch took no other memory than their own",
               dump["backed_bytes_peak"] <= 34 << 20, dump)
    test.both("before_a_launch")
    _, dump = test.both("moved")
    test.check("no more than the rows and their scratch had memory",
               dump["backed_bytes_peak"] <= (8 + 10) << 20, dump)
    _, dump = test.both("columns")
    test.check("the columns alone had memory, and were copied once",
               dump["backed_bytes_peak"] <= 4 << 20 and dump["h2d_bytes"] <= 4 << 20, dump)
    for settings in ({}, SLOW, {"METASHARD_MIN_BYTES": "1"}):
        test.both("other_columns", settings)
    for scenario in ("changed_block_of_a_file", "changed_copy_of_a_file", "changed_block_of_host_bytes",
                     "changed_copy_of_host_bytes", "changed_twice"):
        _, dump = test.both(scenario)
        test.check(f"{scenario}: the launches were recorded, and the bytes sent once",
                   dump["recorded_launches"] == 1 + (scenario == "changed_twice") and dump["h2d_bytes"] <= 8 << 20, dump)
    test.both("little_room", SMALL, alone={})
    _, dump = test.both("moved_twice")
    test.check("launches on moved bytes were recorded", dump["recorded_launches"] == 3, dump)
    _, dump = test.both("deep")
    test.check("16 launches lie on each other at most", dump["recorded_launches"] == 16, dump)
    _, dump = test.both("from_another_context")
    test.check("a kernel of another context than the block's is not recorded", dump["recorded_launches"] == 0, dump)
    _, dump = test.both("has_an_input")
    test.check("a launch with an input is not recorded", dump["recorded_launches"] == 0, dump)
    _, dump = test.both("stale_parameter")
    test.check("an address where the kernel has no pointer is none", dump["recorded_launches"] == 2, dump)
    _, dump = test.both("with_attributes")
    test.check("launches with attributes that only say how were recorded, and no other", dump["recorded_launches"] == 2, dump)
    _, dump = test.both("refused")
    test.check("nothing that the driver refuses was recorded", dump["recorded_launches"] == 0, dump)
    _, dump = test.both("undefined_is_stable", dict(SMALL, SIMCUDA_POISON="2"), alone={})
    test.check("memory of reads was given back", dump["evicted_bytes"] > 0, dump)
    _, dump = test.both("lost_file_under_pressure", SMALL, alone={})
    test.check("memory of other files was given back", dump["evicted_bytes"] > 0, dump)
    test.both("behind_a_host_function")
    test.both("beside_resident")
    test.both("copy_of_read")
    for settings in ({}, SLOW, {"METASHARD_MIN_BYTES": "1"}):
        _, dump = test.both("beside_gaps", settings)
        test.check("launches beside gaps were recorded", dump["recorded_launches"] == 2, dump)
        test.both("beside_gaps_read", settings)
        _, dump = test.both("unmapped_after", settings)
        test.check("and so were those of which a part was unmapped", dump["recorded_launches"] >= 1, dump)
    for settings in ({}, SLOW):
        test.both("read_while_written", settings)
    for scenario in ("chain", "in_pieces", "before_a_launch", "moved", "moved_twice", "has_an_input"):
        test.both(scenario, dict(SLOW, METASHARD_MIN_BYTES="1"))


main(recorded)
