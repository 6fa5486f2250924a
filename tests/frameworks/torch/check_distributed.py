#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_distributed.py SHIM: torch.distributed over NCCL, every rank a process with a device of its own, without and
with the shim. The output of every rank is compared with the right one. TAP.
"""
import os
import socket
import subprocess
import sys

from check_wheel import Tap

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "distributed_program.py")
MANY = 3 << 20
SECONDS = 300


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def run(world, preload):
    """The output of every rank, and the faults."""
    port = str(free_port())
    ranks = [subprocess.Popen(
        [sys.executable, PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                 MASTER_PORT=port, LD_PRELOAD=preload, TORCH_NCCL_ENABLE_MONITORING="0"))
             for rank in range(world)]
    said, wrong = [], []
    for rank, process in enumerate(ranks):
        try:
            out, error = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            out, error = process.communicate()
        said.append(out.splitlines())
        if process.returncode != 0:
            wrong.append(f"rank {rank}: exit status {process.returncode}: {error[-900:]}")
    return said, wrong


def expected(rank, world):
    """The lines of distributed_program.py; the version is what NCCL says."""
    half, everyone = world // 2, [float(other) for other in range(world)]
    halves = [everyone[:half], everyone[half:]]
    mine, total = halves[rank >= half], world * (world + 1) / 2

    def line(what, *values):
        return " ".join([what, *(str(sorted(set(value))) for value in values)])

    inner = rank % half
    # The mean is that of what is the same everywhere.
    return [
        line("broadcast", [float(world)]), line("all_gather", *([one] for one in everyone)),
        line("all_gather_into_tensor", everyone), line("scatter", [10.0 + rank]),
        line("gather", *([one] for one in everyone if rank == 0)), line("all_reduce", [total]),
        line("average", [total]), line("reduce_scatter", [total]), line("all_to_all", everyone),
        line("around", [float((rank - 1) % world)]), f"objects {[{'rank': other} for other in range(world)]}",
        "object ['of 0']", line("coalesced", [0.0], [0.0], [0.0]), line("new_group", [sum(mine)]),
        line("split_group", [sum(mine)]), line("mesh outer", [everyone[rank % half] + everyone[rank % half + half]]),
        line("mesh inner", [sum(mine)]), line("distribute_tensor", [float(inner * world * MANY // half)]),
        line("full_tensor", [world * MANY - 2.0, world * MANY - 1.0]),
        line("window", [total]), line("unsharded", [5.0]), "end"]


def main():
    tap, shim = Tap(), sys.argv[1]
    before = os.environ.get("LD_PRELOAD", "")
    for world in (2, 4):
        for how, preload in (("without", before), ("with", ":".join(filter(None, [shim, before])))):
            said, wrong = run(world, preload)
            tap.check(f"{world} ranks, {how} the shim: every rank comes to its end", not wrong, "\n".join(wrong))
            for rank, lines in enumerate(said):
                wanted = expected(rank, world)
                different = [f"{one!r}, expected {other!r}" for one, other in zip(lines[1:], wanted) if one != other]
                tap.check(f"{world} ranks, {how} the shim: what rank {rank} has",
                          len(lines) == 1 + len(wanted) and not different, "\n".join([*lines[:1], *different]))
    tap.end()


if __name__ == "__main__":
    main()
