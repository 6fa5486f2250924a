# SPDX-License-Identifier: Apache-2.0
"""plan_program.py CHECKPOINT RANK WORLD [--outside]: PyTorch, in place, on whole tensors.

Loads all tensors to the device, slices nothing, and reads back the rank's rows of each. Prints a JSON object:
tensor -> hash of its rows; with --outside, the rows of the next rank of the first tensor as well, or the error.
"""
import hashlib
import json
import sys

import torch
from safetensors.torch import load_file


def load(path):
    if path.endswith(".safetensors"):
        return load_file(path, device="cuda")
    return torch.load(path, mmap=True, map_location="cuda")


def rows_of(tensor, rank, world):
    """torch.chunk's rule; without a copy on the device."""
    size = -(-tensor.shape[0] // world)
    return tensor[min(rank * size, tensor.shape[0]):(rank + 1) * size]


def digest(tensor):
    return hashlib.sha256(tensor.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()


def main():
    path, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    state = load(path)
    seen = {name: digest(rows_of(tensor, rank, world)) for name, tensor in state.items()}
    if "--outside" in sys.argv:
        try:
            seen["outside"] = digest(rows_of(next(iter(state.values())), (rank + 1) % world, world))
        except RuntimeError as error:  # torch.AcceleratorError is one
            seen["outside"] = str(error).splitlines()[0]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
