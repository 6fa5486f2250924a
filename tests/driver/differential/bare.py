#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bare.py PROGRAM KERNELS SHIM: the scenarios of blocks, on a driver with nothing that the shim can do without.

It tells neither what the parameters of a kernel are, nor when a context is idle.
"""
import os

from scenarios import main

MIB = 1 << 20
# Not in the environment of the test: meson puts the drivers of all that it depends on there, in any order.
BARE = {"LD_LIBRARY_PATH": os.environ["BARE_DRIVER"]}


def bare(test):
    _, dump = test.both("carved", BARE)
    test.check("blocks are seen, and nothing that is launched waits",
               dump["observed_blocks"] == 1 + 4 + 4 and dump["recorded_launches"] == 0, dump)
    _, dump = test.both("left_behind", BARE)
    test.check("memory that blocks leave behind stays", dump["backed_bytes_peak"] == 48 * MIB and dump["evicted_bytes"] == 0,
               (dump["backed_bytes_peak"], dump["evicted_bytes"]))
    test.both("after_settling", BARE)
    test.both("random", BARE)


main(bare)
