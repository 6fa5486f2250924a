#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP2 of a loaded, frozen model, which is run again and again: an evaluation, a rollout, the base of adapters."""
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from start import choice, start

LAYERS = 8


def load(path, width, device):
    """Layers that widen and layers that narrow, in turn, from one mapped file on this rank's disk."""
    hidden = 2 * width + width % 2  # of an odd width an odd number, which no number of ranks divides
    np.arange(LAYERS * hidden * width, dtype=np.float32).tofile(path)
    time.sleep(0.1)  # longer than a tick of the file system's clock: younger files are not trusted
    rows = torch.from_numpy(np.memmap(path, np.float32, "c", shape=(LAYERS * hidden, width)))
    with device:
        net = nn.Sequential(*[nn.Linear(*((width, hidden) if layer % 2 == 0 else (hidden, width)), bias=False)
                              for layer in range(LAYERS)])
    with torch.no_grad():
        for layer, linear in enumerate(net):
            linear.weight.copy_(rows[layer * hidden:(layer + 1) * hidden].reshape(linear.weight.shape))
    return net.requires_grad_(False)


options, device = start(choice("precision", "float32", "bfloat16"), choice("passes", "1", "4", "12"),
                        choice("width", "1024", "1021"))
torch.manual_seed(1234)
width = int(options.width)
folder = tempfile.TemporaryDirectory()  # until the process ends
model = load(os.path.join(folder.name, "weights"), width, device)
policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)} if options.precision == "bfloat16" else {}
for layer in model:
    fully_shard(layer, **policy)
fully_shard(model, **policy)
inputs = torch.ones(2, width, device=device).mul_(1e-12)
values = {f"sum {number}": model(inputs).float().sum() for number in range(int(options.passes))}
dist.barrier()
