#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_operations.py: the simulated device computes what PyTorch computes on the host, forward and backward, of all that
train.py needs: each operation by itself, then whole steps of the models. TAP."""
import copy
import os
import sys
import traceback

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "torch"))
from check_wheel import Tap  # noqa: E402
from models import KINDS, Config  # noqa: E402

# How far apart: the host adds in another order, and rounds intermediate results elsewhere.
NEAR = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}


def values(*shape, kind=torch.float32):
    return torch.randn(*shape, dtype=torch.float32).to(kind).requires_grad_()


def near(device, host):
    difference = (device.detach().cpu().double() - host.detach().double()).abs().max().item() if host.numel() else 0
    size = max(host.detach().double().abs().max().item() if host.numel() else 0, 1)
    return difference <= NEAR.get(device.dtype, 0) * size, difference


def compare(function, inputs):
    """The results and the gradients of all inputs; the host computes in single precision in any case."""
    found = {}
    for where in ("cpu", "cuda"):
        given = [value.detach().to(where, torch.float32 if where == "cpu" else value.dtype).requires_grad_() for value in inputs]
        results = function(*given)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        weights = [torch.linspace(-1, 2, result.numel()).view(result.shape).to(result) for result in results]
        total = sum((result * weight).sum() for result, weight in zip(results, weights) if result.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
        found[where] = results + [value.grad for value in given if value.grad is not None]
    pairs = [near(device, host) for device, host in zip(found["cuda"], found["cpu"])]
    return all(good for good, _ in pairs), [difference for _, difference in pairs]


def products(kind):
    yield "product of matrices", torch.matmul, [values(37, 64, kind=kind), values(64, 21, kind=kind)]
    yield "linear layer", F.linear, [values(5, 7, 64, kind=kind), values(48, 64, kind=kind)]
    yield "linear layer with bias", F.linear, [values(5, 7, 64, kind=kind), values(48, 64, kind=kind),
                                               values(48, kind=kind)]
    yield "batches", torch.matmul, [values(2, 4, 33, 16, kind=kind), values(2, 4, 16, 9, kind=kind)]
    yield "batches, transposed", lambda a, b: a @ b.transpose(2, 3), [values(2, 4, 8, 16, kind=kind),
                                                                      values(2, 4, 8, 16, kind=kind)]
    yield "matrix and vector", torch.mv, [values(37, 64, kind=kind), values(64, kind=kind)]
    yield "sum and product", torch.addmm, [values(4, 6, kind=kind), values(4, 5, kind=kind), values(5, 6, kind=kind)]


def elementwise(kind):
    one, two = values(33, 20, kind=kind), values(33, 20, kind=kind)
    for name in ("silu", "gelu", "tanh", "sigmoid"):
        yield name, getattr(F, name) if name in ("silu", "gelu") else getattr(torch, name), [one]
    yield "gelu by tanh", lambda x: F.gelu(x, approximate="tanh"), [one]
    yield "cos and sin", lambda x: x.cos() * x.sin(), [one]
    yield "exp and log", lambda x: (x.exp() + 1).log(), [one]
    yield "square, cube, power", lambda x: (x.pow(2), x.pow(3), (x.abs() + 1).pow(1.5)), [one]
    yield "root and its inverse", lambda x: ((x * x + 1).sqrt(), (x * x + 1).rsqrt()), [one]
    yield "quotients", lambda a, b: (a / (b * b + 1), a / 3, 3 / (b * b + 1)), [one, two]
    yield "difference and negation", lambda a, b: (a - b, -a, 2 - b), [one, two]
    yield "addcmul, addcdiv, lerp", lambda a, b: (torch.addcmul(a, a, b, value=0.5), torch.addcdiv(a, a, b * b + 1, value=2),
                                                  torch.lerp(a, b, 0.1)), [one, two]
    yield "broadcast", lambda a, b: a * b + b, [one, values(20, kind=kind)]
    yield "columns", lambda a: torch.cat([-a[:, 10:], a[:, :10]], -1) * 2, [one]
    yield "transposed", lambda a: (a.t() * 2).contiguous(), [one]
    yield "masked", lambda a, b: (torch.where(a > 0, a, b), a.masked_fill(b > 0, -1.0)), [one, two]
    yield "clamp", lambda a: a.clamp(-0.5, 0.5), [one]


def reductions(kind):
    x = values(6, 33, 20, kind=kind)
    for name in ("sum", "mean"):
        yield name, getattr(torch, name), [x]
        for dim in (0, 1, 2, (0, 1)):
            yield f"{name} over {dim}", lambda a, name=name, dim=dim: getattr(a, name)(dim), [x]
    yield "norm", torch.linalg.vector_norm, [x]
    yield "norm of rows", lambda a: torch.linalg.vector_norm(a, dim=-1), [x]
    for count in (20, 300, 1500, 5000):
        yield f"softmax of {count}", lambda a: F.softmax(a, -1), [values(5, count, kind=kind)]
        yield f"its logarithm of {count}", lambda a: F.log_softmax(a, -1), [values(5, count, kind=kind)]


def layers(kind):
    for width in (64, 256, 260, 37):
        weight, bias = values(width, kind=kind), values(width, kind=kind)
        yield f"layer norm of {width}", lambda x, w, b: F.layer_norm(x, w.shape, w, b), [values(9, width, kind=kind), weight, bias]
        yield f"RMS norm of {width}", lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), [values(9, width, kind=kind), weight]
    yield "layer norm of many rows", lambda x, w, b: F.layer_norm(x, w.shape, w, b), [
        values(700, 64, kind=kind), values(64, kind=kind), values(64, kind=kind)]
    words = torch.randint(50, (4, 12))
    for width in (64, 6):
        yield f"embedding of {width}", lambda table: F.embedding(words.to(table.device), table), [values(50, width, kind=kind)]
    for count in (100, 3000):
        targets = torch.randint(count, (24,))
        targets[3] = -100
        yield f"cross entropy of {count}", lambda x, t=targets: F.cross_entropy(x, t.to(x.device)), [
            values(24, count, kind=kind)]
    yield "attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [
        values(2, 4, 16, 32, kind=kind) for _ in range(3)]


def dropout():
    x = torch.ones(100_000, device="cuda", requires_grad=True)
    y = F.dropout(x, 0.25)
    y.backward(torch.full_like(y, 2))
    kept = (y.detach() != 0).float().mean().item()
    yield "dropout keeps three quarters", abs(kept - 0.75) < 0.01, kept
    yield "and scales them", torch.allclose(y.detach().cpu().unique(), torch.tensor([0, 4 / 3])), y.detach().cpu().unique()
    yield "forward and backward alike", torch.equal(x.grad.cpu(), 2 * y.detach().cpu()), x.grad


def whole_numbers():
    x = torch.randint(3, 11, (50_000,), device="cuda").cpu()
    yield "whole numbers in a range", x.min() == 3 and x.max() == 10 and abs(x.double().mean() - 6.5) < 0.05, x
    part = torch.zeros(100, 7, dtype=torch.int64, device="cuda")
    part[:, 2:5].random_(1, 9)
    yield "in a part", bool((part.cpu()[:, 2:5] > 0).all() and (part.cpu()[:, 5:] == 0).all()), part.cpu()


def scaler():
    for kind in (torch.float32, torch.float16):
        for bad in (False, True):
            lists = [torch.full((70_000 + 3 * number,), 6.0, device="cuda", dtype=kind) for number in range(3)]
            lists[1][-1] = float("inf") if bad else 6
            found = torch.zeros(1, device="cuda")
            torch._amp_foreach_non_finite_check_and_unscale_(lists, found, torch.full((1,), 0.5, device="cuda"))
            values = [part.cpu()[:-1].unique().tolist() for part in lists]
            yield f"unscaled {str(kind)[6:]}, not finite: {bad}", values == [[3.0]] * 3 and found.item() == bad, (values, found)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    parameter, scales = nn.Parameter(torch.zeros(7, device="cuda")), []
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for gradient in (1, 1, float("inf"), 1):
        parameter.grad = torch.full_like(parameter, gradient) * scaler.scale(torch.ones((), device="cuda"))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    yield "the scale grows and falls", scales == [1024, 2048, 1024, 1024], scales
    yield "steps, but for the one that is not finite", parameter.detach().cpu().unique().tolist() == [-3], parameter


def decisions():
    first, second = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for name in ("logical_and", "logical_or"):
        found = getattr(torch, name)(first.cuda(), second.cuda()).cpu()
        yield name, torch.equal(found, getattr(torch, name)(first, second)), found
    value = torch.tensor([1.0, float("inf"), float("nan")])
    yield "isinf, isnan", torch.equal(value.cuda().isinf().cpu(), value.isinf()) and torch.equal(
        value.cuda().isnan().cpu(), value.isnan()), value


def parameters_after(where, how, rounds=3):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(40, 300), nn.Linear(300, 7)).to(where)
    for parameter in model.parameters():
        parameter.data = parameter.detach().cpu().to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, **how)
    for number in range(rounds):
        for index, parameter in enumerate(model.parameters()):
            torch.manual_seed(100 * number + index)
            parameter.grad = torch.randn(parameter.shape).to(where)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def optimizers():
    host = parameters_after("cpu", {"foreach": False})
    for name, how in (("one by one", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        pairs = [near(device, value) for device, value in zip(parameters_after("cuda", how), host)]
        yield f"AdamW {name}, clipped", all(good for good, _ in pairs), [difference for _, difference in pairs]


def steps():
    for kind in KINDS:
        torch.manual_seed(5)
        model = KINDS[kind](Config(dropout=0.0))
        words = torch.randint(Config.words, (2, 33))
        found = {}
        for where in ("cpu", "cuda"):
            copied = copy.deepcopy(model).to(where)
            given = words.to(where)
            loss = F.cross_entropy(copied(given[:, :-1]).flatten(0, 1), given[:, 1:].flatten())
            loss.backward()
            found[where] = [loss] + [parameter.grad for parameter in copied.parameters()]
        pairs = [near(device, value) for device, value in zip(found["cuda"], found["cpu"])]
        yield f"a step of {kind}", all(good for good, _ in pairs), [difference for _, difference in pairs]


def main():
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    tap = Tap()
    torch.manual_seed(1)
    for kind in (torch.float32, torch.bfloat16):
        for name, function, inputs in [*products(kind), *elementwise(kind), *reductions(kind), *layers(kind)]:
            try:
                good, detail = compare(function, inputs)
            except RuntimeError:  # a kernel without a host version
                good, detail = False, traceback.format_exc()[-700:]
            tap.check(f"{kind}: {name}", good, detail)
    for part in (dropout, whole_numbers, decisions, scaler, optimizers, steps):
        try:
            for name, good, detail in part():
                tap.check(name, good, detail)
        except RuntimeError:
            tap.check(part.__name__, False, traceback.format_exc()[-700:])
    tap.end()


if __name__ == "__main__":
    main()
