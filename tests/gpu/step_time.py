#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shim's cost for a training step, and for a start of PyTorch, without anything to defer.

    step_time.py --shim libmetashard.so [--out FILE] [--seconds S]

A small transformer in bf16: forward, backward, AdamW. Its steps are short, so that the host's part of them,
which is all that the shim can lengthen, counts. Processes without and with the preload take turns; the
figures are medians. Prints, and writes after each process, one JSON object.
"""
import os
import statistics
import time

from part_script import Turns, medians, run_part

ROUNDS, STEPS, WARM_UP_STEPS = 4, 200, 20
# Longer than METASHARD_SETTLE_MS: what is measured is the state that training is in.
WARM_UP_SECONDS = 2.0
START = "import torch; torch.cuda.init(); print('{}')"
START_ON_CPU = "import torch; print('{}')"


def build_model(torch, device, layers, width):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.before(x)).view(batch, length, 3, -1, 64).permute(2, 0, 3, 1, 4)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))

    blocks = [Block() for _ in range(layers)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(width, width)).to(device, torch.bfloat16)


def train(options):
    """In a process of its own: milliseconds per step, the host waiting at the end of each."""
    import torch
    torch.manual_seed(1)
    device, steps, width = options.device, options.steps, options.width
    model = build_model(torch, device, options.layers, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(options.batch, options.length, width, device=device, dtype=torch.bfloat16)
    milliseconds, start = [], time.monotonic()

    def step():
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = (model(data) - data).float().square().mean()
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        milliseconds.append((time.perf_counter() - began) * 1000)
        return loss

    while len(milliseconds) < WARM_UP_STEPS:
        loss = step()
    early_loss = loss.item()
    while time.monotonic() - start < WARM_UP_SECONDS:
        step()
    first = milliseconds[2:WARM_UP_STEPS]
    del milliseconds[:]
    for _ in range(steps):
        step()
    return {"step_ms": statistics.median(milliseconds), "step_p90_ms": sorted(milliseconds)[steps * 9 // 10],
            "early_step_ms": statistics.median(first), "loss": early_loss}


def measure(options):
    training = [os.path.abspath(__file__), "--train", "--device", options.device, "--steps", str(options.steps)]
    starting = ["-c", START if options.device == "cuda" else START_ON_CPU]
    shape = {name: getattr(options, name) for name in ("layers", "width", "batch", "length")}
    training += [word for name, value in shape.items() for word in ("--" + name, str(value))]
    turns = Turns(options, "metashard-step-time-1", summary={}, training={}, starting={},
                  shape={**shape, "steps": options.steps, "dtype": "bfloat16"})
    result, done = turns.result, 0
    for _ in range(options.rounds):
        if not turns.round("training", training, result["training"]) or \
                not turns.round("starting", starting, result["starting"]):
            break
        done += 1
        result["summary"] = summary_of(result)
    result["rounds"] = done
    return turns.finish(done > 0)


def summary_of(result):
    losses = {mode: sorted({record["loss"] for record in runs if "loss" in record})
              for mode, runs in result["training"].items()}
    return {**medians(result["training"], ["step_ms", "step_p90_ms", "early_step_ms"]),
            "start_seconds": medians(result["starting"], ["process_seconds"])["process_seconds"],
            # After WARM_UP_STEPS. Several values without the shim: this device's sums are not repeatable.
            "losses": losses}


if __name__ == "__main__":
    run_part(__doc__, measure, 300, ("--steps", STEPS), ("--layers", 6), ("--width", 512), ("--batch", 8), ("--length", 256),
             ("--rounds", ROUNDS), children={"--train": train}, told=lambda result: result["summary"])
