#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The script that a user of transformers would rather write: load onto the rank's device, shard."""
import torch
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from start import start

options, device = start()
torch.manual_seed(1234)
model = AutoModelForCausalLM.from_pretrained(options.checkpoint, device_map={"": device})
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
