# SPDX-License-Identifier: Apache-2.0
"""Where plans are put to work: checkpoints with values, what each rank owns of them, and runs of in_place.c."""
import json
import math
import os
import random
import select
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "plan"))
import checkpoint as files  # noqa: E402
from oracle import BITS_OF, Tensor, entry_of, list_of_tensors, mesh_of, placements_of, resolve  # noqa: E402
from random_plan import escaped  # noqa: E402
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402
from tap import Wrong, expect  # noqa: E402

FORMAT = "metashard-plan/1"
GRANULE = 64 << 10  # of the simulated driver, unless a test says otherwise
MIN_BYTES = GRANULE
PAGE = 4096
CARVE_BYTES = 512  # what the tensors of --carve are aligned to
SHORT_BYTES = 64 << 10  # shorter copies are not looked for in files, so the plan does not know such tensors
DEADLINE_S = 60
LAUNCHERS = ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID",
             "SLURM_NTASKS", "PMI_RANK", "PMI_SIZE"]


# Rows of less than a granule and of more, few rows, odd ones, units, one that is too small to be deferred, one
# without elements and one without dimensions.
TENSORS = [Tensor("embed.weight", "F32", (1001, 256)), Tensor("layers.0.norm.weight", "BF16", (512,)),
           Tensor("layers.0.q.weight", "BF16", (512, 512)), Tensor("layers.0.qkv.weight", "BF16", (768, 512)),
           Tensor("layers.0.wide.weight", "F32", (4, 10, 16384)), Tensor("layers.1.few.weight", "F64", (5, 20000)),
           Tensor("layers.1.flat.weight", "F64", (37, 1501)), Tensor("none", "F32", (0, 4)),
           Tensor("scalar", "F32", ()), Tensor("unit.a", "F64", (100, 333)), Tensor("unit.b", "F64", (77,)),
           Tensor("unit.c", "F64", (41, 1000))]


class Checkpoint:
    """Files with random values. tensors: in the order of the checkpoint."""

    def __init__(self, folder, parts, index, seed):
        self.folder, self.tensors = folder, files.in_order(parts)
        os.makedirs(folder)
        dice = random.Random(seed)
        for name, tensors in parts.items():
            header, data_bytes = files.header_of(tensors)
            with open(os.path.join(folder, name), "wb") as file:
                file.write(files.file_bytes(header, 0))
                file.write(dice.randbytes(data_bytes))
        if index:
            files.write_index(folder, parts)


def make_checkpoints(folder):
    """The same tensors as one file, and as three with an index."""
    parts = {f"model-{i + 1:05}-of-00003.safetensors": TENSORS[i * 4:i * 4 + 4] for i in range(3)}
    return {"one file": Checkpoint(os.path.join(folder, "one"), {"model.safetensors": TENSORS}, False, 1),
            "three files": Checkpoint(os.path.join(folder, "three"), parts, True, 2)}


def shrink(tensor, placements, world):
    """(the tensor with a shorter last dimension that is cut in the same places, how much shorter). The oracle has
    an item for every element; a last dimension that is not cut, or is cut evenly, can do with fewer."""
    length = tensor.shape[-1] if tensor.shape else 0
    last = [placement for _, placement in placements
            if placement.get("shard") == len(tensor.shape) - 1]
    if length == 0 or any("flat" in placement for _, placement in placements):
        return tensor, 1
    if not last:
        factor = length
    elif length % world == 0 and not any("interleave" in placement for placement in last):
        factor = length // world
    else:
        factor = 1
    if BITS_OF[tensor.dtype] < 8:
        factor = 1
    return Tensor(tensor.name, tensor.dtype, (*tensor.shape[:-1], length // factor)), factor


def ranges_of(plan, checkpoint, rank):
    """{name: byte ranges that the rank owns}, by the oracle."""
    mesh = mesh_of(plan)
    tensors = list_of_tensors(plan, checkpoint.tensors)
    entries, small, factors = [], [], []
    for order, tensor in enumerate(tensors):
        entry = entry_of(plan, order, tensor)
        placements = placements_of(plan, entry)
        said = {"placements": dict(placements)}
        if entry is not None and "ranges" in entry:
            small.append(tensor)
            factors.append(1)
            said = {"ranges": entry["ranges"]}
        else:
            shrunk, factor = shrink(tensor, placements, math.prod(mesh.values()))
            small.append(shrunk)
            factors.append(factor)
        entries.append({"name": escaped(tensor.name), **said})
    kept, _ = resolve({"mesh": mesh, "tensors": entries}, small, rank)
    return {tensor.name: [[begin * factor, end * factor] for begin, end in ranges]
            for tensor, ranges, factor in zip(tensors, kept, factors)}


class Run:
    """One run of the client, from its start to its end. dump: None without the preload."""

    def __init__(self, place, checkpoint, rank, world, options=(), preload=True, **variables):
        self.place, self.preload = place, preload
        self.number = place.runs = place.runs + 1
        environment = {name: value for name, value in os.environ.items()
                       if name not in LAUNCHERS and not name.startswith(("METASHARD", "SIMCUDA_"))}
        # Fresh device memory is filled with something: bytes that are not materialised cannot look right by accident.
        # The driver's copies are counted, and a self-check copies too.
        environment.update(RANK=str(rank), WORLD_SIZE=str(world), SIMCUDA_GRANULE_KIB=str(GRANULE >> 10),
                           SIMCUDA_POISON="2", SIMCUDA_STATS=self.path("stats"), METASHARD_MIN_BYTES=str(MIN_BYTES),
                           METASHARD_DUMP=self.path("dump"), METASHARD_SELFCHECK="off")
        if preload:
            environment["LD_PRELOAD"] = place.preload
        for name, value in variables.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = str(value)
        command = [place.client, str(rank), str(world), checkpoint.folder, *map(str, options)]
        self.said = " ".join(f"{name}={value}" for name, value in variables.items()) + " " + " ".join(command)
        self.errors = open(self.path("errors"), "w+")
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors)
        place.running.append(self)

    def path(self, what):
        return self.place.path(f"{self.number}-{what}")

    def until_ready(self):
        """For --wait: everything is loaded."""
        seen, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        expect(seen, f"hangs before it is ready: {self.said}")
        line = os.read(self.process.stdout.fileno(), 6)
        expect(line == b"ready\n", f"ended before it was ready: {self.said}\n{self.stderr()}")
        return self

    def go_on(self):
        """For --wait."""
        self.process.stdin.close()
        self.process.stdin = None

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self):
        """(exit status, what was printed)"""
        try:
            text, _ = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise Wrong(f"hangs: {self.said}\n{self.stderr()}") from None
        return self.process.returncode, text.decode()

    def finish(self):
        """The end of a run that must be a good one. Sets out, dump, stats, lines."""
        status, text = self.end()
        error = self.stderr()
        expect(status == 0, f"exit status {status}: {self.said}\n{error[-2000:]}")
        self.out = json.loads(text)
        self.lines = error.splitlines()
        self.dump = self.stats = None
        if os.path.exists(self.path("stats")):
            with open(self.path("stats")) as file:
                self.stats = json.load(file)
        if self.preload:
            self.dump = read_dump(self.path("dump"))
        return self

    def stop(self):
        """Whatever has happened: nothing stays behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.errors.close()

    def values(self):
        """Every read inside the plan must have succeeded with the bytes of the file."""
        for row in self.out["ranges"]:
            where = f"{row['name']} [{row['begin']}, {row['end']})"
            expect(row["result"] == 0, f"{where}: CUDA error {row['result']}, expected success\n{self.said}\n"
                   + "\n".join(self.lines))
            expect(row["hash"] == row["file_hash"], f"{where}: other bytes than in the file\n{self.said}")
        return [(row["name"], row["begin"], row["end"], row["hash"]) for row in self.out["ranges"]]

    def is_silent(self, but=None):
        """but: text of lines that may be there."""
        expect([line for line in self.lines if but is None or but not in line] == [],
               "expected no message, found:\n" + "\n".join(self.lines) + f"\n{self.said}")


class Place:
    def __init__(self, client, kernels, preload, folder):
        self.client, self.kernels, self.preload, self.folder = client, kernels, preload, folder
        # For programs that are not built with the sanitizer that the driver is built with.
        self.without = {"LD_PRELOAD": preload.rpartition(":")[0]} if ":" in preload else {}
        self.runs = self.plans = 0
        self.running = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, content, name=None):
        """A new file, there at once with all that is in it; a dict as JSON."""
        self.plans += 1
        path = name or self.path(f"plan{self.plans}.json")
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        if isinstance(content, str):
            content = content.encode()
        with open(path + ".new", "wb") as file:
            file.write(content)
        os.rename(path + ".new", path)
        return path

    def write_ranges(self, ranges):
        return self.write("".join(f"{name} {begin} {end}\n" for name, kept in ranges.items() for begin, end in kept))

    def run(self, *arguments, **options):
        return Run(self, *arguments, **options).finish()

    def clean(self):
        for run in self.running:
            run.stop()
        self.running.clear()


# --- what is in memory


def touched(ranges, granule):
    return {index for begin, end in ranges for index in range(begin // granule, (end - 1) // granule + 1)}


def untouched(part, granules, granule):
    """The parts of [begin, end) in other granules."""
    begin, end = part
    return [[max(begin, index * granule), min(end, (index + 1) * granule)] for index in touched([part], granule) - granules]


def tensors_in(block, out):
    """[(name, offset in the block, bytes)]"""
    address = int(block["address"], 16)
    return [(row["name"], row["address"] - address, row["bytes"]) for row in out["tensors"]
            if address <= row["address"] < address + block["bytes"]]


def in_block(inside, ranges):
    """The rank's parts of the tensors that the plan knows, as offsets in the block."""
    return [[offset + begin, offset + end] for name, offset, size in inside if size >= SHORT_BYTES
            for begin, end in ranges[name]]


def at_most_in_block(inside, ranges):
    """The same, with what the plan knows nothing of: short tensors, and the gaps behind tensors."""
    short = [[offset, offset + size] for _, offset, size in inside if size < SHORT_BYTES]
    gaps = [[offset + size, offset + -(-size // CARVE_BYTES) * CARVE_BYTES] for _, offset, size in inside
            if len(inside) > 1 and size % CARVE_BYTES]
    return in_block(inside, ranges) + short + gaps


def total(ranges):
    return sum(end - begin for begin, end in ranges)


def check_block(block, inside, ranges, granule, what):
    """Exactly the rank's ranges of the tensors in this block are in memory. Short tensors may be, or not."""
    owned, most = in_block(inside, ranges), at_most_in_block(inside, ranges)
    granules = touched(most, granule)
    backed = block["backed_bytes"]
    where = f"block at {block['address']} with {[name for name, _, _ in inside]}: {backed} bytes are in memory, "
    expect(backed >= total(owned), where + f"expected at least the {total(owned)} that the rank owns\n{what}")
    expect(backed <= len(granules) * granule,
           where + f"expected at most the {len(granules)} granules that the ranges touch\n{block}\n{what}")
    expect(backed <= total(most) + 2 * granule * len(most), where + f"more than two granules per range\n{what}")
    present = block["kinds"].get("resident", 0) + block["cached_bytes"]
    expect(present >= total(owned), where + f"expected what the rank owns to be resident or cached: {block}\n{what}")
    expect(block["remote_bytes"] <= block["bytes"] - total(owned), where + f"the rank owns bytes of what is away\n{what}")
    tensors = [[offset, offset + size] for _, offset, size in inside if size >= SHORT_BYTES]
    away = total([part for tensor in tensors for part in untouched(tensor, granules, granule)])
    # The plan is asked about the second set when it is used.
    expect("--twice" in what or block["remote_bytes"] >= away,
           where + f"expected at least {away} bytes to be away: {block}\n{what}")


def check_counters(run, blocks, ranges, granule):
    """Nothing is sent that the rank does not own. Files are read by whole pages, over a page between two ranges."""
    owned = sum(total(in_block(inside, ranges)) for inside in blocks)
    most = [part for inside in blocks for part in at_most_in_block(inside, ranges)]
    edges = 2 * granule * len(most) if "--kernel" in run.said else 0
    for counter, slack in (("h2d_bytes", edges), ("file_read_bytes", edges + 3 * PAGE * len(most))):
        seen = run.dump[counter]
        expect(owned <= seen <= total(most) + slack,
               f"{counter} is {seen}, expected from {owned} to {total(most)} for {len(most)} ranges, and {slack} more "
               f"at most\n{run.said}")


def check_memory(run, ranges, granule=GRANULE, min_bytes=MIN_BYTES):
    """The rank's ranges are in memory and nothing else, and no more was read or sent. Returns the names of the
    tensors that are deferred and of which the plan knows. A kernel may find all that is in the granules that have
    something of the rank's, so these are whole then; a copy to the host needs what it reads."""
    recorded = {name: run.dump[name] for name in run.dump if name.startswith("recorded_")}
    what, blocks, most = f"{run.said}\n{recorded}, causes: {run.dump['causes']}", [], 0
    for block in run.dump["blocks"]:
        inside = tensors_in(block, run.out)
        if inside:
            check_block(block, inside, ranges, granule, what)
        most += block["backed_bytes"]
        blocks.append(inside)
    deferred = [row for inside in blocks for row in inside]
    names = {name for name, _, _ in deferred}
    passed = [row for row in run.out["tensors"] if row["name"] not in names]
    for row in passed:
        expect(row["bytes"] < min_bytes, f"{row['name']}: {row['bytes']} bytes and not deferred\n{what}")
    check_counters(run, blocks, ranges, granule)
    small = sum(row["bytes"] for row in passed)
    sent, wanted = run.stats["h2d_bytes"], run.dump["h2d_bytes"] + small
    expect(sent == wanted,
           f"the driver copied {sent} bytes to the device, expected {wanted}: h2d_bytes and the {small} bytes that are "
           f"not deferred\n{what}")
    # Tensors that are not deferred share granules, also with the scratch memory of --kernel.
    most += (len(touched([[0, small + 512 * len(passed) + 1]], granule)) + 1) * granule
    peak = run.stats["physical_bytes_peak"]
    expect(peak <= most, f"physical memory peaks at {peak}, expected at most {most}\n{what}")
    return {name for name, _, size in deferred if size >= SHORT_BYTES}


def check_entries(run, plan, checkpoint_tensors, deferred):
    """plan.unmatched: entries that no tensor meets. Nothing is expected of those that only tensors meet which are not
    deferred, nor of such that declare a tensor of the checkpoint and do not select it."""
    tensors = list(enumerate(list_of_tensors(plan, checkpoint_tensors)))
    seen = run.dump["plan"].get("unmatched")
    names = [entry.get("name") for entry in plan["tensors"]]
    for entry in plan["tensors"]:
        met = {tensor.name for order, tensor in tensors if entry_of({"tensors": [entry]}, order, tensor)}
        if "name" in entry and not met and "shape" not in entry:
            expect(entry["name"] in seen, f"unmatched is {seen}, expected {entry['name']} in it\n{run.said}")
        if "name" in entry and met & deferred and names.count(entry["name"]) == 1:
            expect(entry["name"] not in seen, f"unmatched is {seen}, and {entry['name']} is met\n{run.said}")


def check_plan_report(run, plan, ranges, mode, rank, deferred=None, outside=False, checkpoint=None):
    """The dump's member "plan". deferred: the names of the tensors that the plan knows, if it must know all."""
    seen, what = run.dump.get("plan"), run.said
    expect(isinstance(seen, dict), f"the dump has no plan\n{what}")
    world = math.prod(mesh_of(plan).values())
    wanted = {"mode": mode, "rank": rank, "world_size": world, "ambiguous": []}
    if not outside:
        wanted.update({"remote_reads": 0, "remote_read_bytes": 0, "remote_readers": []})
    for key, value in wanted.items():
        expect(seen.get(key) == value, f"plan.{key} is {seen.get(key)!r}, expected {value!r}\n{what}")
    if deferred is not None:
        sizes = {row["name"]: row["bytes"] for row in run.out["tensors"]}
        for key, least, most in (("tensors", len(deferred), len(sizes) + 1),
                                 ("planned_bytes", sum(sizes[name] for name in deferred), sum(sizes.values())),
                                 ("owned_bytes", owned_bytes(ranges, deferred), owned_bytes(ranges, sizes))):
            expect(least <= seen.get(key, -1) <= most,
                   f"plan.{key} is {seen.get(key)!r}, expected from {least} to {most}\n{what}")
        if checkpoint is not None:
            check_entries(run, plan, checkpoint.tensors, deferred)
    return seen


def owned_bytes(ranges, names):
    return sum(end - begin for name in names for begin, end in ranges[name])


# --- the socket


class Control:
    """A client of METASHARD_CONTROL."""

    def __init__(self, path, deadline=DEADLINE_S):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)  # waits where many do the same
        self.socket.settimeout(deadline)

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the other side need not hear all of what it refuses
        return self

    def answer(self):
        """One line, or what came of it before the end."""
        out = b""
        try:
            while not out.endswith(b"\n"):
                more = self.socket.recv(1)
                if more == b"":
                    break
                out += more
        except ConnectionResetError:
            pass
        except TimeoutError:
            raise Wrong(f"no answer; so far {out!r}") from None
        return out.decode(errors="replace")

    def plan(self, text):
        text = json.dumps(text).encode() if isinstance(text, dict) else text
        return self.send(b"plan %d\n" % len(text) + text).answer()

    def close(self):
        self.socket.close()


def is_ok(line):
    return line.startswith("ok") and line[2:3] in (" ", "\n") and line.endswith("\n")


def is_error(line):
    return line.startswith("error ") and line.endswith("\n") and len(line) > len("error \n")


def wait_until(holds, what, deadline=20):
    end = time.monotonic() + deadline
    while not holds():
        expect(time.monotonic() < end, f"expected within {deadline} s: {what}")
        time.sleep(0.01)


def wait_until_quiet(path, begin, call, deadline=20):
    """Until this driver call has appeared in the simulator's log behind begin, and nothing was added for a while."""
    def text():
        if not os.path.exists(path):
            return ""
        with open(path) as file:
            file.seek(begin)
            return file.read()
    wait_until(lambda: call in text(), f"a call of {call} in {path}", deadline)
    size = -1
    while size != os.path.getsize(path):
        size = os.path.getsize(path)
        time.sleep(0.25)
