#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_torch.py TOOL LIST_TENSORS [CASES [SEED]]: files of torch.save, made without PyTorch. TAP.

Names, dtypes, shapes and bytes are those of the state that was written, for random states; what must be
refused is (bad_torch.py); metashard-plan works on such files as on others.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import OrderedDict, defaultdict

import bad_torch
from check_plan import Plans, check_bad, expected
from checkpoint import file_bytes, header_of
from oracle import Tensor
from torch_writer import (TYPES, Call, Storage, View, pickled, plain_zip, records_of, save, stub, torch_zip)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, expect, run  # noqa: E402

ROOTS = ("state_dict", "model", "module")


def listed(program, path, status=0):
    environment = dict(os.environ, UBSAN_OPTIONS="halt_on_error=1:exitcode=99", ASAN_OPTIONS="exitcode=99")
    done = subprocess.run([program, path], capture_output=True, text=True, timeout=120, env=environment)
    expect(done.returncode == status, f"{path}: exit status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout) if status == 0 else done.stderr


def items_of(value):
    """(key, item) of what names go through, or None."""
    if isinstance(value, dict):
        return [(str(key) if type(key) in (str, int) else None, item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(i), item) for i, item in enumerate(value)]
    return None


def named(value, parts=()):
    """[(parts of the name, view)]; parts is None below a key that is no name."""
    if isinstance(value, View):
        return [(parts, value)]
    return [found for key, item in items_of(value) or []
            for found in named(item, None if key is None or parts is None else parts + (key,))]


def is_contiguous(view):
    places = view.elements()
    return places == list(range(places[0], places[0] + len(places))) if places else True


def wanted(state, hidden=0):
    """([(name, view)], skipped) by the text of docs/design/plans.md; `hidden` tensors are in objects."""
    found, skipped = [], hidden
    every = named(state)
    tops = {parts[0] for parts, _ in every if parts}
    unnamed = {id(view) for parts, view in every if parts is None} - \
        {id(view) for parts, view in every if parts is not None}
    skipped += len(unnamed)
    drop = len(tops) == 1 and isinstance(state, dict) and tops < set(ROOTS) | {None} and \
        isinstance(state[next(iter(tops))], dict)
    for parts, view in every:
        if parts is None or parts == ():
            continue
        if view.storage.row[3] is None or len(view.shape) > 8 or view.metadata or not is_contiguous(view):
            skipped += 1
        else:
            found.append((".".join(parts[1:] if drop else parts), view))
    return found, skipped


def check_skipped(program, path, names, skipped):
    """An index may name as many more tensors as are skipped."""
    index = f"{path}.index.json"
    for more, status in ((skipped, 0), (skipped + 1, 1)):
        every = names + [f"skipped {i}" for i in range(more)]
        with open(index, "w", encoding="utf-8") as file:
            json.dump({"weight_map": {name: os.path.basename(path) for name in every}}, file)
        if every:
            listed(program, index, status)
    os.remove(index)


def check_listing(program, state, path, hidden=0):
    seen = listed(program, path)
    found, skipped = wanted(state, hidden)
    check_skipped(program, path, [tensor["name"] for tensor in seen["tensors"]], skipped)
    by_name = dict(found)
    expect(sorted(by_name) == sorted(tensor["name"] for tensor in seen["tensors"]),
           f"names {[tensor['name'] for tensor in seen['tensors']]}, expected {sorted(by_name)}")
    order = [(tensor["offset"], tensor["offset"] + tensor["bytes"], tensor["name"].encode())
             for tensor in seen["tensors"]]
    expect(order == sorted(order), f"order {order}")
    with open(path, "rb") as file:
        content = file.read()
    for tensor in seen["tensors"]:
        view = by_name[tensor["name"]]
        expect((tensor["dtype"], tuple(tensor["shape"])) == (view.storage.row[3], view.shape), f"{tensor}")
        expect(tensor["file"] == path, f"{tensor}")
        data = content[tensor["offset"]:tensor["offset"] + tensor["bytes"]]
        expect(data == view.content(), f"{tensor}: other bytes")


class Dice(random.Random):
    serial = 0

    def view(self, storages):
        row = self.choice(TYPES)
        if storages and self.random() < 0.4:
            storage = self.choice(storages)
        else:
            extra = self.choice([0, 0, 1]) if row[2] > 1 else 0
            self.serial += 1
            storage = Storage(row, self.randbytes(self.randint(0, 60) * row[2] + extra),
                              self.choice([None, f"9{self.serial}4576"]))
            storages.append(storage)
        room = len(storage.data) // storage.row[2]
        first = self.randint(0, room) if self.random() < 0.4 else 0
        shape, left = [], room - first
        for _ in range(self.choice([0, 1, 1, 2, 2, 3, 9])):
            length = min(self.randint(0 if self.random() < 0.2 else 1, 5), left)
            shape.append(length)
            left //= max(length, 1)
        if left == 0 and 0 not in shape:
            shape.append(0)
        view = View(storage, first, shape, wrap=self.choice(["", "", "parameter", "state", "subclass"]))
        if storage.row[0].startswith("QInt"):
            view.wrap = ""
        kind = self.random()
        if kind < 0.15 and len(shape) > 1:
            order = self.sample(range(len(shape)), len(shape))
            view.shape = tuple(shape[i] for i in order)
            view.strides = tuple(view.strides[i] for i in order)
        elif kind < 0.2 and shape:
            view.strides = (0,) + view.strides[1:]
        elif kind < 0.3:  # what does not matter: the stride of a dimension of 1
            view.strides = tuple(7 if length == 1 else stride for length, stride in zip(view.shape, view.strides))
        elif kind < 0.35 and not storage.row[0].startswith("QInt"):
            view.metadata = {"conj": True}
        return view

    def key(self):
        return self.choice([f"layers.{self.randint(0, 99)}.weight", f"k{self.randint(0, 999)}", self.randint(-3, 999),
                            "größe", "a.b", "", f"{'x' * 300}{self.randint(0, 9)}", 1 << 40, -1 << 40, True, None, 2.5, b"x"])

    def state(self, storages, views, depth=0):
        kind = self.choice(["view"] * 4 + ["dict"] * 3 + ["list", "tuple", "leaf"]) if depth < 4 else "view"
        if depth == 0:
            kind = self.choice(["dict", "dict", "ordered", "default", "list"])
        if kind == "view":
            if views and self.random() < 0.15:
                return self.choice(views)  # tied
            views.append(self.view(storages))
            return views[-1]
        if kind == "leaf":
            return self.choice([None, 1, 1 << 70, -5, 2.5, "text", b"bytes", "t" * 300, True, {1, 2}, frozenset("a"),
                                (), [], {}, bytearray(b"x"), stub("torch.float32"), 1 + 2j])
        count = self.choice([0, 1, 3, 6])
        if kind in ("list", "tuple"):
            items = [self.state(storages, views, depth + 1) for _ in range(count)]
            return tuple(items) if kind == "tuple" else items
        out = {"dict": {}, "ordered": OrderedDict(), "default": defaultdict(list)}[
            kind if kind != "dict" else self.choice(["dict", "ordered", "default"])]
        for _ in range(count):
            out[self.key()] = self.state(storages, views, depth + 1)
        if self.random() < 0.2 and views:
            out["again"] = out.get("again", self.choice(views))
        return out


def check_random(plans, program, seed):
    dice = Dice(seed)
    state = dice.state([], [])
    if dice.random() < 0.3:
        state = {dice.choice(ROOTS + ("net",)): state, "epoch": 3, "args": None}
        if dice.random() < 0.3:
            state[dice.choice(["ema", "optimizer"])] = dice.state([], [])
    protocol = dice.choice([2, 2, 2, 3, 4, 5])
    records = records_of(state, dice.choice(["archive", "pytorch_model", "größe"]), protocol,
                         dice.choice([b"little", None]))
    if dice.random() < 0.2:
        dice.shuffle(records)
    form = dice.choice(["torch", "torch", "wide", "one end", "comment", "zipfile"])
    content = plain_zip(records) if form == "zipfile" else torch_zip(
        records, wide=form == "wide", ends="one" if form == "one end" else "both",
        comment=b"PK\5\6 and more" * 9 if form == "comment" else b"")
    path = plans.write(f"random{seed}.pt", content)
    found, _ = wanted(state)
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        expect(": expected one tensor of this name" in listed(program, path, 1), "two tensors of one name")
    else:
        check_listing(program, state, path)


FLOAT, HALF = TYPES[0], TYPES[1]


def some_views(seed, names, row=HALF, shape=(4, 6)):
    dice, size = random.Random(seed), row[2]
    for length in shape:
        size *= length
    return OrderedDict((name, View(Storage(row, dice.randbytes(size)), 0, shape)) for name in names)


def check_objects(plans, program):
    """Tensors in what is not looked into are counted."""
    views = list(some_views(1, "abcdefg").values())
    state = {"a": views[0], "args": Call("fairseq.Namespace", state={"x": views[1], "y": [views[2]]}),
             "set": Call("torch._utils._rebuild_sparse_tensor", (views[3], views[4])),
             "dict": Call(OrderedDict, [["b", views[5]]])}
    path = plans.path("objects.pt")
    save(path, state)
    seen = listed(program, path)
    expect([tensor["name"] for tensor in seen["tensors"]] == ["a"], f"{seen}")
    check_skipped(program, path, ["a"], 5)
    for lone in (views[0], Call("fairseq.Namespace", state={"x": views[0]})):
        save(path, lone)
        seen = listed(program, path)
        expect(seen == {"tensors": []}, f"{seen}")
        check_skipped(program, path, [], 1)


def check_root(plans, program):
    """Which names a dict around the model leaves."""
    model = some_views(2, ["layers.0.weight", "norm"])
    names = sorted(model)
    other = some_views(3, ["m"])["m"]
    rows = [(model, ""), ({"model": model}, ""), ({"state_dict": model, "epoch": 3, "args": {"model": 1}}, ""),
            ({"module": model, "optimizer": {"state": {}, "param_groups": [{"params": [0, 1]}]}}, ""),
            ({"net": model}, "net."), ({"Model": model}, "Model."),
            ({"model": model, "optimizer": {"state": {0: {"m": other}}}}, "model."),
            ({"model": model, "ema": model}, "model."),
            ({"ema": {"m": other}, "model": model}, "model."), ({"state_dict": {"m": other}, "model": model}, "model."), ({"model": model, "scale": other}, "model."),
            ({"model": model, "q": View(Storage(TYPES[11], bytes(16)), 0, (1,))}, "model."),
            ({"model": {"model": model}}, "model."), ({"model": {"module": model, "x": 1}}, "module."),
            ({"model": [model]}, "model.0."), ([model], "0."), ({"model": {}, "a": {"model": model}}, "a.model.")]
    path = plans.path("root.pt")
    for state, before in rows:
        save(path, state)
        seen = {tensor["name"] for tensor in listed(program, path)["tensors"]}
        expect({before + name for name in names} <= seen, f"{state.keys() if isinstance(state, dict) else state}: {seen}")
        check_listing(program, state, path)
    save(path, {"model": some_views(1, "a")["a"]})
    expect([tensor["name"] for tensor in listed(program, path)["tensors"]] == ["model"], "a tensor named model")


def check_large(plans, program):
    """Offsets and sizes beyond 2^32, in a sparse file; the numbers are in zip64 fields."""
    size = (1 << 32) + 64

    class Large(Storage):
        def persistent_id(self, key):
            return ("storage", stub("torch.ByteStorage"), key, "cpu", size)
    last = View(Storage(FLOAT, bytes(range(32))), 2, (2, 3))
    state = {"large": View(Large(TYPES[7], b""), 0, (size,)), "last": last}
    records = dict(records_of(state))
    path, at, offsets, directory = plans.path("large.pt"), 0, {}, b""
    with open(path, "wb") as file:
        for name in records:
            length = size if name.endswith("data/0") else len(records[name])
            part = torch_zip([(name, records[name])], ends="one")
            header, begin = part[:30 + len(name)], at
            data = (at + 30 + len(name) + 63) // 64 * 64
            file.seek(at)
            file.write(header[:28] + (data - at - 30 - len(name)).to_bytes(2, "little") + header[30:])
            file.seek(data)
            file.write(records[name])
            at, offsets[name] = data + length, data
            entry = torch_zip([(name, b"")], wide=True, ends="one")
            entry = entry[entry.index(b"PK\1\2"):entry.index(b"PK\5\6")]
            wide = b"".join(number.to_bytes(8, "little") for number in (length, length, begin))
            directory += entry[:-24] + wide
        file.seek(at)
        end = torch_zip([], wide=True)
        count = len(records).to_bytes(8, "little")
        numbers = count + count + len(directory).to_bytes(8, "little") + at.to_bytes(8, "little")
        place = (at + len(directory)).to_bytes(8, "little")
        file.write(directory + end[:24] + numbers + end[56:64] + place + end[72:])
    seen = {tensor["name"]: (tensor["offset"], tensor["bytes"]) for tensor in listed(program, path)["tensors"]}
    expect(seen == {"large": (offsets["archive/data/0"], size), "last": (offsets["archive/data/1"] + 8, 24)}, f"{seen}")
    expect(seen["last"][0] > 1 << 32, "the last record is beyond 2^32")
    os.unlink(path)


def check_deep(plans, program):
    """As deep as it may be; and a great many tensors."""
    weight = some_views(1, "w")["w"]
    body = pickled(weight)[0][2:-1]
    records = records_of(weight)
    records[0] = ("archive/data.pkl", b"\x80\2" + b"]" * 2048 + body + b"a" * 2048 + b".")
    path = plans.write("deep.pt", torch_zip(records))
    seen = listed(program, path)
    expect([tensor["name"] for tensor in seen["tensors"]] == [".".join("0" * 2048)], "deep")
    state = some_views(4, [f"model.layers.{i // 9}.w{i}" for i in range(20000)], shape=(3,))
    path = plans.path("many.pt")
    save(path, state)
    check_listing(program, state, path)


def check_begin(plans, program):
    """Safetensors whose header is as long as the mark of a zip file says."""
    header, size = header_of([Tensor("only", "BF16", (4,))])
    text = json.dumps(header).encode()
    path = plans.write("PK.safetensors", file_bytes(text.ljust(int.from_bytes(b"PK\3\4", "little")), size))
    expect([tensor["name"] for tensor in listed(program, path)["tensors"]] == ["only"], "safetensors")
    os.unlink(path)


def check_tool(plans, program):
    """make, check, explain and fit: on one file, on a folder, with an index, and a dict around the model."""
    names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(3) for part in "qkvo"]
    halves = {"pytorch_model-1.bin": some_views(5, names[:6]), "pytorch_model-2.bin": some_views(6, names[6:])}
    halves["pytorch_model-2.bin"]["lm_head.weight"] = halves["pytorch_model-2.bin"][names[6]]
    halves["pytorch_model-2.bin"]["t"] = View(halves["pytorch_model-2.bin"][names[7]].storage, 0, (2, 2), (1, 2))
    index = {"weight_map": {name: file for file, views in halves.items() for name in views}}
    whole = OrderedDict(item for views in halves.values() for item in views.items())

    def check(path):
        made = plans.path("made.json")
        plans.good("make", path, "--strategy", "tp", "--mesh", "dp=2,tp=2", "-o", made)
        plans.good("check", made, path)
        plans.good("fit", path, "--memory", "1GiB")
        with open(made, encoding="utf-8") as file:
            plan = json.load(file)
        tensors = [Tensor(tensor["name"], tensor["dtype"], tuple(tensor["shape"]))
                   for tensor in listed(program, path)["tensors"]]
        expect({tensor.name for tensor in tensors} == set(whole) - {"t"}, f"{tensors}")
        for rank in range(4):
            expect(plans.explain(made, rank, path) == expected(plan, tensors, rank), f"rank {rank}")
        return plan

    for folder in ("indexed", "folder", "other"):
        for file, views in halves.items():
            save(plans.write(f"{folder}/{file}", ""), views)
    plans.write("indexed/pytorch_model.bin.index.json", index)
    plans.write("folder/notes.txt", "not of the checkpoint")
    save(plans.path("whole.ckpt"), {"state_dict": whole, "epoch": 1})
    save(plans.path("bare.pth"), whole)
    os.rename(plans.path("other/pytorch_model-1.bin"), plans.path("other/pytorch_model-1.pt"))
    os.rename(plans.path("other/pytorch_model-2.bin"), plans.path("other/pytorch_model-2.pth"))
    made = [check(plans.path(path)) for path in
            ("indexed", "indexed/pytorch_model.bin.index.json", "folder", "other", "whole.ckpt", "bare.pth")]
    expect(made[0] == made[1] == made[2] == made[3] and made[4] == made[5], "the same plans")

    # Beside safetensors these files are not read.
    header, size = header_of([Tensor("only", "BF16", (4,))])
    plans.write("folder/model.safetensors", file_bytes(header, size))
    expect([tensor["name"] for tensor in listed(program, plans.path("folder"))["tensors"]] == ["only"], "safetensors")
    # The index names no more than there is, but for what is skipped.
    for change, is_good in (({"t": None}, True), ({"more": "pytorch_model-1.bin"}, False), ({names[0]: None}, False)):
        changed = {**index["weight_map"], **change}
        plans.write("indexed/pytorch_model.bin.index.json",
                    {"weight_map": {name: file for name, file in changed.items() if file is not None}})
        listed(program, plans.path("indexed"), 0 if is_good else 1)
    save(plans.path("other/again.pt"), {"a": {"b": 1}, "model": {names[0]: whole[names[0]]}})
    error = listed(program, plans.path("other"), 1)
    expect("is in pytorch_model-1.pt too" in error, error)


def main():
    plan_tool, program = map(os.path.abspath, sys.argv[1:3])
    cases = int(sys.argv[3]) if len(sys.argv) > 3 else 150
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    with tempfile.TemporaryDirectory(prefix="metashard-torch-") as folder:
        plans = Plans(plan_tool, folder)
        tests = [("tensors in objects are counted", lambda: check_objects(plans, program)),
                 ("a dict around the model", lambda: check_root(plans, program)),
                 ("records beyond 2^32", lambda: check_large(plans, program)),
                 ("deep nesting, many tensors", lambda: check_deep(plans, program)),
                 ("safetensors that begin as a zip file", lambda: check_begin(plans, program)),
                 ("metashard-plan", lambda: check_tool(plans, program))]
        tests += [(f"bad: {row.name}", lambda row=row: check_bad(plans, row)) for row in bad_torch.ROWS]
        tests += [(f"random state, seed {i}", lambda i=i: check_random(plans, program, i))
                  for i in range(seed, seed + cases)]
        for name, test in tests:
            run(name, test)
    return end()


if __name__ == "__main__":
    sys.exit(main())
