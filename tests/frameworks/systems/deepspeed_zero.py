#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's zero.Init: every module is built whole on the device, sent out by rank 0 and cut, as soon as its
constructor is through. The parameters are empty afterwards; what the rank keeps of each is its partition."""
import os

import deepspeed
import torch

from hub import arguments
from model import Llama, shape

options = arguments()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed("nccl")
torch.manual_seed(1234)
settings = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
with deepspeed.zero.Init(config_dict_or_path=settings):
    model = Llama(shape(options.scale))
values = {name: parameter.ds_tensor for name, parameter in model.named_parameters()}
values.update(model.named_buffers())
del model
