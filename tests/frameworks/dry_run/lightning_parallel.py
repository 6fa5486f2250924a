# SPDX-License-Identifier: Apache-2.0
"""The feed-forward block of Lightning's guide to tensor parallelism: three products of 8192 x 8192 in fp32, split by columns and rows
over all ranks from weights that each has whole on the CPU, 8 rows of input, AdamW of foreach."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, ROWS = 8192, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def main():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    model, world = Block(), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (world,))
        parallelize_module(model, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel(), "w3": ColwiseParallel()})
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    for step in range(8):
        model(torch.randn(ROWS, WIDTH).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, "allocated GB", torch.cuda.max_memory_allocated() / 1e9)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
