# SPDX-License-Identifier: Apache-2.0
"""A digest of a whole model that does not depend on how it is sharded: of each logical tensor the sum of a hash of (name, index,
bits) over its elements. A rank sums what it holds of each tensor, and merge.py adds up the ranks. Reads DTensors, FSDP1's flat
parameters and plain tensors."""
import zlib

import numpy
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

BITS = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}
WRAPPERS = ("_fsdp_wrapped_module.", "module.")


def mix(values):
    """A permutation of 64 bits that leaves none alone (splitmix64, by Sebastiano Vigna)."""
    values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return values ^ (values >> numpy.uint64(31))


def sum_of(name, indices, values):
    """The sum over elements of a tensor, at these places of the whole, which is counted along its rows."""
    values = values.detach().cpu().contiguous().reshape(-1)
    if values.is_complex():
        values, indices = torch.view_as_real(values).reshape(-1), torch.stack([indices.reshape(-1) * 2, indices.reshape(-1) * 2 + 1], -1)
    bits = values.view(torch.uint8).numpy().view(BITS[values.element_size()]).astype(numpy.uint64)
    places = indices.reshape(-1).numpy().astype(numpy.uint64) + (numpy.uint64(zlib.crc32(name.encode())) << numpy.uint64(32))
    return int(mix(mix(places) ^ bits).sum(dtype=numpy.uint64)) if bits.size else 0


def whole_indices(shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def of_dtensor(name, tensor):
    """(which replica this is, the sum)"""
    mesh = tensor.device_mesh
    indices, replica = whole_indices(tensor.shape), mesh.mesh.flatten().tolist()  # other ranks may have other replicas
    for number, (placement, at) in enumerate(zip(tensor.placements, mesh.get_coordinate())):
        if placement.is_partial():
            raise ValueError(f"{name} is a part of a sum, which has no bits of its own")
        if placement.is_replicate():
            replica.append(at)
        else:  # a strided one too cuts the whole before those behind it do
            indices = placement._split_tensor(indices, mesh.size(number), with_padding=False, contiguous=False)[0][at]
    return replica, sum_of(name, indices, tensor.to_local())


def of_flat(module, prefix):
    """The sum of each original parameter in a flat one."""
    handle = module._handle
    flat = handle.flat_param
    replica = dist.get_process_group_ranks(handle.process_group) if handle.uses_sharded_strategy else [dist.get_rank()]
    for own_name, shape, piece in zip(flat._fqns, flat._shapes, flat._shard_param_infos):
        name = clean(prefix + own_name)
        if not piece.in_shard:
            yield name, replica, 0
            continue
        values = flat.detach()[piece.offset_in_shard:piece.offset_in_shard + piece.numel_in_shard]
        indices = whole_indices(shape).reshape(-1)[piece.intra_param_start_idx:piece.intra_param_end_idx + 1]
        yield name, replica, sum_of(name, indices, values)


def part_of(name, tensor, rank):
    if isinstance(tensor, DTensor):
        return list(of_dtensor(name, tensor))
    return [[rank], sum_of(name, whole_indices(tensor.shape), tensor)]


def clean(name):
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def tensors_of(model):
    """(name, tensor): parameters, tied ones once, and buffers, also those that are not saved."""
    return [*model.named_parameters(), *model.named_buffers()]


def parts_of(model, rank, tensors=None):
    """name: [replica, sum] of all that this rank holds; of some tensors only, with the names that they have in the whole model."""
    if tensors is not None:
        return {name: part_of(name, tensor, rank) for name, tensor in tensors}
    found, is_flat = {}, False
    for prefix, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            is_flat = True
            found.update({name: [replica, value] for name, replica, value in of_flat(module, prefix + "." * bool(prefix))})
    for name, tensor in model.named_buffers() if is_flat else tensors_of(model):
        found[clean(name)] = part_of(clean(name), tensor, rank)
    return found
