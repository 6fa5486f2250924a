#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_large.py TOOL [SEED]: 100,000 tensors over 16,384 ranks, against an oracle. TAP.

What `check --json --ranks` says of every rank, and all byte ranges of some ranks by `explain --json`, is what
large_oracle.py says. That one is itself compared with oracle.py, on small random plans. A failure names its seed.
"""
import gc
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time

from large_oracle import Large
from oracle import list_of_tensors, mesh_of, resolve
from random_plan import random_plan, random_tensors

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import tap  # noqa: E402
from tap import Wrong, expect  # noqa: E402

TENSORS, KINDS, UNITS = 100000, 320, 24
# With ranks that are compared range by range; to these comes a random one.
MESHES = [({"dp": 2048, "tp": 8}, [0, 16383]), ({"pp": 4, "dp": 256, "tp": 16}, [16383])]
DTYPES = ["BF16", "BF16", "F32", "U8", "F8_E4M3", "F64"]
ROWS = [1, 5, 7, 8, 100, 255, 2048, 4096, 5000, 16387, 50257]
COLUMNS = [1, 3, 16, 64, 96]


def first_difference(seen, wanted):
    return next((f"at {i}: {one}, expected {other}" for i, (one, other) in enumerate(zip(seen, wanted)) if one != other),
                f"{len(seen)}, expected {len(wanted)}")


def check_oracles(seeds):
    """The oracle for large plans says what the slow and obvious one says."""
    for seed in seeds:
        dice = random.Random(seed)
        plan, tensors = random_plan(dice, random_tensors(dice))
        large = Large(plan, tensors)
        slow = [resolve(plan, tensors, rank) for rank in range(math.prod(mesh_of(plan).values()))]
        kept, padding = large.totals()
        for rank, (ranges, of_rank) in enumerate(slow):
            expect(large.ranges(rank) == ranges, f"seed {seed}, rank {rank}: {large.ranges(rank)}, expected {ranges}\n"
                                                 f"plan {json.dumps(plan)}")
            bytes_ = sum(end - begin for tensor in ranges for begin, end in tensor)
            expect((kept[rank], padding[rank]) == (bytes_, of_rank),
                   f"seed {seed}, rank {rank}: {kept[rank]} and {padding[rank]}, expected {bytes_} and {of_rank}\n"
                   f"plan {json.dumps(plan)}")


def random_kind(dice, mesh):
    """(dtype, shape, placements without a unit). Where columns are cut each row is a range, so rows are few."""
    rows, columns = dice.choice(ROWS), dice.choice(COLUMNS)
    few = dice.choice([0, 1, 6, 24])
    dp, tp, both = {"dp": {"shard": 0}}, {"tp": {"shard": 0}}, {"tp": {"shard": 1}}
    weights = dice.choice([[1, 1], [4, 1, 1], [6, 2, 2], [3, 5]])
    fused = sum(weights) * dice.choice([1, 4, 13, 256, 1001])
    shape, placements = dice.choice([
        ([rows], dp), ([rows, columns], dp), ([rows, columns, 3], dp), ([rows, columns], tp),
        ([few, columns], {"dp": {"shard": 1}}), ([few, columns, 2], {"dp": {"shard": 1}}), ([few, 2, columns], {"dp": {"shard": 2}}),
        ([few, 40000], {"dp": {"shard": 1}, "tp": {"shard": 1}}), ([few, 40003], {"tp": {"shard": 1}, "dp": {"shard": 1}}),
        ([rows, columns], {**tp, **dp}), ([rows, columns], {**dp, **tp}), ([rows, columns], [{"shard": 0}] * len(mesh)),
        ([rows, columns], {**both, **dp}), ([rows, columns], {**dp, **both}),
        ([fused, columns], {"tp": {"shard": 0, "interleave": weights}}),
        ([fused, columns], {"tp": {"shard": 0, "interleave": weights}, **dp}),
        ([fused, columns], {"dp": {"shard": 0, "interleave": weights}, **tp}),
        ([few, fused], {"tp": {"shard": 1, "interleave": weights}, "dp": {"shard": 1}}),
        ([rows, columns], {"dp": {"flat": "zero3"}}), ([rows], {"dp": {"flat": "zero3"}, **tp}),
        ([4096, columns], {**both, "dp": {"flat": "zero3"}}), ([rows, columns], {**dp, "tp": {"flat": "zero3"}}),
        ([fused, columns], {"tp": {"shard": 0, "interleave": weights}, "dp": {"flat": "zero3"}}),
        ([rows, columns], {}), ([rows], {dimension: "replicate" for dimension in mesh}), ([], {"dp": {"flat": "zero3"}}),
        ([few, rows], {dimension: {"shard": axis} for dimension, axis in zip(mesh, (0, 1, 1))}),
    ])
    return dice.choice(DTYPES), shape, placements


def random_unit(dice):
    """Kinds of the tensors of a unit of fsdp1: alone, under tp, and along tp."""
    dtype, form, out = dice.choice(DTYPES), dice.randrange(3), []
    for _ in range(dice.randint(1, 12)):
        shape = [dice.choice(ROWS[:8]), dice.choice(COLUMNS)]
        shard = {"shard": dice.choice([0, 0, 1])} if dice.random() < 0.7 else "replicate"
        out.append((dtype, shape, [{"dp": {"flat": "fsdp1"}}, {"tp": shard, "dp": {"flat": "fsdp1"}},
                                   {"dp": shard, "tp": {"flat": "fsdp1"}}][form]))
    return out


def in_unit(placements, unit):
    return {dimension: dict(one, unit=unit) if "flat" in one else one for dimension, one in placements.items()}


def declaration(name, kind, placements):
    return {"name": name, "dtype": kind[0], "shape": kind[1], **({} if placements is None else {"placements": placements})}


def large_plan(dice, mesh):
    """A third of the kinds is placed by patterns, whatever the tensors' own entries say."""
    kinds = [random_kind(dice, mesh) for _ in range(KINDS)]
    units = [random_unit(dice) for _ in range(UNITS)]
    by_pattern = set(dice.sample(range(KINDS), 16))
    before = [{"name": f"k{kind:03}.*", "placements": kinds[kind][2]} for kind in by_pattern]
    before += [{"name": "k1[0-1]?.layers.*7.weight", "placements": []},
               {"name": "k[!0-2]*.layers.[1-3]*", "size": 10, "placements": []},
               {"order": dice.randrange(TENSORS), "placements": []}]
    declared = []
    for number in range(TENSORS):
        kind = number % (KINDS + 60)
        if kind < KINDS:
            own = dice.choice([None, []]) if kind in by_pattern else kinds[kind][2]
            declared.append(declaration(f"k{kind:03}.layers.{number}.weight", kinds[kind], own))
            continue
        # As many units as rounds; the tensors of a unit are not next to each other.
        layer = number // (KINDS + 60) * 4 + kind % 4
        members = units[layer % UNITS]
        member = members[(kind - KINDS) // 4 % len(members)]
        declared.append(declaration(f"unit{layer}.{kind}", member, in_unit(member[2], f"layer {layer}")))
    after = [{"name": "k*", "placements": {"dp": {"flat": "zero3"}}}, {"name": "*"}]
    return {"format": "metashard-plan/1", "mesh": mesh, "tensors": before + declared + after}


class Run:
    """One mesh: the plan as a file, and what the oracle knows of it."""

    def __init__(self, tool, folder, mesh, seed):
        self.tool, self.seed, self.mesh = tool, seed, mesh
        self.dice = random.Random(seed)
        plan = large_plan(self.dice, mesh)
        self.path = os.path.join(folder, "large.json")
        with open(self.path, "w") as file:
            file.write(json.dumps(plan))
        self.tensors = list_of_tensors(plan)
        self.oracle = Large(plan, self.tensors)
        self.kept, self.padding = self.oracle.totals()

    def output(self, *arguments):
        done = subprocess.run([self.tool, *arguments], capture_output=True, text=True)
        expect(done.returncode == 0, f"{arguments}: exit status {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    def check_all(self):
        """The bytes of every rank, and its padding."""
        seen = self.output("check", self.path, "--json", "--ranks")
        expect(seen["tensors"] == TENSORS and seen["not_placed"] == [], f"{seen['tensors']} tensors")
        expect(seen["bytes"] == sum(tensor.bytes() for tensor in self.tensors), "bytes of all tensors")
        expect(len(seen["bytes_by_rank"]) == math.prod(self.mesh.values()) == 16384, "ranks")
        for key, wanted in (("bytes_by_rank", self.kept), ("padding_by_rank", self.padding)):
            expect(seen[key] == wanted, f"{key}: {first_difference(seen[key], wanted)}")
        expect(len(set(self.kept)) > 100 and len(set(self.padding)) > 10, "all ranks have the same: nothing is seen")

    def check_rank(self, rank):
        """All ranges of one rank."""
        seen = self.output("explain", self.path, "--rank", str(rank), "--json")
        expect(seen["rank"] == rank and seen["world_size"] == 16384, f"rank {seen['rank']}")
        wanted = self.oracle.ranges(rank)
        for is_, tensor, ranges in zip(seen["tensors"], self.tensors, wanted):
            if is_["ranges"] != ranges or is_["name"] != tensor.name or is_["dtype"] != tensor.dtype or \
                    is_["shape"] != list(tensor.shape):
                raise Wrong(f"{is_}, expected\n{tensor} {ranges}")
        expect(len(seen["tensors"]) == len(wanted) == TENSORS, f"{len(seen['tensors'])} tensors")
        expect(sum(end - begin for ranges in wanted for begin, end in ranges) == self.kept[rank], "the oracle's own sums")


def main():
    gc.disable()  # a third of the time, and there are no cycles
    tool = os.path.abspath(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    tap.run(f"the oracle against the slow one, seeds from {seed}", check_oracles, range(seed, seed + 100))
    with tempfile.TemporaryDirectory(prefix="metashard-large-") as folder:
        for mesh, ranks in MESHES:
            begin = time.monotonic()
            run = Run(tool, folder, mesh, seed)
            print(f"# {mesh}, seed {seed}: {len(run.oracle.alike)} kinds of tensors, {len(run.oracle.units)} units, "
                  f"{time.monotonic() - begin:.1f} s", flush=True)
            tap.run(f"{mesh}, seed {seed}: all ranks", run.check_all)
            for rank in ranks + [run.dice.randrange(16384)]:
                tap.run(f"{mesh}, seed {seed}: rank {rank}", run.check_rank, rank)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
