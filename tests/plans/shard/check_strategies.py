#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_strategies.py --client PROGRAM --kernels LIBRARY --preload VALUE --tool METASHARD_PLAN [--only WORD]

A program that works with its rank's part of a checkpoint (in_place.c), in place or copied out, as each strategy of
`metashard-plan make` cuts it, on granules of 2 MiB and at the settings of a user who sets nothing: a plan never costs it
memory or bytes over the bus, not a byte, and `metashard-plan estimate` says what it takes. The same with real PyTorch is
tests/frameworks/serving. TAP.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

from workplace import Checkpoint, Place, expect, tensors_in
import tap  # noqa: E402  (workplace knows where these are)
from oracle import Tensor  # noqa: E402

MIB = 1 << 20
GRANULE = 2 * MIB
STRATEGIES = ("fsdp1", "fsdp2", "replicate", "tp", "zero3")
WORLDS = (2, 4, 8)
# Of 16 MiB each, so that every rank's part of each is a granule or more; those of columns have long rows. And small ones, which
# move what is flat.
TENSORS = [Tensor("lm_head.weight", "F32", (2048, 2048)), Tensor("model.layers.0.mlp.down_proj.weight", "F32", (64, 65536)),
           Tensor("model.layers.0.mlp.gate_proj.weight", "F32", (4096, 1024)),
           Tensor("model.layers.0.self_attn.q_proj.weight", "F32", (2048, 2048)),
           Tensor("model.layers.0.input_layernorm.weight", "F32", (2048,)), Tensor("model.norm.weight", "F32", (2048,))]
# The settings of a user who sets nothing.
SETTINGS = {"SIMCUDA_GRANULE_KIB": GRANULE >> 10, "METASHARD_MIN_BYTES": None, "METASHARD_SELFCHECK": None}
FIGURES = ("physical_bytes_peak", "h2d_bytes")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}


class Tool:
    """metashard-plan, for one checkpoint."""

    def __init__(self, place, path, checkpoint):
        self.place, self.path, self.checkpoint, self.plans = place, path, checkpoint, {}

    def run(self, *arguments, **variables):
        done = subprocess.run([self.path, *map(str, arguments)], env=dict(os.environ, **variables), capture_output=True,
                              text=True, timeout=60)
        expect(done.returncode == 0, f"metashard-plan {arguments}: exit status {done.returncode}\n{done.stderr}")
        return done.stdout

    def plan(self, strategy, world):
        if (strategy, world) not in self.plans:
            path = self.place.path(f"{strategy}-{world}.json")
            size = ["--mesh", f"tp={world}"] if strategy == "tp" else ["--world", world]
            self.run("make", self.checkpoint.folder, "--strategy", strategy, *size, "-o", path)
            self.plans[strategy, world] = path
        return self.plans[strategy, world]

    def ranges(self, strategy, world, rank):
        """A file for --ranges."""
        said = json.loads(self.run("explain", self.plan(strategy, world), "--rank", rank, "--json"))
        return self.place.write_ranges({tensor["name"]: tensor["ranges"] for tensor in said["tensors"]})

    def estimate(self, strategy, world):
        """The column "with" of memory and of what is copied: {use: (memory, copied)}."""
        said = self.run("estimate", self.checkpoint.folder, "--world", world, "--strategy", strategy)
        memory, copied = [[float(number) * UNITS[unit] for number, unit in re.findall(r"^  .*\w +[\d.]+ \w+ +([\d.]+) (\w+) ",
                                                                                     part, re.M)]
                          for part in said.split("copied to the device")]
        return {use: (memory[row], copied[number]) for number, (use, row) in
                enumerate((("sliced", 0), ("in place", 3), ("enforced", 4)))}


def run(place, tool, case, ranges, plan=None, mode=None):
    world, rank, options = case
    done = place.run(tool.checkpoint, rank, world, ["--ranges", ranges, *options], METASHARD_PLAN=plan,
                     METASHARD_PLAN_MODE=mode, **SETTINGS)
    done.values()
    if plan is not None:
        expect(done.dump["plan"]["tensors"] > 0, f"no tensor was found\n{done.said}")
    return done


def never_more(what, done, base):
    for figure in FIGURES:
        now, then = done.stats[figure], base.stats[figure]
        expect(now <= then, f"{what}: {figure} is {now}, without the plan {then}\n{done.said}")


def weights_peak(done):
    """The most that the shim had in memory, without the scratch memory of the kernel."""
    scratch = [block["backed_bytes"] for block in done.dump["blocks"] if not tensors_in(block, done.out)
               and block["bytes"] == max(tensor.bytes() for tensor in TENSORS) + 8]
    return done.dump["backed_bytes_peak"] - sum(scratch)


def as_estimated(what, ranks, said, is_bound):
    """Compares the rank with the most. Memory comes in granules: the last one of a part is counted whole. Where tensors
    are cut as one (fsdp1) and used whole, another rank than these may have the most."""
    for name, seen, wanted, more in (("memory", max(map(weights_peak, ranks)), said[0], GRANULE),
                                     ("copied", max(done.dump["h2d_bytes"] for done in ranks), said[1], 0)):
        expect((0 if is_bound else 0.95 * wanted) <= seen <= 1.05 * wanted + more,
               f"{what}: {name}: {seen} bytes, estimated {wanted}\n{ranks[0].said}")


def check_part(place, tool, strategy, world):
    """A program that keeps to the plan."""
    said, plan = tool.estimate(strategy, world), tool.plan(strategy, world)
    for use, options in (("in place", []), ("sliced", ["--sliced"])):
        ways = {"without a plan": (None, None), "advised": (plan, None)}
        if use == "in place":
            ways["enforced"] = (plan, "enforce")
        seen = {way: [] for way in ways}
        for rank in (0, world - 1):
            case, ranges = (world, rank, [*options, "--kernel", place.kernels]), tool.ranges(strategy, world, rank)
            for way, (path, mode) in ways.items():
                seen[way].append(run(place, tool, case, ranges, path, mode))
                never_more(f"{use}, {way}", seen[way][-1], seen["without a plan"][-1])
        for way, ranks in seen.items():
            as_estimated(f"{use}, {way}", ranks, said["enforced" if way == "enforced" else use],
                         strategy == "fsdp1" and use == "in place" and way != "enforced")


def check_others(place, tool, world):
    """A program that uses rows of two tensors, whatever the plan says."""
    rank = world - 1
    rows = [f"{tensor.name} {rank * tensor.bytes() // world} {tensor.bytes()}\n" for tensor in TENSORS[:3:2]]
    ranges = place.write("".join(rows))
    for options in ([], ["--sliced"]):
        case = world, rank, [*options, "--kernel", place.kernels]
        base = run(place, tool, case, ranges)
        for strategy in STRATEGIES:
            never_more(f"{options}, {strategy}", run(place, tool, case, ranges, tool.plan(strategy, world)), base)


def main():
    parser = argparse.ArgumentParser()
    for option in ("--client", "--kernels", "--preload", "--tool"):
        parser.add_argument(option, required=True)
    parser.add_argument("--only", default="", help="tests with this in their name")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metashard-strategies-") as folder:
        place = Place(os.path.abspath(arguments.client), os.path.abspath(arguments.kernels), arguments.preload, folder)
        tool = Tool(place, os.path.abspath(arguments.tool),
                    Checkpoint(os.path.join(folder, "llama"), {"model.safetensors": TENSORS}, False, 1))
        tests = [(f"{strategy}, {world} ranks", check_part, (strategy, world)) for strategy in STRATEGIES for world in WORLDS]
        tests += [(f"rows of some tensors, {world} ranks", check_others, (world,)) for world in WORLDS]
        for name, test, values in tests:
            if arguments.only not in name:
                continue
            tap.run(name, test, place, tool, *values)
            place.clean()
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
