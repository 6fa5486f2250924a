#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The script that a user would rather write, with FSDP1: build on the device, load if there is something, wrap."""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import build, shape
from start import each_layer, load_safetensors, start

options, device = start()
torch.manual_seed(1234)
model = build(shape(options.scale), device)
if options.checkpoint:
    model.load_state_dict(load_safetensors(options.checkpoint))
else:
    model.init_weights()
model = FSDP(model, auto_wrap_policy=each_layer(), device_id=device)
