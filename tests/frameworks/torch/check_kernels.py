#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_kernels.py: the simulated device computes what PyTorch computes on the host. TAP.

Copies and arithmetic are compared with the host's; random numbers with those of a real GPU, which are
well known for seed 0.
"""
import ctypes

import torch

from check_wheel import Tap

FLOATING = [torch.float32, torch.bfloat16, torch.float16]
TYPES = FLOATING + [torch.int64, torch.int32, torch.uint8]
SHAPES = [(64, 37), (64, 64)]
# torch.manual_seed(0), five numbers, as any NVIDIA GPU prints them.
UNIFORM = [0.3990, 0.5167, 0.0249, 0.9401, 0.9459]
NORMAL = [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209]


def same(device, host):
    return torch.equal(device.cpu(), host)


def copies(d, h):
    yield "copied", same(d, h)
    yield "clone", same(d.clone(), h)
    yield "column slice", same(d[:, 3:9].contiguous(), h[:, 3:9])
    yield "transposed", same(d.t().contiguous(), h.t())
    for dim in (0, 1):
        yield f"cat in dimension {dim}", same(torch.cat([d, d, d], dim), torch.cat([h, h, h], dim))
    yield "cat of slices", same(torch.cat([d[:, :5], d[:, 9:]], 1), torch.cat([h[:, :5], h[:, 9:]], 1))
    targets = [torch.empty_like(d), torch.empty_like(d)]
    torch._foreach_copy_(targets, [d, d.mul(2)])
    yield "foreach copy", same(targets[0], h) and same(targets[1], h.mul(2))
    for one, other in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.half, torch.bfloat16)):
        targets = [torch.empty_like(d, dtype=one)]
        torch._foreach_copy_(targets, [d.to(other)])
        yield f"foreach copy of {other} to {one}", same(targets[0], h.to(other).to(one))
    three = (2, h.shape[0] // 2, h.shape[1])
    for dim in (0, 1, 2):
        yield f"cat of three dimensions in dimension {dim}", same(torch.cat([d.view(three)] * 3, dim),
                                                                  torch.cat([h.view(three)] * 3, dim))
    yield "stack and cat", same(torch.cat([torch.stack([d, d]), torch.stack([d, d])], 1),
                                torch.cat([torch.stack([h, h]), torch.stack([h, h])], 1))
    for other in TYPES[:-1]:
        yield f"to {other}", same(d.to(other), h.to(other))
        yield f"columns to {other}", same(d[:, 3:9].to(other), h[:, 3:9].to(other))


def arithmetic(d, h):
    device, host = d.clone(), h.clone()
    device[5:9, 1:3] = 3
    host[5:9, 1:3] = 3
    yield "fill of a part", same(device, host)
    yield "full", same(torch.full((33,), 5, dtype=d.dtype, device="cuda"), torch.full((33,), 5, dtype=d.dtype))
    yield "times a number", same(d.mul(3), h.mul(3))
    yield "plus a number", same(d.add(2), h.add(2))
    yield "in place", same(d.clone().mul_(3).add_(1), h.clone().mul_(3).add_(1))
    yield "part in place", same(device[:, :5].mul_(2), host[:, :5].mul_(2))
    yield "sum and product of two", same(d + d, h + h) and same(d * d, h * h)
    yield "least and most", same(d.max(), h.max()) and same(d.min(), h.min())
    yield "least and most of two", same(torch.minimum(d, d.mul(0).add(9)), h.clamp(max=9)) and same(torch.maximum(d, d.mul(0).add(9)), h.clamp(min=9))
    if d.dtype in FLOATING + [torch.int64]:
        # Numbers of few bits, so that every order of adding gives the same.
        yield "sum", same((d > 9).to(d.dtype).sum(), (h > 9).to(h.dtype).sum())
    yield "clamp", same(d.clamp(4, 20), h.clamp(4, 20)) and same(d.clamp(min=4), h.clamp(min=4))


def decisions(d, h):
    yield "comparisons", all(same(a, b) for a, b in [(d < 9, h < 9), (d >= 9, h >= 9), (d > 9, h > 9)])
    yield "comparisons of two", all(same(a, b) for a, b in [
        (d < d * 2, h < h * 2), (d >= d * 2, h >= h * 2), (d == d * 2, h == h * 2),
        (d != d * 2, h != h * 2), (d > d, h > h), (d <= d, h <= h)])
    yield "or, any", same((d < 5) | (d > 30), (h < 5) | (h > 30)) and same((d > 90).any(), (h > 90).any())
    yield "all", same((d < 90).all(), (h < 90).all()) and same((d < 9).all(), (h < 9).all())
    yield "where", same(torch.where(d > 9, d, d * 2), torch.where(h > 9, h, h * 2))


def numbers(h):
    """Functions of floating-point numbers that quantisers use."""
    d, low = h.cuda(), h - 3
    for name, function in {"floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc}.items():
        yield name, same(function(d / 3), function(h / 3))
    yield "clamp between tensors", same(torch.clamp(d, low.cuda(), low.cuda() + 2), torch.clamp(h, low, low + 2))
    yield "remainder", same(d % 7, h % 7)
    for name, function in {"erf": torch.erf, "log2": torch.log2, "log1p": torch.log1p}.items():
        yield name, torch.allclose(function(d / 50 + 1).cpu(), function(h / 50 + 1), atol=1e-2 if h.dtype == torch.bfloat16 else 1e-6)
    for steps in (1, 7, 100):
        device, host = (torch.linspace(-3, 11, steps, dtype=h.dtype, device=where) for where in ("cuda", "cpu"))
        yield f"{steps} numbers of linspace", torch.allclose(device.cpu(), host, atol=1e-6 if h.dtype == torch.float32 else 0.04)


def compiled():
    """erfinv, which PyTorch compiles at run time, and pairs of numbers."""
    for count in (7, 1000):
        h = torch.cat([torch.rand(count) * 2 - 1, torch.tensor([0.0, 1.0, -1.0, 1e-30, 1 - 2 ** -24, 2.0])])
        yield f"erfinv of {count} numbers", torch.allclose(h.cuda().erfinv_().cpu(), h.erfinv(), rtol=1e-6, equal_nan=True)
    length, angle = torch.rand(5, 7), torch.rand(5, 7) * 9
    yield "polar", torch.allclose(torch.polar(length.cuda(), angle.cuda()).cpu(), torch.polar(length, angle))


def whole(h):
    """Bits, and divisions, of integers; shifts by more bits than there are."""
    d, by = h.cuda(), (h % 70).to(h.dtype)
    for name, function in {"and": torch.bitwise_and, "or": torch.bitwise_or, "exclusive or": torch.bitwise_xor,
                           "shift left": torch.bitwise_left_shift, "shift right": torch.bitwise_right_shift}.items():
        yield f"{name} of two", same(function(d, by.cuda()), function(h, by))
        yield f"{name} with a number", same(function(d, 3), function(h, 3))
    yield "a number shifted", same(torch.bitwise_left_shift(5, d % 8), torch.bitwise_left_shift(5, h % 8))
    yield "all bits changed", same(~d, ~h)
    yield "remainder", same(d % 7, h % 7) and same(d % (by.cuda() + 1), h % (by + 1))
    yield "divided down", same(d // 7, h // 7) and same(d // (by.cuda() + 1), h // (by + 1))
    yield "linspace", same(torch.linspace(0, 90, 19, dtype=h.dtype, device="cuda"), torch.linspace(0, 90, 19, dtype=h.dtype))


def eight_bits(kind):
    """All 256 numbers, and casts to them: steps, halves of steps, what is too large, not a number."""
    every = torch.arange(256, dtype=torch.uint8).view(kind)
    yield "to float", torch.equal(every.cuda().float().cpu().nan_to_num(777), every.float().nan_to_num(777))
    yield "copied", same(every.cuda().clone().view(torch.uint8), every.view(torch.uint8))
    steps = every.float()
    steps = steps[steps.isfinite()].sort()[0]
    between = torch.cat([steps, (steps[1:] + steps[:-1]) / 2, steps * 1.001, torch.tensor([torch.inf, -torch.inf, torch.nan, 1e9])])
    for other in FLOATING:
        host = between.to(other)
        device, expected = host.cuda().to(kind).cpu(), host.to(kind)
        known = host.isnan() | ~expected.float().isnan()  # releases before 2.15 give nan for what is too large
        yield f"{other} to it", torch.equal(device.view(torch.uint8)[known], expected.view(torch.uint8)[known])


def unknown():
    """A type that the simulated device does not compute: loud, and last, because the context is lost."""
    try:
        torch.zeros(8, dtype=torch.float8_e8m0fnu, device="cuda").to(torch.float32)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return "illegal memory access" in str(error)
    return False


def managed():
    """The calls of a paged optimizer: memory that the host writes, brought to the device and back."""
    runtime = ctypes.CDLL("libcudart.so.13")
    pointer, bytes_ = ctypes.c_void_p(), 1 << 20
    location = type("Location", (ctypes.Structure,), {"_fields_": [("type", ctypes.c_int), ("id", ctypes.c_int)]})
    yield "managed memory", runtime.cudaMallocManaged(ctypes.byref(pointer), ctypes.c_size_t(bytes_), 1) == 0
    ctypes.memset(pointer.value, 7, bytes_)
    yield "brought to the device and back", all(
        runtime.cudaMemPrefetchAsync(pointer, ctypes.c_size_t(bytes_), location(*place), 0, None) == 0 for place in ((1, 0), (2, 0)))
    yield "has its bytes", runtime.cudaDeviceSynchronize() == 0 and ctypes.string_at(pointer.value, bytes_) == b"\7" * bytes_
    yield "freed", runtime.cudaFree(pointer) == 0


def random():
    torch.manual_seed(0)
    yield "uniform numbers of a GPU", torch.allclose(torch.rand(5, device="cuda").cpu(),
                                                     torch.tensor(UNIFORM), atol=5e-5)
    torch.manual_seed(0)
    yield "normal numbers of a GPU", torch.allclose(torch.randn(5, device="cuda").cpu(),
                                                    torch.tensor(NORMAL), atol=5e-5)
    many = torch.empty(1_000_003, device="cuda").normal_(1, 2).cpu()
    yield "normal distribution", abs(many.mean() - 1) < 0.01 and abs(many.std() - 2) < 0.01
    part = torch.zeros(1000, 300, device="cuda")
    part[:, 4:9].uniform_(1, 2)
    part = part.cpu()
    yield "uniform numbers in a part", bool((part[:, 4:9] >= 1).all() and (part[:, 4:9] < 2).all()
                                            and (part[:, 9:] == 0).all())


def main():
    tap = Tap()
    torch.manual_seed(1)
    for kind in TYPES:
        for shape in SHAPES:
            h = (torch.rand(shape) * 50).to(kind)
            d = h.cuda()
            for name, good in [*copies(d, h), *arithmetic(d, h)]:
                tap.check(f"{kind}, {shape[0]} x {shape[1]}: {name}", good)
    for kind in (torch.float32, torch.bfloat16):
        h = (torch.rand(SHAPES[0]) * 50).to(kind)
        for name, good in decisions(h.cuda(), h):
            tap.check(f"{kind}: {name}", good)
        for name, good in numbers(h):
            tap.check(f"{kind}: {name}", good)
    for kind in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        for name, good in whole((torch.rand(SHAPES[0]) * 200 - 100).to(torch.int64).to(kind)):
            tap.check(f"{kind}: {name}", good)
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        for name, good in eight_bits(kind):
            tap.check(f"{kind}: {name}", good)
    for name, good in [*compiled(), *managed()]:
        tap.check(name, good)
    large = torch.arange(4000 * 2048, dtype=torch.int32).view(4000, 2048)
    tap.check("large transposed", same(large.cuda().t().contiguous(), large.t().contiguous()))
    for name, good in random():
        tap.check(name, good)
    tap.check("a cast of a type that is not known here fails", unknown())
    tap.end()


if __name__ == "__main__":
    main()
