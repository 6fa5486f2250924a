#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' from_pretrained, and accelerate's FSDP: loaded onto the rank's device, on every rank's host, or on
rank 0's host alone (accelerate's RAM-efficient loading); an optimizer that is made before prepare()."""
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import enable_fsdp_ram_efficient_loading
from transformers import AutoModelForCausalLM

from hub import arguments, choice

options = arguments(choice("fsdp", "1", "2"), choice("load", "device", "host", "rank0"))
by_rank0 = options.load == "rank0"
if by_rank0:
    enable_fsdp_ram_efficient_loading()  # what `accelerate launch --fsdp_cpu_ram_efficient_loading true` sets
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(
    fsdp_version=int(options.fsdp), auto_wrap_policy="transformer_based_wrap", use_orig_params=True,
    cpu_ram_efficient_loading=by_rank0, sync_module_states=by_rank0 if options.fsdp == "1" else None))
torch.manual_seed(1234)
device_map = {"": accelerator.device} if options.load == "device" else None
model = AutoModelForCausalLM.from_pretrained(options.checkpoint, device_map=device_map)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
