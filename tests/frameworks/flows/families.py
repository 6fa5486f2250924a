#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Work that scripts do now and then while they initialise or load, with kernels that have no rule: each a part, in layers
that FSDP2 shards then. --parts names them, separated by commas. A rule for these kernels would save the memory that they
bring in (without_rule.py)."""
import sys

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from common import finish, join, parser, tensors_of

ROWS, COLUMNS, LAYERS = 2048, 2048, 4


def linear():
    return nn.Linear(COLUMNS, ROWS, bias=False)


def layers():
    return nn.ModuleList(linear() for _ in range(LAYERS))


def diagonal(model):
    """torch.nn.init.eye_: zeros, and a fill of the diagonal."""
    for layer in model:
        nn.init.eye_(layer.weight)


def column(model):
    """A column of padding is cleared."""
    for layer in model:
        layer.weight[:, COLUMNS // 2].zero_()


def scaled(model):
    """A part of each row is scaled, as that of the queries."""
    for layer in model:
        layer.weight[:, : COLUMNS // 4].mul_(0.125)


def masked(model):
    """GPT-2's mask, a buffer that is not sharded."""
    for layer in model:
        layer.register_buffer("mask", torch.tril(torch.ones(ROWS, COLUMNS, dtype=torch.bool)), persistent=False)


def triangular(model):
    """A parameter that is a triangle."""
    for layer in model:
        layer.weight.copy_(torch.tril(layer.weight))


def foreach_scaled(model):
    """All weights are scaled by one call."""
    torch._foreach_mul_([layer.weight for layer in model], 0.5)


def foreach_copied(model):
    """A second model begins as a copy of the first, by one call, as averages of weights do."""
    others = layers()
    torch._foreach_copy_([other.weight for other in others], [layer.weight for layer in model])
    model.extend(others)


def foreach_mixed(model):
    """More tensors than a launch of other kernels may point to, some of them in memory: cleared, and set to a cast copy."""
    others = [torch.empty(COLUMNS, dtype=torch.bfloat16).normal_() for _ in range(200)]
    rows = [layer.weight[row] for layer in model for row in range(50)]
    assert all(torch.isfinite(other).all() for other in others[::3])
    model[1].weight.sum().item()
    torch._foreach_zero_([layer.weight for layer in model])
    torch._foreach_copy_(rows, others)


def permuted(model):
    """Rows in another order, as a vocabulary is permuted."""
    for layer in model:
        layer.weight.copy_(layer.weight[torch.arange(ROWS - 1, -1, -1)])


def gathered(model):
    """Rows that the host names, by index_select."""
    for layer in model:
        layer.weight.copy_(layer.weight.index_select(0, torch.arange(ROWS - 1, -1, -1)))


def rolled(model):
    for layer in model:
        layer.weight.copy_(layer.weight.roll(1, 0))


def transposed(model):
    """A checkpoint has it the other way round."""
    for layer in model:
        layer.weight.copy_(linear().weight.t())


PARTS = {part.__name__: part for part in (diagonal, column, scaled, masked, triangular, foreach_scaled, foreach_copied,
                                          foreach_mixed, permuted, gathered, rolled, transposed)}
# After sharding: what FSDP2 itself runs when a parameter is gathered.
AFTER = ("unsharded",)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--parts", default=",".join([*PARTS, *AFTER]))
    options = arguments.parse_args()
    names = options.parts.split(",")
    unknown = [name for name in names if name not in PARTS and name not in AFTER]
    if unknown:
        sys.exit(f"unknown parts {unknown}; there are {[*PARTS, *AFTER]}")
    mesh = join(options)
    torch.manual_seed(1234)
    model = nn.ModuleDict()
    for name in names:
        with torch.device(options.device), torch.no_grad():
            model[name + "_part"] = layers()
            PARTS.get(name, lambda model: None)(model[name + "_part"])
    for module in [module for part in model.values() for module in part]:
        if mesh is not None:
            fully_shard(module, mesh=mesh)
    if "unsharded" in names and mesh is not None:
        for module in model["unsharded_part"]:
            module.unshard()
            module.reshard()
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
