#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel with shards of different sizes, some empty, loaded by torch.distributed.checkpoint.

--variant small: the model of PyTorch's own test, 5 -> 10 -> 15 -> 1, for two ranks; --variant wide:
Llama's tensors, with dimensions that no number of ranks divides.
"""
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from common import finish, join, parser, tensors_of
from model import build, shape


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(5, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 15)
        self.net3 = nn.Linear(15, 1)


# With two ranks net3 has one row for the first rank and none for the second.
SMALL_PLAN = {"net1": ColwiseParallel(), "net2": RowwiseParallel(), "net3": ColwiseParallel()}

WIDE_PLAN = {
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


def build_small(device):
    with torch.device(device):
        return Uneven()


def main():
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--variant", choices=["small", "wide"], default="small")
    options = arguments.parse_args()
    mesh = join(options)
    torch.manual_seed(5)
    if options.variant == "small":
        model, plan = build_small(options.device), SMALL_PLAN
    else:
        model, plan = build(shape(options.scale, uneven=True), options.device), WIDE_PLAN
    if mesh is not None:
        # Every rank has the same values, so that none has to be sent.
        parallelize_module(model, mesh, plan, src_data_rank=None)
    # Each rank finds and reads what it holds without asking the others.
    dcp.load(model.state_dict(), checkpoint_id=options.checkpoint, no_dist=True)
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
