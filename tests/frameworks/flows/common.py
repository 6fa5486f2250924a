# SPDX-License-Identifier: Apache-2.0
"""Shared by the programs in this folder: arguments, a rank without its peers, and the report at the end."""
import argparse
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from sockets import listeners_of  # noqa: E402


def parser(description):
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--rank", type=int, default=0)
    result.add_argument("--world", type=int, default=1)
    result.add_argument("--device", default="cuda")
    result.add_argument("--out", required=True, help="where to write the hashes, as JSON")
    result.add_argument("--dump", help="folder for the bytes of every tensor")
    result.add_argument("--checkpoint")
    result.add_argument("--scale", type=scale_of, default=1, help="width of the model, or a name of large.py")
    return result


def scale_of(text):
    try:
        return float(text)
    except ValueError:
        return text


def join(options):
    """One rank of many, alone: its collectives do nothing, and sharding needs none. None for one rank."""
    if options.world == 1:
        return None
    dist.init_process_group("fake", store=FakeStore(), rank=options.rank, world_size=options.world)
    return init_device_mesh(device_type(options), (options.world,))


def device_type(options):
    """On the meta device models are built and sharded as on a GPU, but for the bytes: what PyTorch's objects alone take."""
    kind = torch.device(options.device).type
    if kind == "meta":
        kind = "cuda"
        torch.zeros(1, device=kind)
    return kind


def shard(model, mesh):
    """FSDP2, the usual way: each layer, then what is left."""
    if mesh is not None:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)


def tensors_of(model):
    """Parameters and buffers by name, persistent or not; tied ones under each of their names."""
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def place(tensor, options):
    """The part of the whole that this rank holds, as torch.chunk cuts it."""
    if not isinstance(tensor, DTensor):
        return {"whole": list(tensor.shape), "dim": None, "offset": 0}
    placement = tensor.placements[0]
    if not placement.is_shard():
        return {"whole": list(tensor.shape), "dim": None, "offset": 0}
    rows = tensor.shape[placement.dim]
    offset = min(options.rank * -(-rows // options.world), rows)
    return {"whole": list(tensor.shape), "dim": placement.dim, "offset": offset}


PIECE_BYTES = 64 << 20
GRANULE_BYTES = 2 << 20


def granule_bytes_of(storages):
    """The size of the device's granules that hold a byte of the tensors: the least memory for tensors where PyTorch put them."""
    granules = set()
    for _, begin, offset, size in storages:
        if size > 0:
            granules.update(range(begin // GRANULE_BYTES, -(-(begin + offset + size) // GRANULE_BYTES)))
    return len(granules) * GRANULE_BYTES


def pieces_of(tensor):
    """Its bytes in host memory, not all at once: a large tensor's would be the most that the process takes."""
    if not tensor.is_contiguous():
        tensor = tensor.cpu().contiguous()
    for piece in tensor.reshape(-1).split(PIECE_BYTES // tensor.element_size()):
        yield piece.cpu().view(torch.uint8).numpy()


def read_back(name, tensor, options, storages):
    # A name for the memory, so that tied weights can be counted once.
    key = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset() * tensor.element_size(), tensor.nbytes)
    owner = storages.setdefault(key, name) if tensor.nbytes > 0 else name
    if options.dump:
        os.makedirs(options.dump, exist_ok=True)
    with open(os.path.join(options.dump, name) if options.dump else os.devnull, "wb") as file:
        digest = hashlib.sha256()
        for data in pieces_of(tensor):
            digest.update(data)
            data.tofile(file)
    return {"sha256": digest.hexdigest(), "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."), "bytes": tensor.nbytes, "storage": owner}


@torch.no_grad()
def finish(tensors, options, **more):
    """Reads the rank's tensors back, one after the other, and writes what they hold, and more."""
    print("ready", flush=True)
    began = time.monotonic()
    result = {"rank": options.rank, "world": options.world, "listeners": listeners_of(os.getpid()), "tensors": {}} | more
    if torch.device(options.device).type == "cuda":
        # The memory that the caching allocator took from the driver.
        result["reserved_bytes_peak"] = torch.cuda.max_memory_reserved()
    storages = {}
    for name, tensor in tensors:
        where = place(tensor, options)
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if not local.is_meta:
            result["tensors"][name] = read_back(name, local, options, storages) | where
    result["granule_bytes"] = granule_bytes_of(storages)
    result["read_seconds"] = round(time.monotonic() - began, 2)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    if dist.is_initialized():
        dist.destroy_process_group()
