#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning Fabric with its FSDP strategy. --init empty: init_module(empty_init=True), which makes the model on meta and
asks every module for reset_parameters() in setup(); host: init_module() alone, which makes it on the host; plain: built
on the device and loaded, before setup. The optimizer is made first, but for empty, where Fabric refuses that."""
import os

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy

from hub import arguments, choice
from model import Layer, Llama, shape
from start import load_safetensors


class Model(Llama):
    def reset_parameters(self):
        """Resets the buffer, which is in no layer of PyTorch's: else empty_init leaves the buffer as it is, and FSDP complains."""
        self.reset_buffers(torch.get_default_device())


options = arguments(choice("init", "empty", "host", "plain"))
local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
fabric = Fabric(accelerator="cuda", devices=local, num_nodes=int(os.environ.get("WORLD_SIZE", "1")) // local,
                precision="bf16-true", strategy=FSDPStrategy(auto_wrap_policy={Layer}))
fabric.launch()
fabric.seed_everything(1234, verbose=False)
if options.init == "plain":
    with fabric.init_module(), fabric.device:
        model = Model(shape(options.scale))
    model.load_state_dict(load_safetensors(options.checkpoint))
else:
    with fabric.init_module(empty_init=options.init == "empty"):
        model = Model(shape(options.scale))
if options.init == "empty":
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-4))
else:
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
