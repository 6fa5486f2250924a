#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""faults.py --build DIR --preload VALUE: one failing driver call, anywhere in a load.

For every driver function that the shim calls of its own accord, its n-th call fails once. The
client must then see an error, or the right bytes: never wrong ones, no crash, no hang.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, report  # noqa: E402

OUT_OF_MEMORY, UNKNOWN = 2, 999
FUNCTIONS = {
    "cuCtxGetCurrent": UNKNOWN, "cuCtxGetDevice": UNKNOWN, "cuCtxSynchronize": UNKNOWN,
    "cuDeviceGetAttribute": UNKNOWN, "cuMemAddressFree": UNKNOWN,
    "cuMemAddressReserve": OUT_OF_MEMORY, "cuMemCreate": OUT_OF_MEMORY,
    "cuMemGetAllocationGranularity": UNKNOWN, "cuMemMap": UNKNOWN, "cuMemRelease": UNKNOWN,
    "cuMemSetAccess": UNKNOWN, "cuMemUnmap": UNKNOWN, "cuMemcpyHtoDAsync_v2": UNKNOWN,
    "cuStreamCreate": OUT_OF_MEMORY, "cuStreamQuery": UNKNOWN, "cuStreamSynchronize": UNKNOWN,
    "cuThreadExchangeStreamCaptureMode": UNKNOWN,
}
CALLS = (1, 2, 3, 7, 20)


def run(client, checkpoint, environment):
    """None when the outcome is a right one, else what was wrong; and whether the load failed."""
    try:
        done = subprocess.run([client, "1", "2", checkpoint], env=environment, timeout=60,
                              capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return "hangs", False
    if done.returncode == 0:
        loaded = json.loads(done.stdout)
        return None if loaded["hash"] == loaded["file_hash"] else "wrong bytes", False
    if done.returncode == 1 and "CUDA error" in done.stderr:
        return None, True
    return f"exit status {done.returncode}: {done.stderr[-500:]}", False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--preload", required=True)
    arguments = parser.parse_args()
    tool = os.path.join(arguments.build, "tests", "demo")
    seen_errors = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(tool, "make_checkpoint"), folder, "8", "2"], check=True,
                       capture_output=True)
        for function, code in FUNCTIONS.items():
            faults = []
            for call in CALLS:
                environment = dict(os.environ, LD_PRELOAD=arguments.preload,
                                   METASHARD_MIN_BYTES="4096", METASHARD_SELFCHECK="off",
                                   SIMCUDA_FAULTS=f"{function}:{call}={code}")
                fault, failed = run(os.path.join(tool, "client"), folder, environment)
                seen_errors += failed
                if fault:
                    faults.append(f"call {call}: {fault}")
            report(f"a failing {function}", "\n".join(faults))
    check(f"faults reach the program ({seen_errors} loads failed)", seen_errors > 5)
    return end()


if __name__ == "__main__":
    sys.exit(main())
