#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_files.py METASHARD_PLAN LIST_TENSORS: files that torch.save writes, as plans know them. TAP.

Each tensor is looked for at the place of the file that torch.load(mmap=True) maps for it.
"""
import json
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict

import torch
from torch import nn

from check_wheel import Tap

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
         torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.float64: "F64",
         torch.complex64: "C64", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
         torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
         torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e8m0fnu: "F8_E8M0"}


class Block(nn.Module):
    def __init__(self, size, dtype):
        super().__init__()
        self.q_proj = nn.Linear(size, size, dtype=dtype)
        self.o_proj = nn.Linear(size, size, bias=False, dtype=dtype)
        self.norm = nn.BatchNorm1d(size)  # with buffers, one of them int64
        self.register_buffer("position_ids", torch.arange(16))

    def forward(self, x):
        return self.o_proj(self.q_proj(x))


class Model(nn.Module):
    """Shaped as transformers has them: layers, buffers, and a head tied to the embedding."""

    def __init__(self, dtype):
        super().__init__()
        self.embed_tokens = nn.Embedding(64, 32, dtype=dtype)
        self.layers = nn.ModuleList([Block(32, dtype) for _ in range(2)])
        self.lm_head = nn.Linear(32, 64, bias=False, dtype=dtype)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.lm_head(x)


def trained(dtype):
    model = Model(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), fused=False)
    model(torch.randint(64, (3, 5))).float().sum().backward()
    optimizer.step()
    return model, optimizer


def named(value, parts=()):
    """(name, tensor) of all that can be named."""
    if isinstance(value, torch.Tensor):
        return [(".".join(parts), value)]
    if isinstance(value, dict):
        items = value.items()
    else:
        items = enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [found for key, item in items for found in named(item, parts + (str(key),))]


def maps_of(path):
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].strip() == path:
                begin, end = (int(number, 16) for number in fields[0].split("-"))
                yield begin, end, int(fields[2], 16)


def place_of(tensor, maps):
    address = tensor.data_ptr()
    return next((address - begin + offset for begin, end, offset in maps if begin <= address < end), None)


def listed(program, path):
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def compare(program, path, loaded, prefix=""):
    """The first difference, or "". A name without its prefix is that of the plan."""
    seen = listed(program, path)
    if isinstance(seen, str):
        return seen
    maps = list(maps_of(path))
    by_name = {tensor["name"]: tensor for tensor in seen["tensors"]}
    wanted = {name.removeprefix(prefix): tensor for name, tensor in named(loaded)
              if tensor.is_contiguous() and tensor.dtype in NAMES and tensor.layout == torch.strided
              and not tensor.is_quantized and not tensor.is_conj()}
    if set(by_name) != set(wanted):
        return f"names {sorted(set(by_name) ^ set(wanted))}"
    with open(path, "rb") as file:
        for name, tensor in wanted.items():
            one = by_name[name]
            if (one["dtype"], one["shape"], one["bytes"]) != (NAMES[tensor.dtype], list(tensor.shape), tensor.nbytes):
                return f"{one}, expected {tensor.dtype} {tensor.shape}"
            if tensor.nbytes == 0:
                continue
            if place_of(tensor, maps) != one["offset"]:
                return f"{one} is mapped from {place_of(tensor, maps)}"
            file.seek(one["offset"])
            bytes_ = torch.frombuffer(bytearray(file.read(one["bytes"])), dtype=torch.uint8)
            if not torch.equal(bytes_, tensor.reshape(-1).view(torch.uint8)):
                return f"{name}: other bytes"
    return ""


def check_models(tap, program, path):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        model, optimizer = trained(dtype)
        states = {"state dict": (model.state_dict(), ""), "in a dict": ({"model": model.state_dict(), "step": 3}, "model."),
                  "with the optimizer": ({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
                                         "")}
        for title, (state, prefix) in states.items():
            for protocol in (2, 3, 4, 5):
                torch.save(state, path, pickle_protocol=protocol)
                loaded = torch.load(path, mmap=True, weights_only=protocol == 2)
                wrong = compare(program, path, loaded, prefix)
                tap.check(f"{title}, {dtype}, protocol {protocol}", wrong == "", wrong)
        names = [tensor["name"] for tensor in listed(program, path)["tensors"]]
        tap.check(f"tied weights have two names, {dtype}",
                  {"model.embed_tokens.weight", "model.lm_head.weight", "optimizer.state.0.exp_avg"} <= set(names), names)


class Tagged(nn.Parameter):
    pass


def check_kinds(tap, program, path):
    """All dtypes, views and wrappers; and the counts of what is not listed."""
    state = OrderedDict((str(dtype), torch.empty(6, 4, dtype=torch.uint8).random_(0, 2).repeat(1, 8).view(dtype))
                        for dtype in NAMES)
    whole = torch.randn(8, 6)
    tagged = nn.Parameter(torch.randn(3))
    tagged.tensor_parallel = True
    with_attribute = torch.randn(3)
    with_attribute.note = "x"
    state.update(whole=whole, row=whole[2], block=whole[2:5], column=whole[:, 1], turned=whole.t(),
                 expanded=torch.ones(1).expand(5), one=torch.tensor(3.0), empty=torch.empty(0, 4),
                 unsqueezed=whole[3:4].t()[:, :1], tagged=tagged, attribute=with_attribute, tagged2=Tagged(torch.ones(3)),
                 conjugated=torch.ones(2, dtype=torch.complex64).conj(), double=torch.ones(2, dtype=torch.complex128),
                 quantized=torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
                 sparse=torch.eye(3).to_sparse(), meta=torch.ones(3, device="meta"), nine=torch.ones([1] * 9),
                 storage=torch.UntypedStorage(4), dtype=torch.float16, device=torch.device("cpu"), size=torch.Size([3]))
    torch.save(state, path)
    loaded = torch.load(path, mmap=True, weights_only=False)
    for name in ("meta", "nine"):
        del loaded[name]
    wrong = compare(program, path, loaded)
    tap.check("all dtypes, and views", wrong == "", wrong)


def check_forms(tap, program, path):
    state = {"a": torch.randn(5), "b": torch.ones(70000, dtype=torch.int16)}
    from torch.utils.serialization import config
    for alignment in (64, 4096):
        with config.patch("save.storage_alignment", alignment):
            torch.save(state, path)
        wrong = compare(program, path, torch.load(path, mmap=True))
        tap.check(f"records aligned to {alignment}", wrong == "", wrong)
    torch.save(state, path, _disable_byteorder_record=True)
    wrong = compare(program, path, torch.load(path, mmap=True))
    tap.check("a file without byteorder", wrong == "", wrong)
    torch.save(state, path, _use_new_zipfile_serialization=False)
    said = listed(program, path)
    tap.check("the form before 1.6 is refused", isinstance(said, str) and "PyTorch 1.6" in said, said)
    torch.jit.save(torch.jit.script(nn.Linear(3, 4)), path)
    said = listed(program, path)
    tap.check("TorchScript is refused", isinstance(said, str), said)  # its code is compressed
    with torch.serialization.skip_data():  # holes
        torch.save({"large": torch.empty(5 << 30, dtype=torch.uint8), "last": torch.empty(3, 4)}, path)
    wrong = compare_offsets(program, path)
    tap.check("records beyond 2^32", wrong == "", wrong)


def compare_offsets(program, path):
    seen = {tensor["name"]: tensor["offset"] for tensor in listed(program, path)["tensors"]}
    reader = torch._C.PyTorchFileReader(path)
    wanted = {"large": reader.get_record_offset("data/0"), "last": reader.get_record_offset("data/1")}
    return "" if seen == wanted and seen["last"] > 1 << 32 else f"{seen}, expected {wanted}"


def check_plan(tap, tool, folder):
    model, _ = trained(torch.bfloat16)
    os.makedirs(folder)
    torch.save(model.state_dict(), os.path.join(folder, "pytorch_model.bin"))
    plan = os.path.join(folder, "plan.json")
    for arguments in (["make", folder, "--strategy", "tp", "--mesh", "dp=2,tp=2", "-o", plan], ["check", plan, folder],
                      ["explain", plan, folder, "--rank", "3", "--json"]):
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
        tap.check(f"metashard-plan {arguments[0]}", done.returncode == 0, done.stdout + done.stderr)


def main():
    tool, program = map(os.path.abspath, sys.argv[1:3])
    tap = Tap()
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory(prefix="metashard-files-") as folder:
        check_models(tap, program, os.path.join(folder, "model.pt"))
        check_kinds(tap, program, os.path.join(folder, "kinds.pt"))
        check_forms(tap, program, os.path.join(folder, "forms.pt"))
        check_plan(tap, tool, os.path.join(folder, "folder"))
    tap.end()


if __name__ == "__main__":
    main()
