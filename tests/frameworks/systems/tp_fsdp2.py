#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel and FSDP2 on a mesh of two dimensions, loaded by torch.distributed.checkpoint."""
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from model import build, shape
from start import choice, start

PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate()),
    "layers.*.query": ColwiseParallel(),
    "layers.*.key": ColwiseParallel(),
    "layers.*.value": ColwiseParallel(),
    "layers.*.output": RowwiseParallel(),
    "layers.*.gate": ColwiseParallel(),
    "layers.*.up": ColwiseParallel(),
    "layers.*.down": RowwiseParallel(),
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}

options, device = start(choice("cut", "rank0", "local"))
mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(1234)
model = build(shape(options.scale), device)
parallelize_module(model, mesh["tp"], PLAN, src_data_rank=0 if options.cut == "rank0" else None)
for layer in model.layers:
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
dcp.load(model.state_dict(), checkpoint_id=options.checkpoint)
