#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""low_cpu_fsdp, first way: rank 0 has the whole model on the host, the others have none of it; FSDP1 sends it out."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

from model import build, shape
from start import each_layer, start

options, device = start()
torch.manual_seed(1234)
if dist.get_rank() == 0:
    model = build(shape(options.scale), "cpu")
    if options.checkpoint:
        model.load_state_dict(torch.load(options.checkpoint, map_location="cpu", mmap=True))
    else:
        model.init_weights()
else:
    model = build(shape(options.scale), "meta")
model = FSDP(model, auto_wrap_policy=each_layer(), sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=device,
             use_orig_params=True, limit_all_gathers=True, sync_module_states=True,
             param_init_fn=lambda module: module.to_empty(device=device, recurse=False))
