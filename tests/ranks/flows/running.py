# SPDX-License-Identifier: Apache-2.0
"""One run of a flow: all its ranks, each a process of its own; what they read is compared with the file."""
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import ledger  # noqa: E402
from state_page import read_facts  # noqa: E402

MIB = 1 << 20
DEADLINE_S = 300

# name: as in FLOWS and USERS; program: flow_<program>; arguments: its, where KERNELS, CAT, BUCKETS and CACHED stand for options with
# a value, and BY_SIZE for a plan without names; parts: (model, rank, ranks) -> [(name, bytes)] that the rank must read;
# strategy: of metashard-plan make, and rules; bounds: what is held of memory and bytes; ranks; models
Flow = namedtuple("Flow", "name program arguments parts strategy bounds ranks models")
# How a flow is run: with the preload, with a plan, and more environment.
Way = namedtuple("Way", "name preload planned environment")
# By rank: parts (bytes read), largest, peaks, sent (to the device), into (from other ranks), dumps, lines of output, figures (ledger.py).
# links: {(from, to): bytes}; settings: the preload's variables; said: all that was written to standard error; error: what is wrong, or "".
Run = namedtuple("Run", "error said seconds lines parts largest peaks sent into dumps links settings figures")


def replicas(case, ranks):
    return 2 if case.program == "hsdp" and ranks >= 4 else 1


# --- processes


def small_settings(options, model):
    """For granules smaller than a user's, and figures that do not depend on how busy this machine is, as settling and
    streams that take long to be idle do. The self-check copies, which would be counted. A caching allocator's blocks may
    leave 8 granules behind by default, if they have 2 MiB."""
    least = 1 if model.name == "odd" else options.granule
    return {"METASHARD_SETTLE_MS": "0", "METASHARD_IDLE_MS": "5000", "METASHARD_MIN_BYTES": str(least),
            "METASHARD_DEAD_BYTES": str(8 * options.granule), "METASHARD_SELFCHECK": "off"}


def environment_of(options, folder, rank, ranks, model, way, plan):
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("METASHARD", "SIMCUDA_", "SIMNCCL_", "OMPI_", "SLURM_", "PMI_"))}
    environment.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), SIMCUDA_GRANULE_KIB=str(options.granule >> 10), SIMCUDA_POISON="2",
        SIMCUDA_STATS=os.path.join(folder, f"stats-{rank}"), SIMNCCL_LINKS=os.path.join(folder, f"links-{rank}"),
        LD_PRELOAD=":".join(options.preload.split(":")[:-1]))  # a sanitizer's, or nothing
    if model.name == "odd":  # whoever does not wait is seen
        environment.update(SIMCUDA_DELAY_US="50", SIMNCCL_DELAY_US="300")
    if way.preload:
        environment.update(LD_PRELOAD=options.preload, METASHARD_DUMP=os.path.join(folder, f"dump-{rank}"))
        if not options.users:
            environment.update(small_settings(options, model))
        environment.update(options.shim)
        environment.update(way.environment)
    if plan is not None:
        environment["METASHARD_PLAN"] = plan
    return environment


def arguments_of(options, case, ranks, way):
    meant = {"UNCACHED": [], "KERNELS": ["--kernels", options.kernels], "CAT": ["--cat", options.cat], "BY_SIZE": [], "UNNAMED": [],
             "BUCKETS": ["--bucket-bytes", str(options.bucket)], "CACHED": ["--cached", str(options.granule)]}
    out = ["--replicas", str(replicas(case, ranks))]
    for argument in dict.fromkeys([*case.arguments, *["CACHED"] * (options.users and "UNCACHED" not in case.arguments)]):
        out += meant.get(argument, [argument])
    named = way.planned and not options.users and not {"BY_SIZE", "UNNAMED"} & set(case.arguments)
    return out + ["--names"] * named


def start(options, folder, case, rank, ranks, model, way, plan):
    return subprocess.Popen(
        [*options.wrapper(rank), os.path.join(options.programs, "flow_" + case.program), "--rank", str(rank), "--ranks", str(ranks), "--id",
         os.path.join(folder, "id"), "--model", model.folder, "--out", os.path.join(folder, f"out-{rank}"),
         *arguments_of(options, case, ranks, way)],
        env=environment_of(options, folder, rank, ranks, model, way, plan),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes):
    """(output, error output) of each, what is wrong, and each one's peak of host memory. Nobody waits for ever: what hangs is
    ended."""
    end, out, error = time.monotonic() + DEADLINE_S, [], ""
    watch = ledger.Watch(lambda: {rank: process.pid for rank, process in enumerate(processes)})
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
    return out, error, watch.end().host_peaks


# --- plans


def by_size(plan):
    """An entry for each size, which says nothing of names; all of a size are cut the same way."""
    sizes = {}
    for entry in plan["tensors"]:
        count = 4
        for length in entry["shape"]:
            count *= length
        sizes.setdefault(count, entry["placements"])
    return {**plan, "tensors": [{"size": size, "placements": placements} for size, placements in sizes.items()]}


def make_plan(options, folder, case, model, ranks):
    path, (strategy, *rules) = os.path.join(folder, "plan.json"), case.strategy
    command = [options.plan, "make", model.path, "--strategy", strategy, "-o", path, "--mesh",
               f"replicate={replicas(case, ranks)},shard={ranks // replicas(case, ranks)}"]
    if rules:
        command += ["--rules", path + ".rules"]
        with open(path + ".rules", "w") as file:
            json.dump(rules, file)
    subprocess.run(command, check=True)
    if "BY_SIZE" in case.arguments:
        with open(path) as file:
            plan = by_size(json.load(file))
        with open(path, "w") as file:
            json.dump(plan, file)
    return path


# --- what came of it


def read_json(path):
    try:
        return read_facts(path)
    except (OSError, ValueError):
        return {}


def rank_in_world(case, ranks, rank, communicator, peer):
    """A program that splits the world has made the communicators of its shards and of its replicas after that."""
    ways = ranks // replicas(case, ranks)
    if case.program != "hsdp" or communicator == 0:
        return peer
    return rank // ways * ways + peer if communicator == 1 else peer * ways + rank % ways


def read_links(folder, case, ranks):
    """{(from, to): bytes}, of all communicators together."""
    links = {}
    for path in glob.glob(os.path.join(folder, "links-*")):
        rank = int(path.rpartition("-")[2])
        with open(path) as file:
            for line in file:
                words = line.split()
                key = (rank, rank_in_world(case, ranks, rank, int(words[1]), int(words[5])))
                links[key] = links.get(key, 0) + int(words[7])
    return {key: size for key, size in sorted(links.items()) if size}


def parts_of(text):
    return [(words[1], int(words[2])) for words in map(str.split, text.splitlines()) if words[:1] == ["part"]]


def compare(folder, rank, seen, wanted):
    """The fault in the bytes that a rank read, or nothing."""
    wanted = [part for part in wanted if part[1]]
    if seen != [(name, len(content)) for name, content in wanted]:
        return f"rank {rank}: read {seen}, expected {[(name, len(content)) for name, content in wanted]}\n"
    with open(os.path.join(folder, f"out-{rank}"), "rb") as file:
        for name, content in wanted:
            if file.read(len(content)) != content:
                return f"rank {rank}: {name}: other bytes than in the file\n"
    return ""


def collect(folder, case, model, ranks, out, error, host, seconds, settings):
    parts = [parts_of(text) for text, _ in out]
    stats = [read_json(os.path.join(folder, f"stats-{rank}")) for rank in range(ranks)]
    for rank, facts in enumerate(stats):
        if not error:
            error += compare(folder, rank, parts[rank], case.parts(model, rank, ranks))
        if facts.get("illegal_accesses", 1) or facts.get("races", 1):
            error += f"rank {rank}: illegal accesses, races, or no statistics: {facts}\n"
    links = read_links(folder, case, ranks)
    return Run(
        error, "".join(text for _, text in out)[:9999], seconds, [text.splitlines() for text, _ in out],
        [sum(size for _, size in part) for part in parts],
        [sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("largest")) for text, _ in out],
        [facts.get("physical_bytes_peak", 0) for facts in stats], [facts.get("h2d_bytes", 0) for facts in stats],
        [sum(size for (_, to), size in links.items() if to == rank) for rank in range(ranks)],
        [read_json(os.path.join(folder, f"dump-{rank}")) for rank in range(ranks)], links, settings,
        [ledger.measured(facts, {"host_peak_bytes": host.get(rank), "disk_bytes": None}) for rank, facts in enumerate(stats)])


def run(options, case, model, ranks, way):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        plan = make_plan(options, folder, case, model, ranks) if way.planned else None
        began = time.monotonic()
        out, error, host = finish([start(options, folder, case, rank, ranks, model, way, plan) for rank in range(ranks)])
        settings = {name: value for name, value in environment_of(options, folder, 0, ranks, model, way, plan).items()
                    if name.startswith("METASHARD")}
        return collect(folder, case, model, ranks, out, error, host, time.monotonic() - began, settings)
