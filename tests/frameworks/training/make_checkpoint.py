#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_checkpoint.py MODEL PATH: a checkpoint, made on the CPU: for train.py of safetensors, or of torch.save, by the name of
the file; for pretrained.py (MODEL is pretrained-llama, -wide or -gpt2) a folder of save_pretrained()."""
import sys

import torch
from safetensors.torch import save_file

from models import KINDS, Config


def save_pretrained(kind, path):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    if kind in ("pretrained-llama", "pretrained-wide"):
        wide = kind == "pretrained-wide"  # 67 MiB: a shard of it is more than a granule
        model = LlamaForCausalLM(LlamaConfig(vocab_size=2048, hidden_size=512 if wide else 256, intermediate_size=1408 if wide else 704,
                                             num_hidden_layers=4 if wide else 2, num_attention_heads=4, num_key_value_heads=2,
                                             max_position_embeddings=64))
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=2048, n_embd=256, n_layer=2, n_head=4, n_positions=64, bos_token_id=0,
                                           eos_token_id=0))
    model.save_pretrained(path)


def main():
    kind, path = sys.argv[1:]
    torch.manual_seed(4321)  # not the seed of the program: what was not loaded must not look as if it were
    if kind.startswith("pretrained-"):
        save_pretrained(kind, path)
        return
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
