#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An ordinary program on one device, with nothing to shard. --parts tensors,prefetched,mapped,parted,step."""
import sys

import torch
from torch import nn

from common import finish, parser

ROWS, COLUMNS = 1031, 2048
PINNED_ROWS = 4096  # 32 MiB


def tensors(device):
    """Creation, copies, casts, parts and views."""
    yield "empty_then_filled", torch.empty(ROWS, COLUMNS, device=device).fill_(1.5)
    yield "zeros", torch.zeros(ROWS, COLUMNS, dtype=torch.int32, device=device)
    drawn = torch.empty(ROWS, COLUMNS, device=device).normal_()
    yield "drawn", drawn
    yield "clone", drawn.clone()
    yield "cast", drawn.to(torch.bfloat16)
    yield "cast_back", drawn.to(torch.float16).to(torch.float32)
    yield "rows", drawn[ROWS // 2 :]
    yield "columns", drawn[:, 5:1000].contiguous()
    yield "transposed", drawn.t().contiguous()
    yield "cat", torch.cat([drawn[:100], drawn[500:], torch.ones(3, COLUMNS, device=device)])
    yield "scaled", drawn.clone().mul_(2).add_(1)
    host = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
    sent = host.to(device)
    host.zero_()  # the device has its own copy
    yield "sent", sent
    part = torch.zeros(ROWS, COLUMNS, device=device)
    part[10:20].copy_(drawn[30:40])
    part[20:30] = 7
    yield "part", part
    other = drawn.clone()
    yield "there_and_back", other.cpu().to(device)
    other.zero_()


def prefetched(device):
    """As data loaders do: pinned tensors, copied on a stream of their own, and kept beside what is made of them."""
    side = torch.cuda.Stream() if torch.device(device).type == "cuda" else None
    for number in range(3):
        host = torch.arange(number, number + PINNED_ROWS * COLUMNS, dtype=torch.float32).view(PINNED_ROWS, COLUMNS)
        if side is None:
            sent = host.to(device)
        else:
            with torch.cuda.stream(side):
                sent = host.pin_memory().to(device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            sent.record_stream(torch.cuda.current_stream())
        yield f"sent{number}", sent
        if number < 2:
            yield f"cast{number}", sent.to(torch.bfloat16)


def mapped(device, checkpoint):
    """A mapped file, of which each tensor is kept beside what is made of it."""
    for name, tensor in first_tensors(checkpoint):
        sent = tensor.to(device)
        yield name, sent
        yield name + ".wide", sent.to(torch.float32)


def parted(device, checkpoint):
    """A mapped file, of which each tensor is kept beside a copy of a part of it."""
    for name, tensor in first_tensors(checkpoint):
        sent = tensor.to(device)
        yield name, sent
        yield name + ".part", sent[: len(sent) // 3].clone()


def first_tensors(checkpoint):
    return list(torch.load(checkpoint, mmap=True, map_location="cpu").items())[:6]


def step(device):
    """Forward, backward and two steps of an optimiser."""
    with torch.device(device):
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.LayerNorm(1024),
                              nn.Linear(1024, 16))
        inputs, targets = torch.randn(32, 256), torch.randn(32, 16)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(2):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield f"loss{number}", loss.detach()
    yield from model.named_parameters()


PARTS = {"tensors": tensors, "prefetched": prefetched, "mapped": mapped, "parted": parted, "step": step}
FROM_FILES = ("mapped", "parted")


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--parts", default=",".join(PARTS))
    options = arguments.parse_args()
    if options.world != 1:
        sys.exit("this is a program for one device")
    torch.manual_seed(1234)
    found = [(f"{part}.{name}", tensor) for part in options.parts.split(",")
             for name, tensor in PARTS[part](options.device, *[options.checkpoint] * (part in FROM_FILES))]
    finish(found, options)


if __name__ == "__main__":
    main()
