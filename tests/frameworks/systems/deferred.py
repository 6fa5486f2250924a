#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The way of deferred initialisation: the model is only described; module by module it is made real, as its
constructor would have made it, sharded, and what was whole is gone before the next one comes.
"""
import torch
from torch.distributed.fsdp import fully_shard

from model import build, shape
from start import start


def materialize(module):
    """Every submodule's tensors, in the order in which the constructors made them."""
    module.to_empty(device=device, recurse=True)
    for child in module.modules():
        if list(child.parameters(recurse=False)):
            child.reset_parameters()


options, device = start()
torch.manual_seed(1234)
model = build(shape(options.scale), "meta")
for layer in model.layers:
    materialize(layer)
    fully_shard(layer)
for module in (model.embedding, model.norm, model.lm_head):
    materialize(module)
model.reset_buffers(device)
fully_shard(model)
