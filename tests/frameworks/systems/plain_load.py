#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The script that a user would rather write: build on the device, load, shard."""
import torch
from torch.distributed.fsdp import fully_shard

from model import build, shape
from start import load_safetensors, start

options, device = start()
torch.manual_seed(1234)
model = build(shape(options.scale), device)
model.load_state_dict(load_safetensors(options.checkpoint))
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
