#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint into an FSDP2 model: --from meta, as its documentation says, or --from real, a model
that was built on the device.
"""
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

from model import build, shape
from start import choice, start

options, device = start(choice("start", "meta", "real"))
torch.manual_seed(1234)
model = build(shape(options.scale), "meta" if options.start == "meta" else device)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
state = model.state_dict()
dcp.load(state, checkpoint_id=options.checkpoint)
if options.start == "meta":
    model.load_state_dict(state, assign=True)
    model.reset_buffers(device)
