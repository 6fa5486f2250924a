# SPDX-License-Identifier: Apache-2.0
"""The meaning of a plan, for large tensors and many ranks: oracle.py with intervals in place of lists of indices.

Intervals are half-open pairs, in the order in which a rank has their elements. The rules are those of torch.chunk and
of DTensor's Shard, applied one after the other (docs/plan-format.md); check_large.py compares this file with oracle.py,
on plans that are small enough for both. Nothing of it is from runtime/plan/.

A tensor's cuts are (mesh dimension, placement) in the order in which they are applied, without "replicate".
"""
import functools
import itertools
import math

from oracle import BITS_OF, is_exact, declared_name, mesh_of, placements_of, \
    regular_expression, touching_merged


def length_of(intervals):
    return sum(end - begin for begin, end in intervals)


def part(intervals, first, behind):
    """Positions [first, behind) of the intervals laid end to end."""
    out = []
    for begin, end in intervals:
        low, high = max(first, 0), min(behind, end - begin)
        if low < high:
            out.append((begin + low, begin + high))
        first, behind = first - (end - begin), behind - (end - begin)
    return out


def chunk(intervals, count, index):
    """torch.chunk: all chunks have ceil(length / count), until nothing is left."""
    size = -(-length_of(intervals) // count)
    return part(intervals, size * index, size * (index + 1))


def sharded_axes(mesh, tensor, cuts, place):
    """The intervals of each tensor dimension that are left to a rank."""
    axes = [[(0, length)] for length in tensor.shape]
    for dimension, placement in cuts:
        if "shard" not in placement:
            continue
        axis = placement["shard"]
        weights = placement.get("interleave", [1])
        unit = length_of(axes[axis]) // sum(weights) if "interleave" in placement else length_of(axes[axis])
        out, first = [], 0
        for weight in weights:
            out += chunk(part(axes[axis], first, first + unit * weight), mesh[dimension], place[dimension])
            first += unit * weight
        axes[axis] = out
    return axes


def row_major(shape, axes):
    """The elements of the tensor at all combinations of the axes' indices."""
    out, inner = [(0, 1)], 1
    for length, axis in zip(reversed(shape), reversed(axes)):
        if out == [(0, inner)]:
            out = [(begin * inner, end * inner) for begin, end in axis]
        else:
            out = [(i * inner + begin, i * inner + end) for low, high in axis for i in range(low, high)
                   for begin, end in out]
        inner *= length
    return out


def in_bytes(intervals, size):
    """Ascending, merged."""
    return touching_merged([[begin * size, end * size] for begin, end in sorted(intervals) if begin < end])


class Lookup:
    """Which entry decides a tensor: entry_of() of oracle.py, without trying all exact names."""

    def __init__(self, plan):
        self.entries = plan["tensors"]
        self.exact, self.others = {}, []
        for index, entry in enumerate(self.entries):
            if "name" in entry and is_exact(entry["name"]):
                self.exact[declared_name(entry["name"])] = index
            else:
                self.others.append((index, regular_expression(entry.get("name", "*"))))

    def is_met(self, index, order, tensor):
        entry = self.entries[index]
        return entry.get("order", order) == order and ("size" not in entry or entry["size"] == tensor.bytes())

    def find(self, order, tensor):
        """Its index, or None."""
        exact = self.exact.get(tensor.name)
        if exact is not None and not self.is_met(exact, order, tensor):
            exact = None
        for index, expression in self.others:
            if exact is not None and index > exact:
                break
            if expression.fullmatch(tensor.name) and self.is_met(index, order, tensor):
                return index
        return exact


class Large:
    """A plan and all its tensors: ranges of one rank, bytes and padding of all."""

    def __init__(self, plan, tensors):
        self.mesh = mesh_of(plan)
        self.tensors = tensors
        lookup = Lookup(plan)
        cuts = [placements_of(plan, entry) for entry in plan["tensors"]]
        self.entries = [lookup.find(order, tensor) for order, tensor in enumerate(tensors)]
        self.cuts = [[] if entry is None else cuts[entry] for entry in self.entries]
        self.explicit = [None if entry is None else plan["tensors"][entry].get("ranges") for entry in self.entries]
        # Tensors that are alike in all that matters; units by what they consist of.
        self.alike, self.units = {}, {}
        for order, tensor in enumerate(tensors):
            if self.explicit[order] is not None:
                continue
            unit = self.unit_of(order)
            if unit is None:
                self.alike.setdefault(self.kind_of(order), []).append(order)
            else:
                self.units.setdefault(unit, []).append(order)

    def kind_of(self, order):
        """A key that tensors share if they are alike, but for the unit."""
        tensor = self.tensors[order]
        return tensor.dtype, tensor.shape, tuple((dimension, str({**one, "unit": None}))
                                                 for dimension, one in self.cuts[order])

    def flat_of(self, order):
        return next(((dimension, one) for dimension, one in self.cuts[order] if "flat" in one), (None, {}))

    def unit_of(self, order):
        return self.flat_of(order)[1].get("unit")

    def piece(self, order, place):
        """The elements that sharding leaves, in row-major order of the piece."""
        shape = self.tensors[order].shape
        return row_major(shape, sharded_axes(self.mesh, self.tensors[order], self.cuts[order], place))

    def ranges(self, rank):
        """Byte ranges of each tensor."""
        place = coordinates_of_rank(self.mesh, rank)
        out = [None] * len(self.tensors)
        for orders in self.alike.values():
            tensor, (dimension, _) = self.tensors[orders[0]], self.flat_of(orders[0])
            if not self.cuts[orders[0]]:
                kept = [[0, tensor.bytes()]] if tensor.bytes() else []
            else:
                piece = self.piece(orders[0], place)
                if dimension is not None:
                    piece = chunk(piece, self.mesh[dimension], place[dimension])
                kept = in_bytes(piece, BITS_OF[tensor.dtype] // 8)
            for order in orders:
                out[order] = kept
        for orders in self.units.values():
            self.unit_ranges(orders, place, out)
        for order, explicit in enumerate(self.explicit):
            if explicit is not None:
                out[order] = touching_merged(explicit[rank])
        return out

    def unit_ranges(self, orders, place, out):
        dimension = self.flat_of(orders[0])[0]
        pieces = [self.piece(order, place) for order in orders]
        share = -(-sum(map(length_of, pieces)) // self.mesh[dimension])
        first = share * place[dimension]
        for order, piece in zip(orders, pieces):
            out[order] = in_bytes(part(piece, first, first + share), BITS_OF[self.tensors[order].dtype] // 8)
            first -= length_of(piece)

    def totals(self):
        """(bytes, padding), each by rank."""
        world = math.prod(self.mesh.values())
        kept, padding = [0] * world, [0] * world
        for orders in self.alike.values():
            self.add(kept, padding, orders[0], len(orders))
        kinds = {}
        for orders in self.units.values():
            kind = tuple(sorted(map(self.kind_of, orders)))
            kinds.setdefault((self.flat_of(orders[0])[0], kind), []).append(orders)
        for units in kinds.values():
            self.add_unit(kept, padding, units[0], len(units))
        for explicit in filter(None, self.explicit):
            kept[:] = [sum_ + length_of(ranges) for sum_, ranges in zip(kept, explicit)]
        return kept, padding

    def add(self, kept, padding, order, times):
        tensor, (flat, _) = self.tensors[order], self.flat_of(order)
        if not self.cuts[order]:
            kept[:] = [sum_ + times * tensor.bytes() for sum_ in kept]
            return
        size = times * BITS_OF[tensor.dtype] // 8
        elements = self.by_rank(order)
        if flat is None:
            kept[:] = [sum_ + size * one for sum_, one in zip(kept, elements)]
        else:
            self.add_flat(kept, padding, flat, elements, size)

    def add_unit(self, kept, padding, orders, times):
        size = times * BITS_OF[self.tensors[orders[0]].dtype] // 8
        elements = [sum(of_rank) for of_rank in zip(*(self.by_rank(order) for order in orders))]
        self.add_flat(kept, padding, self.flat_of(orders[0])[0], elements, size)

    def add_flat(self, kept, padding, dimension, elements, size):
        count = self.mesh[dimension]
        indices = [index for (index,) in places(tuple(self.mesh.items()), (dimension,))]
        for rank, (whole, index) in enumerate(zip(elements, indices)):
            share = -(-whole // count)
            left = whole - share * index
            mine = share if left >= share else left if left > 0 else 0
            kept[rank] += size * mine
            padding[rank] += size * (share - mine)

    def by_rank(self, order):
        """Elements that sharding leaves to each rank."""
        cuts = [(dimension, one["shard"], tuple(one.get("interleave", ()))) for dimension, one in self.cuts[order]
                if "shard" in one]
        tree = elements_by_place(tuple(self.mesh[dimension] for dimension, _, _ in cuts),
                                 tuple((axis, weights) for _, axis, weights in cuts), self.tensors[order].shape)
        return [tree[i] for i in positions(tuple(self.mesh.items()), tuple(dimension for dimension, _, _ in cuts))]


def coordinates_of_rank(mesh, rank):
    """coordinates_of() of oracle.py makes a list of all ranks."""
    place = {}
    for dimension, size in reversed(mesh.items()):
        rank, place[dimension] = divmod(rank, size)
    return place


@functools.cache
def places(mesh, dimensions):
    """The coordinates of each rank along these mesh dimensions."""
    names = [name for name, _ in mesh]
    picked = [names.index(dimension) for dimension in dimensions]
    return [tuple(place[i] for i in picked) for place in itertools.product(*(range(size) for _, size in mesh))]


@functools.cache
def positions(mesh, dimensions):
    """The position of each rank's coordinates in a list of all such coordinates, the first one slowest."""
    sizes = [dict(mesh)[dimension] for dimension in dimensions]
    number = {place: i for i, place in enumerate(itertools.product(*map(range, sizes)))}
    return [number[place] for place in places(mesh, dimensions)]


def chunk_sizes(length, count):
    """The sizes of torch.chunk's chunks, with empty ones up to the count."""
    size = -(-length // count)
    return [len(range(length)[size * i:size * (i + 1)]) for i in range(count)]


@functools.cache
def elements_by_place(counts, cuts, shape):
    """Elements left at each combination of coordinates, the first cut's slowest."""
    if not cuts:
        return [math.prod(shape)]
    (axis, weights), count = cuts[0], counts[0]
    unit = shape[axis] // sum(weights) if weights else shape[axis]
    parts = [chunk_sizes(unit * weight, count) for weight in weights or (1,)]
    lengths = [sum(of_rank) for of_rank in zip(*parts)]
    return [elements for length in lengths
            for elements in elements_by_place(counts[1:], cuts[1:], shape[:axis] + (length,) + shape[axis + 1:])]
