#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on the meta device; rank 0 has the state dict and set_model_state_dict brings each rank its shard."""
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

from model import build, shape
from start import load_safetensors, start

options, device = start()
torch.manual_seed(1234)
model = build(shape(options.scale), "meta")
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device=device)
model.reset_buffers(device)
state = load_safetensors(options.checkpoint) if dist.get_rank() == 0 else {}
set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
