#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_passes.py SHIM: what is used again stays. FSDP of a loaded model, in few passes and in more: each rank is sent its
part of the checkpoint once, and has no more memory than without the shim. TAP.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from check_distributed import SECONDS, free_port
from check_wheel import Tap

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "passes_program.py")
NUMBERS = 4 * (2053 * 1031 + 2053)  # at least those of the model
MIB = 1 << 20
# For the program's own copies to the device, and for tensors that share a granule.
SENT_ALLOWANCE, PEAK_ALLOWANCE = MIB // 2, 4 * MIB

# Passes, ranks, ways (passes_program.py).
ROWS = [(1, 2, ()), (4, 2, ()), (4, 2, ("bf16",)), (1, 2, ("train",)),
        (3, 4, ("train", "bf16", "replicas")), (1, 2, ("dcp",))]


def run(folder, row, preload):
    """Each rank's lines and what the simulated driver counted, and what is wrong."""
    passes, world, ways = row
    port = str(free_port())
    ranks = [subprocess.Popen(
        [sys.executable, PROGRAM, folder, str(passes), *ways],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                 OMP_NUM_THREADS="1", SIMCUDA_STATS=os.path.join(folder, f"stats-{rank}"), LD_PRELOAD=preload))
             for rank in range(world)]
    ended, wrong = [], []
    for rank, process in enumerate(ranks):
        out, error = process.communicate(timeout=SECONDS)
        if process.returncode != 0:
            wrong.append(f"rank {rank}: exit status {process.returncode}: {error[-900:]}")
            continue
        with open(os.path.join(folder, f"stats-{rank}"), encoding="ascii") as file:
            ended.append((out.splitlines(), json.load(file)))
    return ended, wrong


def check(tap, folder, row, shim, before):
    passes, _, ways = row
    name = f"{' '.join(['FSDP2', *ways])}, {passes} passes"
    without, wrong = run(folder, row, before)
    found, also_wrong = run(folder, row, ":".join(filter(None, [shim, before])))
    tap.check(f"{name}: every rank comes to its end", not wrong + also_wrong, "\n".join(wrong + also_wrong))
    if wrong or also_wrong:
        return
    for rank, ((wanted, then), (lines, now)) in enumerate(zip(without, found)):
        shard = json.loads(lines[-1])["shard"]
        tap.check(f"{name}, rank {rank}: the same numbers", lines == wanted, f"{lines}, without the shim {wanted}")
        most = then["h2d_bytes"] if "dcp" in ways else shard  # each load sends the part once
        tap.check(f"{name}, rank {rank}: its part is sent once", now["h2d_bytes"] <= most + SENT_ALLOWANCE,
                  f"{now['h2d_bytes'] / MIB:.1f} MiB sent, {shard / MIB:.1f} are its part; without {then['h2d_bytes'] / MIB:.1f}")
        tap.check(f"{name}, rank {rank}: not more memory",
                  now["physical_bytes_peak"] <= then["physical_bytes_peak"] + PEAK_ALLOWANCE,
                  f"{now['physical_bytes_peak'] / MIB:.0f} MiB, {then['physical_bytes_peak'] / MIB:.0f} without")


def main():
    tap, shim = Tap(), sys.argv[1]
    before = os.environ.get("LD_PRELOAD", "")
    with tempfile.TemporaryDirectory() as folder:
        np.sin(np.arange(NUMBERS, dtype=np.float32)).tofile(os.path.join(folder, "weights"))
        time.sleep(0.1)  # a file that has just been written is not trusted
        for row in ROWS:
            check(tap, folder, row, shim, before)
    tap.end()


if __name__ == "__main__":
    main()
