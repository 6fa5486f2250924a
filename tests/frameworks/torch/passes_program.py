#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""passes_program.py FOLDER PASSES [WAY...]: one rank of a program that loads a model, shards it and uses it again and again.
Prints a line for each pass, and {"shard": bytes of this rank's parameters}. WAY: "train": gradients of all passes and a step,
twice; "fsdp1"; "bf16": PyTorch's mixed precision; "replicas": HSDP; "saved": DCP saves after each pass; "dcp": DCP saves, loads,
saves asynchronously and loads again before the first.
"""
import json
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

# No rank's part of them ends with a granule, or a chunk of a kernel.
WIDE, NARROW, LAYERS = 2053, 1031, 4
FOLDER, PASSES, WAYS = sys.argv[1], int(sys.argv[2]), set(sys.argv[3:])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def load():
    with torch.device("cuda"):
        net = nn.Sequential(*[nn.Linear(*((NARROW, WIDE) if i % 2 == 0 else (WIDE, NARROW))) for i in range(LAYERS)])
    numbers = torch.from_numpy(np.memmap(os.path.join(FOLDER, "weights"), np.float32, "c"))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(numbers[:parameter.numel()].view(parameter.shape))
            numbers = numbers[parameter.numel():]
    return net.requires_grad_("train" in WAYS)


def shard(net):
    half = torch.bfloat16 if "bf16" in WAYS else None
    if "fsdp1" in WAYS:
        return FullyShardedDataParallel(net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True,
                                        mixed_precision=MixedPrecision(param_dtype=half) if half else None, device_id=0)
    mesh = init_device_mesh("cuda", (WORLD // 2, 2), mesh_dim_names=("replicas", "shards")) if "replicas" in WAYS else None
    for layer in net:
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=half))
    fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=half))
    return net


def use(net, number):
    x = torch.ones(2, NARROW, device="cuda").mul_(1e-3)
    total = net(x).float().pow(2).mean()
    if "train" in WAYS:
        total.backward()
    if "saved" in WAYS:
        dcp.save({"net": net.state_dict()}, checkpoint_id=os.path.join(FOLDER, f"saved-{number}"))
    print(number, total.item(), flush=True)


def reload(net):
    saved = os.path.join(FOLDER, "saved")
    dcp.save({"net": net.state_dict()}, checkpoint_id=saved)
    time.sleep(0.1)  # a file that has just been written is not trusted
    for again in (False, True):
        state = {"net": net.state_dict()}
        dcp.load(state, checkpoint_id=saved)
        net.load_state_dict(state["net"])
        if not again:
            dcp.async_save(state, checkpoint_id=os.path.join(FOLDER, "saved-too")).result()


def main():
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda:0"))
    net = shard(load())
    if "dcp" in WAYS:
        reload(net)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3) if "train" in WAYS else None
    for step in range(2 if optimizer else 1):
        for number in range(PASSES):
            use(net, step * PASSES + number)
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    parts = [getattr(parameter, "_local_tensor", parameter) for parameter in net.parameters()]
    print(json.dumps({"shard": sum(part.numel() * part.element_size() for part in parts)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
