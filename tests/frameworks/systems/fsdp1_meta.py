#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP1 with a model on the meta device and param_init_fn: each module is made and initialised when it is wrapped."""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Llama, build, shape
from start import each_layer, start


def init(module):
    module.to_empty(device=device, recurse=False)
    if isinstance(module, Llama):
        module.reset_buffers(device)
    elif list(module.parameters(recurse=False)):
        module.reset_parameters()


options, device = start()
torch.manual_seed(1234)
model = build(shape(options.scale), "meta")
model = FSDP(model, auto_wrap_policy=each_layer(), param_init_fn=init, device_id=device)
