#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wire.py --programs FOLDER --kernels FILE --plan PROGRAM --preload FILE --driver FILE --nccl FILE: instructions of flows over NCCL.

Flows of tests/ranks/flows, with 4 ranks, under callgrind: without the preload, with it, and with a plan. A line for each:
millions of instructions of all ranks and threads outside of the program itself (shim, driver, NCCL, libc). The simulated NCCL and
driver move bytes with the processor, so that what is not moved is seen; what they do while they wait is some hundredths, and
differs from run to run. Values are those of the file in every run, or it fails. Without valgrind the exit status is 77.
"""
import argparse
import glob
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "ranks", "flows"))

import check_flows as flows  # noqa: E402
import model as models  # noqa: E402
from instructions import costs, without_debug_information  # noqa: E402
from running import run  # noqa: E402

RANKS = 4
CHOSEN = ("FSDP1, coalesced", "broadcast_from_rank0", "DTensor scatter", "zero.Init")
WAYS = (flows.WITHOUT, flows.WITH, flows.PLAN)
# Valgrind runs the threads of a rank one after the other.
PATIENCE = ("SIMNCCL_TIMEOUT_MS=250000",)


def spent(out, program):
    return sum(number for part in glob.glob(out + ".*") for place, callee, number in costs(part)
               if callee is None and os.path.basename(place) != program)


def count(options, case, model, way):
    """Millions of instructions."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        out = os.path.join(folder, "callgrind")
        options.wrapper = lambda rank: ["env", *PATIENCE, "valgrind", "--quiet", "--tool=callgrind", "--compress-strings=no",
                                        "--compress-pos=no", f"--callgrind-out-file={out}.{rank}"]
        done = run(options, case, model, RANKS, way)
        if done.error:
            sys.exit(f"{case.name}, {way.name}: {done.error}\n{done.said}")
        return spent(out, "flow_" + case.program) / 1e6


def parse():
    parser = argparse.ArgumentParser()
    for name in ("programs", "kernels", "plan", "preload", "driver", "nccl"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    options.granule, options.bucket, options.shim, options.users = 64 << 10, 1 << 20, {}, False
    return options


def main():
    options = parse()
    if shutil.which("valgrind") is None or shutil.which("objcopy") is None:
        print("skipped: valgrind or objcopy is not installed")
        return 77
    chosen = [flow for flow in flows.FLOWS if flow.name in CHOSEN]
    with tempfile.TemporaryDirectory(prefix="metashard-wire-", dir=os.environ.get("TMPDIR")) as folder:
        files = sorted({f"flow_{flow.program}" for flow in chosen} | {"flow_kernels.so"})
        copies = without_debug_information(folder, options.driver, options.nccl, options.preload,
                                           *(os.path.join(options.programs, file) for file in files))
        os.environ["LD_LIBRARY_PATH"] = folder
        os.environ["NCCL_LIBRARY"] = copies[1]
        options.preload, options.programs, options.folder = copies[2], folder, folder
        options.cat = os.path.join(folder, "flow_kernels.so")
        model = models.Model(folder, "small")
        print(f"{'flow':32}{'ranks':>6}" + "".join(f"{way.name:>12}" for way in WAYS))
        for case in chosen:
            figures = [count(options, case, model, way) for way in WAYS]
            print(f"{case.name:32}{RANKS:6}" + "".join(f"{figure:12.1f}" for figure in figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
