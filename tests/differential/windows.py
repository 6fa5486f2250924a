#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""windows.py PROGRAM KERNELS SHIM: settling, recorded launches and memory pressure.

Each scenario of windows.c runs without the shim (where the device is large enough for it) and with it;
outputs are compared, and the dump must show that the feature was at work.
"""
import json
import os
import subprocess
import sys
import tempfile

RULES = """# for the tests
write-only fill32
write-only  uniform32

writeonly other
in-place
"""
SMALL = {"SIMCUDA_MEMORY_MIB": "64"}
OPERATING_SYSTEM_ERROR = 304


class Test:
    number = failed = 0

    def check(self, name, condition, detail=""):
        self.number += 1
        self.failed += not condition
        print(f"{'ok' if condition else 'not ok'} {self.number} {name}")
        if not condition:
            print("# " + str(detail).replace("\n", "\n# "))


def run(folder, program, kernels, scenario, extra, shim=None):
    environment = dict(os.environ, SIMCUDA_STATS=os.path.join(folder, "stats"), SIMCUDA_POISON="1")
    environment.update(extra)
    if shim is not None:
        environment.update(LD_PRELOAD=shim, METASHARD_DUMP=os.path.join(folder, "dump"),
                           METASHARD_KERNEL_RULES=os.path.join(folder, "rules"),
                           METASHARD_SETTLE_MS=environment.get("METASHARD_SETTLE_MS", "100"))
    done = subprocess.run([program, kernels, scenario, os.path.join(folder, "data")],
                          env=environment, capture_output=True, text=True, timeout=120)
    dump = {}
    if shim is not None:
        with open(os.path.join(folder, "dump")) as file:
            dump = json.load(file)
    with open(os.path.join(folder, "stats")) as file:
        dump["physical_bytes_peak"] = json.load(file)["physical_bytes_peak"]
    return done, dump


def main():
    program, kernels, shim = sys.argv[1:4]
    test = Test()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "rules"), "w") as file:
            file.write(RULES)

        def both(scenario, extra=None, with_shim=None):
            """Runs it on a large device alone, and as asked with the shim."""
            alone, _ = run(folder, program, kernels, scenario, extra or {})
            seen, dump = run(folder, program, kernels, scenario, with_shim or extra or {}, shim)
            test.check(f"{scenario}: same output", (alone.returncode, alone.stdout) ==
                       (seen.returncode, seen.stdout), f"{alone.stdout}\n{seen.stdout}{seen.stderr}")
            return seen, dump

        seen, dump = both("overwrite_after")
        test.check("settled once, and why", dump["settles"] == 1 and
                   "launches work" in dump["settle_cause"], dump)
        test.check("a bad rule is one line with its place", [
            line.split("rules:")[1].split(":")[0] for line in seen.stderr.splitlines()
            if "rules:" in line] == ["5", "6"], seen.stderr)
        _, dump = run(folder, program, kernels, "overwrite_after", {"METASHARD_SETTLE_MS": "0"}, shim)
        test.check("settling can be switched off", dump["settles"] == 0, dump)

        seen, dump = run(folder, program, kernels, "overwrite_before", {}, shim)
        test.check("overwritten too early is an error of the call that reads",
                   f"before settling: result {OPERATING_SYSTEM_ERROR}" in seen.stdout, seen.stdout)
        test.check("and tells the file", os.path.join(folder, "data") in seen.stderr, seen.stderr)
        test.check("and nothing else fails", "another: result 0" in seen.stdout, seen.stdout)

        _, dump = both("overwrite_captured")
        test.check("settled for the capture", dump["settles"] == 1 and
                   "capture" in dump["settle_cause"], dump)
        both("overwrite_read")

        _, dump = both("second_window")
        test.check("the second window defers again", dump["recorded_launches"] == 1 and
                   dump["replayed_launches"] == 1, dump)
        test.check("only the part that was read had memory",
                   dump["backed_bytes_peak"] <= (8 + 2) << 20, dump)

        _, dump = both("unload")
        test.check("the launch was recorded", dump["recorded_launches"] == 1, dump)

        _, dump = both("pressure", with_shim=SMALL)
        test.check("what was read was given back", dump["evicted_bytes"] > 0, dump)
        both("pressure_for_others", with_shim=SMALL)

        both("pageable_table", {"SIMCUDA_PAGEABLE": "1"})

        seen, _ = run(folder, program, kernels, "out_of_memory", SMALL, shim)
        alone, _ = run(folder, program, kernels, "out_of_memory", {})
        test.check("a launch without memory says so", "the second launch: 2" in seen.stdout,
                   seen.stdout)
        test.check("and nothing is lost", seen.stdout.replace("launch: 2", "launch: 0") ==
                   alone.stdout, f"{alone.stdout}{seen.stdout}{seen.stderr}")

        seen, _ = run(folder, program, kernels, "allocate_until_failure",
                      dict(SMALL, METASHARD_OVERCOMMIT="3"), shim)
        test.check("allocations end at the bound", seen.stdout == "allocated 24, then 2\n",
                   seen.stdout)
    print(f"1..{test.number}")
    return test.failed > 0


if __name__ == "__main__":
    sys.exit(main())
