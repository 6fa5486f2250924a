#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a torch.save checkpoint, mapped, into a model on the device, then shards it.

--path copy: into the parameters of a model that is already there; --path assign: torch.load brings the
tensors to the device, and they become the parameters.
"""
import torch

from common import finish, join, parser, shard, tensors_of
from model import build, shape


def load_copy(options):
    model = build(shape(options.scale), options.device)
    state = torch.load(options.checkpoint, mmap=True, map_location="cpu")
    model.load_state_dict(state)
    return model


def load_assign(options):
    model = build(shape(options.scale), "meta")
    state = torch.load(options.checkpoint, mmap=True, map_location=options.device)
    model.load_state_dict(state, assign=True)
    model.reset_buffers(options.device)
    return model


def main():
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--path", choices=["copy", "assign"], default="copy")
    options = arguments.parse_args()
    mesh = join(options)
    model = load_copy(options) if options.path == "copy" else load_assign(options)
    shard(model, mesh)
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
