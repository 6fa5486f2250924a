#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_digest.py: the digest of a model is the same however it is sharded, and another where a bit, a place or a name is. On the
CPU, with each rank after the other. TAP."""
import json
import os
import sys

import torch
import torch._dynamo  # noqa: F401  which each rank would import otherwise
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness")]
import digest  # noqa: E402
from merge import DIFFER, merge, total  # noqa: E402
from tap import end, equal  # noqa: E402


PLAN = {"second": RowwiseParallel(), "third": ColwiseParallel()}


class Last(nn.Linear):
    pass


class Model(nn.Module):
    """Numbers of rows that no world divides, a type of two bytes, a scalar, tied weights, buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.tied = nn.Linear(7, 13), nn.Linear(13, 5), nn.Linear(7, 13, bias=False)
        self.third = Last(5, 9)
        self.tied.weight = self.first.weight
        self.register_buffer("flags", torch.tensor([True, False, True]), persistent=False)
        self.register_buffer("turns", torch.randn(3, 2, dtype=torch.complex64))


def made():
    torch.manual_seed(7)
    return Model()


def shard_first(model, world):
    for layer in (model.third, model):  # tied weights have to be in one group
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))


def shard_columns(model, world):
    parallelize_module(model, init_device_mesh("cpu", (world,)), PLAN, src_data_rank=None)


def shard_twice(model, world):
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], PLAN, src_data_rank=None)
    for layer in (model.third, model):
        fully_shard(layer, mesh=mesh["data"])


def shard_flat(model, world):
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Last}), use_orig_params=True,
                                    device_id=torch.device("cpu"))


def in_process(function):
    """The function's result, from a process of its own: PyTorch keeps meshes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as file:
            json.dump(function(), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text)


def parts_of_rank(distribute, world, rank, change):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    model = made()
    change(model, rank)
    return digest.parts_of(distribute(model, world) or model, rank)


def ranks_of(distribute, world, change=lambda model, rank: None):
    return [in_process(lambda rank=rank: parts_of_rank(distribute, world, rank, change)) for rank in range(world)]


def whole(change=lambda model, rank: None):
    model = made()
    change(model, 0)
    return merge([digest.parts_of(model, 0)])


def check_shards():
    wanted = whole()
    equal("each tensor once, tied ones too", sorted(wanted), sorted(["first.weight", "first.bias", "second.weight", "second.bias", "third.weight",
                                                                     "third.bias", "flags", "turns"]))
    for name, distribute, worlds in (("replicas", lambda model, world: None, (2,)), ("FSDP2", shard_first, (1, 4)),
                                     ("tensor parallel", shard_columns, (2,)), ("both", shard_twice, (4,)),
                                     ("FSDP1", shard_flat, (1, 2))):
        for world in worlds:
            equal(f"{name}, {world} ranks", merge(ranks_of(distribute, world)), wanted)


def swap(model, rank):
    with torch.no_grad():
        model.first.bias[:2] = model.first.bias[:2].flip(0)


def turn_bit(model, rank):
    model.first.bias.data.view(torch.int32)[3] ^= 1


def negate_zero(model, rank):
    model.turns.imag.zero_()
    model.turns.imag[0, 0] = -0.0


def zero(model, rank):
    model.turns.imag.zero_()


def differ_by_rank(model, rank):
    model.flags[0] = rank == 0


def check_differences():
    wanted = whole()
    for name, change in (("two elements that are swapped", swap), ("a bit", turn_bit)):
        found = whole(change)
        equal(f"{name}: that tensor differs, and the model", ([tensor for tensor in wanted if found[tensor] != wanted[tensor]],
                                                              total(found) == total(wanted)), (["first.bias"], False))
    equal("a sign of zero", whole(negate_zero)["turns"] == whole(zero)["turns"], False)
    values, places = torch.arange(4.), torch.arange(4)
    equal("a name", digest.sum_of("a", places, values) == digest.sum_of("b", places, values), False)
    found = merge(ranks_of(shard_first, 2, differ_by_rank))
    equal("replicas that differ", ([name for name, value in found.items() if value == DIFFER], total(found)), (["flags"], DIFFER))
    parts = ranks_of(shard_first, 2)
    equal("a part that nobody has", merge(parts[:1])["first.weight"] == wanted["first.weight"], False)


check_shards()
check_differences()
sys.exit(end())
