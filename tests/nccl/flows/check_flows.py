#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_flows.py --programs FOLDER --kernels FILE --plan PROGRAM --preload VALUE [--only NAME]: the programs of this
folder, each rank a process of its own, without the preload, with it, and with a plan as well. TAP.

Every byte that a rank reads must be that of the file; and memory is held to the bounds of FLOWS. A table says what
each run took: the worst rank's device memory at its peak, of rank 0 and of the others; bytes over the bus, of rank 0
and of all others together; and bytes between ranks, in all, out of rank 0, and over the busiest link.

    --large            a model of 700 MiB, with 8 ranks: not for every day
    --slack-mib N      what a rank may have besides its shard and one tensor's
    --only NAME        one flow, or all of one program; --ranks and --models choose as well
    --shim NAME=VALUE  for the environment of runs with the preload
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

import model as models

MIB = 1 << 20
DEADLINE_S = 300

# What is held, of a flow: "same" that without a plan no rank takes more memory than without the preload; "plan" that
# with a plan no rank but 0 takes more than 1.05 x its shard, one tensor's shard, and the slack; "known" that where
# tensors stay, every rank has found some of the plan's.
Flow = namedtuple("Flow", "name program arguments parts strategy bounds ranks models")
Run = namedtuple("Run", "error lines parts largest peaks sent links said dumps seconds")


def flow(name, program, arguments, parts, strategy, bounds=("same",), ranks=(1, 2, 4, 8), shapes=("llama", "odd")):
    return Flow(name, program, arguments, parts, strategy, bounds, ranks, shapes)


def by_rows(model, rank, ranks):
    return models.sharded(model, rank, ranks)


def by_columns(model, rank, ranks):
    return models.sharded(model, rank, ranks, by_columns=True)


def on_mesh(model, rank, ranks):
    """Two replicas from four ranks on."""
    ways = ranks // (2 if ranks >= 4 else 1)
    return models.sharded(model, rank % ways, ways)


COLUMN_RULES = [{"name": f"*{name}*", "placements": [{"shard": 1}]} for name in ("o_proj", "down_proj")]
# So that the small models have several buckets, and such of one tensor.
BUCKETS = ["--bucket-bytes", str(MIB)]
FLOWS = [
    flow("FSDP1, coalesced", "fsdp1", BUCKETS, models.flat_units, ["fsdp1"]),
    flow("FSDP1, coalesced, cat by kernel", "fsdp1", [*BUCKETS, "CAT"], models.flat_units, ["fsdp1"]),
    flow("FSDP1, coalesced, unit by unit", "fsdp1", [*BUCKETS, "--per-unit"], models.flat_units, ["fsdp1"], ranks=(4,)),
    flow("FSDP1, coalesced, one bucket", "fsdp1", ["CAT"], models.flat_units, ["fsdp1"], ranks=(4,)),
    flow("DDP, coalesced, in place", "fsdp1", [*BUCKETS, "--keep"], models.unit_parts, ["fsdp1"]),
    flow("DDP, coalesced, in place, cat by kernel", "fsdp1", [*BUCKETS, "--keep", "CAT"], models.unit_parts, ["fsdp1"]),
    flow("broadcast_from_rank0", "state_dict", [], by_rows, ["fsdp2"]),
    flow("broadcast_from_rank0, by columns", "state_dict", ["--columns"], by_columns, ["fsdp2", COLUMN_RULES],
         ranks=(4,)),
    flow("broadcast_from_rank0, by columns, kernels", "state_dict", ["--columns", "KERNELS"], by_columns,
         ["fsdp2", COLUMN_RULES], ranks=(4,)),
    flow("accelerate, FSDP2", "accelerate", [], by_rows, ["fsdp2"]),
    flow("accelerate, FSDP2, by columns, kernels", "accelerate", ["--columns", "KERNELS"], by_columns,
         ["fsdp2", COLUMN_RULES], ranks=(4,)),
    flow("DTensor scatter", "dtensor", [], by_rows, ["fsdp2"]),
    flow("DTensor scatter, of copies", "dtensor", ["--copies"], by_rows, ["fsdp2"], ranks=(4,)),
    flow("DTensor scatter, by columns", "dtensor", ["--columns"], by_columns, ["fsdp2", COLUMN_RULES], ranks=(4,)),
    flow("DTensor scatter, by columns, kernels", "dtensor", ["--columns", "KERNELS"], by_columns,
         ["fsdp2", COLUMN_RULES], ranks=(4,)),
    flow("zero.Init", "deepspeed", ["KERNELS"], models.flattened, ["zero3"]),
    flow("zero.Init, in place", "deepspeed", ["KERNELS", "--keep"], models.flattened, ["zero3"]),
    flow("zero.Init, in place, never written", "deepspeed", ["--keep"], models.flattened, ["zero3"], ranks=(4,)),
    flow("loop on replicas x shards", "hsdp", [], on_mesh, ["fsdp2"]),
    flow("loop on replicas x shards, in place", "hsdp", ["--keep"], on_mesh, ["fsdp2"]),
]


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


# --- one run


def environment_of(options, folder, rank, ranks, preload, plan, min_bytes):
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("METASHARD", "SIMCUDA_", "SIMNCCL_", "OMPI_", "SLURM_", "PMI_"))}
    environment.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), SIMCUDA_GRANULE_KIB=str(options.granule >> 10), SIMCUDA_POISON="2",
        SIMCUDA_STATS=os.path.join(folder, f"stats-{rank}"), SIMNCCL_LINKS=os.path.join(folder, f"links-{rank}"),
        LD_PRELOAD=":".join(options.preload.split(":")[:-1]))  # a sanitizer's, or nothing
    if preload:
        # Settling would make the peak depend on how fast this machine is.
        environment.update(LD_PRELOAD=options.preload, METASHARD_MIN_BYTES=str(min_bytes), METASHARD_SETTLE_MS="0",
                           METASHARD_DUMP=os.path.join(folder, f"dump-{rank}"), **options.shim)
    if plan is not None:
        environment["METASHARD_PLAN"] = plan
    return environment


def start(options, folder, case, rank, ranks, model, preload, plan):
    arguments = [word for argument in case.arguments for word in
                 ({"KERNELS": ["--kernels", options.kernels], "CAT": ["--cat", options.cat]}.get(argument, [argument]))]
    if plan is not None:
        arguments.append("--names")
    min_bytes = options.granule if model.name != "odd" else 1
    return subprocess.Popen(
        [os.path.join(options.programs, "flow_" + case.program), "--rank", str(rank), "--ranks", str(ranks), "--id",
         os.path.join(folder, "id"), "--model", model.folder, "--out", os.path.join(folder, f"out-{rank}"), *arguments],
        env=environment_of(options, folder, rank, ranks, preload, plan, min_bytes),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes):
    """(output, error output) of each, and what is wrong. Nobody waits for ever: what hangs is ended."""
    end, out, error = time.monotonic() + DEADLINE_S, [], ""
    for rank, process in enumerate(processes):
        try:
            out.append(process.communicate(timeout=max(0.1, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            out.append(process.communicate())
            error += f"rank {rank} hangs\n"
        if process.returncode != 0:
            error += f"rank {rank}: exit status {process.returncode}: {out[-1][1][-900:]}\n"
    return out, error


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def read_links(folder):
    """{(rank, number of the communicator, rank in it that was sent to): bytes}"""
    links = {}
    for path in glob.glob(os.path.join(folder, "links-*")):
        with open(path) as file:
            for line in file:
                words = line.split()
                links[int(path.rpartition("-")[2]), int(words[1]), int(words[5])] = int(words[7])
    return links


def parts_of(text):
    return [(words[1], int(words[2])) for words in map(str.split, text.splitlines()) if words[:1] == ["part"]]


def compare(folder, rank, seen, wanted):
    """What is wrong with the bytes that a rank read, or nothing."""
    wanted = [part for part in wanted if part[1]]
    if seen != [(name, len(content)) for name, content in wanted]:
        return f"rank {rank}: read {seen}, expected {[(name, len(content)) for name, content in wanted]}\n"
    with open(os.path.join(folder, f"out-{rank}"), "rb") as file:
        for name, content in wanted:
            if file.read(len(content)) != content:
                return f"rank {rank}: {name}: other bytes than in the file\n"
    return ""


def run(options, case, model, ranks, preload, plan=None):
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        processes = [start(options, folder, case, rank, ranks, model, preload, plan) for rank in range(ranks)]
        out, error = finish(processes)
        seconds = time.monotonic() - began
        parts = [parts_of(text) for text, _ in out]
        for rank in range(ranks if not error else 0):
            error += compare(folder, rank, parts[rank], case.parts(model, rank, ranks))
        stats = [read_json(os.path.join(folder, f"stats-{rank}")) for rank in range(ranks)]
        dumps = [read_json(os.path.join(folder, f"dump-{rank}")) for rank in range(ranks)]
        for rank, facts in enumerate(stats):
            if facts.get("illegal_accesses", 1) or facts.get("races", 1):
                error += f"rank {rank}: illegal accesses, races, or no statistics: {facts}\n"
        largest = [int(line.split()[1]) for text, _ in out for line in text.splitlines() if line.startswith("largest")]
        return Run(error, [text.splitlines() for text, _ in out], [sum(size for _, size in part) for part in parts],
                   largest, [facts.get("physical_bytes_peak", 0) for facts in stats],
                   [facts.get("h2d_bytes", 0) for facts in stats], read_links(folder),
                   "".join(text for _, text in out)[:9999], dumps, seconds)


# --- plans


def make_plan(options, case, model, ranks):
    """A plan of metashard-plan make, in a file."""
    path = os.path.join(options.folder, f"plan-{model.name}-{ranks}.json")
    strategy, rules = case.strategy[0], case.strategy[1:]
    command = [options.plan, "make", model.path, "--strategy", strategy, "-o", path]
    command += ["--mesh", f"replicate={replicas(case, ranks)},shard={ranks // replicas(case, ranks)}"]
    if rules:
        command += ["--rules", path + ".rules"]
        with open(path + ".rules", "w") as file:
            json.dump([{**rule, "placements": {"shard": rule["placements"][0]}} for rule in rules[0]], file)
    subprocess.run(command, check=True)
    return path


def replicas(case, ranks):
    return 2 if case.program == "hsdp" and ranks >= 4 else 1


def arguments_for(case, ranks):
    return case._replace(arguments=[*case.arguments, "--replicas", str(replicas(case, ranks))])


# --- what is held


def bound(options, run_, rank):
    return 1.05 * run_.parts[rank] + run_.largest[rank] + options.slack


def check_values(report, name, before, after):
    # Tensors that are too small to be deferred are not the plan's.
    said = [line for line in after.said.splitlines() if "no tensor of the program meets" not in line]
    report.check(not after.error and after.lines == before.lines and not said, f"{name}: values",
                 after.error, *said[:9],
                 "" if after.lines == before.lines else "other output than without the preload")


def check_same(report, name, before, after):
    above = [f"rank {rank}: {after.peaks[rank]} bytes with the preload, {before.peaks[rank]} without"
             for rank in range(len(after.peaks)) if after.peaks[rank] > before.peaks[rank]]
    report.check(not above and 0 not in before.peaks, f"{name}: not more memory than without", *above)


def check_plan(report, options, name, after):
    above = [f"rank {rank}: {after.peaks[rank] / MIB:.2f} MiB, at most {bound(options, after, rank) / MIB:.2f} wanted"
             for rank in range(1, len(after.peaks)) if after.peaks[rank] > bound(options, after, rank)]
    report.check(not above, f"{name}: 1.05 x shard + one tensor's shard + {options.slack / MIB:g} MiB", *above)


# --- the table

HEAD = ("flow", "ranks", "", "shard", "rank 0", "others", "of bound", "bus, rank 0", "bus, others", "wire", "out of 0",
        "busiest link", "s")


def row(options, case, ranks, kind, run_):
    others = run_.peaks[1:] or [0]
    ratio = max([run_.peaks[rank] / bound(options, run_, rank) for rank in range(1, ranks)], default=0)
    out = sum(size for (rank, _, _), size in run_.links.items() if rank == 0)
    figures = [max(run_.parts), run_.peaks[0], max(others)]
    traffic = [run_.sent[0], sum(run_.sent[1:]), sum(run_.links.values()), out, max(run_.links.values(), default=0)]
    return [case.name, str(ranks), kind, *(f"{size / MIB:.1f}" for size in figures),
            f"{ratio:.2f}" if ranks > 1 else "", *(f"{size / MIB:.1f}" for size in traffic), f"{run_.seconds:.1f}"]


def print_rows(rows):
    widths = [max(len(line[column]) for line in [HEAD, *rows]) for column in range(len(HEAD))]
    for line in [HEAD, *rows]:
        print("# " + "  ".join(word.ljust(width) if column in (0, 2) else word.rjust(width)
                               for column, (word, width) in enumerate(zip(line, widths))).rstrip())


def check_followed(report, case, name, ranks, planned):
    """The ranks follow the plan; rank 0, which copies from the file, knows the tensors, and with "known" all do."""
    seen = [{key: facts.get("plan", {}).get(key) for key in ("rank", "world_size", "tensors", "ambiguous")}
            for facts in planned.dumps]
    good = all(facts["rank"] == rank and facts["world_size"] == ranks and facts["ambiguous"] == [] and
               (facts["tensors"] > 0 or rank > 0 and "known" not in case.bounds)
               for rank, facts in enumerate(seen))
    report.check(good, f"{name}: every rank follows the plan", *seen)


def check_case(report, options, case, model, ranks, rows):
    name = f"{case.name}, {model.name}, {ranks} ranks"
    given = arguments_for(case, ranks)
    before = run(options, given, model, ranks, False)
    report.check(not before.error and not before.said, f"{name}: without the preload", before.error, before.said)
    plain = run(options, given, model, ranks, True)
    planned = run(options, given, model, ranks, True, make_plan(options, case, model, ranks))
    for kind, after in (("", plain), (", with a plan", planned)):
        check_values(report, name + kind, before, after)
    if "--keep" in case.arguments:
        check_followed(report, case, name, ranks, planned)
    if model.name != "odd":
        if "same" in case.bounds:
            check_same(report, name, before, plain)
        if "plan" in case.bounds and ranks > 1:
            check_plan(report, options, name, planned)
        rows += [row(options, case, ranks, kind, run_)
                 for kind, run_ in (("without", before), ("with", plain), ("plan", planned))]


def check_all(report, options):
    rows, made = [], {}
    for case in FLOWS:
        if options.only is not None and options.only not in (case.name, case.program):
            continue
        for shapes in options.models or case.models:
            if shapes not in made:
                made[shapes] = models.Model(options.folder, shapes)
            for ranks in options.ranks or case.ranks:
                check_case(report, options, case, made[shapes], ranks, rows)
    print_rows(rows)
    return rows


def parse():
    parser = argparse.ArgumentParser()
    for name in ("programs", "kernels", "plan", "preload"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--only", help="this flow, or all of this program")
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--models", type=lambda text: text.split(","))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--slack-mib", type=float)
    parser.add_argument("--keep-folder")
    parser.add_argument("--shim", type=lambda text: tuple(text.split("=", 1)), action="append", default=[],
                        help="NAME=VALUE for the environment of runs with the preload")
    options = parser.parse_args()
    options.shim = dict(options.shim)
    options.cat = os.path.join(options.programs, "flow_kernels.so")
    options.granule = 2 * MIB if options.large else 64 << 10
    options.slack = MIB * (options.slack_mib or (64 if options.large else 4))
    if options.large:
        options.models, options.ranks = ["large"], options.ranks or [8]
    return options


def main():
    options, report = parse(), Report()
    with tempfile.TemporaryDirectory(prefix="metashard-flows-", dir=options.keep_folder) as folder:
        options.folder = folder
        check_all(report, options)
    print(f"1..{report.number}")
    return report.failed > 0


if __name__ == "__main__":
    sys.exit(main())
