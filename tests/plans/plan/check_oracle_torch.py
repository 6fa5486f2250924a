#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_oracle_torch.py [CASES [SEED]]: oracle.py against PyTorch's own rules. By hand, needs PyTorch 2.15 (CPU).

torch.chunk; DTensor's sizes, offsets and values for Shard and _StridedShard; the flat parameter of FSDP1;
ZeRO-3 by the arithmetic of DeepSpeed's documented rule (its package is not needed). TAP.
"""
import math
import random
import sys

import torch
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.tensor import Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, _StridedShard

from oracle import Tensor, chunk, coordinates_of, resolve


def elements(ranges):
    """Of U8 tensors an element is a byte."""
    return [element for begin, end in ranges for element in range(begin, end)]


def plan_of(mesh, tensors, placements):
    return {"mesh": mesh, "tensors": [{"name": tensor.name, "placements": placement}
                                      for tensor, placement in zip(tensors, placements)]}


def whole(tensor):
    return torch.arange(math.prod(tensor.shape)).reshape(tensor.shape)


def random_shape(dice, least=1):
    return tuple(dice.choice([0, 1, 2, 3, 4, 5, 7, 8, 12, 17]) for _ in range(dice.randint(least, 3)))


def torch_cut(tensor, placement, size, coordinate):
    if isinstance(placement, Replicate):
        return tensor
    return placement._split_tensor(tensor, size, with_padding=False, contiguous=True)[0][coordinate]


def torch_local(tensor, mesh, placements, coordinates):
    """The part that the rank holds, by DTensor's own splits, from the outermost mesh dimension on."""
    local = whole(tensor)
    for size, placement, coordinate in zip(mesh.values(), placements, coordinates.values()):
        local = torch_cut(local, placement, size, coordinate)
    return local


def check_chunk(dice):
    length, count = dice.randint(1, 40), dice.randint(1, 50)
    seen = chunk(list(range(length)), count)
    wanted = [part.tolist() for part in torch.arange(length).chunk(count)]
    assert seen == wanted + [[]] * (count - len(wanted)), (length, count, seen, wanted)


def check_dtensor(dice):
    mesh = {f"m{i}": dice.randint(1, 4) for i in range(dice.randint(1, 3))}
    tensor = Tensor("t", "U8", random_shape(dice))
    dims = [dice.randrange(len(tensor.shape)) if dice.random() < 0.75 else None for _ in mesh]
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    ours = ["replicate" if dim is None else {"shard": dim} for dim in dims]
    for rank in range(math.prod(mesh.values())):
        coordinates = coordinates_of(mesh, rank)
        seen = elements(resolve(plan_of(mesh, [tensor], [ours]), [tensor], rank)[0][0])
        local = torch_local(tensor, mesh, placements, coordinates)
        assert seen == local.flatten().tolist(), (mesh, tensor, dims, rank)
        shape, offset = _compute_local_shape_and_global_offset(
            tensor.shape, tuple(mesh.values()), list(coordinates.values()), placements)
        assert math.prod(shape) == len(seen), (mesh, tensor, dims, rank, shape)
        first = sum(at * math.prod(tensor.shape[i + 1:]) for i, at in enumerate(offset))
        assert not seen or first == seen[0], (mesh, tensor, dims, rank, offset)


def check_strided(dice):
    """{"tp": shard, "dp": shard} is DTensor's (_StridedShard over dp with tp as factor, Shard over tp)."""
    mesh = {"dp": dice.randint(1, 4), "tp": dice.randint(1, 4)}
    # Where tp does not divide the rows they are not always equal: 7 rows, dp 3, tp 2 (PyTorch 2.15).
    tensor = Tensor("t", "U8", (mesh["tp"] * dice.randint(0, 6), *random_shape(dice)[:1]))
    placements = [_StridedShard(0, split_factor=mesh["tp"]), Shard(0)]
    ours = {"tp": {"shard": 0}, "dp": {"shard": 0}}
    for rank in range(mesh["dp"] * mesh["tp"]):
        local = torch_local(tensor, mesh, placements, coordinates_of(mesh, rank))
        seen = elements(resolve(plan_of(mesh, [tensor], [ours]), [tensor], rank)[0][0])
        assert seen == local.flatten().tolist(), (mesh, tensor, rank)


def check_uneven_tp(dice):
    """FSDP2 over tensor parallelism where nothing divides: the rows that tp left are cut by dp."""
    mesh = {"dp": dice.randint(1, 4), "tp": dice.randint(1, 4)}
    tensor = Tensor("t", "U8", random_shape(dice))
    ours = {"tp": {"shard": 0}, "dp": {"shard": 0}}
    for rank in range(mesh["dp"] * mesh["tp"]):
        place = coordinates_of(mesh, rank)
        by_tp = torch_cut(whole(tensor), Shard(0), mesh["tp"], place["tp"])
        by_dp = torch_cut(by_tp, Shard(0), mesh["dp"], place["dp"])
        seen = elements(resolve(plan_of(mesh, [tensor], [ours]), [tensor], rank)[0][0])
        assert seen == by_dp.flatten().tolist(), (mesh, tensor, rank)


def check_interleave(dice):
    """As a tensor parallel layer loads a fused tensor: split, chunk each, concatenate."""
    ranks = dice.randint(1, 5)
    weights = [dice.randint(1, 4) for _ in range(dice.randint(1, 4))]
    unit = dice.randint(0, 3)
    tensor = Tensor("t", "U8", (unit * sum(weights), dice.randint(1, 3)))
    ours = [{"shard": 0, "interleave": weights}]
    parts = torch.split(whole(tensor), [unit * weight for weight in weights])
    for rank in range(ranks):
        seen = elements(resolve(plan_of({"tp": ranks}, [tensor], [ours]), [tensor], rank)[0][0])
        pieces = torch.cat([torch_cut(part, Shard(0), ranks, rank) for part in parts])
        assert seen == pieces.flatten().tolist(), (ranks, weights, unit, rank)


def check_fsdp1(dice):
    """FlatParamHandle's chunks of the concatenation: use_orig_params=False, so nothing is aligned."""
    ranks = dice.randint(1, 6)
    tensors = [Tensor(f"t{i}", "U8", random_shape(dice, 0)) for i in range(dice.randint(1, 4))]
    flat = torch.cat([whole(tensor).flatten() + 1000000 * i for i, tensor in enumerate(tensors)])
    ours = [[{"flat": "fsdp1", "unit": "u"}]] * len(tensors)
    for rank in range(ranks):
        ranges, padding = resolve(plan_of({"dp": ranks}, tensors, ours), tensors, rank)
        seen = [element + 1000000 * i for i in range(len(tensors)) for element in elements(ranges[i])]
        shard, to_pad = FlatParamHandle._get_unpadded_shard(flat, rank, ranks)
        assert seen == shard.tolist(), (ranks, tensors, rank)
        assert padding == to_pad, (ranks, tensors, rank, padding, to_pad)


def zero3_share(flat, rank, ranks):
    """The size is padded to a multiple of the ranks; each copies what of its part is not padding."""
    remainder = flat.numel() % ranks
    partition = (flat.numel() + (ranks - remainder if remainder else 0)) // ranks
    start = min(partition * rank, flat.numel())
    return flat.narrow(0, start, min(partition, flat.numel() - start)), partition


def check_zero3(dice):
    ranks = dice.randint(1, 9)
    tensor = Tensor("t", "U8", random_shape(dice, 0))
    plan = plan_of({"dp": ranks}, [tensor], [[{"flat": "zero3"}]])
    for rank in range(ranks):
        ranges, padding = resolve(plan, [tensor], rank)
        share, partition = zero3_share(whole(tensor).flatten(), rank, ranks)
        assert elements(ranges[0]) == share.tolist(), (ranks, tensor, rank)
        assert padding == partition - share.numel(), (ranks, tensor, rank)


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    tests = [check_chunk, check_dtensor, check_strided, check_uneven_tp, check_interleave, check_fsdp1,
             check_zero3]
    failed = 0
    for number, test in enumerate(tests, 1):
        try:
            for i in range(seed, seed + cases):
                test(random.Random(i))
            print(f"ok {number} {test.__name__[6:]}, {cases} cases", flush=True)
        except AssertionError as fault:
            failed += 1
            print(f"not ok {number} {test.__name__[6:]}, seed {i}\n# {fault}", flush=True)
    print(f"1..{len(tests)}\n# PyTorch {torch.__version__}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
