#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Things that models do on the way, each a part of its own: --parts names them, separated by commas."""
import sys

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from common import finish, join, parser, tensors_of

# Large enough for the caching allocator to ask the driver for each.
ROWS, COLUMNS = 4100, 2048


class Tied(nn.Module):
    """The head uses the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(ROWS, COLUMNS)
        self.lm_head = nn.Linear(COLUMNS, ROWS, bias=False)
        self.lm_head.weight = self.embedding.weight


class Buffers(nn.Module):
    """Buffers are not sharded; some are in no checkpoint."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(COLUMNS, ROWS)
        self.register_buffer("mask", torch.ones(ROWS, COLUMNS), persistent=False)
        self.register_buffer("cache", torch.zeros(ROWS, COLUMNS, dtype=torch.float16), persistent=False)
        self.register_buffer("bias", torch.full((ROWS, COLUMNS), -0.5))
        # A number from the host, in very little memory.
        self.register_buffer("count", torch.tensor(7, dtype=torch.int64))


class Padding(nn.Module):
    """One row is set to zero after the whole was drawn."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(ROWS, COLUMNS, padding_idx=ROWS // 3)


class Again(nn.Module):
    """Initialised several times, in place: the last complete one decides, and arithmetic on top."""

    def __init__(self):
        super().__init__()
        self.drawn = nn.Linear(COLUMNS, ROWS, bias=False)
        self.scaled = nn.Linear(COLUMNS, ROWS, bias=False)
        self.cleared = nn.Linear(COLUMNS, ROWS, bias=False)
        self.partly = nn.Linear(COLUMNS, ROWS, bias=False)
        with torch.no_grad():
            self.drawn.weight.normal_(0, 0.02)
            self.drawn.weight.uniform_(-0.1, 0.1)
            self.scaled.weight.normal_(0, 1)
            self.scaled.weight.mul_(0.25)
            self.scaled.weight.add_(0.5)
            self.cleared.weight.normal_(0, 0.02)
            self.cleared.weight.zero_()
            self.partly.weight.normal_(0, 0.02)
            self.partly.weight[: ROWS // 2].zero_()
            self.partly.weight[ROWS // 4 : ROWS // 3].normal_(0, 1)


class Cast(nn.Module):
    """Drawn as float32, kept as bfloat16."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(COLUMNS, ROWS)
        self.bfloat16()


class Copied(nn.Module):
    """A second part that begins as a copy of the first, and goes on by itself."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(COLUMNS, ROWS, bias=False)
        self.student = nn.Linear(COLUMNS, ROWS, bias=False)
        self.student.load_state_dict(self.teacher.state_dict())
        with torch.no_grad():
            self.teacher.weight.fill_(2)


class Rotary(nn.Module):
    """A table that is computed on the device."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(COLUMNS, ROWS, bias=False)
        steps = torch.arange(0, COLUMNS, 2, dtype=torch.int64).to(torch.float32)
        self.register_buffer("frequencies", 1.0 / (10000.0 ** (steps / COLUMNS)), persistent=False)


class TruncatedNormal(nn.Module):
    """Draws, looks at the result, draws again where it was out of range."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(COLUMNS, ROWS, bias=False)
        nn.init.trunc_normal_(self.linear.weight, std=0.02, a=-0.04, b=0.04)


class TruncatedFar(nn.Module):
    """The same with the bounds that are the default, far out: it looks at the result, and draws once."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(COLUMNS, ROWS, bias=False) for _ in range(8))
        for layer in self.layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)


class Orthogonal(nn.Module):
    """A factorisation: every element depends on every other."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024, bias=False)
        nn.init.orthogonal_(self.linear.weight)


PARTS = {"tied": Tied, "buffers": Buffers, "padding": Padding, "again": Again, "cast": Cast,
         "copied": Copied, "rotary": Rotary, "trunc_normal": TruncatedNormal, "trunc_normal_far": TruncatedFar,
         "orthogonal": Orthogonal}


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--parts", default=",".join(PARTS))
    options = arguments.parse_args()
    names = options.parts.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"unknown parts {unknown}; there are {list(PARTS)}")
    mesh = join(options)
    torch.manual_seed(1234)
    model = nn.Module()
    for name in names:
        with torch.device(options.device):
            model.add_module(name + "_part", PARTS[name]())
    if mesh is not None:
        for module in model.children():
            fully_shard(module, mesh=mesh)
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
