#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""memory_program.py HOW: programs that find out how much fits into the device; prints each try, and how it ends.

halve       a training loop that halves its batch, of a model that was made before
first       the same, of a batch so large that the first operation of all has no room
inside      the model is made anew for each try
accelerate  accelerate's find_executable_batch_size
info        the batch is computed from torch.cuda.mem_get_info
fraction    torch.cuda.set_per_process_memory_fraction
whole       a model larger than the device, of which parts are kept; then as halve
"""
import gc
import hashlib
import sys

import torch
from torch import nn

COLUMNS = 1 << 19  # elements of a row: 2 MiB
LAYERS = 3


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.empty(COLUMNS, device="cuda").normal_(1, 0.1))
        self.more = nn.Parameter(torch.empty(COLUMNS, device="cuda").normal_(0, 0.1))

    def forward(self, x):
        return x * self.factor + self.more


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(*(Gate() for _ in range(LAYERS)))


def digest(model):
    torch.cuda.synchronize()
    data = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(data)).hexdigest()[:16]


def train(model, batch, steps=2):
    """The simulated device knows no matrix products, and sums of whole tensors alone: so row by row."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7, momentum=0.9, foreach=False)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.zeros((), device="cuda")
        for _ in range(batch):
            y = model(torch.empty(COLUMNS, device="cuda").normal_())
            loss = loss + (y * y).sum()
        loss.backward()
        optimizer.step()


def train_at_once(_, batch):
    """The first thing that runs has no room for its result."""
    x = torch.empty(batch, COLUMNS, device="cuda").normal_()
    print("sum:", (x * 2).sum().item())


def attempt(model, batch, run=train):
    try:
        run(model, batch)
    except torch.OutOfMemoryError as error:
        print(f"batch {batch}: {str(error).split('.', maxsplit=1)[0]}")
        return False
    print(f"batch {batch}: fits")
    return True


def halve(model, batch, run=train):
    while batch > 0 and not attempt(model, batch, run):
        gc.collect()
        torch.cuda.empty_cache()
        batch //= 2
    print("trained:", digest(model))


def inside(batch):
    while batch > 0:
        model = make_model()
        if attempt(model, batch):
            print("trained:", digest(model))
            return
        del model
        gc.collect()
        torch.cuda.empty_cache()
        batch //= 2


def with_accelerate(batch):
    from accelerate.utils import find_executable_batch_size
    model = make_model()

    @find_executable_batch_size(starting_batch_size=batch)
    def run(batch_size):
        print("batch", batch_size)
        train(model, batch_size)

    run()
    print("trained:", digest(model))


def with_info():
    model = make_model()
    train(model, 1)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    print("free:", free, "of", total)
    attempt(model, int(free // (COLUMNS * 4) // (LAYERS + 4)))
    print("trained:", digest(model))


def with_fraction():
    torch.cuda.set_per_process_memory_fraction(0.5)
    halve(make_model(), 8)


def make_whole():
    """Ten times what is kept, and more than there is; not until all of it is there."""
    torch.manual_seed(3)
    whole = [torch.empty(10, COLUMNS, device="cuda").normal_() for _ in range(LAYERS * 2)]  # 120 MiB
    model = make_model()
    with torch.no_grad():
        for parameter, tensor in zip(model.parameters(), whole):
            parameter.copy_(tensor[3])
    return model


def main():
    how, batch = sys.argv[1], int(sys.argv[2])
    if how == "halve":
        halve(make_model(), batch)
    elif how == "first":
        halve(make_model(), batch, train_at_once)
    elif how == "inside":
        inside(batch)
    elif how == "accelerate":
        with_accelerate(batch)
    elif how == "info":
        with_info()
    elif how == "fraction":
        with_fraction()
    elif how == "whole":
        model = make_whole()
        gc.collect()
        torch.cuda.empty_cache()
        halve(model, batch)


main()
