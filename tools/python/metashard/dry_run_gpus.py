# SPDX-License-Identifier: Apache-2.0
"""GPUs that a dry run can stand for."""
from __future__ import annotations

from typing import NamedTuple

from . import installed


class Gpu(NamedTuple):
    name: str  # as the driver says it
    mebibytes: int  # as cuDeviceTotalMem says it: less than is on the box, because of ECC and the driver
    capability: int  # 10 * major + minor
    multiprocessors: int
    context: int  # MiB that a process with PyTorch has outside of its allocator, without NCCL


# Where the numbers are from: docs/results/dry-run.md.
GPUS = {
    "h100-80": Gpu("NVIDIA H100 80GB HBM3", 81009, 90, 132, 620),
    "h200": Gpu("NVIDIA H200", 143186, 90, 132, 620),
    "a100-80": Gpu("NVIDIA A100-SXM4-80GB", 81152, 80, 108, 502),
    "a100-40": Gpu("NVIDIA A100-SXM4-40GB", 40448, 80, 108, 502),
    "l4": Gpu("NVIDIA L4", 22559, 89, 58, 236),
    "l40": Gpu("NVIDIA L40", 45466, 89, 142, 502),
    "rtx-4090": Gpu("NVIDIA GeForce RTX 4090", 24218, 89, 128, 522),
    "rtx-5090": Gpu("NVIDIA GeForce RTX 5090", 32123, 120, 170, 594),
    "t4": Gpu("Tesla T4", 15104, 75, 40, 102),
}
DEFAULT = "h100-80"


def find(text: str) -> Gpu:
    """By name, or one of so many MiB that is otherwise the default."""
    if text.isdigit() and int(text) > 0:
        return GPUS[DEFAULT]._replace(name=f"a GPU of {int(text)} MiB", mebibytes=int(text))
    if text not in GPUS:
        raise installed.Fault(f"--gpu {text}: no such GPU; there are {', '.join(GPUS)}, or a number of MiB")
    return GPUS[text]
# Memory of each communicator of several ranks: 16 channels, each with a ring and a tree of a connection of 10 MiB.
NCCL_MIB = 16 * 2 * 10
