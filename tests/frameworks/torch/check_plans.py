#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_plans.py SHIM METASHARD_PLAN_TOOL: PyTorch under a sharding plan, in place. TAP.

Checkpoints of safetensors and of torch.save; each rank holds its rows and no more, and reads the same bytes as
without the shim.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import save_file

from check_wheel import Tap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plan_program.py")
WORLD, GRANULE = 4, 2 << 20
# Rows that 4 divides, rows that it does not, and fewer rows than ranks.
SHAPES = {"embed": (4096, 1024), "layers.0.weight": (1001, 4096), "few": (3, 1 << 20)}


def make(folder):
    torch.manual_seed(0)
    state = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in SHAPES.items()}
    paths = [os.path.join(folder, name) for name in ("model.safetensors", "model.pt")]
    save_file(state, paths[0])
    torch.save(state, paths[1])
    time.sleep(0.1)  # a file this young could change unnoticed
    return paths


def run(path, rank, preload, *options, **settings):
    environment = dict(os.environ, **settings)
    environment["LD_PRELOAD"] = ":".join(filter(None, [preload, os.environ.get("LD_PRELOAD")]))
    return subprocess.run([sys.executable, PROGRAM, path, str(rank), str(WORLD), *options], env=environment,
                          capture_output=True, text=True, timeout=600)


def owned(rank):
    total = 0
    for rows, *rest in SHAPES.values():
        size = -(-rows // WORLD)
        row = 2
        for length in rest:
            row *= length
        total += max(0, min(rows, (rank + 1) * size) - min(rows, rank * size)) * row
    return total


def check(tap, options, path, plan, rank, mode):
    kind = os.path.splitext(path)[1]
    with tempfile.TemporaryDirectory() as folder:
        dump = os.path.join(folder, "dump")
        alone = run(path, rank, "", "--outside")
        seen = run(path, rank, options[0], "--outside", METASHARD_PLAN=plan, METASHARD_PLAN_MODE=mode,
                   RANK=str(rank), METASHARD_DUMP=dump)
        facts = read_dump(dump) if os.path.exists(dump) else {}
    try:
        wanted, found = json.loads(alone.stdout), json.loads(seen.stdout)
    except ValueError:
        tap.check(f"{kind} rank {rank} {mode}: runs", False, alone.stderr[-600:] + seen.stderr[-900:])
        return
    outside = found.pop("outside")
    same = outside == wanted.pop("outside")
    tap.check(f"{kind} rank {rank} {mode}: the rank's rows", found == wanted, f"{found}\n{wanted}")
    if mode == "enforce":
        tap.check(f"{kind} rank {rank} {mode}: other rows are refused", "not permitted" in outside, outside)
        most = owned(rank) + 2 * GRANULE * len(SHAPES)
        held = facts.get("backed_bytes_peak", 1 << 62)
        tap.check(f"{kind} rank {rank} {mode}: memory", held <= most, f"{held} bytes, expected at most {most}")
        read = facts.get("file_read_bytes", 0)
        tap.check(f"{kind} rank {rank} {mode}: bytes read", owned(rank) <= read <= owned(rank) + 16384,
                  f"{read}, expected {owned(rank)}")
    else:
        tap.check(f"{kind} rank {rank} {mode}: other rows are right", same, outside)
    tap.check(f"{kind} rank {rank} {mode}: tensors", facts.get("plan", {}).get("tensors") == len(SHAPES),
              json.dumps(facts.get("plan")))


def main():
    options, tap = [os.path.abspath(path) for path in sys.argv[1:3]], Tap()
    with tempfile.TemporaryDirectory() as folder:
        for path in make(folder):
            plan = path + ".plan"
            subprocess.run([options[1], "make", path, "--strategy", "fsdp2", "--world", str(WORLD), "-o", plan],
                           check=True)
            for rank in range(WORLD):
                check(tap, options, path, plan, rank, ("enforce", "advise")[rank % 2])
    tap.end()


if __name__ == "__main__":
    main()
