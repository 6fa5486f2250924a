#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a model on the CPU and shards it on a mesh of devices: fully_shard moves every tensor, whole."""
import torch

from common import finish, join, parser, shard, tensors_of
from model import build, shape


def main():
    options = parser(__doc__).parse_args()
    mesh = join(options)
    torch.manual_seed(1234)
    model = build(shape(options.scale), "cpu")
    model.init_weights()
    if mesh is None:
        model.to(options.device)
    shard(model, mesh)
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
