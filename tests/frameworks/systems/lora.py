#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA with peft: a pretrained model that is frozen and loaded onto the rank's device, adapters that are trained, FSDP2
around each layer. --steps 0 only builds it."""
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from start import start

options, device = start(lambda parser: parser.add_argument("--steps", type=int, default=2))
model = AutoModelForCausalLM.from_pretrained(options.checkpoint, device_map={"": device}, attn_implementation="eager")
torch.manual_seed(1234)
with device:
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0))
for layer in model.base_model.model.model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
values = {}
for number in range(options.steps):
    words = torch.randint(model.config.vocab_size, (2, 64), device=device)
    loss = model(input_ids=words, labels=words).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    values[f"loss {number}"] = loss.detach()
