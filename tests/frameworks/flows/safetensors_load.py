#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a sharded safetensors checkpoint to the device, whole, then shards the model.

--path mapping: a mapped file, one slice after the other; --path pinned: the library's own way to the
device, through pinned memory since safetensors 0.8.
"""
import json
import os

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from common import finish, join, parser, shard, tensors_of
from model import build, shape


def files_of(folder):
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
        names = sorted(set(json.load(file)["weight_map"].values()))
    return [os.path.join(folder, name) for name in names]


@torch.no_grad()
def load_mapping(options):
    model = build(shape(options.scale), options.device)
    parameters = dict(model.named_parameters())
    for path in files_of(options.checkpoint) if options.device != "meta" else []:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():
                weight = file.get_slice(name)[:]
                if name.startswith("layers."):
                    parameters[name].copy_(weight)
                else:
                    parameters[name].data = weight.to(options.device)
    return model


def load_pinned(options):
    model = build(shape(options.scale), "meta")
    for path in files_of(options.checkpoint):
        model.load_state_dict(load_file(path, device=options.device), strict=False, assign=True)
    model.reset_buffers(options.device)
    return model


def main():
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--path", choices=["mapping", "pinned"], default="mapping")
    options = arguments.parse_args()
    mesh = join(options)
    model = load_mapping(options) if options.path == "mapping" else load_pinned(options)
    shard(model, mesh)
    finish(tensors_of(model), options)


if __name__ == "__main__":
    main()
