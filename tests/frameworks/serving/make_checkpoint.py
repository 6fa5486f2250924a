#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_checkpoint.py FOLDER [--scale S]: a Llama of few layers, float32, one safetensors file, transformers' names. 1: 360 MiB,
of which an eighth is twenty granules."""
import argparse
import os

import torch
from safetensors.torch import save_file

LAYERS = 1


def shapes(scale):
    width, hidden, heads, words = (int(size * scale) for size in (2048, 8192, 512, 8192))
    yield "model.embed_tokens", (words, width)
    for number in range(LAYERS):
        layer = f"model.layers.{number}."
        for name, rows in (("q", width), ("k", heads), ("v", heads), ("o", width)):
            yield f"{layer}self_attn.{name}_proj", (rows, width)
        for name in ("gate", "up"):
            yield f"{layer}mlp.{name}_proj", (hidden, width)
        yield layer + "mlp.down_proj", (width, hidden)
        for name in ("input", "post_attention"):
            yield f"{layer}{name}_layernorm", (width,)
    yield "model.norm", (width,)
    yield "lm_head", (words, width)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--scale", type=float, default=1)
    options = parser.parse_args()
    torch.manual_seed(4321)
    os.makedirs(options.folder, exist_ok=True)
    save_file({name + ".weight": torch.randn(shape) for name, shape in shapes(options.scale)},
              os.path.join(options.folder, "model.safetensors"))


if __name__ == "__main__":
    main()
