# SPDX-License-Identifier: Apache-2.0
"""The differential fuzzer: batches of operations, run alone and under the shim, compared and shrunk (fuzz.h)."""
import json
import os
import random
import re
import struct
import subprocess
import tempfile
import time
from collections import Counter, namedtuple

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PROGRAM_OPERATIONS, OPERATIONS_MOST = 400, 128  # as in fuzz.c
TIMEOUT = 600
SHRINK_SECONDS = 240

ALONE = {"SIMCUDA_EAGER": "1", "SIMCUDA_DEVICES": "2", "SIMCUDA_GRANULE_KIB": "64", "SIMCUDA_MULTICAST": "1"}
EVERYTHING = {"METASHARD_MIN_BYTES": "1", "METASHARD_SETTLE_MS": "600000", "FUZZ_DEFERS": "1"}
# By name: the environment under the shim, and what share of a batch is run with it (a slow device is slow).
SETTINGS = {
    "everything deferred": (EVERYTHING, 1),
    "little memory": (dict(EVERYTHING, SIMCUDA_MEMORY_MIB="16", SIMCUDA_POISON="2"), 1),
    "no snapshots": (dict(EVERYTHING, METASHARD_SNAPSHOT_BYTES="0", SIMCUDA_POISON="2"), 1),
    "large blocks deferred, settling": ({"METASHARD_MIN_BYTES": "16K", "METASHARD_SETTLE_MS": "1"}, 1),
    "a device with threads": (dict(EVERYTHING, SIMCUDA_EAGER="0"), 0.2),
    "large blocks deferred, threads": ({"METASHARD_MIN_BYTES": "16K", "METASHARD_SETTLE_MS": "1", "SIMCUDA_EAGER": "0"}, 0.2),
    "a slow device": (dict(EVERYTHING, SIMCUDA_EAGER="0", SIMCUDA_DELAY_US="30", SIMCUDA_POISON="2"), 0.05),
}
# The driver's properties, alone and under the shim: each batch draws one value of each row, from its seed. Rows
# may be added at the end, whose variables are settings of tools/simcuda/driver/simcuda.h. The first value is the likelier one, and
# what kept programs and the slice of `hooks` are run with.
WORLDS = {
    "addresses": ({}, {"SIMCUDA_LOW": "1"}, {"SIMCUDA_HINTS": "0"}, {"SIMCUDA_LOW": "1", "SIMCUDA_HINTS": "0"},
                  {"SIMCUDA_LOW": "1", "SIMCUDA_HINTS": "2"}),
    "pageable memory": ({}, {"SIMCUDA_PAGEABLE": "1"}),
    "pageable sources": ({}, {"SIMCUDA_LATE": "1"}),
    "order": ({}, {"SIMCUDA_JITTER_US": "60"}),
    "other programs": ({}, {"SIMCUDA_OTHERS": "24"}),
    "granules": ({}, {"SIMCUDA_GRANULE_KIB": "256"}, {"SIMCUDA_GRANULE_KIB": "1024"}, {"SIMCUDA_GRANULE_KIB": "2048"}),
    "freeing": ({}, {"SIMCUDA_FREE_ANYWHERE": "1"}),
    "version": ({}, {"SIMCUDA_PROFILE": "12.4"}, {"SIMCUDA_PROFILE": "12.9"}, {"SIMCUDA_PROFILE": "13.1"},
                {"SIMCUDA_PROFILE": "13.0"}, {"SIMCUDA_PROFILE": "13.2"}, {"SIMCUDA_PROFILE": "13.4"}),
    # Settings of the program, not of the driver (fuzz_plans.c).
    "plans": ({}, {"FUZZ_PLANS": "late"}, {"FUZZ_PLANS": "first"}, {"FUZZ_PLANS": "sizes"}, {"FUZZ_PLANS": "none"}),
    "mode of plans": ({}, {"METASHARD_PLAN_MODE": "enforce"}),
}
PLANS = "a plan by a call,a plan by a file,a plan by the socket"
# Drivers with other exports than 13.0 are libraries of their own, in these folders of tools/simcuda. The newest is the default.
NEWEST = "profile13.5"
OTHER_DRIVERS = {"12.4": "profile12.4", "12.9": "profile12", "13.0": "", "13.1": NEWEST, "13.2": NEWEST, "13.4": NEWEST}
# Lines that may stand in the log: about calls that the shim refuses, and about plans that are not valid.
EXPECTED_LINES = re.compile(
    r"cuIpcGetMemHandle: the allocation|cuPointerSetAttribute: |cuMemGetHandleForAddressRange: |"
    r"expected mesh or world_size|match no tensor of the program|and so decide nothing|the plan: |no plan was read from|it was deleted \(")
# The line of METASHARD=verify at the end of a process.
VERIFIED = re.compile(r"verify: (\d+) ranges, (\d+) bytes compared, (\d+) differ")
# Costs that the shim may add to the program's: for each program, bytes sent to the device, and granules of
# its peak of memory. A row counts once for a program if it names no operations, else for each operation that it names, and
# with all settings but those of `without`. A row that is open is of a cost that is yet to be mended: it is counted and told.
# A cost in no row is told, and with --costs is a divergence.
Cost = namedtuple("Cost", "name operations sent granules is_open why without", defaults=[()])
KIB, MIB, ANY = 1 << 10, 1 << 20, 1 << 62
COPIES = (r"copy (?!from the host|to the host)|bounce|change from another|many pieces|hand on|concatenat|a table that is copied|"
          r"capture|graph")
COSTS = (
    Cost("self-check", "", 192 * KIB, 0, False, "each device is asked what it does, when it is used first (checks.c)"),
    Cost("small copies", COPIES, 256 * KIB, 0, False, "less is sent to each place that it was copied to (loaded.h)"),
    Cost("whole granules", "", 0, 16, False, "each of 8 blocks, and of what operations make, ends in a granule of its own"),
    Cost("scratch memory", "", 0, 8, False, "that of the last replay is kept, with its sink, until memory is needed"),
    Cost("many blocks", "many blocks", 0, 60, False, "each of 60 small allocations has a granule"),
    Cost("first uses", "^(copy on the device|map memory)$", 1 * MIB, 0, False, "the first copy to memory that is there is sent "
         "past its original, which comes into memory at the second use (fill.md)"),
    Cost("suspending", "suspend", ANY, ANY, False, "what is suspended is sent again, by design"),
)
# Where memory is short the shim gives it back and sends again; a plan's remote bytes are sent for each read, so a batch with
# plans has no short programs.
COUNTED = {name for name in SETTINGS if name != "little memory"}
NOT_COUNTED = "SIMCUDA_OTHERS"
SHORT = 4  # operations of a program in which costs show: of large blocks, in one batch of three, without plans
# Acts after which calls fail, and the driver says why on stderr.
LOUD_ACTS = ("read-without-access", "read-illegally")


def entry_classes():
    with open(os.path.join(SOURCE, "shim", "entries.def")) as file:
        rows = re.findall(r"^MS_ENTRY(?:_PLAIN)?(?:_TWINS)?\((\w+), (\w+), (?:\w+, )?\d+,\s+(\w*)", file.read(), re.M)
    twins = {symbol + suffix: class_ for class_, symbol, suffix in rows if suffix.startswith("_")}
    return {symbol: class_ for class_, symbol, _ in rows} | twins


class Batch:
    """The work of one process."""

    def __init__(self, seed, operations, setting, first=None, last=None, keep=None, world=None, short=None):
        self.seed, self.operations, self.setting = seed, operations, setting
        self.first, self.last, self.keep = first, last, keep
        self.world, self.short = world or {}, short

    def arguments(self, folder, kernels):
        command = [str(self.seed), "0", str(self.operations), folder, *kernels]
        if self.keep is not None:
            command += ["--keep", self.keep if isinstance(self.keep, str) else ranges(self.keep)]
        if self.more() is not None:
            command += ["--more", self.more()]
        if self.short is not None:
            command += ["--short", str(self.short)]
        for option, act in (("--first", self.first), ("--last", self.last)):
            if act is not None:
                command += [option, act]
        return command

    def more(self):
        """An operation that is costly, and drawn more often where it matters, if the run is short."""
        return "need room" if self.setting == "little memory" and self.operations <= 1000 else None

    def describe(self):
        return {"seed": self.seed, "operations": self.operations, "setting": self.setting,
                "first": self.first, "last": self.last, **({"world": self.world} if self.world else {}),
                **({"short": self.short} if self.short else {}),
                "keep": self.keep if self.keep is None or isinstance(self.keep, str) else ranges(self.keep)}

    def where(self, index):
        """The subject of the record with this index: (operation or None, words)."""
        index -= 1
        if index < 0:
            return None, "the start"
        if self.first is not None:
            if index == 0:
                return None, f"the first act, {self.first}"
            index -= 1
        length = self.short or PROGRAM_OPERATIONS
        whole, rest = divmod(index, length + 1)
        operation = whole * length + rest
        if operation < self.operations and rest < length:
            return operation, f"operation {operation}"
        end = min(operation, self.operations)
        if rest == length or operation == self.operations:
            return end - 1, f"the memory at the end of the program of operation {end - 1}"
        return None, f"the last act, {self.last}" if self.last else "the end"


def ranges(numbers):
    """[3, 17, 18, 19] as 3,17-19"""
    text, numbers = [], sorted(numbers)
    while numbers:
        count = 1
        while count < len(numbers) and numbers[count] == numbers[0] + count:
            count += 1
        text.append(str(numbers[0]) if count == 1 else f"{numbers[0]}-{numbers[count - 1]}")
        numbers = numbers[count:]
    return ",".join(text) or "4294967295"


class Side:
    """The results that one process has left."""

    def __init__(self, folder, status, errors, output):
        self.status, self.errors, self.output = status, errors, output
        self.records, self.counts = read(folder, "records"), read(folder, "counts")
        self.log = read(folder, "log").decode(errors="replace")
        self.sent, self.kinds = numbers(read(folder, "sent"), "Q"), numbers(read(folder, "kinds"), "I")

    def programs(self):
        """(bytes sent, the most bytes of memory) of each program."""
        sums = (0, *self.sent[::2])
        return [(after - before, peak) for before, after, peak in zip(sums, sums[1:], self.sent[1::2])]


class Fuzzer:
    def __init__(self, build, preload=None, environment=None):
        self.build = build
        self.preload = preload or os.path.join(build, "shim", "libmetashard.so")
        self.environment = environment or {}
        self.program = os.path.join(build, "tests", "driver", "differential", "fuzz")
        self.kernels = [os.path.join(build, "tools", "simcuda", name)
                        for name in ("test_kernels.so", "torch_kernels.so")]
        listed = subprocess.run([self.program, "--list"], env=self.base(), capture_output=True, text=True,
                                check=True).stdout
        rows = [line.split(" ", 1) for line in listed.splitlines()]
        self.kinds = [name for kind, name in rows if kind == "operation"]
        self.firsts = [name for kind, name in rows if kind == "first"]
        self.lasts = [name for kind, name in rows if kind == "last"]
        self.entries = [name for kind, name in rows if kind == "entry"]
        self.classes = entry_classes()
        self.alone = {}  # by what a batch is: with `remembers`, what it left without the shim
        self.remembers = False
        self.draws = False  # worlds
        self.fixed = {}  # of worlds, what is not drawn
        self.plans = False  # in every world
        self.short = False  # all programs
        self.without = ""  # operations that are drawn and not run, by name
        self.is_seen = False  # what is shrunk diverges in what the program sees
        self.compared = Counter()  # by METASHARD=verify: ranges, bytes, differ
        self.counted = 0  # programs
        self.open = Counter()  # of COSTS that are open, programs that had them
        self.dearer = []  # in words, a program of each batch that costs more than COSTS allows
        self.costs = False  # such a program diverges

    def verify(self):
        """From now on the shim compares what it materialises with a shadow."""
        self.environment.update(METASHARD="verify", SIMCUDA_PTX_KERNELS=os.path.join(
            self.build, "tests", "driver", "verify", "compare_kernel.so"))

    def base(self):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("METASHARD", "SIMCUDA_", "FUZZ_", "LD_PRELOAD", "RANK", "WORLD_SIZE"))}
        kept.setdefault("LD_LIBRARY_PATH", os.path.join(self.build, "tools", "simcuda"))
        return kept

    def left_out(self, batch):
        """Operations that meet a limit (docs/limits.md): where the shim may keep no host copy, a file cannot be saved in a host
        function; an old driver cannot tell whether work queued before an allocation is done, and the access fails; when a file
        changes, the bytes that a plan gives to other ranks are lost, and a plan by a file may come between any two calls."""
        plans = batch.world.get("FUZZ_PLANS")
        names = [self.without, PLANS * (plans == "none" or batch.short is not None), "name a block,a plan by a file" * (plans == "sizes"),
                 "a host function opens a source" * (batch.setting == "no snapshots"),
                 "queued before the allocation" * (batch.world.get("SIMCUDA_PROFILE") == "12.4")]
        return ["--without", ",".join(filter(None, names))] * any(names)

    def side(self, batch, folder, with_shim, prints=False):
        os.makedirs(folder, exist_ok=True)
        environment = in_granules(self.base() | ALONE | batch.world, batch.world)
        default = os.path.join(self.build, "tools", "simcuda")
        is_default = os.path.realpath(environment["LD_LIBRARY_PATH"]) == os.path.realpath(default)
        other = OTHER_DRIVERS.get(environment.get("SIMCUDA_PROFILE"), NEWEST if is_default else None)
        if other is not None:
            environment["LD_LIBRARY_PATH"] = ":".join([os.path.join(default, other), environment["LD_LIBRARY_PATH"]])
        log = os.path.join(folder, "log")
        if with_shim:
            rules = os.path.join(folder, "rules")
            with open(rules, "w") as file:
                file.write("write-only uniform32\n")
            environment.update(in_granules(SETTINGS[batch.setting][0], batch.world), METASHARD_KERNEL_RULES=rules, FUZZ_LOG=log,
                               METASHARD_LOG="warn:" + log, METASHARD_STATE_DIR="", LD_PRELOAD=self.preload,
                               METASHARD_PLAN=os.path.join(folder, "plan.json"),
                               METASHARD_CONTROL=os.path.join(folder, "control"), METASHARD_SUSPEND_MS="50", **self.environment)
        command = [self.program, *batch.arguments(folder, self.kernels), *self.left_out(batch),
                   *(["--print"] if prints else [])]
        try:
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, errors="replace", timeout=TIMEOUT)
            status, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            status, output, errors = "no end", "", str(late.stderr or "")
        return Side(folder, status, errors, output)

    def side_alone(self, batch, folder):
        key = (batch.seed, batch.operations, batch.first, batch.last, str(batch.keep), batch.more(),
               str(batch.world), batch.short)
        side = self.alone.get(key) or self.side(batch, folder, False)
        if self.remembers:
            self.alone[key] = side
        return side

    def compare(self, batch):
        """(index or None, reason or None, the side under the shim, the side alone)"""
        with tempfile.TemporaryDirectory() as folder:
            alone = self.side_alone(batch, os.path.join(folder, "alone"))
            if alone.status != 0 or (alone.errors and batch.last not in LOUD_ACTS):
                return None, f"fails without the shim: {alone.status}\n{alone.errors[-1500:]}", alone, alone
            seen = self.side(batch, os.path.join(folder, "shim"), True)
        index = first_difference(alone.records, seen.records)
        if index is not None:
            return index, f"{batch.where(index)[1]} is not the same{last_words(seen)}", seen, alone
        if seen.status != 0:
            return None, f"exit status {seen.status}", seen, alone
        if seen.errors and batch.last not in LOUD_ACTS:
            return None, f"on stderr: {seen.errors[-1500:]}", seen, alone
        for found in VERIFIED.finditer(seen.log):
            self.compared.update(dict(zip(("ranges", "bytes", "differ"), map(int, found.groups()))))
        lines = [line for line in seen.log.splitlines()
                 if not EXPECTED_LINES.search(line) and not VERIFIED.search(line)]
        if lines and batch.last not in LOUD_ACTS:
            return None, f"in the log: {lines[0]}", seen, alone
        cost = self.cost(batch, alone, seen)
        if cost is not None:
            self.dearer.append(f"seed {batch.seed}, {batch.setting}{in_words(batch.world)}: {cost}")
        return None, cost if self.costs else None, seen, alone

    def is_counted(self, batch):
        return (batch.short is not None and batch.setting in COUNTED and NOT_COUNTED not in batch.world
                and "METASHARD" not in self.environment)

    def cost(self, batch, alone, seen):
        """The costs of a short program that costs more with the shim, in words, or None. In a long program savings would hide them."""
        if not self.is_counted(batch):
            return None
        length = batch.short
        granule = KIB * int((ALONE | batch.world)["SIMCUDA_GRANULE_KIB"])
        for number, (theirs, ours) in enumerate(zip(alone.programs(), seen.programs())):
            names = [self.kinds[kind - 1] for kind in alone.kinds[number * length:(number + 1) * length] if kind > 0]
            self.counted += 1
            for what, unit, wanted, had in (("sent", 1, theirs[0], ours[0]), ("granules", granule, theirs[1], ours[1])):
                more = had - wanted - unit * sum(allowed(row, what, names, batch.setting) for row in COSTS if not row.is_open)
                rows = [row for row in COSTS if row.is_open and allowed(row, what, names, batch.setting) > 0]
                self.open.update(row.name for row in rows if more > 0)
                if more > unit * sum(allowed(row, what, names, batch.setting) for row in rows):
                    return (f"operations {number * length} to {number * length + length - 1} ({', '.join(names[:9])}) cost more: "
                            f"{'sent' if what == 'sent' else 'memory at most'}, {had} bytes, and {wanted} without the shim")
        return None

    # --- shrinking

    def shrink(self, batch, say=lambda text: None):
        """The batch with as few operations as still diverge (delta debugging: Zeller, 1999), in the same way: in what the
        program sees, or else."""
        index, reason, _, _ = self.compare(batch)
        if reason is None:
            return batch
        self.is_seen = index is not None
        for act in ("first", "last"):
            without = replaced(batch, **{act: None})
            if getattr(batch, act) is not None and self.compare(without)[1] is not None:
                batch = without
        index = self.compare(batch)[0]
        bad = batch.where(index)[0] if index is not None else None
        kept = list(range(bad + 1)) if bad is not None else (batch.keep or list(range(batch.operations)))
        if batch.keep is not None:
            kept = [number for number in batch.keep if number in set(kept)]
        if not self.diverges(batch, kept):
            kept = batch.keep or list(range(batch.operations))
        for count in (200, PROGRAM_OPERATIONS, 1000, 2000, 4000, 8000):
            if count < len(kept) and self.diverges(batch, kept[-count:]):
                kept = kept[-count:]
                break
        pieces = 2
        end = time.monotonic() + SHRINK_SECONDS
        while len(kept) > 1 and time.monotonic() < end:
            size = -(-len(kept) // pieces)
            for begin in range(0, len(kept), size):
                rest = kept[:begin] + kept[begin + size:]
                if self.diverges(batch, rest):
                    kept, pieces = rest, max(pieces - 1, 2)
                    say(f"{len(kept)} operations left")
                    break
            else:
                if pieces >= len(kept):
                    break
                pieces = min(2 * pieces, len(kept))
        if kept and self.diverges(batch, []):
            kept = []
        return replaced(batch, keep=kept)

    def diverges(self, batch, keep):
        index, reason, _, _ = self.compare(replaced(batch, keep=keep))
        return reason is not None and (index is not None) == self.is_seen

    def explain(self, batch):
        """The program in words, and where the two sides part."""
        with tempfile.TemporaryDirectory() as folder:
            alone = self.side(batch, os.path.join(folder, "alone"), False, prints=True)
            seen = self.side(batch, os.path.join(folder, "shim"), True, prints=True)
        text = [f"setting: {batch.setting}{in_words(batch.world)}"]
        theirs, ours = words(alone.output), words(seen.output)
        for number, line in enumerate(theirs):
            other = ours[number] if number < len(ours) else "(nothing: it ended)"
            text.append(line if line == other else f"{line}    <-- with the shim: {other.strip()}")
        return "\n".join(text), named(batch, theirs)


def numbers(data, code):
    return struct.unpack(f"{len(data) // struct.calcsize(code)}{code}", data)


def allowed(row, what, names, setting):
    """The cost that a row of COSTS allows to a program of these operations."""
    if setting in row.without:
        return 0
    times = sum(re.search(row.operations, name) is not None for name in names) if row.operations else 1
    return times * getattr(row, what)


def named(batch, lines):
    """The same batch, its operations by number and name: what does not change with the tables of operations."""
    if batch.keep is None:
        return batch
    found = [re.match(r"(\d+): (.*)$", line) for line in lines]
    return replaced(batch, keep=",".join(f"{match[1]}={match[2]}" for match in found if match))


def in_words(world):
    return "".join(f", {name}={value}" for name, value in world.items())


def in_granules(settings, world):
    """Little memory is as many granules, however large they are."""
    factor = int(world.get("SIMCUDA_GRANULE_KIB", ALONE["SIMCUDA_GRANULE_KIB"])) // int(ALONE["SIMCUDA_GRANULE_KIB"])
    return settings | {name: str(int(settings[name]) * factor) for name in ("SIMCUDA_MEMORY_MIB", "SIMCUDA_OTHERS")
                       if name in settings}


def draw_world(seed):
    """As is half of the time; the rows are independent, and a new one changes nothing of those before it."""
    world = {}
    for name, values in WORLDS.items():
        draw = random.Random(f"{seed} {name}")
        world.update(values[0] if draw.random() < 0.5 else draw.choice(values[1:]))
    return world


def draw_plans(seed):
    """Draws one of the values with which plans are drawn."""
    return random.Random(f"{seed} kind of plans").choice(WORLDS["plans"][1:-1])


def words(output):
    """The printed lines, as a person would write them."""
    output = re.sub(r"\(?[\w()]+\), (\w+),\s*(\w+)\)\(", r"\1 or its twin(", output)
    return [line for line in output.replace(")(", "(").splitlines() if not re.search(r" ends the program|bytes were sent", line)]


def replaced(batch, **changes):
    return Batch(**{**{"seed": batch.seed, "operations": batch.operations, "setting": batch.setting,
                       "first": batch.first, "last": batch.last, "keep": batch.keep,
                       "world": batch.world, "short": batch.short}, **changes})


def read(folder, name):
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def last_words(side):
    """Whether a call failed loudly: what may not come again is told at once."""
    lines = (side.log + side.errors).splitlines()[-3:]
    return f"; exit status {side.status}" + "".join(f"\n    {line[:300]}" for line in lines)


def first_difference(wanted, seen):
    if wanted == seen:
        return None
    count = min(len(wanted), len(seen)) // 8
    low, high = 0, count  # the first that differs is in [low, high]
    while low < high:
        middle = (low + high) // 2
        if wanted[8 * low:8 * middle + 8] == seen[8 * low:8 * middle + 8]:
            low = middle + 1
        else:
            high = middle
    return low


def batch_size(operations):
    return min(20000, max(PROGRAM_OPERATIONS, operations // 40))


def batches(fuzzer, seed, operations, size):
    """The batches of a run: what each is follows from the seed and its number."""
    firsts = [None, *fuzzer.firsts]
    lasts = [None, *fuzzer.lasts]
    names = list(SETTINGS)
    number = 0
    while operations > 0:
        # Each first act with each setting, however many there are of them.
        setting = names[(number % len(firsts) + number // len(firsts)) % len(names)]
        count = min(operations, max(PROGRAM_OPERATIONS, int(size * SETTINGS[setting][1])))
        last = lasts[number // 3 % len(lasts)]
        world = (draw_world(seed + number) if fuzzer.draws else {}) | (draw_plans(seed + number) if fuzzer.plans else {})
        world |= fuzzer.fixed
        # There is nothing that a kernel may not read: it would end the simulated device. And the shadow memory of a sanitizer
        # is terabytes that can be read, so that most pairs of integers are a host address.
        if last == "read-illegally" or "san.so" in (fuzzer.preload or ""):
            world["SIMCUDA_PAGEABLE"] = "0"  # whatever SIM_SETTINGS says
        has_plans = world.get("FUZZ_PLANS", "none") != "none"
        is_short = not has_plans and (
            fuzzer.short or fuzzer.draws and random.Random(f"{seed + number} length").random() < 1 / 3)
        yield Batch(seed + number, count, setting, firsts[number % len(firsts)], last, world=world,
                    short=SHORT if is_short else None)
        operations -= count
        number += 1


class Coverage:
    def __init__(self, fuzzer):
        self.fuzzer, self.entries, self.ran, self.failed = fuzzer, Counter(), Counter(), Counter()

    def add(self, alone, seen):
        hits = struct.unpack(f"{len(seen.counts) // 4}I", seen.counts)
        for name, count in zip(self.fuzzer.entries, hits):
            self.entries[name] += count
        counts = struct.unpack(f"{len(alone.counts) // 4}I", alone.counts)[len(self.fuzzer.entries):]
        for number, name in enumerate(self.fuzzer.kinds):
            self.ran[name] += counts[number]
            self.failed[name] += counts[OPERATIONS_MOST + number]

    def never(self):
        return [name for name in self.fuzzer.entries
                if self.fuzzer.classes[name] in ("OWN", "OBSERVE") and self.entries[name] == 0]

    def table(self):
        text = ["entries that were hit, by class:"]
        for class_ in ("OWN", "OBSERVE", "SEAL", "FORWARD"):
            names = [name for name in self.fuzzer.entries if self.fuzzer.classes[name] == class_]
            hit = [name for name in names if self.entries[name] > 0]
            text.append(f"  {class_.lower()}: {len(hit)} of {len(names)}")
            for name in sorted(hit, key=lambda name: -self.entries[name]):
                text.append(f"    {self.entries[name]:10} {name}")
        text.append("own or observe, never hit: " + (", ".join(self.never()) or "none"))
        text.append("operations, and how many had a result that is no success:")
        for name in self.fuzzer.kinds:
            text.append(f"  {self.ran[name]:10} {self.failed[name]:8} {name}")
        return "\n".join(text)


def load(path):
    with open(path) as file:
        kept = json.load(file)
    kept.pop("why", None)
    return Batch(**kept)
