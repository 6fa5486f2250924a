#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_flows.py --programs FOLDER --kernels FILE --plan PROGRAM --preload VALUE: the programs of this folder, each
rank a process of its own, without the preload, with it, and with a plan as well. TAP.

Every byte that a rank reads must be that of the file; and memory is held to the bounds of FLOWS. A table shows what
each took (tables.py).

    --users            what users run: every setting at its default, granules of 2 MiB, PyTorch's allocator, programs that tell
                       no names, larger models (USERS; by default one of 230 MiB)
    --slack-mib N      what a rank may have besides its shard and one tensor's; default 4
    --only NAME        one flow, or all of one program; --ranks N,N... and --models NAME,... choose as well. By default
                       a flow of four numbers of ranks is run with most and, in turn, with one of the others
    --shim NAME=VALUE  for the environment of runs with the preload
    --write PAGE       the same with a model of 1.1 GiB and all numbers of ranks, and a page with the table
    --folder DIR       where files are for the time being
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import namedtuple

import model as models
import tables
from running import MIB, Flow, Way, ledger, run

WITHOUT, WITH, PLAN = Way("without", False, False, {}), Way("with", True, False, {}), Way("plan", True, True, {})

# The conditions that a flow must hold, with the model of Llama's shape:
#   same     without a plan no rank takes more memory than without the preload
#   plan     with a plan no rank but 0 takes more than 1.05 x its shard, one tensor's shard, and the slack
#   known    with a plan, where tensors stay in place, every rank has found some of the plan's
#   bus      without a plan no more is copied to the devices than without the preload
# And of what users run:
#   never    neither without nor with a plan does any rank take more memory than without the preload
#   goal     with a plan no rank of 8 but 0 takes more than 1.25 x its shard and one bucket, of the largest model
#   bus      neither without nor with a plan is more copied to the devices than without the preload
#   said     with a plan the worst rank but 0 takes what `metashard-plan estimate` says, within 5 %, and a segment of the allocator
#   once     without a plan no rank, not 0 either, takes more than 1.25 x its shard and two buckets, if no tensor is larger than one
BOUNDS = ("same", "plan", "known", "bus", "never", "goal", "said", "once")


def flow(name, program, arguments, parts, strategy, bounds=("same",), ranks=(1, 2, 4, 8), shapes=("llama", "odd")):
    assert set(bounds) <= set(BOUNDS), bounds
    return Flow(name, program, arguments, parts, strategy, bounds, ranks, shapes)


def by_rows(model, rank, ranks):
    return models.sharded(model, rank, ranks)


def by_columns(model, rank, ranks):
    return models.sharded(model, rank, ranks, by_columns=True)


def on_mesh(model, rank, ranks):
    ways = ranks // (2 if ranks >= 4 else 1)
    return models.sharded(model, rank % ways, ways)


ROWS, COLUMNS = ["fsdp2"], ["fsdp2", *({"name": f"*{name}*", "placements": {"shard": {"shard": 1}}}
                                       for name in ("o_proj", "down_proj"))]
HELD, HELD_ONCE, HELD_IN_PLACE = ("same", "plan"), ("same", "plan", "bus"), ("same", "plan", "known")
FLOWS = [
    flow("FSDP1, coalesced", "fsdp1", ["BUCKETS"], models.flat_units, ["fsdp1"], HELD),
    flow("FSDP1, coalesced, cat by kernel", "fsdp1", ["BUCKETS", "CAT"], models.flat_units, ["fsdp1"],
         HELD, ranks=(2, 8)),
    flow("FSDP1, coalesced, unit by unit", "fsdp1", ["BUCKETS", "--per-unit"], models.flat_units, ["fsdp1"],
         HELD, ranks=(8,)),
    flow("FSDP1, coalesced, one bucket", "fsdp1", ["CAT"], models.flat_units, ["fsdp1"], HELD, ranks=(8,)),
    # Nothing but the order in the bucket tells embedding and head, or gate, up and down, from each other.
    flow("FSDP1, coalesced, one bucket, without names", "fsdp1", ["CAT", "UNNAMED"], models.flat_units, ["fsdp1"], HELD,
         ranks=(2,)),
    flow("FSDP1, coalesced, a unit in a bucket, without names", "fsdp1", ["CAT", "--per-unit", "UNNAMED"],
         models.flat_units, ["fsdp1"], HELD, ranks=(2, 8)),
    # Buckets, tensors and flat parameters keep what memory they took. Where tensors are too small to be deferred, those are
    # granules of each bucket and flat parameter that has some: no variant for granules of 2 MiB.
    flow("FSDP1, coalesced, a unit in a bucket, freed late", "fsdp1", ["CAT", "--per-unit", "--late"],
         models.flat_units, ["fsdp1"], HELD, ranks=(8,)),
    # Freed memory is used again, by tensors of other units.
    flow("FSDP1, coalesced, cached", "fsdp1", ["BUCKETS", "CAT", "CACHED"], models.flat_units, ["fsdp1"], HELD,
         ranks=(2, 8)),
    flow("FSDP1, coalesced, a unit in a bucket, cached", "fsdp1", ["CAT", "--per-unit", "CACHED"], models.flat_units,
         ["fsdp1"], HELD, ranks=(2, 8)),
    flow("FSDP1, coalesced, cached, unreported", "fsdp1", ["BUCKETS", "CACHED", "--unreported"], models.flat_units,
         ["fsdp1"], ranks=(8,)),
    flow("FSDP1, coalesced, a unit in a bucket, cached, unreported", "fsdp1",
         ["CAT", "--per-unit", "CACHED", "--unreported"], models.flat_units, ["fsdp1"], HELD, ranks=(8,)),
    flow("FSDP1, coalesced, a unit in a bucket, cached, unreported, without names", "fsdp1",
         ["CAT", "--per-unit", "CACHED", "--unreported", "UNNAMED"], models.flat_units, ["fsdp1"], ranks=(8,)),
    flow("DDP, coalesced, in place", "fsdp1", ["BUCKETS", "--keep"], models.unit_parts, ["fsdp1"]),
    flow("DDP, coalesced, in place, cat by kernel", "fsdp1", ["BUCKETS", "--keep", "CAT"], models.unit_parts, ["fsdp1"],
         HELD, ranks=(8,)),
    flow("broadcast_from_rank0", "state_dict", [], by_rows, ROWS, HELD),
    flow("broadcast_from_rank0, by columns", "state_dict", ["--columns"], by_columns, COLUMNS, HELD, ranks=(2, 8)),
    flow("broadcast_from_rank0, by columns, kernels", "state_dict", ["--columns", "KERNELS"], by_columns, COLUMNS,
         HELD_ONCE, ranks=(8,)),
    flow("broadcast_from_rank0, in place", "state_dict", ["--keep"], by_rows, ROWS, HELD_IN_PLACE),
    flow("broadcast_from_rank0, in place, by columns", "state_dict", ["--keep", "--columns"], by_columns, COLUMNS,
         ranks=(8,)),
    flow("accelerate, FSDP2", "accelerate", [], by_rows, ROWS, HELD),
    flow("accelerate, FSDP2, by columns, kernels", "accelerate", ["--columns", "KERNELS"], by_columns, COLUMNS,
         HELD, ranks=(8,)),
    flow("DTensor scatter", "dtensor", [], by_rows, ROWS, HELD_ONCE),
    flow("DTensor scatter, of copies", "dtensor", ["--copies"], by_rows, ROWS, HELD_ONCE, ranks=(8,)),
    flow("DTensor scatter, by columns", "dtensor", ["--columns"], by_columns, COLUMNS, HELD_ONCE, ranks=(8,)),
    flow("DTensor scatter, by columns, kernels", "dtensor", ["--columns", "KERNELS"], by_columns, COLUMNS, HELD_ONCE,
         ranks=(8,)),
    flow("zero.Init", "deepspeed", ["KERNELS"], models.flattened, ["zero3"], HELD),
    flow("zero.Init, in place", "deepspeed", ["KERNELS", "--keep"], models.flattened, ["zero3"], HELD_IN_PLACE),
    flow("zero.Init, in place, never written", "deepspeed", ["--keep"], models.flattened, ["zero3"],
         HELD_IN_PLACE, ranks=(8,)),
    flow("zero.Init, in place, plan by size", "deepspeed", ["--keep", "BY_SIZE"], models.flattened, ["zero3"],
         HELD, ranks=(8,), shapes=("llama",)),
    flow("loop, replicas x shards", "hsdp", [], on_mesh, ROWS),
    flow("loop, replicas x shards, in place", "hsdp", ["--keep"], on_mesh, ROWS),
    flow("loop, replicas x shards, in place, by columns", "hsdp", ["--keep", "--columns"],
         lambda model, rank, ranks: models.sharded(model, rank % (ranks // 2), ranks // 2, by_columns=True), COLUMNS,
         ranks=(4, 8), shapes=("llama",)),
]

NEVER, IN_BUCKETS, GOAL_ONCE, SAID = ("never",), ("never", "goal", "once", "bus"), ("never", "goal", "bus"), ("never", "goal", "bus", "said")
USERS = [
    flow("FSDP1, `sync_module_states`", "fsdp1", ["BUCKETS", "CAT"], models.flat_units, ["fsdp1"], IN_BUCKETS, (2, 8), ("users",)),
    flow("FSDP1, `sync_module_states`, unit by unit", "fsdp1", ["BUCKETS", "CAT", "--per-unit"], models.flat_units,
         ["fsdp1"], IN_BUCKETS, (2, 8), ("users",)),
    flow("`set_model_state_dict(broadcast_from_rank0)`", "state_dict", ["KERNELS"], by_rows, ROWS, SAID, (2, 8),
         ("users",)),
    flow("the same, tensor parallel: cut by columns", "state_dict", ["--columns", "KERNELS"], by_columns, COLUMNS,
         GOAL_ONCE, (2, 8), ("users",)),
    flow("accelerate, FSDP2", "accelerate", ["KERNELS"], by_rows, ROWS, SAID, (2, 8), ("users",)),
    flow("DTensor, `distribute_tensor`", "dtensor", ["KERNELS"], by_rows, ROWS, GOAL_ONCE, (2, 8), ("users",)),
    flow("DeepSpeed, `zero.Init`", "deepspeed", ["KERNELS"], models.flattened, ["zero3"], SAID, (2, 8), ("users",)),
    flow("broadcast of each tensor, used in place", "state_dict", ["--keep", "KERNELS"], by_rows, ROWS, SAID, (2, 8),
         ("users",)),
    flow("FSDP, replicas x shards", "hsdp", [], on_mesh, ROWS, NEVER, (8,), ("users",)),
    # The parts that it copies, padded, get memory that is too small to be deferred.
    flow("accelerate, FSDP2, memory from the driver", "accelerate", ["KERNELS", "UNCACHED"], by_rows, ROWS, NEVER, (8,),
         ("llama",)),
]

SEGMENT = 20 * MIB  # of PyTorch's allocator, for tensors of less than 10 MiB
Case = namedtuple("Case", "flow model ranks runs")  # runs: {way's name: Run}


class Report:
    def __init__(self):
        self.number = self.failed = 0

    def check(self, good, name, *why):
        self.number += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.number} {name}", flush=True)
        if not good:
            for line in why:
                print("# " + str(line).replace("\n", "\n# "))


# --- what is held


def check_values(report, name, before, after):
    # Tensors that are too small to be deferred are not the plan's.
    said = [line for line in after.said.splitlines() if "match no tensor of the program" not in line]
    same = after.lines == before.lines
    report.check(not after.error and same and not said, f"{name}: values", after.error, *said[:9],
                 "" if same else "other output than without the preload")


def check_same(report, name, before, after):
    above = [f"rank {rank}: {peak} bytes with the preload, {alone} without"
             for rank, (peak, alone) in enumerate(zip(after.peaks, before.peaks)) if peak > alone]
    report.check(not above and 0 not in before.peaks, f"{name}: not more memory than without", *above)


def check_plan(report, name, after, slack):
    above = [f"rank {rank}: {after.peaks[rank] / MIB:.2f} MiB, at most {tables.bound(after, rank, slack) / MIB:.2f}"
             for rank in range(1, len(after.peaks)) if after.peaks[rank] > tables.bound(after, rank, slack)]
    report.check(not above and 0 not in after.peaks,
                 f"{name}: 1.05 x shard + one tensor's shard + {slack / MIB:g} MiB", *above)


def check_bus(report, name, before, after):
    report.check(0 < sum(after.sent) <= sum(before.sent), f"{name}: copied to the devices once",
                 f"{sum(after.sent)} bytes with the preload, {sum(before.sent)} without")


def check_followed(report, name, planned, all_known):
    """The ranks follow the plan; rank 0, which copies from the file, knows the tensors, and others may have to."""
    keys = ("rank", "world_size", "tensors", "ambiguous")
    seen = [{key: facts.get("plan", {}).get(key) for key in keys} for facts in planned.dumps]
    report.check(all(facts["rank"] == rank and facts["world_size"] == len(seen) and facts["ambiguous"] == [] and
                     (facts["tensors"] > 0 or rank > 0 and not all_known) for rank, facts in enumerate(seen)),
                 f"{name}: every rank follows the plan", *seen)


def check_never(report, name, runs, model_bytes):
    """Not a byte more of device memory. Which rank reads what of the file is not the same without and with: the bus is all ranks'."""
    for way in ("with", "plan"):
        for rank, (alone, under) in enumerate(zip(runs["without"].figures, runs[way].figures)):
            found = ledger.compare(f"{name}, {way}, rank {rank}", alone, under, exact=("peak_bytes",),
                                   more=ledger.collective_calls(model_bytes))
            ledger.tell(report.check, f"{name}, {way}, rank {rank}", found)


def check_goal(report, name, after, bucket):
    above = [f"rank {rank}: {after.peaks[rank] / MIB:.2f} MiB, at most {tables.goal(after, rank, bucket) / MIB:.2f}"
             for rank in range(1, len(after.peaks)) if after.peaks[rank] > tables.goal(after, rank, bucket)]
    report.check(not above, f"{name}: 1.25 x shard + a bucket of {bucket / MIB:.0f} MiB", *above)


def check_once(report, name, after, bucket):
    above = [f"rank {rank}: {peak / MIB:.2f} MiB, at most {(tables.goal(after, rank, bucket) + bucket) / MIB:.2f}"
             for rank, peak in enumerate(after.peaks) if peak > tables.goal(after, rank, bucket) + bucket]
    report.check(not above, f"{name}: 1.25 x shard + two buckets without a plan", *above)


def bucket_of(options, given, model):
    """A tensor that is larger than a bucket is one by itself."""
    return max(options.bucket, model.largest) if given.program == "fsdp1" else options.bucket


def estimated(options, given, model, ranks):
    """Bytes, of the last column but one of its row."""
    said = subprocess.run([options.plan, "estimate", model.path, "--world", str(ranks), "--strategy", given.strategy[0]],
                          check=True, capture_output=True, text=True).stdout
    use = "used in place" if "--keep" in given.arguments else "each then sharded"
    number, unit = re.search(rf"broadcast one by one, {use} +[\d.]+ \w+ +([\d.]+) (\w+)", said).groups()
    return float(number) * {"MiB": MIB, "GiB": MIB << 10}[unit]


def check_said(report, options, name, case):
    said, peak = estimated(options, case.flow, case.model, case.ranks), max(case.runs["plan"].peaks[1:])
    report.check(0.95 * said <= peak <= 1.05 * said + SEGMENT, f"{name}: as estimated",
                 f"{peak / MIB:.1f} MiB, estimated {said / MIB:.1f}")


def check_users(report, options, name, case):
    given, model, ranks, runs = case
    if "never" in given.bounds:
        check_never(report, name, runs, model.bytes)
    if "bus" in given.bounds:
        for way in ("with", "plan"):
            check_bus(report, f"{name}, {way}", runs["without"], runs[way])
    if "once" in given.bounds and model.largest <= options.bucket:
        check_once(report, name, runs["with"], options.bucket)
    if "said" in given.bounds:
        check_said(report, options, name, case)
    if "goal" in given.bounds and model.name == "users" and ranks == 8:
        check_goal(report, name, runs["plan"], bucket_of(options, given, model))


def check_case(report, options, given, model, ranks):
    name, bounds = f"{given.name}, {model.name}, {ranks} ranks", given.bounds if model.name != "odd" else ()
    runs = {way.name: run(options, given, model, ranks, way) for way in (WITHOUT, WITH, PLAN)}
    before = runs["without"]
    report.check(not before.error and not before.said, f"{name}, without", before.error, before.said)
    for way in list(runs)[1:]:
        check_values(report, f"{name}, {way}", before, runs[way])
    if options.users:
        check_users(report, options, name, Case(given, model, ranks, runs))
        return Case(given, model, ranks, runs)
    if "--keep" in given.arguments:
        check_followed(report, name, runs["plan"], "known" in bounds and ranks > 1)
    if "same" in bounds:
        check_same(report, name, before, runs["with"])
    if "bus" in bounds:
        check_bus(report, name, before, runs["with"])
    if "plan" in bounds and ranks > 1:
        check_plan(report, name, runs["plan"], options.slack)
    return Case(given, model, ranks, runs)


def ranks_of(options, given, shapes, turn):
    if options.ranks:
        return options.ranks
    if shapes == "odd":  # values alone, and some ranks have nothing
        return (3, 8)[-len(given.ranks):]
    if options.users and not options.write:
        return given.ranks[-1:] if given.models == ("llama",) else [4]
    if options.write or len(given.ranks) < 4:
        return given.ranks
    return [given.ranks[turn % 3], given.ranks[3]]


def shapes_of(options, given):
    return given.models if options.users and given.models != ("users",) else options.models or given.models


def check_driver_itself(options):
    """The first process of a driver and a build makes its self-check, which copies; none that comes after it does."""
    given = next(given for given in FLOWS if given.name == "broadcast_from_rank0")
    run(options, given, models.Model(options.folder, "small"), 1, WITH)


def check_all(report, options):
    made, cases = {}, []
    if options.users:
        check_driver_itself(options)
    for turn, given in enumerate(USERS if options.users else FLOWS):
        if options.only is not None and options.only not in (given.name, given.program):
            continue
        for shapes in shapes_of(options, given):
            if shapes not in made:
                made[shapes] = models.Model(options.folder, shapes)
            for ranks in ranks_of(options, given, shapes, turn):
                cases.append(check_case(report, options, given, made[shapes], ranks))
    return [case for case in cases if case.model.name != "odd"]


# --- start


def numbers(text):
    return [int(word) for word in text.split(",")]


def parse():
    parser = argparse.ArgumentParser()
    for name in ("programs", "kernels", "plan", "preload"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--only")
    parser.add_argument("--ranks", type=numbers)
    parser.add_argument("--models", type=lambda text: text.split(","))
    parser.add_argument("--users", action="store_true")
    parser.add_argument("--slack-mib", type=float)
    parser.add_argument("--shim", type=lambda text: tuple(text.split("=", 1)), action="append", default=[])
    parser.add_argument("--write")
    parser.add_argument("--folder")
    options = parser.parse_args()
    options.shim = dict(options.shim)
    options.cat = os.path.join(options.programs, "flow_kernels.so")
    options.wrapper = lambda rank: []
    return options


def run_all(report, options):
    """All cases; their files go at once."""
    options.users |= options.write is not None
    options.slack = MIB * (4 if options.slack_mib is None else options.slack_mib)
    options.granule = 2 * MIB if options.users else 64 << 10
    options.bucket = (64 if options.users else 1) * MIB  # several buckets, and some of one tensor
    if options.users:
        options.models = options.models or ["users" if options.write else "middle"]
    with tempfile.TemporaryDirectory(prefix="metashard-flows-", dir=options.folder) as folder:
        options.folder = folder
        return check_all(report, options)


def main():
    options, report = parse(), Report()
    cases = run_all(report, options)
    print("\n".join("# " + line for line in tables.text(cases)))
    if options.write:
        tables.write_page(options, [case for case in cases if case.model.name == "users"], report)
    print(f"1..{report.number}")
    return report.failed > 0


if __name__ == "__main__":
    sys.exit(main())
