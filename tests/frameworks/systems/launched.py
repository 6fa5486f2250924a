#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank, as torchrun or `accelerate launch` starts it: joins the others, has a tensor on its device and takes a batch from a
data loader's workers."""
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mine = torch.full((4 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(mine)
    loader = DataLoader(TensorDataset(torch.arange(64).float()), batch_size=8, num_workers=2,
                        multiprocessing_context=sys.argv[1])
    total = sum(batch.sum().item() for batch, in loader)
    print(f"process {os.getpid()} rank {rank} byte {int(mine[1].item())} loaded {int(total)}", flush=True)
    dist.destroy_process_group()
