# SPDX-License-Identifier: Apache-2.0
"""The ledger: a flow takes with the preload at most what it takes without, of each quantity; and where a rank keeps a part of
what it loads, device memory, bytes sent and bytes read follow the part. Every runner of flows compares by this file.

    done, seen = run(command, environment, files)       # one process: seen has what can only be seen from outside
    figures = measured(stats, seen)                     # with the statistics of the simulated driver
    found = compare("flow, 2 ranks", without, with_preload, Kept(shard_bytes, {"peak_bytes": 16 << 20}))

found.wrong is empty, or has a line for each quantity that breaks the ledger. A flow that is known to break it has a row in
KNOWN, with the figure and the cause. Such a row may only go or shrink: more than it says is wrong, and less is wrong too.
"""
import ctypes
import os
import select
import struct
import subprocess
import threading
from collections import namedtuple

MIB = 1 << 20
GRANULE = 2 * MIB

# name: in figures. unit: what a figure is divided by in words. factor, more: at most factor x the figure without + more.
# part: at most part x what the rank keeps + what is beside it; None: does not follow a part. reason: of the tolerance.
Quantity = namedtuple("Quantity", "name words unit factor more part reason")
QUANTITIES = (
    Quantity("peak_bytes", "memory", MIB, 1, 2 * GRANULE, 1.05,
             "small allocations share granules, with other neighbours in the two runs; a part begins and ends within granules"),
    Quantity("h2d_bytes", "bytes over the bus", MIB, 1, MIB // 4, 1.02,
             "parameters and numbers that a program sends beside its tensors go one by one or together; the self-check copies"),
    Quantity("disk_bytes", "bytes of the disk", MIB, 1.1, MIB, 1.1,
             "the kernel reads ahead, not the same each time; and where a whole process is measured, reads pages of its libraries "
             "again that others drove out of the page cache (LIBRARIES)"),
    Quantity("host_peak_bytes", "host memory", MIB, 1, 64 * MIB, None,
             "pinned memory through which files are read (METASHARD_STAGING_BYTES); a peak between two samples is not seen"),
    Quantity("opens", "opens of its files", 1, 2, 0, None,
             "the preload has a descriptor of its own of each file"),
    Quantity("memory_calls", "calls that create or map memory", 1, 1, 128, None,
             "the self-check, and scratch memory in which recorded launches are replayed for parts of what they write; and three "
             "calls for each granule that ranks send each other, which is kept or left out by itself"),
    Quantity("processor_seconds", "processor seconds", 1, 2, 10, None,
             "a shared machine: the same program takes twice as long when its caches are used by others"),
)
BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}

COLLECTIVE_CALLS = 3  # a granule, of memory_calls
LIBRARIES = {"disk_bytes": 64 * MIB}

# The environment of each measured program, without and with the preload: freed memory goes back to the system at once. By default
# glibc moves this bound up to 32 MiB, and then keeps a freed tensor in its heap if a small block happens to lie behind it.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(MIB)}

# case: as the runner names it. quantity, most: at least 0.9 of it, and at most 1.1.
Known = namedtuple("Known", "case quantity most reason")
SCRATCH = "scratch memory of one granule for each recorded launch whose result is cut, made and given back by itself"
KNOWN = [Known(f"{row}, loading, rank {rank}", "memory_calls", calls, SCRATCH) for row, ranks in
         (("gpt2-fsdp2-shared-2", {1: 134}), ("gpt2-fsdp2-shared-4", {1: 136, 2: 138, 3: 138}),
          ("encoder-fsdp2-shared-4", {0: 160, 1: 168, 2: 180, 3: 180})) for rank, calls in ranks.items()]
WITHIN = 0.1

# bytes: what the rank keeps. beside: {quantity: what it may have besides}, of the quantities that follow the part.
Kept = namedtuple("Kept", "bytes beside")
Found = namedtuple("Found", "wrong known")


# --- measuring


def measured(stats, seen=None):
    """stats: SIMCUDA_STATS of the process; without it nobody has counted. cuMemAlloc both creates memory and maps it."""
    figures = {"peak_bytes": stats.get("physical_bytes_peak"), "h2d_bytes": stats.get("h2d_bytes"),
               "disk_bytes": stats.get("disk_bytes"), **(seen or {})}
    if stats:
        figures["memory_calls"] = 2 * stats["allocate_calls"] + stats["create_calls"] + stats["map_calls"]
        figures["processor_seconds"] = stats["processor_us"] / 1e6
    return figures


def forget(paths):
    """The files go out of the page cache, so that reading them reads the disk."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files_under(path):
    if path is None or not os.path.isdir(path):
        return [path] if path else []
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def anonymous_bytes(process):
    """Without pages of files, and without the simulated device, whose memory is a file too; 0 of a process that has ended."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))
    except (OSError, ValueError):
        return 0


def read_number(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def ranks_in(folder, world):
    """{rank: process} of those that wrote pid-R to the folder, until they write ready-R."""
    found = {rank: read_number(os.path.join(folder, f"pid-{rank}")) for rank in range(world)
             if not os.path.exists(os.path.join(folder, f"ready-{rank}"))}
    return {rank: process for rank, process in found.items() if process is not None}


class Watch(threading.Thread):
    """The most anonymous memory of processes, sampled, and how often files are opened (inotify(7)). processes: a function,
    {key: process} of those that are to be looked at now. files: of which no other process opens one meanwhile.

    The kernel tells an event that equals the one before it once. So the folders are watched too: each open is told of the folder
    and then of the file, and two opens of a file are not equal neighbours."""

    SAMPLE_SECONDS = 0.01
    IN_OPEN = 0x20

    def __init__(self, processes, files=()):
        super().__init__(daemon=True)
        libc = ctypes.CDLL(None)
        self.processes, self.events, self.is_over = processes, libc.inotify_init(), threading.Event()
        self.host_peaks, self.opens = {}, 0
        paths = [os.fsencode(path) for path in files]
        for folder in {os.path.dirname(path) or b"." for path in paths}:
            libc.inotify_add_watch(self.events, folder, self.IN_OPEN)
        self.files = {libc.inotify_add_watch(self.events, path, self.IN_OPEN) for path in paths}
        self.start()

    def look(self):
        for key, process in self.processes().items():
            self.host_peaks[key] = max(self.host_peaks.get(key, 0), anonymous_bytes(process))

    def count(self, seconds):
        while select.select([self.events], [], [], seconds)[0]:
            told, at = os.read(self.events, 65536), 0
            while at < len(told):
                watch, _, _, name_bytes = struct.unpack_from("iIII", told, at)
                self.opens += watch in self.files
                at += 16 + name_bytes

    def run(self):
        while not self.is_over.is_set():
            self.count(self.SAMPLE_SECONDS)
            self.look()
        self.count(0)
        self.look()
        os.close(self.events)

    def end(self):
        self.is_over.set()
        self.join()
        return self


def run(command, environment, files=(), timeout=600):
    """The ended process, and what is seen of it from outside. No files: opens are not counted."""
    started = {}
    watch = Watch(started.copy, files)  # before anything is opened
    with subprocess.Popen(command, env=environment | ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        started[0] = process.pid
        try:
            out, error = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = "", f"no end in {timeout} s"
            process.communicate()
        watch.end()
    seen = {"host_peak_bytes": watch.host_peaks.get(0), "opens": watch.opens if files else None}
    return subprocess.CompletedProcess(command, process.returncode, out, error), seen


# --- comparing


def collective_calls(brought_bytes, granule=GRANULE):
    """Further calls of a rank to which others bring so many bytes of a model, once, or which brings them to others."""
    return {"memory_calls": COLLECTIVE_CALLS * brought_bytes // granule}


def brought_bytes(sent, rank):
    """The bytes that the others bring to the rank, or that the rank brings to each of them; sent: by each rank, which
    sends the same to every other one."""
    if len(sent) < 2 or None in sent:
        return 0
    return max(sent[rank], sum(sent) - sent[rank]) // (len(sent) - 1)


def bound_of(quantity, before, kept, exact, more):
    """The most that the figure may be, and the rule in words."""
    is_exact = quantity.name in exact
    most = before if is_exact else quantity.factor * before + quantity.more + more.get(quantity.name, 0)
    rule = "for that"
    if kept is not None and quantity.name in kept.beside:
        part = (1 if is_exact else quantity.part) * kept.bytes + kept.beside[quantity.name]
        if part < most:
            most, rule = part, f"for the part of {kept.bytes / MIB:.1f} MiB"
    return most, rule


def compare(case, without, under, kept=None, base="without", exact=(), only=None, more=None):
    """without, under: figures; what nobody counted is not compared. exact: quantities without tolerance. only: no others. more:
    {quantity: tolerance besides}: LIBRARIES, collective_calls()."""
    found, counted = Found([], []), 0
    for quantity in QUANTITIES if only is None else map(BY_NAME.get, only):
        before, after = without.get(quantity.name), under.get(quantity.name)
        if before is None or after is None:
            found.wrong.extend([f"{quantity.words}: nobody counted"] * (kept is not None and quantity.name in kept.beside))
            continue
        counted += 1
        most, rule = bound_of(quantity, before, kept, exact, more or {})
        words = (f"{quantity.words}: {after / quantity.unit:.1f}, {before / quantity.unit:.1f} {base}, at most "
                 f"{most / quantity.unit:.1f} {rule}")
        judge(found, next((row for row in KNOWN if row[:2] == (case, quantity.name)), None), after, most, words)
    found.wrong.extend(["nobody counted anything"] * (counted == 0))
    return found


def judge(found, known, after, most, words):
    if known is None:
        if after > most:
            found.wrong.append(words)
    elif after <= most:
        found.wrong.append(f"{words}: it holds now, take its row out of KNOWN ({known.reason})")
    elif abs(after - known.most) > WITHIN * known.most:
        found.wrong.append(f"{words}: KNOWN says {known.most / BY_NAME[known.quantity].unit:.1f} ({known.reason})")
    else:
        found.known.append(f"{words}: {known.reason}")


def tell(check, name, found):
    """As TAP. check: of a report, (holds, name, *lines)."""
    check(not found.wrong, f"{name}: the ledger", *found.wrong)
    for words in found.known:
        print(f"# {name}, known: {words}")


def line(without, under):
    """All figures without and with, in words: for the comments of a run."""
    return ", ".join(f"{quantity.words} {without[quantity.name] / quantity.unit:.1f} / {under[quantity.name] / quantity.unit:.1f}"
                     for quantity in QUANTITIES
                     if without.get(quantity.name) is not None and under.get(quantity.name) is not None)
