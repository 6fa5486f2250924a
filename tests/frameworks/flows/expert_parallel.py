#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a whole mixture of experts to the device, and keeps what this rank computes with: its experts, and all that is
shared. Reads a sample of that back: of a model of 10^12 parameters it is more than test machines have.
"""
import torch

from common import finish, join, parser, tensors_of
from safetensors_load import load_mapping


def part_of(options, experts):
    part = experts // options.world
    return range(options.rank * part, (options.rank + 1) * part)


def keep_own_experts(model, options):
    for layer in model.layers:
        if hasattr(layer, "experts"):
            own = part_of(options, len(layer.experts))
            for number in range(len(layer.experts)):
                if number not in own:
                    layer.experts[number] = torch.nn.Identity()


def main():
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--sample", type=int, default=1, help="one of so many tensors is read back")
    options = arguments.parse_args()
    join(options)
    model = load_mapping(options)
    whole = list(model.parameters())
    sizes = {"whole_tensors": len(whole), "whole_bytes": sum(tensor.nbytes for tensor in whole)}
    del whole
    keep_own_experts(model, options)
    tensors = tensors_of(model)
    finish(tensors[::options.sample], options, kept_bytes=sum(tensor.nbytes for _, tensor in tensors), **sizes)


if __name__ == "__main__":
    main()
