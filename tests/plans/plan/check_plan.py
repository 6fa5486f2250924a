#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_plan.py TOOL [CASES [SEED]]: metashard-plan against oracle.py, on random plans and on bad ones. TAP.

Random checkpoints, as one file, several, or several with an index, and random plans for them: what
every rank gets, by `explain --json`, is what the oracle says. A failure names its seed.
"""
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile

import bad_inputs
import checkpoint as files
from oracle import Tensor, coordinates_of, declared_name, entry_of, in_place, is_exact, list_of_tensors, mesh_of, \
    placements_of, resolve
from random_plan import random_placements, random_plan, random_ranges, random_tensors, selectors

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import tap  # noqa: E402
from tap import expect  # noqa: E402

LAUNCHERS = [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
             ("SLURM_PROCID", "SLURM_NTASKS"), ("PMI_RANK", "PMI_SIZE")]


class Plans:
    def __init__(self, tool, folder):
        self.tool, self.folder = tool, folder

    def run(self, *arguments, **variables):
        """(exit status, stdout, stderr); a death by a signal or a sanitizer is a fault of its own."""
        environment = {name: value for name, value in os.environ.items()
                       if not any(name in pair for pair in LAUNCHERS)}
        environment.update(variables, UBSAN_OPTIONS="halt_on_error=1:exitcode=99",
                           ASAN_OPTIONS="exitcode=99")
        arguments = [one if isinstance(one, bytes) else str(one) for one in arguments]
        done = subprocess.run([self.tool, *arguments], env=environment, capture_output=True,
                              timeout=120)
        out, error = done.stdout.decode(), done.stderr.decode()
        expect(done.returncode in (0, 1, 2), f"{arguments}: exit status {done.returncode}\n{error}")
        return done.returncode, out, error

    def good(self, *arguments, **variables):
        status, out, error = self.run(*arguments, **variables)
        expect(status == 0, f"{arguments}: exit status {status}\n{error}")
        return out

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(content, (dict, list)):
            content = json.dumps(content)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def explain(self, plan, rank, *checkpoint, **variables):
        arguments = [] if rank is None else ["--rank", rank]
        return json.loads(self.good("explain", plan, *checkpoint, *arguments, "--json", **variables))


def expected(plan, tensors, rank):
    ranges, _ = resolve(plan, tensors, rank)
    return {"rank": rank, "world_size": math.prod(mesh_of(plan).values()), "tensors": [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "in_place": in_place([tensor], [kept])[0],
         "ranges": kept}
        for tensor, kept in zip(tensors, ranges)]}


def write_checkpoint(plans, name, tensors, dice):
    """(path for the program, tensors in the order of the checkpoint)"""
    form = dice.choice(["file", "folder", "index", "index file"]) if tensors else "file"
    folder = plans.path(name)
    os.makedirs(folder)
    if form == "file":
        path = os.path.join(folder, "one.safetensors")
        files.write_file(path, tensors, dice.shuffle, dice.choice([None, {}, {"format": "pt"}]))
        return path, files.in_order({"one.safetensors": tensors})
    parts = {}
    for tensor in tensors:
        parts.setdefault(f"model-{dice.randint(1, 12)}.safetensors", []).append(tensor)
    for file, part in parts.items():
        files.write_file(os.path.join(folder, file), part, dice.shuffle)
    if form != "folder":
        files.write_index(folder, parts)
        files.write_file(os.path.join(folder, "other.safetensors"), [])
    path = os.path.join(folder, "model.safetensors.index.json") if form == "index file" else folder
    return path, files.in_order(parts)


def check_coverage(plan, tensors):
    """By the oracle's ranges, ranks that differ only in how they are cut have each byte once."""
    mesh = mesh_of(plan)
    world = math.prod(mesh.values())
    kept = [resolve(plan, tensors, rank)[0] for rank in range(world)]
    for order, tensor in enumerate(tensors):
        entry = entry_of(plan, order, tensor)
        if entry is not None and "ranges" in entry:
            continue
        cuts = {dimension for dimension, _ in placements_of(plan, entry)}
        times = {}
        for rank in range(world):
            place = coordinates_of(mesh, rank)
            group = tuple(place[dimension] for dimension in mesh if dimension not in cuts)
            counts = times.setdefault(group, [0] * tensor.bytes())
            for begin, end in kept[rank][order]:
                for byte in range(begin, end):
                    counts[byte] += 1
        expect(all(count == 1 for counts in times.values() for count in counts),
               f"{tensor}: not covered once\nplan {json.dumps(plan)}")


def figures(plan, tensors, unplaced):
    """What `check --json --ranks` prints."""
    kept, padding, places = [], [], []
    for rank in range(math.prod(mesh_of(plan).values())):
        ranges, of_rank = resolve(plan, tensors, rank)
        kept.append(sum(end - begin for tensor in ranges for begin, end in tensor))
        places.append(in_place(tensors, ranges))
        padding.append(of_rank)
    total, whole = places[kept.index(max(kept))]
    return {"tensors": len(tensors), "bytes": sum(tensor.bytes() for tensor in tensors), "world_size": len(kept),
            "most": {"rank": kept.index(max(kept)), "bytes": max(kept)},
            "least": {"rank": kept.index(min(kept)), "bytes": min(kept)},
            "padding": sum(padding), "in_place": total, "in_place_whole": whole, "not_placed": unplaced, "bytes_by_rank": kept, "padding_by_rank": padding}


def check_figures(out, plan, tensors):
    """What `check` prints of the bytes that ranks keep."""
    wanted = figures(plan, tensors, [])
    most, least = wanted["most"], wanted["least"]
    for line in (f"tensors: {wanted['tensors']}, {wanted['bytes']} bytes",
                 f"most: {most['bytes']} bytes (rank {most['rank']})",
                 f"least: {least['bytes']} bytes (rank {least['rank']})",
                 f"padding: {wanted['padding']} bytes in all ranks",
                 f"in place, enforced: {wanted['in_place']} bytes, in granules of 2 MiB",
                 f"in place, advised: {wanted['bytes']} bytes: a kernel gets whole tensors"):
        expect(line in out.splitlines(), f"check: expected {line}\n{out}plan {json.dumps(plan)}")


def check_random(plans, seed):
    dice = random.Random(seed)
    tensors = random_tensors(dice)
    all_declared = dice.random() < 0.2
    path, in_order = write_checkpoint(plans, f"case{seed}", tensors, dice)
    plan, tensors = random_plan(dice, in_order, all_declared)
    text = json.dumps(plan, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, 1]))
    written = plans.write(f"case{seed}/plan.json", text)
    given = [] if all_declared and dice.random() < 0.5 else [path]
    check_coverage(plan, tensors)
    world = math.prod(mesh_of(plan).values())
    for rank in range(world):
        wanted = expected(plan, tensors, rank)
        seen = plans.explain(written, rank, *given)
        for is_, should in zip(seen["tensors"], wanted["tensors"]):
            expect(is_ == should, f"rank {rank}:\n{is_}, expected\n{should}\nplan {text}")
        expect(seen == wanted, f"rank {rank}:\n{seen}, expected\n{wanted}\nplan {text}")
    status, out, error = plans.run("check", written, *given)
    check_figures(out, plan, tensors)
    unplaced = [tensor.name for order, tensor in enumerate(tensors) if entry_of(plan, order, tensor) is None]
    expect((status == 0) == (unplaced == []), f"check: exit status {status}\n{out}{error}plan {text}")
    in_json = plans.run("check", written, *given, "--json", "--ranks")
    expect((in_json[0], json.loads(in_json[1])) == (status, figures(plan, tensors, unplaced)),
           f"check --json: {in_json}\nplan {text}")


def check_who(plans):
    """The rank of the plan itself, and of the launchers."""
    plan = {"format": "metashard-plan/1", "mesh": {"dp": 3, "tp": 2},
            "tensors": [{"name": "w", "dtype": "U8", "shape": [12], "placements": [{"shard": 0}, {"shard": 0}]}]}
    own = dict(plan, rank=4)
    expect(plans.explain(plans.write("who.json", own), None)["rank"] == 4, "rank")
    for coordinates in ([1, 1], {"tp": 1, "dp": 1}):
        own = dict(plan, coordinates=coordinates)
        expect(plans.explain(plans.write("who.json", own), None, RANK="5")["rank"] == 3, "coordinates")
    written = plans.write("who.json", plan)
    variables = {}
    for i, (rank, world) in reversed(list(enumerate(LAUNCHERS))):
        variables[rank] = str(i)
        expect(plans.explain(written, None, **variables)["rank"] == i, rank)
        expect(plans.explain(written, None, **variables, **{world: "6"})["rank"] == i, world)
        status, _, error = plans.run("explain", written, "--json", **{rank: "1", world: "5"})
        expect(status == 1 and error.count("\n") == 1, f"{world}=5: {status} {error}")
        for bad in ("6", "-1", "x", "", "1 ", "99999999999999999999"):
            status, _, error = plans.run("explain", written, "--json", **{rank: bad})
            expect(status == 1 or (bad == "" and status == 0), f"{rank}={bad}: {status} {error}")


LLAMA = [("model.embed_tokens.weight", (16, 8), 0), ("model.norm.weight", (8,), None),
         ("lm_head.weight", (16, 8), 0)]
for layer in range(2):
    for part, shape, axis in [
            ("input_layernorm", (8,), None), ("self_attn.q_proj", (8, 8), 0), ("self_attn.k_proj", (4, 8), 0),
            ("self_attn.v_proj", (4, 8), 0), ("self_attn.o_proj", (8, 8), 1), ("mlp.gate_proj", (24, 8), 0),
            ("mlp.up_proj", (24, 8), 0), ("mlp.down_proj", (8, 24), 1)]:
        LLAMA.append((f"model.layers.{layer}.{part}.weight", shape, axis))


def wanted_placements(name, axis, strategy, mesh):
    """By the text of docs/plan-format.md: mesh dimension -> placement; a unit is any string."""
    out = {}
    if strategy == "replicate":
        return out
    if "tp" in mesh and axis is not None:
        out["tp"] = {"shard": axis}
    others = [dimension for dimension in mesh if dimension != "tp"]
    if others and strategy != "tp":
        out[others[-1]] = {"fsdp2": {"shard": 0}, "zero3": {"flat": "zero3"},
                           "fsdp1": {"flat": "fsdp1", "unit": "any"}}[strategy]
    return out


def check_make(plans, strategy, mesh):
    tensors = files.in_order({"m": [Tensor(name, "BF16", shape) for name, shape, _ in LLAMA]})
    path = plans.path(f"llama-{strategy}.safetensors")
    files.write_file(path, tensors)
    plan_path = plans.path(f"made-{strategy}.json")
    given = [f"--mesh={','.join(f'{name}={size}' for name, size in mesh.items())}"] if mesh else \
        ["--world", "4"]
    if mesh and random.Random(strategy).random() < 0.5:
        given = given[0].split("=", 1)
    plans.good("make", path, "--strategy", strategy, *given, "-o", plan_path)
    mesh = mesh or {"tp" if strategy == "tp" else "dp": 4}
    with open(plan_path) as file:
        plan = json.load(file)
    expect(plan["mesh"] == mesh, f"mesh {plan.get('mesh')}")
    expect(plan == json.loads(plans.good("make", path, "--strategy", strategy, *given)), "not as on stdout")
    expect(list_of_tensors(plan) == tensors, f"declared: {plan}")
    axes = {name: axis for name, _, axis in LLAMA}
    for entry in plan["tensors"]:
        seen = dict(placements_of(plan, entry))
        for placement in seen.values():
            if "unit" in placement:
                placement["unit"] = "any"
        wanted = wanted_placements(entry["name"], axes[entry["name"]], strategy, mesh)
        expect(seen == wanted, f"{entry['name']}: {seen}, expected {wanted}")
        if len(seen) == 2 and seen.get("tp") == {"shard": 0}:
            expect(list(seen)[0] == "tp", f"{entry['name']}: tp is not applied first: {seen}")
    with open(plan_path) as file:
        plan = json.load(file)
    for rank in range(math.prod(mesh.values())):
        seen = plans.explain(plan_path, rank, path)
        expect(seen == expected(plan, tensors, rank), f"rank {rank}: {seen}")
    plans.good("check", plan_path, path)
    plans.good("check", plan_path)


def check_rules(plans):
    tensors = [Tensor("a.q_proj.weight", "BF16", (8, 4)), Tensor("b.q_proj.weight", "BF16", (8, 4))]
    path = plans.path("rules.safetensors")
    files.write_file(path, tensors)
    rules = plans.write("rules.json", [{"name": "b.*", "placements": {"tp": {"shard": 1}}}])
    plan = json.loads(plans.good("make", path, "--strategy", "tp", "--world", 2, "--rules", rules))
    seen = [dict(placements_of(plan, entry_of(plan, i, tensor))) for i, tensor in enumerate(tensors)]
    expect(seen == [{"tp": {"shard": 0}}, {"tp": {"shard": 1}}], f"{seen}")
    bad = plans.write("bad-rules.json", [{"nmae": "b.*"}])
    status, _, error = plans.run("make", path, "--strategy", "tp", "--world", 2, "--rules", bad)
    expect(status == 1 and bad in error and error.count("\n") == 1, f"{status} {error}")
    great = plans.path("great-rules.json")
    with open(great, "wb") as file:
        file.truncate((256 << 20) + 1)
    status, _, error = plans.run("make", path, "--strategy", "tp", "--world", 2, "--rules", great)
    expect(status == 1 and "expected at most 268435456 bytes" in error and error.count("\n") == 1, f"{status} {error}")
    with open(great, "w", encoding="ascii") as file:
        file.write("[" + "{}," * (4 << 20) + "{}]")
    status, _, error = plans.run("make", path, "--strategy", "tp", "--world", 2, "--rules", great)
    expect(status == 1 and "expected at most 4194304 entries" in error and error.count("\n") == 1, f"{status} {error}")


def check_rule_names(plans):
    """A name that has to be escaped, and rules that say it with other escapes."""
    path = plans.path("rules.safetensors")
    files.write_file(path, [Tensor("odd[1]", "BF16", (4,)), Tensor("plain", "BF16", (4,))])
    for name in ("odd\\[1]", "odd\\[1\\]", "pl\\ain"):
        rules = plans.write("rules.json", [{"name": name, "placements": {"dp": {"flat": "zero3"}}}])
        plan = plans.write("ruled.json", plans.good("make", path, "--strategy", "fsdp2", "--world", 2,
                                                    "--rules", rules))
        plans.good("check", plan, path)


def check_rule_units(plans):
    """A unit is in the order of the checkpoint, whatever a rule names."""
    path = plans.path("rules.safetensors")
    files.write_file(path, [Tensor(name, "U8", (3,)) for name in "abc"])
    rules = plans.write("rules.json", [{"name": "c", "placements": {"dp": {"flat": "fsdp1", "unit": "root"}}}])
    plan = plans.write("ruled.json", plans.good("make", path, "--strategy", "fsdp1", "--world", 3,
                                                "--rules", rules))
    seen = {tensor["name"]: tensor["ranges"] for tensor in plans.explain(plan, 0, path)["tensors"]}
    expect(seen == {"a": [[0, 3]], "b": [], "c": []}, f"order of a unit: {seen}")


def check_no_tensors(plans):
    """A file without tensors is a good one, also as the first of several."""
    plan = plans.write("none.json", {"format": "metashard-plan/1", "world_size": 2, "tensors": [{"name": "*"}]})
    one = plans.path("no-tensors/a.safetensors")
    os.makedirs(os.path.dirname(one))
    files.write_file(one, [])
    for path in (one, os.path.dirname(one)):
        expect("tensors: 0, 0 bytes" in plans.good("check", plan, path), path)
    files.write_file(plans.path("no-tensors/b.safetensors"), [Tensor("a", "U8", (3,))])
    expect("tensors: 1, 3 bytes" in plans.good("check", plan, os.path.dirname(one)), "behind an empty file")


def make_ruled(plans, path, strategy, rules, *mesh):
    """(exit status, the plan that was written, the one line of error)"""
    rules = plans.write("rules.json", rules)
    return plans.run("make", path, "--strategy", strategy, *(mesh or ["--world", 2]), "--rules", rules)


def check_rule_order(plans):
    """The first rule decides, be it a name or a pattern."""
    path = plans.path("rules.safetensors")
    files.write_file(path, [Tensor("a", "U8", (4, 4)), Tensor("b", "U8", (4, 4))])
    name, pattern = {"name": "b", "placements": {"dp": {"shard": 1}}}, {"name": "*", "placements": []}
    for rules, wanted in (([name, pattern], {"dp": {"shard": 1}}), ([pattern, name], {})):
        _, plan, _ = make_ruled(plans, path, "fsdp2", rules)
        plan = json.loads(plan)
        seen = dict(placements_of(plan, entry_of(plan, 1, Tensor("b", "U8", (4, 4)))))
        expect(seen == wanted, f"{rules}: {seen}")


def check_rule_index(plans):
    """`order` is the index in the checkpoint, also where another rule declares a tensor."""
    path = plans.path("rules.safetensors")
    files.write_file(path, [Tensor("a", "U8", (4,)), Tensor("b", "U8", (4, 4)), Tensor("c", "U8", (4,))])
    rules = [{"name": "c", "dtype": "U8", "shape": [4]}, {"order": 1, "placements": {"dp": {"shard": 1}}}]
    status, plan, error = make_ruled(plans, path, "replicate", rules)
    expect(status == 0, error)
    seen = [entry["placements"] for entry in json.loads(plan)["tensors"]]
    expect(seen == [{}, {"dp": {"shard": 1}}, {}], f"{seen}")


def check_rule_faults(plans):
    """One line, which names the rule."""
    path = plans.path("rules.safetensors")
    files.write_file(path, [Tensor("a", "U8", (4,)), Tensor("odd[1]", "U8", (4,)), Tensor("f", "F4", (4,))])
    good, absent = {"name": "a", "dtype": "U8", "shape": [4]}, plans.path("none.json")
    for rules, wanted in (([good, {"name": "odd\\[1\\]", "dtype": "I8", "shape": [4]}], ": tensors[1]: tensor odd[1]"),
                          ([{"name": "*", "placements": []}, dict(good, shape=[2, 2])], ": tensors[1]: tensor a"),
                          ([good, dict(good, name="c")], ": tensors[1]: tensor c is not in the checkpoint"),
                          ([{"name": "[a]", "dtype": "U8", "shape": [5]}], ": tensors[0]: tensor a"),
                          ([{"name": "x"}, {"order": 0, "placements": {"dp": {"shard": 1}}}], ": tensors[1]: tensor a"),
                          ([{"name": "f", "placements": [{"shard": 0}]}], ": tensors[0]: tensor f"),
                          ([{"name": "a", "ranges": [[[0, 9]], []]}], ": tensors[0]: tensor a"),
                          ([{"name": "a", "ranges": [[]]}], ": tensors[0].ranges: "),
                          ([{"name": "a", "dtype": "u8", "shape": [4]}], ": tensors[0].dtype: "),
                          ([{"name": "a", "placements": {"tp": "replicate"}}], ": tensors[0].placements.tp: "),
                          ([good, {"name": "\\a"}], ": tensors[1]: "), ({}, ": "), (b"[", ":1:")):
        status, out, error = make_ruled(plans, path, "fsdp2", rules)
        expect(status == 1 and out == "" and error.startswith(plans.path("rules.json") + wanted) and
               error.count("\n") == 1, f"{rules}: {status} {error}expected {wanted}")
    for missing, wanted in ((absent, f"{absent}: cannot be opened: "), (plans.folder, f"{plans.folder}: expected a file")):
        status, _, error = plans.run("make", path, "--strategy", "fsdp2", "--world", 2, "--rules", missing)
        expect(status == 1 and error.startswith(wanted) and error.count("\n") == 1, f"{status} {error}")
    unit = [{"name": "a", "placements": {"tp": {"flat": "fsdp1", "unit": "root"}}}]
    status, out, error = make_ruled(plans, path, "fsdp1", unit, "--mesh", "dp=2,tp=2")
    expect(status == 1 and "unit root" in error and out == "" and error.count("\n") == 1, f"{status} {error}")


def check_random_rules(plans, seed):
    """Each tensor as the first rule that matches it says, else as the strategy does; in the checkpoint's order."""
    dice = random.Random(seed)
    path, tensors = write_checkpoint(plans, f"rules{seed}", random_tensors(dice), dice)
    mesh = dice.choice([{"dp": 3}, {"dp": 2, "tp": 2}, {"tp": 2, "dp": 3}])
    rules = selectors(dice, tensors, dice.sample(tensors, len(tensors) // 2))
    deciders = [entry_of({"tensors": rules}, order, tensor) for order, tensor in enumerate(tensors)]
    units = {}
    for rule in rules:
        decided = [tensor for tensor, decider in zip(tensors, deciders) if decider is rule]
        if is_exact(rule.get("name", "*")) and dice.random() < 0.3:
            rule["name"] = "".join("\\" + character for character in declared_name(rule["name"]))
        if dice.random() < 0.15:
            rule["ranges"] = random_ranges(dice, min((tensor.bytes() for tensor in decided), default=0),
                                           math.prod(mesh.values()))
        elif dice.random() < 0.9:
            rule["placements"] = random_placements(dice, mesh, decided, units)
    strategy = dice.choice(["fsdp2", "fsdp1", "zero3", "replicate"] + ["tp"] * ("tp" in mesh))
    given = ["--mesh", ",".join(f"{name}={size}" for name, size in mesh.items())]
    by_strategy = json.loads(plans.good("make", path, "--strategy", strategy, *given))
    status, out, error = make_ruled(plans, path, strategy, rules, *given)
    expect(status == 0, f"{error}rules {json.dumps(rules)}")
    made = json.loads(out)
    expect(list_of_tensors(made) == tensors, f"declared: {out}")
    wanted = {"mesh": mesh, "tensors": rules + by_strategy["tensors"]}
    written = plans.write(f"rules{seed}/made.json", out)
    for rank in range(math.prod(mesh.values())):
        for given in ([path], []):
            seen = plans.explain(written, rank, *given)
            expect(seen == expected(wanted, tensors, rank), f"rank {rank}: {seen}\nrules {json.dumps(rules)}")


def check_long_units(plans):
    """A unit is named by the tensor's name up to its first number, however long that is."""
    path = plans.path("long-units.safetensors")
    layers = ["a" * 600 + f".{i}" for i in range(2)]
    files.write_file(path, [Tensor(f"{layer}.{part}", "U8", (3,)) for layer in layers for part in "xy"])
    plan = json.loads(plans.good("make", path, "--strategy", "fsdp1", "--world", 2))
    seen = [entry["placements"]["dp"]["unit"] for entry in plan["tensors"]]
    expect(seen == [layers[0], layers[0], layers[1], layers[1]], f"{seen}")


def check_control_characters(plans):
    name = "a\nb\x1b[2J\x7f\u0085\u2028\u00e9\\"
    path = plans.path("control.safetensors")
    files.write_file(path, [Tensor(name, "U8", (3,))])
    plan = plans.write("control.json", {"format": "metashard-plan/1", "world_size": 1, "tensors": []})
    shown = "a\\u000ab\\u001b[2J\\u007f\\u0085\\u2028\u00e9\\\\"
    out = plans.good("explain", plan, path, "--rank", 0)
    expect(out.splitlines()[1] == f"{3:12} of {3:12}, in place {3:12}  {shown} U8 [3]" and out.count("\n") == 2, out)
    _, out, _ = plans.run("check", plan, path)
    expect(f"not placed: {shown}" in out.splitlines(), out)
    _, out, _ = plans.run("check", plan, path, "--json")
    expect(json.loads(out)["not_placed"] == [name] and "bytes_by_rank" not in out, out)
    expect(plans.explain(plan, 0, path)["tensors"][0]["name"] == name, "JSON")


def check_fit(plans):
    """The smallest world is also found by trying all of them with the oracle."""
    tensors = [Tensor("a", "BF16", (100, 7)), Tensor("b", "BF16", (33,)), Tensor("c", "BF16", (5, 5))]
    path = plans.path("fit.safetensors")
    files.write_file(path, tensors)
    placements = {"fsdp2": {"dp": {"shard": 0}}, "zero3": {"dp": {"flat": "zero3"}},
                  "fsdp1": {"dp": {"flat": "fsdp1", "unit": "u"}}}
    for strategy in ("fsdp2", "zero3"):
        def most(world):
            plan = {"mesh": {"dp": world}, "tensors": [{"name": "*", "placements": placements[strategy]}]}
            sums = []
            for rank in range(world):
                ranges, padding = resolve(plan, tensors, rank)
                sums.append(padding + sum(end - begin for kept in ranges for begin, end in kept))
            return max(sums)
        for memory in (2000, 700, 300, 100, 24):
            world = next((world for world in range(1, 120) if most(world) <= memory), None)
            status, out, error = plans.run("fit", path, "--memory", f"{memory}B", "--strategy", strategy)
            if world is None:
                expect(status == 1, f"{strategy} {memory}: {status} {out}{error}")
            else:
                expect(status == 0 and str(world) in out.replace(",", " ").replace(":", " ").split(),
                       f"{strategy} {memory}: {status} {out}{error}, expected {world}")


def check_fit_plans(plans):
    """A plan that declares no tensors needs a checkpoint that gives them."""
    path = plans.path("fit.safetensors")
    files.write_file(path, [Tensor("a", "U8", (100,))])
    document = {"format": "metashard-plan/1", "mesh": {"dp": 7}, "tensors": [
        {"name": "*", "placements": {"dp": {"shard": 0}}}]}
    plan = plans.write("fit.json", document)
    status, out, error = plans.run("fit", plan, "--memory", "30B")
    expect(status == 1 and out == "" and error.startswith(f"{plan}: tensors: ") and "checkpoint" in error and
           error.count("\n") == 1, f"{status} {out} {error}")
    expect("world: 4" in plans.good("fit", plan, path, "--memory", "30B"), "plan and checkpoint")
    document["tensors"].insert(0, {"name": "a", "dtype": "U8", "shape": [100], "placements": [{"shard": 0}]})
    plan = plans.write("fit.json", document)
    expect("world: 4" in plans.good("fit", plan, "--memory", "30B"), "declared")
    told = json.loads(plans.good("fit", plan, "--memory", "30B", "--json"))
    expect(told == {"fits": True, "memory_bytes": 30, "world_size": 4, "bytes": 25, "in_place_bytes": 100}, f"{told}")
    status, out, error = plans.run("fit", path, "--memory", "0B", "--json")
    expect(status == 1 and not json.loads(out)["fits"] and error == "", f"{status} {out} {error}")
    ranges = {"format": "metashard-plan/1", "world_size": 1, "tensors": [{"name": "a", "ranges": [[[0, 9]]]}]}
    status, out, error = plans.run("fit", plans.write("fit.json", ranges), path, "--memory", "30B")
    expect(status == 1 and out == "" and error.startswith(f"{plan}: tensors: "), f"{status} {out} {error}")
    none = plans.path("no-tensors.safetensors")
    files.write_file(none, [])
    expect("world: 1" in plans.good("fit", none, "--memory", "0B"), "a checkpoint without tensors")
    status, _, error = plans.run("fit", plan, path, "--memory", "30B", "--strategy", "zero3")
    expect(status == 2, f"a strategy beside a plan: {status} {error}")


def check_in_place(plans):
    """Tensors of many granules: rows, columns, parts of parts, and what is replicated."""
    mesh = {"dp": 3, "tp": 4}
    kinds = [{"dp": "replicate", "tp": {"shard": 0}}, {"dp": "replicate", "tp": {"shard": 1}},
             {"dp": {"shard": 0}, "tp": {"shard": 0}},
             {"dp": {"shard": 0}, "tp": {"shard": 1}}, {"dp": "replicate", "tp": "replicate"}]
    declared = [{"name": f"t{i}", "dtype": "F32", "shape": [1000 + 500 * i, 2048], "placements": kind}
                for i, kind in enumerate(kinds)]
    plan = {"format": "metashard-plan/1", "mesh": mesh, "tensors": declared}
    tensors = [Tensor(entry["name"], "F32", tuple(entry["shape"])) for entry in declared]
    written = plans.write("in-place.json", plan)
    out = plans.good("check", written)
    check_figures(out, plan, tensors)
    expect("whole in place: 1 (t1)" in out, f"columns: {out}")
    for rank in (0, 5, 11):
        expect(plans.explain(written, rank) == expected(plan, tensors, rank), f"rank {rank}")
    out = plans.good("fit", written, "--memory", "1GiB")
    kept, _ = resolve({**plan, "mesh": {"dp": 1, "tp": 4}}, tensors, 0)
    seen = f"in place, enforced: {in_place(tensors, kept)[0]} bytes, in granules of 2 MiB\n"
    expect("world: 4\n" in out and seen in out, f"{seen}: {out}")
    most = sum(end - begin for ranges in kept for begin, end in ranges)
    out = plans.good("fit", written, "--memory", f"{most}B")
    expect("world: 4\n" in out and "that does not fit" in out, out)


def check_estimate(plans):
    path = plans.path("estimate.safetensors")
    files.write_file(path, [Tensor("a", "U8", (200,)), Tensor("b", "U8", (50, 4)), Tensor("c", "U8", (100,))])
    for strategy, kept, rows in (
            ("fsdp2", "127 B", ["500 B 127 B 75 %", "327 B 127 B 61 %", "127 B 127 B 0 %", "500 B 500 B 0 %", "500 B 500 B 0 %",
                                "327 B 327 B 0 %", "500 B 500 B 0 %", "500 B 127 B 75 %", "500 B 500 B 0 %", "500 B 500 B 0 %"]),
            ("replicate", "500 B", ["500 B 500 B 0 %"] * 10)):
        out = plans.good("estimate", path, "--world", 4, "--strategy", strategy)
        seen = [" ".join(row.split()) for row in re.findall(r"^  .*?(\d+ B .*)$", out, re.M)]
        expect(seen == rows and f"each of 4 ranks keeps at most {kept} of them" in out and
               "weights: 3 tensors, 500 B; the largest, a, has 200 B" in out and "Not counted" in out, f"{strategy}: {out}")
    told = json.loads(plans.good("estimate", path, "--world", 4, "--json"))
    figures = [[row["without"], row["with"]] for part in ("held", "received_with_plan", "copied") for row in told.pop(part).values()]
    expect(told == {"tensors": 3, "bytes": 500, "largest": "a", "largest_bytes": 200, "world_size": 4, "shard_bytes": 127} and figures == [
        [500, 127], [327, 127], [127, 127], [500, 500], [500, 500], [327, 327], [500, 500], [500, 127], [500, 500], [500, 500]], f"{told}, {figures}")
    for arguments in (["estimate", path], ["estimate", path, "--world", 0], ["estimate", path, "--world", 2, "--mesh", "dp=2"]):
        expect(plans.run(*arguments)[0] == 2, f"{arguments}")
    expect(plans.run("estimate", plans.path("missing"), "--world", 2)[0] == 1, "no checkpoint")


def check_uneven_rows(plans):
    """The table of docs/plan-format.md: dp cuts each tp shard by itself, where tp does not divide the rows."""
    plan = plans.write("uneven.json", {"format": "metashard-plan/1", "mesh": {"dp": 3, "tp": 2}, "tensors": [
        {"name": "a", "dtype": "U8", "shape": [7], "placements": {"tp": {"shard": 0}, "dp": {"shard": 0}}}]})
    seen = [plans.explain(plan, rank)["tensors"][0]["ranges"] for rank in range(6)]
    expect(seen == [[[0, 2]], [[4, 5]], [[2, 4]], [[5, 6]], [], [[6, 7]]], f"{seen}")


def check_help(plans):
    for arguments in (["--help"], ["-h"], ["make", "--help"], ["send", "x", "--help"]):
        status, out, error = plans.run(*arguments)
        expect(status == 0 and out.startswith("usage: ") and error == "", f"{arguments}: {status} {error}")
        expect("Exit status: 0 " in out, f"{arguments}: {out}")
    _, out, _ = plans.run("make", "--help")
    options = re.findall(r"^  (?:-\w, )?--(\w+)", out, re.M)
    expect(options == ["strategy", "mesh", "world", "rules", "output", "help", "version"], f"the options of make: {options}")
    expect(out.splitlines()[:2] == ["usage: metashard-plan make CHECKPOINT --strategy fsdp2|tp|fsdp1|zero3|replicate",
                                    "                      [--mesh dp=4,tp=2] [--rules FILE] [--world N] [-o PLAN]"], out)
    expect("metashard-plan fit" not in out and all(f"{name}: " in out for name in ("fsdp2", "fsdp1", "zero3", "tp", "replicate")), out)
    _, out, _ = plans.run("fit", "--help")
    expect(out.splitlines()[:3] == ["usage: metashard-plan fit PLAN [CHECKPOINT] --memory 80GiB [--json | --quiet]",
                                    "       metashard-plan fit CHECKPOINT --memory 80GiB [--strategy S] [--json | --quiet]", ""], out)


def check_usage(plans):
    plan = plans.write("usage.json", {"format": "metashard-plan/1", "world_size": 2, "tensors": []})
    path = plans.path("usage.safetensors")
    files.write_file(path, [Tensor("a", "BF16", (4,))])
    make = ["make", path, "--strategy"]
    for arguments in ([], ["mak"], ["check"], ["check", plan, path, path], ["explain", plan, "--rank"],
                      ["explain", plan, "--rank", "x"], ["explain", plan, "--rank", "2"],
                      ["explain", plan, "--what"], ["make"], ["make", path, "--world", "2"],
                      [*make, "fsdp3", "--world", "2"], [*make, "fsdp2", "--world", "0"],
                      [*make, "fsdp2", "--world", "2000000"], [*make, "fsdp2"],
                      [*make, "fsdp2", "--world", "3", "--mesh", "dp=2"],
                      [*make, "fsdp2", "--mesh", "dp"], [*make, "fsdp2", "--mesh", ""],
                      [*make, "fsdp2", "--mesh", "dp=0"],
                      [*make, "fsdp2", "--mesh", "dp=2,dp=2"], [*make, "fsdp2", "--mesh", "=2"],
                      ["fit", plan], ["fit", plan, "--memory", "much"], ["fit", plan, "--memory", "-1"],
                      ["fit", path, "--memory", "99999999999999999999GiB"],
                      ["fit", path, "--memory", "99999999999999999999"], ["fit", path, "--memory", "80"], ["fit", path, "--memory", "1 GB"],
                      [*make, "fsdp2", "--mesh", "dp=2,"], [*make, "fsdp2", "--mesh", ",dp=2"],
                      [*make, "fsdp2", "--mesh", "dp=2,,tp=2"], [*make, "fsdp2", "--mesh", "dp=2 "],
                      [*make, "fsdp2", "--mesh", "dp=1048576,tp=2"], [*make, "fsdp2", "--mesh", b"\xff=2"],
                      [*make, "fsdp2", "--mesh", ",".join(f"d{i}=1" for i in range(9))],
                      [*make, "fsdp2", "--world", "2", "--rank", "1"],
                      [*make, "fsdp2", "--world", "2", "--json"], ["check", plan, "--ranks"], ["explain", plan, "--rank", "0", "--ranks"],
                      ["check", plan, "--rank", "1"], ["explain", plan, "--strategy", "tp"],
                      ["explain", plan, "--rank", "0", "-o", "x"], ["check", plan, "--rules", "x"],
                      ["fit", path, "--memory", "1GB", "--mesh", "dp=2"],
                      ["fit", path, "--memory", "1GB", "--world", "2"],
                      ["fit", path, "--memory", "1GB", "--to", "x"], ["check", plan, "--memory", "1GB"],
                      # Before the checkpoint is looked at.
                      ["make", "/not/there", "--strategy", "fsdp3", "--world", "2"],
                      ["make", "/not/there", "--strategy", "fsdp2", "--mesh", "dp"],
                      ["make", "/not/there", "--strategy", "tp", "--mesh", "dp=4"],
                      ["fit", "/not/there.safetensors", "--memory", "1GB", "--strategy", "fsdp3"],
                      ["send", plan], ["send", "--to", "x"], ["send", plan, plan, "--to", "x"],
                      ["send", plan, "--to", "x", "--json"], ["send", plan, "--to", "x", "--timeout", "0"],
                      ["send", plan, "--to", "x", "--timeout", "-1"], ["send", plan, "--to", "x", "--timeout", "1s"]):
        status, out, error = plans.run(*arguments)
        expect(status == 2 and out == "" and (error.count("\n") == 1 or arguments == []),
               f"{arguments}: {status} {out} {error}")
    # Not a plan that replicates everything.
    status, out, error = plans.run(*make, "tp", "--mesh", "dp=4")
    expect(status == 2 and out == "" and error == "--strategy: tp needs a mesh dimension tp\n",
           f"{status} {out} {error}")
    plans.good(*make, "tp", "--mesh", "dp=4,tp=1")


def check_bad(plans, row):
    path, arguments, error_in = row.write(plans)
    status, out, error = plans.run(*arguments)
    expect(status == 1, f"{row.name}: exit status {status}\n{out}{error}")
    expect(error.count("\n") == 1, f"{row.name}: more or less than one line: {error!r}")
    expect(error.isprintable() or error[:-1].isprintable(), f"{row.name}: not printable: {error!r}")
    places = [row.place] if isinstance(row.place, str) else row.place
    expect(any(error_in + place in error for place in places),
           f"{row.name}: {error}expected {error_in}{' or '.join(places)}")
    expect(error.endswith(row.reason + "\n"), f"{row.name}: {error}expected {row.reason} at the end")
    expect(len(error) < 1200, f"{row.name}: long line")


def main():
    tool = os.path.abspath(sys.argv[1])
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with tempfile.TemporaryDirectory(prefix="metashard-plan-") as folder:
        plans = Plans(tool, folder)
        tests = [("whose plan it is", lambda: check_who(plans)),
                 ("rules come before the strategy", lambda: check_rules(plans)),
                 ("rules with escaped names", lambda: check_rule_names(plans)),
                 ("rules and units", lambda: check_rule_units(plans)),
                 ("the first rule decides", lambda: check_rule_order(plans)),
                 ("the order that rules name", lambda: check_rule_index(plans)),
                 ("faults of rules", lambda: check_rule_faults(plans)),
                 ("units of long names", lambda: check_long_units(plans)),
                 ("control characters in names", lambda: check_control_characters(plans)),
                 ("a plan that fits", lambda: check_fit_plans(plans)),
                 ("uneven rows", lambda: check_uneven_rows(plans)),
                 ("help", lambda: check_help(plans)),
                 ("a checkpoint without tensors", lambda: check_no_tensors(plans)),
                 ("the smallest world that fits", lambda: check_fit(plans)),
                 ("what is saved", lambda: check_estimate(plans)),
                 ("what it takes in place", lambda: check_in_place(plans)),
                 ("usage", lambda: check_usage(plans))]
        for strategy in ("fsdp2", "tp", "fsdp1", "zero3", "replicate"):
            for mesh in (None, {"dp": 2, "tp": 2}, {"pp": 2, "tp": 2, "dp": 3}):
                tests.append((f"make: {strategy} on {mesh or '4 ranks'}",
                              lambda strategy=strategy, mesh=mesh: check_make(plans, strategy, mesh)))
        tests += [(f"bad: {row.name}", lambda row=row: check_bad(plans, row)) for row in bad_inputs.ROWS]
        tests += [(f"random rules, seed {i}", lambda i=i: check_random_rules(plans, i))
                  for i in range(seed, seed + cases // 3)]
        tests += [(f"random plan, seed {i}", lambda i=i: check_random(plans, i))
                  for i in range(seed, seed + cases)]
        for name, test in tests:
            tap.run(name, test)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
