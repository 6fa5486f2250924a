#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shortage.py PROGRAM KERNELS SHIM: where a program meets an out-of-memory, without and with the shim."""
import os

from scenarios import SMALL as SMALL_DEVICE
from scenarios import main

SMALL = dict(SMALL_DEVICE, METASHARD_IDLE_MS="5000")  # however busy the machine is

LARGE = {"SIMCUDA_MEMORY_MIB": "256"}


def recorded_copy(test):
    rules = os.path.join(test.folder, "copies")
    with open(rules, "w") as file:
        file.write("write-only uniform32\nfrom-other copy32\n")
    seen, dump = test.both("recorded_copy", dict(SMALL, METASHARD_KERNEL_RULES=rules))
    test.check("the copy was recorded, and found room", dump["recorded_launches"] == 2 and
               "fails" not in seen.stderr, f"{dump}{seen.stderr}")


def checked(test):
    """What PyTorch's check of results is given, and its allocator (shim/torch_errors.c)."""
    for scenario, called in (("2_14", "2.14, with a log: error {}, file:3000000000, function, with assertions; last error {}"),
                             ("2_10", "2.10: error {}, file:3000000000, function, with assertions; last error {}"),
                             ("2_4", "2.4: error {}, file:-7, function; last error {}")):
        seen, _ = test.run(f"checked_by_{scenario}", SMALL)
        wanted = [called.format(0, 2), called.format(2, 2), "OutOfMemoryError: 1073741824 GiB, device type 1",
                  called.format(2, 0)]
        test.check(f"PyTorch {scenario.replace('_', '.')}: a shortage is its allocator's error, and nothing else is",
                   (seen.returncode, seen.stdout.splitlines()) == (0, wanted), f"{seen.stdout}{seen.stderr}")


def all_scenarios(test):
    checked(test)
    recorded_copy(test)
    for scenario in "batch_search", "model_in_search", "optimizer_state", "settled", "just_fits":
        seen, dump = test.both(scenario, SMALL)
        test.check(f"{scenario}: nothing fails but allocations", "fails" not in seen.stderr, seen.stderr)
        test.check(f"{scenario}: something was deferred", dump["recorded_launches"] > 0, dump)
    seen, _ = test.both("captured_short", SMALL, alone=LARGE)
    test.check("captured_short: what 200 captures lack is said once", seen.stderr.count("there is no memory") == 1, seen.stderr)
    test.both("after_a_launch", SMALL)
    test.both("rounded", {"SIMCUDA_MEMORY_MIB": "65"})
    for scenario in "larger_model", "larger_model_with_helpers", "next_model":
        seen, dump = test.run(scenario, SMALL)
        alone, _ = test.run(scenario, LARGE, with_shim=False)
        told = [line for line in seen.stdout.splitlines() if line.startswith("part")]
        wanted = [line for line in alone.stdout.splitlines() if line.startswith("part")]
        test.check(f"{scenario}: more than the device is promised while it is made",
                   seen.returncode == 0 and told == wanted, f"{alone.stdout}{seen.stdout}{seen.stderr}")
        test.check(f"{scenario}: and no longer once it is used", "too much: 2" in seen.stdout, seen.stdout)


main(all_scenarios)
