# SPDX-License-Identifier: Apache-2.0
"""The models of check_flows.py, and what of them each rank must have in the end, computed from the file alone."""
import json
import math
import mmap
import os
import random
import re
from collections import namedtuple

ELEMENT = 4
Tensor = namedtuple("Tensor", "name shape begin bytes")  # begin: in the data of the file


def llama(dim, layers, vocab):
    """Shapes of Llama 3: 8 of 32 heads for keys and values, 3.5 times as wide inside."""
    shapes = [("model.embed_tokens.weight", [vocab, dim])]
    for layer in range(layers):
        inside, kv = dim * 7 // 2, dim // 4
        shapes += [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in (
            ("input_layernorm", [dim]), ("self_attn.q_proj", [dim, dim]), ("self_attn.k_proj", [kv, dim]),
            ("self_attn.v_proj", [kv, dim]), ("self_attn.o_proj", [dim, dim]), ("post_attention_layernorm", [dim]),
            ("mlp.gate_proj", [inside, dim]), ("mlp.up_proj", [inside, dim]), ("mlp.down_proj", [dim, inside]))]
    return shapes + [("model.norm.weight", [dim]), ("lm_head.weight", [vocab, dim])]


SHAPES = {
    "llama": llama(256, 4, 8017),
    "small": llama(256, 1, 4017),
    "middle": llama(1024, 2, 16032),
    "users": llama(2048, 3, 32064),  # 1.1 GiB, layers of 208 MiB
    # Less rows than ranks, one element, and no number that another divides.
    "odd": [("embed", [1001, 33]), ("layers.0.q", [5, 7]), ("layers.0.o_proj", [129, 65]), ("layers.0.norm", [3]),
            ("layers.0.down_proj", [33, 10]), ("layers.1.q", [10, 33]), ("layers.1.o_proj", [2, 3]),
            ("layers.1.norm", [1]), ("layers.1.down_proj", [17, 1031]), ("norm", [65]), ("head", [7, 1001])],
}


class Model:
    """A folder with one file of safetensors, and tensors.txt."""

    def __init__(self, folder, name):
        self.name, self.folder = name, os.path.join(folder, name)
        self.tensors, at = [], 0
        for tensor, shape in SHAPES[name]:
            size = math.prod(shape) * ELEMENT
            self.tensors.append(Tensor(tensor, shape, at, size))
            at += size
        self.bytes = at
        self.largest = max(tensor.bytes for tensor in self.tensors)
        self.write()

    def write(self):
        os.mkdir(self.folder)
        header = json.dumps({tensor.name: {"dtype": "F32", "shape": tensor.shape,
                                           "data_offsets": [tensor.begin, tensor.begin + tensor.bytes]}
                             for tensor in self.tensors}).encode()
        header += b" " * (-len(header) % 8)
        path, dice = os.path.join(self.folder, "model.safetensors"), random.Random(self.name)
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for tensor in self.tensors:
                file.write(dice.randbytes(tensor.bytes))
        os.utime(path, (1e9, 1e9))  # older than any process that trusts it
        with open(os.path.join(self.folder, "tensors.txt"), "w") as file:
            for tensor in self.tensors:
                file.write(" ".join([tensor.name, *map(str, tensor.shape)]) + "\n")
        self.path, self.start = path, 8 + len(header)
        with open(path, "rb") as file:
            self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def values(self, tensor):
        return self.mapped[self.start + tensor.begin:self.start + tensor.begin + tensor.bytes]


def chunk(length, index, ways):
    size = -(-length // ways)
    return min(index * size, length), min((index + 1) * size, length)


def rows(tensor, values, index, ways):
    begin, end = chunk(tensor.shape[0], index, ways)
    pitch = tensor.bytes // tensor.shape[0]
    return values[begin * pitch:end * pitch]


def columns(tensor, values, index, ways):
    begin, end = chunk(tensor.shape[1], index, ways)
    pitch = tensor.shape[1] * ELEMENT
    return b"".join(values[row * pitch + begin * ELEMENT:row * pitch + end * ELEMENT]
                    for row in range(tensor.shape[0]))


def sharded(model, index, ways, by_columns=False):
    """[(name, bytes)] by rows; with by_columns the projections back to the stream by columns."""
    out = []
    for tensor in model.tensors:
        cut = columns if by_columns and re.search("o_proj|down_proj", tensor.name) else rows
        out.append((tensor.name, cut(tensor, model.values(tensor), index, ways)))
    return out


def flattened(model, index, ways):
    """[(name, bytes)] of each tensor's elements in a row."""
    out = []
    for tensor in model.tensors:
        begin, end = chunk(tensor.bytes // ELEMENT, index, ways)
        out.append((tensor.name, model.values(tensor)[begin * ELEMENT:end * ELEMENT]))
    return out


def unit_of(name):
    """As metashard-plan make names them."""
    return re.match(r"(.*?\.\d+)(?:\.|$)", name)[1] if re.search(r"\.\d+(\.|$)", name) else "root"


def units(model):
    """{unit: its tensors}, in the order of their first ones."""
    out = {}
    for tensor in model.tensors:
        out.setdefault(unit_of(tensor.name), []).append(tensor)
    return out


def flat_units(model, index, ways):
    """[(unit, bytes)]: a unit's tensors in a row, cut evenly, with zeros behind the last."""
    out = []
    for name, tensors in units(model).items():
        flat = b"".join(model.values(tensor) for tensor in tensors)
        size = -(-len(flat) // ELEMENT // ways) * ELEMENT
        part = flat[index * size:(index + 1) * size]
        out.append((name, part + bytes(size - len(part)) if part else part))
    return out


def unit_parts(model, index, ways):
    """[(name, bytes)]: what of each tensor lies in this rank's part of its unit."""
    out = {}
    for tensors in units(model).values():
        size = -(-sum(tensor.bytes for tensor in tensors) // ELEMENT // ways) * ELEMENT
        at = 0
        for tensor in tensors:
            begin, end = (min(max(edge - at, 0), tensor.bytes) for edge in (index * size, (index + 1) * size))
            out[tensor.name] = model.values(tensor)[begin:end]
            at += tensor.bytes
    return [(tensor.name, out[tensor.name]) for tensor in model.tensors]
