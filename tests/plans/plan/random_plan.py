# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints and random good plans for them."""
import math

from oracle import BITS_OF, Tensor, entry_of, is_exact, list_of_tensors, mesh_of

NAMES = ["wte", "lm_head.weight", "model.norm.weight", "a/b", "gewicht.\N{GREEK SMALL LETTER PI}", "x-y]z",
         "odd[1]*?", "back\\slash", " blank ", "quote\"d"]
NAMES += [f"model.layers.{i}.{part}" for i in range(11) for part in ("q_proj.weight", "mlp.up.weight", "b")]


def random_tensor(random, name):
    dtype = random.choice(["F32", "BF16", "BF16", "U8", "F64", random.choice(list(BITS_OF))])
    shape = [random.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12]) for _ in range(random.randint(0, 4))]
    if random.random() < 0.02:
        shape = [1] * 5 + [random.randint(1, 3) for _ in range(3)]
    if BITS_OF[dtype] < 8:
        shape = shape[:7] + [4]
    while math.prod(max(1, length) for length in shape) > 1500:
        shape.pop()
    return Tensor(name, dtype, tuple(shape))


def random_tensors(random):
    names = random.sample(NAMES, random.randint(0, 9))
    return [random_tensor(random, name) for name in names]


def escaped(name):
    return "".join("\\" + character if character in "*?[\\" else character for character in name)


def random_pattern(random, name):
    """A pattern that matches at least this name."""
    out, rest = "", name
    while rest:
        kind = random.random()
        taken = 1
        if kind < 0.06:
            taken = random.randint(0, len(rest))
            out += "*"
        elif kind < 0.12:
            out += "?"
        elif kind < 0.18:
            out += random.choice(["[!~]", "[^A-F]", "[!]x~]"]) if rest[0] not in "]x~ABCDEF" else "?"
        elif kind < 0.24 and rest[0] not in "]^!":
            out += random.choice(["[{}]", "[{0}-{0}]", "[-{}]", "[]{}]", "[{}!^]"]).format(rest[0])
        else:
            out += escaped(rest[0])
        rest = rest[taken:]
    return out


def random_mesh(random):
    dims = random.choice([1, 1, 2, 2, 3])
    names = random.sample(["dp", "tp", "pp", "x.y", "\N{GREEK SMALL LETTER MU}"], dims)
    return {name: random.choice([1, 2, 2, 3, 4, 5] if dims < 3 else [1, 2, 3]) for name in names}


def random_ranges(random, size, world):
    """As a plan may say it: ascending; some of them touch."""
    out = []
    for _ in range(world):
        edges = sorted({random.randint(0, size) for _ in range(2 * random.randint(0, 3))})
        ranges = [[begin, end] for begin, end in zip(edges, edges[1:]) if random.random() < 0.7]
        out.append(ranges)
    return out


def random_weights(random, lengths):
    """Their sum divides every length."""
    common = math.gcd(*lengths)
    total = random.choice([n for n in range(1, 13) if common % n == 0]) if common else random.randint(1, 9)
    weights = []
    while sum(weights) < total:
        weights.append(random.randint(1, total - sum(weights)))
    return [weight * common // total for weight in weights] if common and random.random() < 0.4 else weights


def random_placements(random, mesh, tensors, units):
    """Placements, in the order they are applied, that are good for all of the tensors."""
    if any(BITS_OF[tensor.dtype] < 8 for tensor in tensors):
        return {}
    dims = min((len(tensor.shape) for tensor in tensors), default=2)
    chosen, cut, flat = {}, set(), False
    for dimension in random.sample(list(mesh), random.randint(0, len(mesh))):
        kind = random.random()
        if kind < 0.15:
            chosen[dimension] = "replicate"
        elif kind < 0.35 and not flat:
            chosen[dimension] = {"flat": "zero3"}
            flat = True
        elif kind < 0.55 and not flat and len({tensor.dtype for tensor in tensors}) == 1:
            unit = random.choice(["u", "v", "w"])
            if units.setdefault(unit, (dimension, tensors[0].dtype)) == (dimension, tensors[0].dtype):
                chosen[dimension] = {"flat": "fsdp1", "unit": unit}
                flat = True
        elif dims > 0:
            axis = random.randrange(dims)
            chosen[dimension] = {"shard": axis}
            if axis not in cut and random.random() < 0.4:
                chosen[dimension]["interleave"] = random_weights(
                    random, [tensor.shape[axis] for tensor in tensors] or [0])
            cut.add(axis)
    return chosen


def as_list(random, mesh, chosen):
    """The same as a list, if it can be said so: the interleaved shard must be the first in mesh order."""
    out = [chosen.get(dimension, "replicate") for dimension in mesh]
    cut = set()
    for placement in out:
        if placement != "replicate" and "shard" in placement:
            if "interleave" in placement and placement["shard"] in cut:
                return chosen
            cut.add(placement["shard"])
    while out and out[-1] == "replicate" and random.random() < 0.5:
        out.pop()
    return out


def selectors(random, tensors, declared):
    """Entries without placements."""
    entries = []
    for tensor in declared:
        entry = {"name": escaped(tensor.name), "dtype": tensor.dtype, "shape": list(tensor.shape)}
        if random.random() < 0.2:
            entry["size"] = tensor.bytes()
        if random.random() < 0.05:
            entry["order"] = random.randint(0, 9)
        entries.append(entry)
    exact = {tensor.name for tensor in declared}
    for _ in range(random.randint(0, 5)):
        tensor = random.choice(tensors or [Tensor("none", "U8", (3,))])
        entry = {}
        if random.random() < 0.7:
            pattern = random_pattern(random, tensor.name)
            if is_exact(pattern):
                pattern = "*" if tensor.name in exact else escaped(tensor.name)
                exact.add(tensor.name)
            entry["name"] = pattern
        if random.random() < 0.2 or not entry:
            entry["size"] = tensor.bytes()
        if random.random() < 0.1:
            entry["order"] = random.randint(0, 9)
        entries.insert(random.randint(0, len(entries)), entry)
    if random.random() < 0.6:
        entries.append({"name": "*"})
    return entries


def random_plan(random, checkpoint, all_declared=False):
    if random.random() < 0.15:
        plan = {"format": "metashard-plan/1", "world_size": random.choice([1, 2, 3, 7, 13])}
    else:
        plan = {"format": "metashard-plan/1", "mesh": random_mesh(random)}
        if random.random() < 0.3:
            plan["world_size"] = math.prod(plan["mesh"].values())
    mesh = mesh_of(plan)
    declared = random.sample(checkpoint, len(checkpoint) if all_declared else
                             random.choice([0, 0, len(checkpoint) // 2]))
    skeleton = selectors(random, checkpoint, declared)
    plan["tensors"] = skeleton
    tensors = list_of_tensors(plan, checkpoint)
    units = {}
    deciders = [entry_of(plan, order, tensor) for order, tensor in enumerate(tensors)]
    for entry in skeleton:
        decided = [tensor for tensor, decider in zip(tensors, deciders) if decider is entry]
        alike = len({(tensor.dtype, tensor.shape) for tensor in decided}) == 1
        if alike and "shape" not in entry and random.random() < 0.3 and \
                not is_exact(entry.get("name", "*")):
            entry.update(dtype=decided[0].dtype, shape=list(decided[0].shape))
        if random.random() < 0.15:
            smallest = min((tensor.bytes() for tensor in decided), default=0)
            entry["ranges"] = random_ranges(random, smallest, math.prod(mesh.values()))
        elif random.random() < 0.9:
            chosen = random_placements(random, mesh, decided, units)
            entry["placements"] = as_list(random, mesh, chosen) if random.random() < 0.5 else chosen
    return plan, tensors
