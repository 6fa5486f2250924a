#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make.py --model M --parallel P --way W: makes a model as a rank of a job does, and prints the digests of what the rank holds."""
import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, OffloadPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import digest
from models import DEFINITIONS

SEED = 1234
PARALLEL = ("none", "fsdp1", "fsdp2", "tp", "tp-fsdp2", "pipeline", "experts", "experts-fsdp2", "offload", "replicas")


def layers_of(model, definition):
    return [module for module in model.modules() if type(module).__name__ in definition.layers]


def wrap_fsdp1(model, definition, device, is_meta):
    kinds = {type(layer) for layer in layers_of(model, definition)}

    def initialise(module):
        module.to_empty(device=device, recurse=False)
        with torch.no_grad():
            definition.initialise_module(model, module)
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy(kinds), use_orig_params=True, device_id=device,
                                    param_init_fn=initialise if is_meta else None)


def shard(model, definition, mesh, offload=OffloadPolicy()):
    for layer in layers_of(model, definition):
        fully_shard(layer, mesh=mesh, offload_policy=offload)
    fully_shard(model, mesh=mesh, offload_policy=offload)


def parallelize(model, definition, mesh):
    parallelize_module(model, mesh, definition.plan)
    named = {pattern.rpartition(".")[2] for pattern in definition.plan}
    found = {name.split(".")[-2] for name, tensor in model.named_parameters() if isinstance(tensor, DTensor)}
    if not named <= found:
        raise RuntimeError(f"the plan finds no {', '.join(sorted(named - found))}")


def spread_experts(model, mesh):
    """Each rank keeps some experts of the stacked parameters."""
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            for name, parameter in list(module.named_parameters(recurse=False)):
                module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))


def stages_of(model, definition, count):
    """(module, its stage): what comes before the layers goes with the first stage, what follows them with the last."""
    layers = layers_of(model, definition)
    turns = {part: turn for turn, layer in enumerate(layers, 1) for part in layer.modules()}
    after = False
    for module in model.modules():
        after = after or module in turns
        turn = turns.get(module, len(layers) + 1 if after and not any(layer in turns for layer in module.modules()) else 0)
        yield module, turn * count // (len(layers) + 2)


def keep_stage(model, definition, rank, count):
    """All tensors of other stages are freed. Of the modules that are left: {module: {its own tensor: the name in the whole model}}"""
    names, kept = {tensor: name for name, tensor in digest.tensors_of(model)}, {}
    for module, stage in stages_of(model, definition, count):
        for tensors in (module._parameters, module._buffers):
            if stage != rank:
                tensors.update(dict.fromkeys(tensors))
            for own, tensor in tensors.items():
                if tensor is not None:
                    kept.setdefault(module, {})[own] = names[tensor]
    return kept


def named(kept):
    """(name in the whole model, tensor) of a stage, tied ones once."""
    found = {name: getattr(module, own) for module, owns in kept.items() for own, name in owns.items()}
    return list(found.items())


def initialise_stage(model, definition, kept, device):
    """Each module by itself: nothing initialises a part of a model."""
    for module in kept:
        module.to_empty(device=device, recurse=False)
        with torch.no_grad():
            definition.initialise_module(model, module)


def distribute(model, definition, parallel, device, is_meta):
    world = dist.get_world_size()
    if parallel == "fsdp1":
        return wrap_fsdp1(model, definition, device, is_meta)
    if parallel == "fsdp2":
        shard(model, definition, init_device_mesh("cuda", (world,)))
    elif parallel == "tp":
        parallelize(model, definition, init_device_mesh("cuda", (world,)))
    elif parallel == "tp-fsdp2":
        mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize(model, definition, mesh["tensor"])
        shard(model, definition, mesh["data"])
    elif parallel == "experts":
        spread_experts(model, init_device_mesh("cuda", (world,)))
    elif parallel == "experts-fsdp2":
        mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("data", "experts"))
        spread_experts(model, mesh["experts"])
        shard(model, definition, mesh["data"])
    elif parallel == "offload":
        shard(model, definition, init_device_mesh("cuda", (world,)), CPUOffloadPolicy())
    elif parallel == "replicas":
        return DistributedDataParallel(model, device_ids=[device])
    return model


def make(definition, parallel, way):
    """The model, and of a stage of a pipeline what keep_stage has."""
    device, kept = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))), None
    torch.cuda.set_device(device)
    if parallel != "none":
        dist.init_process_group("cuda:nccl,cpu:gloo" if parallel == "offload" else "nccl", device_id=device)
    torch.manual_seed(SEED)
    is_meta = way == "meta"
    with torch.device("meta") if is_meta else device:
        model = definition.build()
    if parallel != "none":
        model = distribute(model, definition, parallel, device, is_meta)
    if parallel == "pipeline":
        kept = keep_stage(model, definition, dist.get_rank(), dist.get_world_size())
        if is_meta:
            initialise_stage(model, definition, kept, device)
    elif is_meta and parallel != "fsdp1":
        model.to_empty(device="cpu" if parallel == "offload" else device)
        with torch.no_grad():
            definition.initialise(model)
    return model, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=DEFINITIONS, required=True)
    parser.add_argument("--parallel", choices=PARALLEL, default="none")
    parser.add_argument("--way", choices=["plain", "meta"], default="plain", help="plain: made whole on the device, then distributed")
    options = parser.parse_args()
    definition, rank = DEFINITIONS[options.model], int(os.environ.get("RANK", 0))
    model, kept = make(definition, options.parallel, options.way)
    parts = digest.parts_of(model, rank, named(kept) if kept is not None else None)
    print(json.dumps({"parts": parts, "buffers": [digest.clean(name) for name, _ in model.named_buffers()]}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
