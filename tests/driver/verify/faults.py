#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""faults.py PROGRAM KERNELS SHIM PLANTED COMPARE: METASHARD=verify finds each planted fault, and nothing without one."""
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "differential")]
import scenarios  # noqa: E402

PLANTED, COMPARE = sys.argv[4:6]
RULES = "write-only uniform32\nwrite-only drift32\nin-place neighbours32\n"
SUMS = re.compile(r"verify: (\d+) ranges, (\d+) bytes compared, (\d+) differ(?:; (\d+) bytes were left out)?$", re.M)
DIFFER = 14  # enum ms_event_kind
SMALL = {"SIMCUDA_MEMORY_MIB": "64"}
MISSED = {"SIM_UNHOOK": "cuMemsetD8_v2"}
# Scenario, settings that make the fault, what the line says; and settings of both.
FAULTS = (
    ("neighbours", None, "a recorded launch of neighbours32; cuMemcpyDtoH_v2 needs them", {}),
    ("drift", None, "instead of 11 00 00 00 11 00 00 00; by the lineage they are byte 0 of a recorded launch of drift32", {}),
    ("file", {"PLANT": "file"}, r"8\d* of the bytes 0 to 8388608 .* byte 1 of \S+data; cuMemcpyDtoH_v2 needs them",
     {"METASHARD_LEASES": "off"}),
    ("file_in_part", {"PLANT": "file"}, r"of the bytes 2097152 to 2101248 .* byte 2097153 of \S+data; cuMemcpyDtoD_v2 needs",
     {"METASHARD_LEASES": "off"}),
    ("order", {"PLANT": "order"}, "4096 of the bytes 0 to 4096 .* 11 11 11 11 11 11 11 11 instead of 22 22 22 22 22 22 22 22; "
     "by the lineage they are a host copy", {"SIMCUDA_DELAY_US": "20000"}),
    ("staged", {"PLANT": "staged"}, r"byte 8388\d+ of \S+staged; ", {}),
    ("staged_into_memory", {"PLANT": "staged"}, "of the bytes 2097152 to 4194304 .* they are what the call has just put there; "
     "cuMemcpyHtoD_v2 needs", {}),
    ("granules", {"PLANT": "sink"}, "of the bytes 0 to 8388608 .*; by the lineage they are a host copy", {}),
    ("stray_at_exit", MISSED, "3 of the bytes 0 to 8388608 .* from byte 2097157 on 77 77 77 .*; the end of the process needs",
     {}),
    ("stray_freed", MISSED, "3 of the bytes 0 to 8388608 .*; cuMemFree_v2 needs", {}),
    ("stray_overwritten", MISSED, "3 of the bytes 4096 to 8388607 .*; cuMemsetD8_v2 needs", {}),
    ("stray_under_pressure", MISSED, "3 of the bytes 0 to 8388608 .*; cuMemcpyDtoH_v2 needs", SMALL),
)
# Without the fault nothing is read: the file has changed.
REFUSED = ("file", "file_in_part")
# These have a fault always.
NEVER_RIGHT = ("neighbours", "drift")


def sums_of(done):
    found = SUMS.search(done.stderr)
    return [int(number or 0) for number in found.groups()] if found else None


def run(test, scenario, shim, settings):
    test.shim = shim
    return test.run(scenario, dict({"METASHARD": "verify", "METASHARD_SETTLE_MS": "0", "VERIFY_FILE":
                                    os.path.join(test.folder, "staged"), "SIMCUDA_PTX_KERNELS": COMPARE}, **settings))


def check_fault(test, scenario, plant, line, settings, way):
    done, dump = run(test, scenario, PLANTED, dict(settings, **(plant or {})))
    sums = sums_of(done)
    test.check(f"{scenario}, {way}: the fault is found", sums is not None and sums[2] > 0 and re.search(
        "error: verify: .*" + line, done.stderr), done.stderr)
    test.check(f"{scenario}, {way}: it is in the state page", dump.get("verify_differing_ranges") == (sums or [0] * 3)[2] and
               [cause for cause in dump["causes"] if cause["kind"] == DIFFER], dump)
    if scenario in NEVER_RIGHT:
        return
    done, _ = run(test, scenario, PLANTED, settings)
    sums = sums_of(done)
    test.check(f"{scenario}, {way}: nothing differs without it", sums is not None and sums[2] == 0 and
               (sums[0] > 0 or scenario in REFUSED), done.stderr)


def faults(test):
    with open(os.path.join(test.folder, "rules"), "w") as file:
        file.write(RULES)
    plain = test.shim
    for scenario, plant, line, settings in FAULTS:
        check_fault(test, scenario, plant, line, settings, "on the device")
        check_fault(test, scenario, plant, line, dict(settings, SIMCUDA_PTX_KERNELS="/nowhere"), "on the host")
    wanted, _ = test.run("several", with_shim=False)
    done, _ = run(test, "several", plain, {})
    whole = sums_of(done)
    test.check("a run without a fault compares all", whole is not None and whole[0] >= 4 and whole[1] == 64 << 20 and
               whole[2:] == [0, 0] and done.stdout == wanted.stdout, done.stderr)
    for percent in ("50", "0"):
        done, _ = run(test, "several", plain, {"METASHARD_VERIFY_SAMPLE": percent})
        sums = sums_of(done)
        test.check(f"a sample of {percent}%", sums is not None and 0 <= sums[1] <= int(percent) * whole[1] // 100 and
                   (sums[1] > 0) == (percent != "0") and sums[2] == 0 and sums[3] > 0 and done.stdout == wanted.stdout,
                   done.stderr)
    done, _ = run(test, "several", plain, {"SIMCUDA_MEMORY_MIB": "40"})
    sums = sums_of(done)
    test.check("bytes without memory for their shadow are left out", sums is not None and sums[2] == 0 and sums[3] > 0 and
               done.stdout == wanted.stdout, done.stderr)
    done, _ = run(test, "several", plain, {"METASHARD": "on"})
    test.check("a run without the mode says nothing", done.stderr == "" and done.stdout == wanted.stdout, done.stderr)


with tempfile.TemporaryDirectory() as directory:
    scenario_test = scenarios.Scenarios(directory)
    faults(scenario_test)
    sys.exit(scenarios.tap.end())
