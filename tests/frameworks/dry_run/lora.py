# SPDX-License-Identifier: Apache-2.0
"""LoRA as LitGPT had it in October 2023, in plain PyTorch: Llama 2 or phi-1.5 in bf16 with all its states, rank 8 for queries and
values, dropout, the last layer and the loss in chunks of 128 tokens, the longest row of Alpaca. With several ranks FSDP1 with
checkpointing of each block."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

# width, layers, heads, hidden width, words, the longest row, how much of a head is turned, is it a Llama
MODELS = {"llama-2-7b": (4096, 32, 32, 11008, 32000, 1304, 1.0, True), "llama-2-13b": (5120, 40, 40, 13824, 32000, 1304, 1.0, True),
          "phi-1.5": (2048, 24, 32, 8192, 51200, 1044, 0.5, False)}
RANK, SCALE, DROPOUT, CHUNK = 8, 2.0, 0.05, 128
ACCUMULATED = 2  # of the 128 / batch, which take no more


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-5))


class QueriesKeysValues(nn.Module):
    """One product, with low ranks beside its queries and values, which go through a convolution of two groups."""

    def __init__(self, width, bias):
        super().__init__()
        self.linear, self.width = nn.Linear(width, 3 * width, bias=bias), width
        self.lora_a, self.lora_b = nn.Parameter(torch.zeros(2 * RANK, width)), nn.Parameter(torch.zeros(2 * width, RANK))
        self.places = torch.tensor([*range(width), *range(2 * width, 3 * width)], device="cpu")

    def forward(self, x):
        out = self.linear(x)
        low = F.linear(F.dropout(x, DROPOUT, self.training), self.lora_a)
        high = F.conv1d(low.transpose(-2, -1), self.lora_b.unsqueeze(-1), groups=2).transpose(-2, -1).transpose(0, 1)
        padded = high.new_zeros(*high.shape[:-1], 3 * self.width).view(-1, 3 * self.width)
        padded = padded.index_copy(1, self.places.to(x.device), high.reshape(-1, 2 * self.width))
        return out + padded.view(*high.shape[:-1], 3 * self.width).transpose(0, 1) * SCALE


def turn(x, cos, sin, turned):
    part = x[..., :turned]
    first, second = part.chunk(2, dim=-1)
    part = (part * cos + torch.cat((-second, first), dim=-1) * sin).type_as(x)
    return torch.cat((part, x[..., turned:]), dim=-1)


class Attention(nn.Module):
    def __init__(self, width, heads, turned, bias):
        super().__init__()
        self.attn, self.proj = QueriesKeysValues(width, bias), nn.Linear(width, width, bias=bias)
        self.heads, self.turned = heads, turned

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        mixed = self.attn(x).view(batch, length, self.heads, 3, width // self.heads).permute(0, 2, 3, 1, 4)
        q, k, v = (part.reshape(batch, self.heads, length, width // self.heads) for part in mixed.split((1, 1, 1), dim=2))
        q, k = turn(q, cos, sin, self.turned), turn(k, cos, sin, self.turned)
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width))


class Hidden(nn.Module):
    def __init__(self, width, hidden, is_llama):
        super().__init__()
        self.fc, self.proj = nn.Linear(width, hidden, bias=not is_llama), nn.Linear(hidden, width, bias=not is_llama)
        self.gate = nn.Linear(width, hidden, bias=False) if is_llama else None

    def forward(self, x):
        if self.gate is None:
            return self.proj(F.gelu(self.fc(x), approximate="tanh"))
        return self.proj(F.silu(self.fc(x)) * self.gate(x))


class Block(nn.Module):
    def __init__(self, width, heads, hidden, turned, is_llama):
        super().__init__()
        self.norm_1 = Norm(width) if is_llama else nn.LayerNorm(width)
        self.norm_2 = Norm(width) if is_llama else None
        self.attn, self.mlp = Attention(width, heads, turned, not is_llama), Hidden(width, hidden, is_llama)

    def forward(self, x, cos, sin):
        normed = self.norm_1(x)
        out = self.attn(normed, cos, sin)
        if self.norm_2 is None:
            return x + out + self.mlp(normed)
        x = x + out
        return x + self.mlp(self.norm_2(x))


class Model(nn.Module):
    def __init__(self, width, layers, heads, hidden, words, length, part, is_llama):
        super().__init__()
        turned = int(part * (width // heads))
        self.head, self.wte = nn.Linear(width, words, bias=not is_llama), nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, turned, is_llama) for _ in range(layers))
        self.norm = Norm(width) if is_llama else nn.LayerNorm(width)
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.zeros(length, turned, dtype=torch.half), persistent=False)

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x, self.cos[:tokens.shape[1]], self.sin[:tokens.shape[1]])
        return [self.head(part) for part in self.norm(x).split(CHUNK, dim=1)]


def loss_of(chunks, targets):
    chunks[-1] = chunks[-1][..., :-1, :]
    parts = [F.cross_entropy(scores.reshape(-1, scores.shape[-1]), wanted.reshape(-1), reduction="none")
             for scores, wanted in zip(chunks, targets[:, 1:].split(CHUNK, dim=1))]
    return torch.cat(parts).mean()


def build(options):
    world = int(os.environ.get("WORLD_SIZE", 1))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(*MODELS[options.model])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name)
    if world > 1:
        wrap = ModuleWrapPolicy({Block})
        model = FullyShardedDataParallel(model, auto_wrap_policy=wrap, use_orig_params=True, limit_all_gathers=True)
        apply_activation_checkpointing(model, auto_wrap_policy=wrap)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="llama-2-7b")
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    if "RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    model, length = build(options), MODELS[options.model][5]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4, weight_decay=0.01)
    for _ in range(3):
        for _ in range(ACCUMULATED):
            tokens = torch.randint(1000, (options.batch, length)).cuda()
            scores = [part.float() for part in model(tokens)]  # as Fabric gives back what a model of bf16 does
            loss = loss_of(scores, tokens)
            (loss / ACCUMULATED).backward()
        optimizer.step()
        optimizer.zero_grad()
        print("allocated GB", torch.cuda.max_memory_allocated() / 1e9)


if __name__ == "__main__":
    main()
