# SPDX-License-Identifier: Apache-2.0
"""How the scripts of this folder begin: arguments, the process group, the rank's device; as in torchrun's tutorials."""
import argparse
import functools
import json
import os

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Layer


def start(*more):
    """(options, device). more: functions that add arguments to the parser."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint")
    parser.add_argument("--scale", type=float, default=1)
    for add in more:
        add(parser)
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return options, device


def choice(name, *values):
    """An argument for start()."""
    return lambda parser: parser.add_argument("--" + name, choices=values, default=values[0])


def load_safetensors(folder):
    """A whole state dict on the host, mapped."""
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
        files = sorted(set(json.load(file)["weight_map"].values()))
    return functools.reduce(lambda state, name: state | load_file(os.path.join(folder, name)), files, {})


def each_layer():
    """FSDP1's way to say: a unit for each layer, and one for the rest."""
    return ModuleWrapPolicy({Layer})
