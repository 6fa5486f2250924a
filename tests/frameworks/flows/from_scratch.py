#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and initialises a whole model on the device, then shards it: no meta device, no tricks."""
import torch

from common import finish, join, parser, shard, tensors_of
from model import build, shape


def main():
    options = parser(__doc__).parse_args()
    mesh = join(options)
    torch.manual_seed(1234)
    model = build(shape(options.scale), options.device)
    model.init_weights()
    shard(model, mesh)
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
