#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a small transformer, FSDP2 around each layer: --how plain, with activation checkpointing, with gradients
accumulated over several batches, compiled by torch.compile, or with each step's forward and backward in a CUDA graph
(which is for one rank: the model is not sharded). The script leaves the loss of each step and the model."""
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from start import choice, start

STEPS, BATCH, LENGTH, WIDTH, WORDS = 4, 4, 64, 256, 2048


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.mix, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (8, -1)).transpose(1, 2)
                             for part in self.mix(self.attention_norm(x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, is_checkpointed):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.is_checkpointed = is_checkpointed

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
        return self.head(x)


# PyTorch's own operations, which every device has.
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(False)
options, device = start(choice("how", "plain", "checkpointing", "accumulation", "compiled", "graph"))
torch.manual_seed(1234)
torch.use_deterministic_algorithms(True)
with device:
    model = Model(options.how == "checkpointing")
if options.how != "graph":
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=options.how == "graph")
call = torch.compile(model) if options.how == "compiled" else model
parts = 2 if options.how == "accumulation" else 1
words = torch.randint(WORDS, (STEPS, parts, BATCH, LENGTH + 1), device=device)


def train(batches):
    total = torch.zeros((), device=device)
    for batch in batches:
        logits = call(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten()) / parts
        loss.backward()
        total += loss.detach()
    return total


def step(batches):
    optimizer.zero_grad(set_to_none=options.how != "graph")
    total = train(batches)
    optimizer.step()
    return total


values = {}
if options.how == "graph":
    # As PyTorch's notes on CUDA graphs have it: a few steps on a side stream, then one that is captured.
    given = words[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(given)
    for number in range(STEPS):
        given.copy_(words[number])
        graph.replay()
        values[f"loss {number}"] = captured.clone()
else:
    for number in range(STEPS):
        values[f"loss {number}"] = step(words[number])
