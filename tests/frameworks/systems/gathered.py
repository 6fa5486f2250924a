#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The least that FSDP1 does to load shards of a state dict (SHARDED_STATE_DICT): each rank has a part that no other has
seen, all ranks gather the tensors whole, keep them, and read them later. Nothing but memory, of the device or of the
host, can hold what came from others until then.
"""
import torch
import torch.distributed as dist

from start import start

TENSORS = 16
options, device = start()
ranks = dist.get_world_size()
elements = int(options.scale * (16 << 20)) // ranks // 8 * 8
torch.manual_seed(1234)
host = torch.Generator().manual_seed(1000 + dist.get_rank())
values = {}
for at in range(TENSORS):
    part = torch.rand(elements // 4, generator=host).to(device)
    values[f"tensor {at}"] = torch.empty(ranks * len(part), device=device)
    dist.all_gather_into_tensor(values[f"tensor {at}"], part)
