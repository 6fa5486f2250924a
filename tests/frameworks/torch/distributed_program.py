#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a program that uses everything of torch.distributed that loading and sharding a model does, as a
user writes it. Prints one line for each thing, and the values that came of it.
"""
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MANY = 3 << 20  # elements: more than MetaShard leaves to the driver


def filled(value, count=7):
    return torch.full((count,), float(value), device="cuda")


def say(what, *tensors):
    values = [tensor.cpu().double().unique().tolist() for tensor in tensors]
    print(what, *values, flush=True)


def collectives():
    tensor = filled(RANK + 1, MANY)
    dist.broadcast(tensor, WORLD - 1)
    say("broadcast", tensor)
    parts = [filled(0) for _ in range(WORLD)]
    dist.all_gather(parts, filled(RANK))
    say("all_gather", *parts)
    whole = filled(0, 7 * WORLD)
    dist.all_gather_into_tensor(whole, filled(RANK))
    say("all_gather_into_tensor", whole)
    part = filled(0, MANY)
    dist.scatter(part, [filled(10 + rank, MANY) for rank in range(WORLD)] if RANK == 0 else None, 0)
    say("scatter", part)
    gathered = [filled(0) for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(filled(RANK), gathered, 0)
    say("gather", *(gathered or []))
    total = filled(RANK + 1, MANY)
    dist.all_reduce(total)
    say("all_reduce", total)
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    say("average", total)
    part = filled(0)
    dist.reduce_scatter_tensor(part, filled(RANK + 1, 7 * WORLD))
    say("reduce_scatter", part)
    to_all = filled(0, WORLD)
    dist.all_to_all_single(to_all, filled(RANK, WORLD))
    say("all_to_all", to_all)
    peer = filled(0)
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, filled(RANK), (RANK + 1) % WORLD),
                                   dist.P2POp(dist.irecv, peer, (RANK - 1) % WORLD)])
    for one in work:
        one.wait()
    say("around", peer)
    dist.barrier()
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": RANK})
    print("objects", objects, flush=True)
    said = [f"of {RANK}"]
    dist.broadcast_object_list(said, 0)
    print("object", said, flush=True)


def coalesced():
    tensors = [filled(RANK, count) for count in (5, MANY, 70)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 8 << 20, 0)  # what FSDP1 does
    say("coalesced", *tensors)


def groups():
    halves = [list(range(WORLD // 2)), list(range(WORLD // 2, WORLD))]
    made = [dist.new_group(ranks) for ranks in halves]
    total = filled(RANK)
    dist.all_reduce(total, group=made[RANK >= WORLD // 2])
    say("new_group", total)
    part = dist.split_group(split_ranks=halves)
    total = filled(RANK)
    dist.all_reduce(total, group=part)
    say("split_group", total)
    mesh = init_device_mesh("cuda", (2, WORLD // 2), mesh_dim_names=("outer", "inner"))
    for name in ("outer", "inner"):
        total = filled(RANK)
        dist.all_reduce(total, group=mesh[name].get_group())
        say(f"mesh {name}", total)
    whole = torch.arange(WORLD * MANY, dtype=torch.float32, device="cuda").view(-1, 4)
    has_it = mesh["inner"].get_local_rank() == 0
    sharded = distribute_tensor(whole if has_it else torch.zeros_like(whole), mesh["inner"], [Shard(0)])
    first = sharded.to_local().flatten()[:1]
    say("distribute_tensor", first)
    say("full_tensor", sharded.full_tensor().flatten()[-2:])


def windows():
    """NCCL's symmetric windows: over the segments of a pool of NCCL's memory, and over what FSDP2 gathers into."""
    is_new = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    nccl = dist.group.WORLD._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(nccl.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        total = filled(RANK + 1, MANY)
    if is_new:
        nccl.register_mem_pool(pool, symm=True)
    dist.all_reduce(total)
    say("window", total)
    if is_new:
        nccl.deregister_mem_pool(pool)
    layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    with torch.no_grad():
        layer.weight.copy_(filled(5, 1 << 20).view(1024, 1024))  # the same on all ranks
    fully_shard(layer)
    if is_new:
        layer.set_symm_mem_for_comm()
    layer.unshard()
    say("unsharded", layer.weight.detach())
    layer.reshard()


def main():
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    print("version", torch.cuda.nccl.version(), flush=True)
    collectives()
    coalesced()
    groups()
    windows()
    dist.destroy_process_group()
    print("end", flush=True)


if __name__ == "__main__":
    main()
