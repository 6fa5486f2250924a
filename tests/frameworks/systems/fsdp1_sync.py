#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP1 with sync_module_states: rank 0 has loaded the model, the others have empty tensors and receive it."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import build, shape
from start import each_layer, load_safetensors, start

options, device = start()
torch.manual_seed(1234)
if dist.get_rank() == 0:
    model = build(shape(options.scale), "cpu")
    model.load_state_dict(load_safetensors(options.checkpoint))
else:
    model = build(shape(options.scale), "meta")
model = FSDP(model, auto_wrap_policy=each_layer(), device_id=device, sync_module_states=True,
             param_init_fn=lambda module: module.to_empty(device=device, recurse=False))
