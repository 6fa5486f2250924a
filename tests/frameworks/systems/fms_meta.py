#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""low_cpu_fsdp, second way: nobody has the model. Each module is made, and initialised by its class, when FSDP1 wraps
it; to continue, the shards of a checkpoint are read over that.
"""
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, StateDictType

from model import build, shape
from start import each_layer, start


def init(module):
    if isinstance(module, (nn.Embedding, nn.Linear, nn.RMSNorm)):
        module.to_empty(device=device)
        with torch.no_grad():
            module.reset_parameters()


options, device = start()
torch.manual_seed(1234)
model = build(shape(options.scale), "meta")
model.reset_buffers(device)
model = FSDP(model, auto_wrap_policy=each_layer(), sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=device,
             use_orig_params=True, limit_all_gathers=True, param_init_fn=init)
if options.checkpoint:
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=options.checkpoint)
        model.load_state_dict(state["model"])
