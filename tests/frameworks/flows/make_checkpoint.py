#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_checkpoint.py KIND PATH [--scale S]: a checkpoint for the programs in this folder, made on the CPU.

KIND: safetensors (a folder with several files and an index), torch (one file), dcp (a folder, for
tensor_parallel.py --variant wide), dcp_small (for --variant small), dcp_even and dcp_model (folders, of the model
of the other kinds: its tensors, and those below "model"), pretrained (transformers' Llama of that shape, as
save_pretrained() leaves it: sorted by name), pretrained_torch (the same model's state as one file of torch.save(), in
the order of its modules), pretrained_mixture (transformers' Qwen2-MoE: a tensor for each expert).
"""
import argparse
import json
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from model import build, shape
from tensor_parallel import build_small

FILES = 4


def save_safetensors(state, folder):
    os.makedirs(folder, exist_ok=True)
    total = sum(tensor.nbytes for tensor in state.values())
    files, filled = [{}], 0
    for name, tensor in state.items():
        if filled >= total / FILES:
            files.append({})
            filled = 0
        files[-1][name] = tensor
        filled += tensor.nbytes
    index = {}
    for number, part in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        save_file(part, os.path.join(folder, name), metadata={"format": "pt"})
        index.update(dict.fromkeys(part, name))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": index}, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["safetensors", "torch", "dcp", "dcp_small", "dcp_even", "dcp_model",
                                         "pretrained", "pretrained_torch", "pretrained_mixture"])
    parser.add_argument("path")
    parser.add_argument("--scale", type=float, default=1)
    options = parser.parse_args()
    if options.kind.startswith("pretrained"):
        sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "systems"))
        import hub
        hub.save_pretrained(options.scale, options.path, as_state=options.kind == "pretrained_torch",
                            mixture=options.kind == "pretrained_mixture")
        return
    # Not the seeds of the programs: a tensor that was not loaded must not look as if it were.
    torch.manual_seed(4321)
    if options.kind == "dcp_small":
        model = build_small("cpu")
    else:
        model = build(shape(options.scale, uneven=options.kind == "dcp"), "cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if options.kind == "safetensors":
        save_safetensors(state, options.path)
    elif options.kind == "torch":
        torch.save(state, options.path)
    else:
        dcp.save({"model": state} if options.kind == "dcp_model" else state, checkpoint_id=options.path, no_dist=True)


if __name__ == "__main__":
    main()
