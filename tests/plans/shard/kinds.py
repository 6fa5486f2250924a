# SPDX-License-Identifier: Apache-2.0
"""Plans of every kind of placement (docs/plan-format.md) for the tensors of workplace.py, and random ones."""
import os
import random

from workplace import FORMAT, TENSORS, Checkpoint
from oracle import Tensor  # noqa: E402  (workplace knows where that is)
from random_plan import NAMES, random_plan, random_tensor  # noqa: E402

# Dtypes that the client can read from a header.
DTYPES = {"BF16", "F16", "F32", "F64", "I8", "U8", "I32", "I64", "BOOL"}
SIZE = {tensor.name: tensor.bytes() for tensor in TENSORS}


def plan(mesh, *entries, **keys):
    shape = {"mesh": mesh} if isinstance(mesh, dict) else {"world_size": mesh}
    return {"format": FORMAT, **shape, "tensors": [{"name": name, "placements": placements}
                                                   for name, placements in entries], **keys}


def random_ranges(dice, size, world):
    """Some short, some long, some touching; the last rank keeps nothing."""
    out = []
    for _ in range(world - 1):
        edges = sorted({dice.randrange(size + 1) for _ in range(dice.choice([2, 4, 9]))})
        out.append([[begin, end] for begin, end in zip(edges, edges[1:]) if dice.random() < 0.6])
    return out + [[]]


def explicit(world):
    dice = random.Random(5)
    made = plan(world)
    for name in ("embed.weight", "layers.0.wide.weight", "unit.a", "scalar"):
        made["tensors"].append({"name": name, "ranges": random_ranges(dice, SIZE[name], world)})
    made["tensors"].append({"name": "*", "placements": []})
    return made


def mixed():
    """Selected by name, by size and by order; declared; with dtype and shape as a condition."""
    made = plan({"dp": 2, "tp": 2})
    made["tensors"] = [
        {"name": "layers.*.q.weight", "dtype": "BF16", "shape": [512, 512],
         "placements": {"tp": {"shard": 0}, "dp": {"shard": 0}}},
        {"name": "layers.0.wide.weight", "dtype": "F32", "shape": [4, 10, 16384],
         "placements": {"tp": {"shard": 1}, "dp": {"shard": 0}}},
        {"size": SIZE["embed.weight"], "placements": [{"shard": 0}]},
        {"name": "layers.[!0].f?w*", "placements": {"dp": {"shard": 0}}},
        {"name": "layers.1.flat.weight", "placements": {"tp": {"shard": 1}, "dp": {"flat": "zero3"}}},
        {"name": "unit.*", "placements": {"dp": {"flat": "fsdp1", "unit": "u"}}},
        {"order": 0, "name": "*", "placements": ["replicate", "replicate"]},
        {"name": "*"}]
    return made


TP_DP = {"tp": {"shard": 0}, "dp": {"shard": 0}}
DP_TP = {"dp": {"shard": 0}, "tp": {"shard": 0}}
WIDE_ROWS = {"tp": {"shard": 1}, "dp": {"shard": 1}}
ZERO3 = [{"flat": "zero3"}]

# (name, plan); every rank of every one is run.
KINDS = [
    ("shard 0, a world of 1", plan(1, ("*", []), ("*.weight", [{"shard": 0}]))),
    ("shard 0", plan({"dp": 3}, ("*.weight", [{"shard": 0}]), ("*", []))),
    ("shard 0, uneven and with empty shards", plan({"dp": 7}, ("*.weight", [{"shard": 0}]), ("*", []))),
    ("shard 1, strided", plan({"tp": 3}, ("*.norm.weight", []), ("*.weight", [{"shard": 1}]), ("*", []))),
    ("shard 1, strided, a world of 4", plan({"tp": 4}, ("*.norm.weight", []), ("*.weight", [{"shard": 1}]), ("*", []))),
    ("shard 2", plan({"tp": 2}, ("*.wide.weight", [{"shard": 2}]), ("*", []))),
    ("replicate", plan({"dp": 2}, ("*", ["replicate"]))),
    ("tp, then dp", plan({"dp": 2, "tp": 2}, ("*.wide.weight", WIDE_ROWS), ("*.weight", TP_DP), ("*", []))),
    ("dp, then tp", plan({"dp": 3, "tp": 2}, ("*.wide.weight", WIDE_ROWS), ("*.weight", DP_TP), ("*", []))),
    ("interleave", plan({"tp": 3}, ("*.qkv.weight", [{"shard": 0, "interleave": [4, 1, 1]}]),
                        ("*.wide.weight", [{"shard": 1, "interleave": [3, 1, 1]}]), ("*", []))),
    ("interleave, then a shard of it", plan({"dp": 2, "tp": 2}, (
        "*.qkv.weight", {"tp": {"shard": 0, "interleave": [512, 128, 128]}, "dp": {"shard": 0}}), ("*", []))),
    ("zero3", plan({"dp": 3}, ("layers.1.*", ZERO3), ("unit.*", ZERO3), ("scalar", ZERO3), ("*", []))),
    ("zero3 of a shard", plan({"dp": 2, "tp": 2}, ("layers.1.*", {"tp": {"shard": 1}, "dp": {"flat": "zero3"}}),
                              ("*", []))),
    ("fsdp1 units", plan({"dp": 4}, ("unit.*", [{"flat": "fsdp1", "unit": "u"}]),
                         ("layers.1.*", [{"flat": "fsdp1", "unit": "v"}]), ("*", []))),
    ("explicit ranges", explicit(3)),
    ("a mixed plan", mixed()),
]


def random_case(seed, folder):
    """(checkpoint, plan). Tensors of up to a megabyte, of less than 64 KiB, of nothing."""
    dice = random.Random(seed)
    tensors = []
    for name in dice.sample(NAMES, dice.randint(1, 8)):
        tensor = random_tensor(dice, name)
        while tensor.dtype not in DTYPES:
            tensor = random_tensor(dice, name)
        shape = tensor.shape
        if shape and dice.random() < 0.9:
            shape = (*shape[:-1], shape[-1] * dice.choice([60, 128, 300]))
        tensors.append(Tensor(name, tensor.dtype, shape))
    parts = {}
    for tensor in tensors:
        parts.setdefault(f"model-0000{dice.randint(1, 3)}-of-00003.safetensors", []).append(tensor)
    indexed = dice.random() < 0.5
    checkpoint = Checkpoint(os.path.join(folder, f"random{seed}"), parts, indexed, seed)
    # Without an index the order is that in which files become known, unless the plan says it.
    made, _ = random_plan(dice, checkpoint.tensors, all_declared=not indexed)
    made.pop("rank", None)
    return checkpoint, made
