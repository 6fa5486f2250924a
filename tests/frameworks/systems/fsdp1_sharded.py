#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP1 with empty tensors, into which each rank then reads its shard of a sharded checkpoint."""
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

from model import build, shape
from start import each_layer, start

options, device = start()
torch.manual_seed(1234)
model = build(shape(options.scale), "meta")
model = FSDP(model, auto_wrap_policy=each_layer(), device_id=device,
             param_init_fn=lambda module: module.to_empty(device=device, recurse=False))
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=options.checkpoint)
    model.load_state_dict(state["model"])
model.module.reset_buffers(device)
