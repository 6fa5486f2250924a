# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts with Hugging Face's packages: the arguments, and the model that make_checkpoint.py saves."""
import argparse

HEAD_DIM = 32


def arguments(*more):
    """more: functions that add arguments to the parser."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint")
    parser.add_argument("--scale", type=float, default=1)
    for add in more:
        add(parser)
    return parser.parse_args()


def choice(name, *values):
    """An argument for arguments()."""
    return lambda parser: parser.add_argument("--" + name, choices=values, default=values[0])


def config(scale):
    """A configuration of transformers in the shape of model.py: Llama 3 8B at half its width, with 3 layers and a small vocabulary."""
    from transformers import LlamaConfig
    unit = 4 * HEAD_DIM
    dim = max(round(2048 * scale / unit), 1) * unit
    return LlamaConfig(hidden_size=dim, intermediate_size=dim * 7 // 2, num_hidden_layers=3,
                       vocab_size=max(round(16032 * scale / 32), 1) * 32, num_attention_heads=dim // HEAD_DIM,
                       num_key_value_heads=dim // HEAD_DIM // 4, head_dim=HEAD_DIM, tie_word_embeddings=False,
                       dtype="bfloat16")


def mixture_config(scale):
    """A configuration of transformers: a mixture of experts in the shape of Qwen2-MoE, with 3 layers of 64 experts."""
    from transformers import Qwen2MoeConfig
    dim = max(round(1024 * scale / 128), 1) * 128
    return Qwen2MoeConfig(hidden_size=dim, intermediate_size=dim, num_hidden_layers=3, num_experts=64,
                          moe_intermediate_size=dim // 2, shared_expert_intermediate_size=dim,
                          vocab_size=max(round(16032 * scale / 32), 1) * 32, num_attention_heads=dim // HEAD_DIM,
                          num_key_value_heads=dim // HEAD_DIM, tie_word_embeddings=False, dtype="bfloat16")


def save_pretrained(scale, path, as_state=False, mixture=False):
    """A checkpoint as the hub has them, in several files; or the same model's state in one."""
    import torch
    from transformers import AutoModelForCausalLM
    torch.manual_seed(4321)
    model = AutoModelForCausalLM.from_config((mixture_config if mixture else config)(scale), dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    # save_pretrained() writes each expert's tensors by themselves, as the hub has them.
    total = sum(parameter.nbytes for parameter in model.parameters())
    if as_state:
        torch.save(model.state_dict(), path)
    else:
        model.save_pretrained(path, max_shard_size=total // 4)
