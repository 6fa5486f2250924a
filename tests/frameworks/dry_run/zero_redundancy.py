# SPDX-License-Identifier: Apache-2.0
"""The model of PyTorch's recipe for ZeroRedundancyOptimizer: twenty products of 2000 x 2000 in fp32 under DDP, 20 rows of input, one
step of Adam, parameter by parameter as it was then, whose states --zero shards over the ranks."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, ROWS = 2000, 20, 20


def main():
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH).to(device) for _ in range(LAYERS))), device_ids=[device])
    if "--zero" in sys.argv:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, foreach=False)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    output, target = model(torch.randn(ROWS, WIDTH).to(device)), torch.randn(ROWS, WIDTH).to(device)
    nn.functional.mse_loss(output, target).backward()
    print("before the step, MB", torch.cuda.max_memory_allocated() / 1e6)
    optimizer.step()
    print("behind it, MB", torch.cuda.max_memory_allocated() / 1e6)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
