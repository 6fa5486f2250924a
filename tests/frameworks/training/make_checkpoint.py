#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_checkpoint.py MODEL PATH: a checkpoint for train.py, made on the CPU: of safetensors, or of torch.save, by the name
of the file."""
import sys

import torch
from safetensors.torch import save_file

from models import KINDS, Config


def main():
    kind, path = sys.argv[1:]
    torch.manual_seed(4321)  # not the seed of the program: what was not loaded must not look as if it were
    model = KINDS[kind](Config())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if path.endswith(".safetensors"):
        save_file(state, path)
    else:
        torch.save(state, path)


if __name__ == "__main__":
    main()
