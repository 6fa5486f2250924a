# SPDX-License-Identifier: Apache-2.0
"""serve.py FOLDER --cut CUT --way in-place|sliced [--seconds S]: serves with this rank's part of a Llama.

Loads the whole checkpoint to the device and works with the part of it that CUT gives to RANK of WORLD_SIZE: where it
lies in the whole tensors, or after it was copied out of each and the whole was dropped. It answers requests for S
seconds, one at least. Nothing in it knows of MetaShard; `values` are the answers.
"""
import argparse
import os
import re
import time

import torch
from safetensors.torch import load_file

BATCH, MOST_COLUMNS = 4, 8192
COLUMNS = ("o_proj", "down_proj")
ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")


def even(tensor, rank, world, dim=0):
    """As torch.chunk cuts; the last ranks may get nothing."""
    size = -(-tensor.shape[dim] // world)
    begin = min(rank * size, tensor.shape[dim])
    return tensor.narrow(dim, begin, min(size, tensor.shape[dim] - begin))


def tensor_parallel(name, tensor, rank, world):
    module = name.split(".")[-2]
    if module in ROWS + COLUMNS:
        return even(tensor, rank, world, 1 if module in COLUMNS else 0)
    return tensor


def units(weights, rank, world):
    """One flat parameter for each layer and one for the rest, cut evenly wherever a tensor begins."""
    found = {}
    for name, tensor in weights.items():
        found.setdefault((re.match(r"model\.layers\.\d+", name) or ["root"])[0], []).append((name, tensor.view(-1)))
    for members in found.values():
        size = -(-sum(len(flat) for _, flat in members) // world)
        at = -rank * size  # of the tensor, in this rank's part
        for name, flat in members:
            begin, end = max(0, -at), min(len(flat), size - at)
            if begin < end:
                yield name, flat[begin:end]
            at += len(flat)


def each(cut):
    """The same rule for every tensor."""
    return lambda weights, rank, world: ((name, cut(name, tensor, rank, world)) for name, tensor in weights.items())


def rows_of_some(weights, rank, world):
    return ((name, even(tensor, rank, world)) for name, tensor in weights.items() if "gate" in name or "up" in name)


CUTS = {"fsdp1": units, "fsdp2": each(lambda _, tensor, rank, world: even(tensor, rank, world)),
        "replicate": each(lambda _, tensor, rank, world: tensor), "tp": each(tensor_parallel),
        "zero3": each(lambda _, tensor, rank, world: even(tensor.view(-1), rank, world)), "some": rows_of_some}


def answer(parts, request):
    """A product with each matrix, a sum of what is flat."""
    return {name: request[:, :part.shape[1]] @ part.t() if part.dim() == 2 else part.sum()
            for name, part in parts.items() if part.numel() > 0}


parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--cut", choices=CUTS, required=True)
parser.add_argument("--way", choices=["in-place", "sliced"], required=True)
parser.add_argument("--seconds", type=float, default=0)
options = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
weights = load_file(os.path.join(options.folder, "model.safetensors"), device="cuda")
parts = dict(CUTS[options.cut](weights, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
if options.way == "sliced":
    parts = {name: part.clone() for name, part in parts.items()}
    del weights
torch.manual_seed(1)
request, begin = torch.randn(BATCH, MOST_COLUMNS, device="cuda"), time.monotonic()
values = answer(parts, request)
while time.monotonic() < begin + options.seconds:
    values = answer(parts, request)
    torch.cuda.synchronize()
