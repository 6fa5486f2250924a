# SPDX-License-Identifier: Apache-2.0
"""The meaning of a plan (docs/plan-format.md), the slow and obvious way: lists of indices, cut with slices.

Nothing here is checked; plans and checkpoints must be good ones. A tensor is Tensor(name, dtype, shape). Small
tensors only: every element is an item of a list.
"""
import functools
import itertools
import math
import re
from dataclasses import dataclass

GRANULE = 2 << 20  # of device memory
BITS = {8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ", 16: "I16 U16 F16 BF16",
        32: "I32 U32 F32", 64: "I64 U64 F64 C64", 4: "F4", 6: "F6_E2M3 F6_E3M2"}
BITS_OF = {dtype: bits for bits, dtypes in BITS.items() for dtype in dtypes.split()}


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple

    def bytes(self):
        return math.prod(self.shape) * BITS_OF[self.dtype] // 8


def chunk(items, count):
    """torch.chunk, with empty chunks up to the count."""
    length = max(1, math.ceil(len(items) / count))
    return [items[length * i:length * (i + 1)] for i in range(count)]


def split(items, sizes):
    """torch.split with a list of sizes."""
    source = iter(items)
    return [list(itertools.islice(source, size)) for size in sizes]


def mesh_of(plan):
    return plan.get("mesh") or {"world": plan["world_size"]}


def coordinates_of(mesh, rank):
    return dict(zip(mesh, list(itertools.product(*map(range, mesh.values())))[rank]))


@functools.lru_cache(maxsize=None)
def regular_expression(pattern):
    """The same pattern in Python's words."""
    out, rest = "", pattern
    while rest:
        if found := re.match(r"\[([!^]?)(\]?[^]]*)\]", rest):
            members, characters = "", found[2]
            while characters:
                if len(characters) > 2 and characters[1] == "-":
                    members += re.escape(characters[0]) + "-" + re.escape(characters[2])
                    characters = characters[3:]
                else:
                    members += re.escape(characters[0])
                    characters = characters[1:]
            out += f"[{'^' if found[1] else ''}{members}]"
            rest = rest[found.end():]
        elif rest[0] == "\\":
            out += re.escape(rest[1])
            rest = rest[2:]
        else:
            out += {"*": ".*", "?": "."}.get(rest[0], re.escape(rest[0]))
            rest = rest[1:]
    return re.compile(out, re.DOTALL)


def is_exact(pattern):
    return not re.search(r"[*?[]", re.sub(r"\\.", "", pattern, flags=re.DOTALL))


def declared_name(pattern):
    return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)


def list_of_tensors(plan, checkpoint=()):
    """The declarations, then the others of the checkpoint."""
    declared = [Tensor(declared_name(entry["name"]), entry["dtype"], tuple(entry["shape"]))
                for entry in plan["tensors"]
                if "shape" in entry and "name" in entry and is_exact(entry["name"])]
    return declared + [tensor for tensor in checkpoint if tensor not in declared]


def entry_of(plan, order, tensor):
    """The first entry that matches, or None."""
    for entry in plan["tensors"]:
        if entry.get("order", order) == order and entry.get("size", tensor.bytes()) == tensor.bytes() \
                and regular_expression(entry.get("name", "*")).fullmatch(tensor.name):
            return entry
    return None


def placements_of(plan, entry):
    """In the order in which they are applied: (mesh dimension, placement)."""
    placements = {} if entry is None else entry.get("placements", {})
    if isinstance(placements, list):
        placements = dict(zip(mesh_of(plan), placements))
    return [(dimension, placement) for dimension, placement in placements.items()
            if placement != "replicate"]


def interleaved_chunk(indices, weights, count):
    """Each part is chunked by itself; chunk i is chunk i of each part."""
    unit = len(indices) // sum(weights)
    parts = [chunk(part, count) for part in split(indices, [unit * weight for weight in weights])]
    return [sum((part[i] for part in parts), []) for i in range(count)]


def sharded_piece(plan, tensor, placements, coordinates):
    """Elements that the sharding placements leave, in the row-major order of the piece."""
    mesh = mesh_of(plan)
    kept = [list(range(length)) for length in tensor.shape]
    for dimension, placement in placements:
        if "shard" in placement:
            axis = placement["shard"]
            weights = placement.get("interleave", [1] if kept[axis] else [0])
            kept[axis] = chunk(kept[axis], mesh[dimension])[coordinates[dimension]] \
                if "interleave" not in placement else \
                interleaved_chunk(kept[axis], weights, mesh[dimension])[coordinates[dimension]]
    elements = [0]
    for length, indices in zip(tensor.shape, kept):
        elements = [element * length + index for element in elements for index in indices]
    return elements


def merged(elements, size):
    """Byte ranges of the elements."""
    places = sorted(elements)
    starts = [0] + [at for at in range(1, len(places)) if places[at] != places[at - 1] + 1]
    return [[places[begin] * size, (places[end - 1] + 1) * size]
            for begin, end in zip(starts, starts[1:] + [len(places)]) if begin < end]


def touching_merged(ranges):
    out = []
    for begin, end in ranges:
        if out and out[-1][1] == begin:
            out[-1][1] = end
        else:
            out.append([begin, end])
    return out


def resolve(plan, tensors, rank):
    """(byte ranges of each tensor, padding in bytes) of one rank."""
    mesh = mesh_of(plan)
    coordinates = coordinates_of(mesh, rank)
    result = [None] * len(tensors)
    units = {}
    padding = 0
    for order, tensor in enumerate(tensors):
        entry = entry_of(plan, order, tensor)
        if entry is not None and "ranges" in entry:
            result[order] = touching_merged(entry["ranges"][rank])
            continue
        placements = placements_of(plan, entry)
        if not placements:
            result[order] = [[0, tensor.bytes()]] if tensor.bytes() else []
            continue
        size = BITS_OF[tensor.dtype] // 8
        piece = sharded_piece(plan, tensor, placements, coordinates)
        flat = [(dimension, placement) for dimension, placement in placements if "flat" in placement]
        if not flat:
            result[order] = merged(piece, size)
        elif flat[0][1]["flat"] == "zero3":
            shares = chunk(piece, mesh[flat[0][0]])
            mine = shares[coordinates[flat[0][0]]]
            padding += (len(shares[0]) - len(mine)) * size
            result[order] = merged(mine, size)
        else:
            units.setdefault(flat[0][1]["unit"], (flat[0][0], []))[1].append((order, piece))
    for dimension, pieces in units.values():
        whole = [(order, element) for order, piece in pieces for element in piece]
        shares = chunk(whole, mesh[dimension])
        mine = shares[coordinates[dimension]]
        size = BITS_OF[tensors[pieces[0][0]].dtype] // 8
        padding += (len(shares[0]) - len(mine)) * size
        for order, _ in pieces:
            result[order] = merged([element for owner, element in mine if owner == order], size)
    return result, padding


def in_place(tensors, ranges):
    """(bytes in granules that have something of the rank's, tensors of which it keeps a part that lies in all)"""
    total, whole = 0, 0
    for tensor, listed in zip(tensors, ranges):
        size = tensor.bytes()
        granules = {at for begin, end in listed for at in range(begin // GRANULE, (end - 1) // GRANULE + 1)}
        touched = sum(min(size, (at + 1) * GRANULE) - at * GRANULE for at in granules)
        total += touched
        whole += touched == size > GRANULE and sum(end - begin for begin, end in listed) <= size // 2
    return total, whole
