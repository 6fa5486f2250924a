#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps that need no matrix product, which is all of training.py that the simulated device can do: layers of
multiplications and additions, an SGD loop; plain, with activation checkpointing, with accumulated gradients, or with
forward and backward in a CUDA graph. Half of the layers are frozen, as with adapters.
Nothing is sharded: every rank trains its own."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from start import choice, start

STEPS, ROWS, COLUMNS = 3, 1024, 768


class Gate(nn.Module):
    def __init__(self, is_frozen):
        super().__init__()
        self.factor = nn.Parameter(torch.empty(ROWS, COLUMNS).normal_(1, 0.1), requires_grad=not is_frozen)
        self.more = nn.Parameter(torch.empty(ROWS, COLUMNS).normal_(0, 0.1), requires_grad=not is_frozen)

    def forward(self, x):
        x = x * self.factor + self.more
        return x + x * x * 0.01


options, device = start(choice("how", "plain", "checkpointing", "accumulation", "graph"))
torch.manual_seed(1234)
with device:
    model = nn.ModuleList(Gate(number % 2 == 0) for number in range(6))
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.SGD(trained, lr=1e-5, foreach=False)
parts = 2 if options.how == "accumulation" else 1
inputs = torch.empty(STEPS, parts, ROWS, COLUMNS, device=device).normal_()
target = torch.empty(ROWS, COLUMNS, device=device).normal_()


def train(batches):
    total = torch.zeros((), device=device)
    for batch in batches:
        x = batch
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False) if options.how == "checkpointing" else layer(x)
        difference = x - target
        loss = (difference * difference).sum()
        loss.backward()
        total += loss.detach()
    return total


values = {}
if options.how == "graph":
    given = inputs[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train(given)
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = train(given)
    for number in range(STEPS):
        given.copy_(inputs[number])
        for parameter in trained:
            parameter.grad.zero_()
        graph.replay()
        optimizer.step()
        values[f"loss {number}"] = captured.clone()
else:
    for number in range(STEPS):
        optimizer.zero_grad()
        values[f"loss {number}"] = train(inputs[number])
        optimizer.step()
