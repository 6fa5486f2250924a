# SPDX-License-Identifier: Apache-2.0
"""The flows of run: how each is started with one fault, and what of its end is right."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
for neighbour in (("plans", "shard"), ("plans", "plan"), ("ranks", "flows")):
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(HERE)), *neighbour))
import checkpoint as files  # noqa: E402
import model as models  # noqa: E402
import running  # noqa: E402
from oracle import Tensor  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
DEADLINE_S = 90
OUT_OF_MEMORY, UNKNOWN, LAUNCH_FAILED = 2, 999, 719
NCCL_INTERNAL_ERROR = 3
SHIM = "libmetashard"

# The environment of a fault; the interposer and a shim whose heap it reaches are preloaded for the last ones.
DRIVER = {"driver": f"={OUT_OF_MEMORY}", "driver-unknown": f"={UNKNOWN}", "driver-sticky": f"={LAUNCH_FAILED}!"}
LIBC = {"heap": "heap", "files": "file", "short": "short", "signals": "signal", "heap-lasting": "heap-lasting",
        "descriptors": "descriptors"}
LASTING = ("heap-lasting", "descriptors")
NO_CALL = 10 ** 9  # more than there are
KINDS = [*DRIVER, *LIBC]
SANITIZED = [*DRIVER, "heap", "heap-lasting", "nccl"]

# Points that once were faults: (flow, kind, number).
KNOWN = [
    # A parameter without its pointer: other bytes. Two are counted, and then asked for once more.
    *(("from scratch", "driver:cuFuncGetParamInfo", number) for number in (5, 6, 7, 8, 13, 14)),
    # Memory was unmapped under work that a wait had not waited for.
    *(("from scratch", "driver:cuStreamSynchronize", number) for number in (1, 4, 9)),
    # The range of a piece of memory was told as the allocation's.
    *(("random program", "driver:cuCtxGetDevice", number) for number in (31, 44)),
    # A block that could not be recorded got no memory.
    *(("random program with slices", "heap:realloc", number) for number in (89, 90, 91)),
    # Device memory was kept for ever.
    *(("goes on", f"driver:{name}", number) for name in ("cuMemRelease", "cuMemUnmap", "cuMemAddressFree")
      for number in (1, 8)),
    ("goes on", "driver:cuStreamIsCapturing", 1),
    # Whoever sent a plan waited for ever, or the socket stayed.
    *(("plan by socket", f"files:{name}", 1) for name in ("listen", "eventfd", "pthread_create", "lstat64")),
    *(("plan by socket", "files:__cxa_atexit", number) for number in (1, 2)),
    ("plan by socket", "descriptors:accept4", 1),
    # A dump that was cut off, and no line; a crash of the private heap.
    ("plan", "files:fwrite", 1), ("plan", "files:fclose", 1),
    ("main job", "files:mmap64", 2), ("main job", "files:mmap64", 3),
    # An error, and no line.
    *(("goes on large", "files:fstat64", number) for number in (11, 15, 19)),
    ("from scratch", "files:dlopen", 1), ("main job", "heap:malloc", 11),
]

# As the driver's own: what the program sees then is the driver's answer, and needs no line of the shim's.
LINE = re.compile(r"^metashard\[.*\] (error|warn): ", re.M)


# The end of a point: the call that failed or None; right, told or fault; what was wrong.
Ended = namedtuple("Ended", "call outcome detail")


def is_lasting(kind):
    return kind is not None and kind.partition(":")[0] in LASTING


class Place:
    """The built programs, and the folder for files."""

    def __init__(self, options, folder):
        self.folder, build = folder, options.build
        self.tests = os.path.join(build, "tests")
        self.sanitizer = options.sanitizer
        self.shim = os.path.join(build, "shim", "libmetashard.so")
        self.heap_shim = os.path.join(self.tests, "robust", "faults", "libmetashard-faults.so")
        self.interposer = os.path.join(self.tests, "robust", "faults", "faults-interpose.so")
        self.plan_tool = os.path.join(build, "tools", "metashard-plan")

    def program(self, *path):
        return os.path.join(self.tests, *path)

    def simulated(self, *path):
        return os.path.join(os.path.dirname(self.tests), "tools", "simcuda", *path)

    def preload(self, *libraries):
        return ":".join(filter(None, [self.sanitizer, *libraries]))

    def fault(self, kind, number, folder):
        """The environment in which the shim is preloaded and its call of this number fails; kind None: no fault.
        KIND:FUNCTION counts calls of this function alone; KIND:path=HASH those of the driver's that have this path."""
        report = os.path.join(folder, "fault")
        kind, _, only = (kind or "").partition(":")
        if only and kind in DRIVER and not only.startswith("path="):
            return {"LD_PRELOAD": self.preload(self.shim), "SIMCUDA_FAULT_REPORT": report,
                    "SIMCUDA_FAULTS": f"{only}:{number}{DRIVER[kind]}"}
        if kind in DRIVER:
            return {"LD_PRELOAD": self.preload(self.shim), "SIMCUDA_FAULT_CALLER": SHIM, "SIMCUDA_FAULT_REPORT": report,
                    "SIMCUDA_FAULTS": f"*:{number}{DRIVER[kind]}",
                    **({"SIMCUDA_FAULT_PATH": only.removeprefix("path=")} if only else {}),
                    **({"SIMCUDA_FAULT_TRACE": os.path.join(folder, "trace")} if number == NO_CALL else {})}
        if kind == "nccl":
            return {"LD_PRELOAD": self.preload(self.shim), "SIMCUDA_FAULT_CALLER": SHIM, "SIMCUDA_FAULT_REPORT": report,
                    "SIMNCCL_FAULTS": f"*:{number}=error{NCCL_INTERNAL_ERROR}"}
        if kind in LIBC:
            shim = self.heap_shim if kind.startswith("heap") else self.shim
            before = [] if self.sanitizer else [self.interposer]  # heap.c
            return {"LD_PRELOAD": self.preload(*before, shim), "FAULTS_CALLER": SHIM, "FAULTS_REPORT": report,
                    "FAULTS_KIND": LIBC[kind], "FAULTS_NTH": str(number), **({"FAULTS_ONLY": only} if only else {})}
        return {"LD_PRELOAD": self.preload(self.shim)}


def base_environment(place, folder):
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("METASHARD", "SIMCUDA_", "SIMNCCL_", "FAULTS_", "OMPI_", "SLURM_", "PMI_"))
                   and key not in ("RANK", "WORLD_SIZE", "LD_PRELOAD")}
    environment.update(
        LD_LIBRARY_PATH=f"{place.simulated()}:{place.simulated('nccl')}", SIMCUDA_STATS=os.path.join(folder, "stats"),
        SIMCUDA_GRANULE_KIB="64", SIMCUDA_POISON="2", METASHARD_MIN_BYTES="1", METASHARD_SETTLE_MS="0",
        METASHARD_SELFCHECK="off",  # tests/unit/selfcheck lets each of its calls fail
        METASHARD_STATE_DIR=os.path.join(folder, "state"), METASHARD_DUMP=os.path.join(folder, "dump"))
    return environment


def read_text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def read_json(path):
    try:
        return json.loads(read_text(path))
    except ValueError:
        return None


def is_whole(dump):
    try:
        return not os.path.exists(dump) or bool(read_dump(dump))
    except ValueError:
        return False


class Done:
    """The end of one process."""

    def __init__(self, process, folder, deadline):
        self.folder, self.hangs = folder, False
        try:
            self.out, self.error = process.communicate(timeout=max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.hangs = True
            process.send_signal(signal.SIGABRT)
            try:
                self.out, self.error = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                self.out, self.error = process.communicate()
        self.status = process.returncode
        self.stats = read_json(os.path.join(folder, "stats"))
        self.call = read_text(os.path.join(folder, "fault")).strip() or None
        self.trace = [line.split() for line in read_text(os.path.join(folder, "trace")).splitlines()]

    def broken(self):
        """An error that no fault excuses, or None."""
        if self.hangs:
            return "hangs"
        if self.status < 0:
            return f"ended by signal {-self.status}"
        # NCCL's stand-in explains the errors that it returns.
        strange = [line for line in self.error.splitlines()
                   if line.startswith(("simcuda: ", "simnccl: ") if self.status == 0 else "simcuda: ")]
        if strange:
            return "the simulated driver complains: " + strange[0]
        if self.stats is None:  # written where cuInit has succeeded
            return None if self.status in (1, 3) else "no statistics"
        if self.stats["races"] or self.stats["illegal_accesses"]:
            return f"races {self.stats['races']}, illegal accesses {self.stats['illegal_accesses']}"
        return self.left_behind()

    def left_behind(self):
        state = os.path.join(self.folder, "state")
        strange = [name for name in (os.listdir(state) if os.path.isdir(state) else [])
                   if not re.fullmatch(r"metashard-\d+\.state", name)]
        if strange and self.call not in ("unlinkat", "unlink"):
            return f"left in the folder of the state page: {strange}"
        if not is_whole(os.path.join(self.folder, "dump")) and not LINE.search(self.error):
            return "the dump is not whole, and no line says so"
        return None

    def last(self):
        return f"exit status {self.status}\n" + "\n".join((self.out[-300:] + self.error[-1500:]).splitlines())


class Flow:
    """kinds: of faults. A flow says how to start it, and what of its end is right. calls: about how many of the driver's,
    of the heap and of libc's there are, for a sample."""
    kinds = KINDS
    calls = (170, 40, 150)

    def __init__(self, place):
        self.place = place

    def prepare(self):
        """Files, and one run without a fault. A reason where it cannot run here."""
        self.sound = None
        with tempfile.TemporaryDirectory(dir=self.place.folder) as folder:
            done = self.run(None, 0, folder)
            wrong = done.broken() or self.judge_sound(done)
        if wrong:
            raise SystemExit(f"{self.name}: without a fault: {wrong}\n{done.last()}")
        self.sound = done
        return None

    def environment(self, kind, number, folder):
        return {**base_environment(self.place, folder), **self.settings, **self.place.fault(kind, number, folder)}

    def about(self, kind):
        driver, heap, other = self.calls
        few = {"short": 30, "signals": 30, "nccl": 10, "descriptors": 25}
        return driver if kind in DRIVER else heap if kind.startswith("heap") else few.get(kind, other)

    settings = {}

    def run(self, kind, number, folder):
        process = subprocess.Popen(self.command(folder), env=self.environment(kind, number, folder), cwd=folder,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   errors="replace")
        return Done(process, folder, time.monotonic() + DEADLINE_S)

    def point(self, kind, number):
        """An Ended."""
        plain = kind.partition(":")[0]
        folder = tempfile.mkdtemp(dir=self.place.folder)
        try:
            done = self.run(kind, number, folder)
            wrong = done.broken()
            if not wrong:
                outcome, wrong = self.judge(done, plain)
                # An error that is not the driver's own is explained.
                if outcome == "told" and plain in LIBC and not LINE.search(done.error):
                    wrong = "the program is told of an error, and no line says why"
            if wrong:
                outcome, wrong = "fault", f"{wrong}\n{done.last()}"
            return Ended(done.call, outcome, wrong or "")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def trace(self, kind):
        """The driver's calls in a run in which none fails, each as (number, name, path)."""
        with tempfile.TemporaryDirectory(dir=self.place.folder) as folder:
            return self.run(kind, NO_CALL, folder).trace

    def judge_sound(self, done):
        return None if done.status == 0 else f"exit status {done.status}"


class Persistent(Flow):
    """flow.c, which goes on, where something fails only once."""
    kinds = [kind for kind in KINDS if kind not in LASTING]

    def __init__(self, place, large):
        super().__init__(place)
        self.name = "goes on large" if large else "goes on"
        self.calls = (880, 150, 410) if large else (6500, 1000, 1030)
        self.options = ["--large"] if large else []
        self.settings = {"SIMCUDA_MEMORY_MIB": "24" if large else "4"}

    def prepare(self):
        self.data = os.path.join(self.place.folder, "data")
        with open(self.data, "wb") as file:
            file.write(random.Random(7).randbytes(12 * MIB))
        os.utime(self.data, (1e9, 1e9))
        return super().prepare()

    def command(self, folder):
        return [self.place.program("robust", "faults", "flow"), self.place.simulated("test_kernels.so"),
                self.place.simulated("torch_kernels.so"), self.data, *self.options]

    def judge(self, done, kind):
        sticky = kind == "driver-sticky"
        if done.status == 3 and sticky:
            return "told", None
        if done.status != 0:
            return None, "the program could not go on"
        for key in ("physical_bytes_now", "live_handles", "live_reservations"):
            if done.stats[key] > self.sound.stats[key] and not sticky:
                return None, f"{key} {done.stats[key]}, without a fault {self.sound.stats[key]}"
        number = int(re.search(r"^descriptors (\d+)$", done.out, re.M)[1])
        wanted = int(re.search(r"^descriptors (\d+)$", self.sound.out, re.M)[1])
        if number > wanted:
            return None, f"descriptors {number}, without a fault {wanted}"
        told = int(re.search(r"^errors (\d+)$", done.out, re.M)[1]) > 0
        return ("told" if told else "right"), None


class Once(Flow):
    """A program that ends at the first error, with exit status 1 and a line."""
    told = re.compile("CUDA error| is [0-9]+$", re.M)

    def judge(self, done, kind):
        if done.status == 0 and done.out == self.sound.out:
            return "right", None
        if done.status == 1 and self.told.search(done.out + done.error):
            return "told", None
        return None, "other output than without a fault" if done.status == 0 else "an end that tells nothing"


class MainJob(Once):
    name = "main job"

    def prepare(self):
        self.checkpoint = os.path.join(self.place.folder, "checkpoint")
        os.makedirs(self.checkpoint, exist_ok=True)
        subprocess.run([self.place.program("demo", "make_checkpoint"), self.checkpoint, "8", "2"], check=True,
                       capture_output=True)
        for name in os.listdir(self.checkpoint):
            os.utime(os.path.join(self.checkpoint, name), (1e9, 1e9))
        return super().prepare()

    def command(self, folder):
        return [self.place.program("demo", "client"), "1", "2", self.checkpoint]


class FromScratch(Once):
    name = "from scratch"
    calls = (1210, 270, 66)

    def command(self, folder):
        return [self.place.program("frameworks", "flows", "from_scratch"), "--kernels", self.place.simulated("torch_kernels.so"),
                "--rank", "1", "--ranks", "3", "--dim", "36", "--layers", "1", "--vocab", "9", "--end"]


class Model(Once):
    """One thread, so that the calls are the same each time. Left out: changes of its file, where what fails is no call of
    CUDA; other contexts, since a program goes on in the wrong one when one cannot be popped; memory that it maps itself, for whose
    record there must be memory; slices of columns (Slices); and memory that another process opens, which tells what fails."""
    name = "random program"
    calls = (1950, 240, 130)
    settings = {"SIMCUDA_DEVICES": "2"}
    without = ("change the file", "delete the file", "a child of fork changes the file", "a child of vfork changes the file",
               "a host function changes the file", "copy in another current context", "free in another current context",
               "cuMemMap", "remap", "reservations with gaps", "slice columns", "share with another process")

    def command(self, folder):
        return [self.place.program("driver", "model", "model"), "--seed", "3", "--ops", "120", "--threads", "1",
                "--without", ",".join(self.without), folder,
                self.place.simulated("test_kernels.so"), self.place.simulated("torch_kernels.so")]

    def judge(self, done, kind):
        if done.status == 1 and "CUDA error" in done.out:
            return "told", None
        return super().judge(done, kind)


class Slices(Model):
    """With slices of columns. While the heap stays out, a block for whose record there is no memory gets none, a line says so,
    and the kernel that goes there fails."""
    name = "random program with slices"
    kinds = ["heap"]
    calls = (1950, 250, 130)
    without = tuple(operation for operation in Model.without if operation != "slice columns")


class Planned(Flow):
    """A plan that is read from a file at the start, and a program that works in place."""
    name = "plan"
    calls = (120, 64, 200)
    rank, world = 1, 2
    settings = {"RANK": "1", "WORLD_SIZE": "2"}
    options = ()

    def prepare(self):
        tensors = [Tensor("a.weight", "F32", (64, 1024)), Tensor("b.weight", "BF16", (130, 600)),
                   Tensor("c.weight", "F64", (7, 4001))]
        self.checkpoint = os.path.join(self.place.folder, "planned")
        os.makedirs(self.checkpoint, exist_ok=True)
        path = os.path.join(self.checkpoint, "model.safetensors")
        header, data_bytes = files.header_of(tensors)
        with open(path, "wb") as file:
            file.write(files.file_bytes(header, 0) + random.Random(5).randbytes(data_bytes))
        os.utime(path, (1e9, 1e9))
        self.plan = os.path.join(self.place.folder, "plan.json")
        subprocess.run([self.place.plan_tool, "make", path, "--strategy", "fsdp2", "--mesh", "shard=2", "-o", self.plan],
                       check=True)
        self.ranges = os.path.join(self.place.folder, "ranges")
        with open(self.ranges, "w") as file:
            file.write("a.weight 131072 262144\nb.weight 78000 156000\nc.weight 128032 224056\nb.weight 5 777\n")
        return super().prepare()

    def environment(self, kind, number, folder):
        return {**super().environment(kind, number, folder), "METASHARD_PLAN": self.plan}

    def command(self, folder):
        return [self.place.program("plans", "shard", "in_place"), str(self.rank), str(self.world), self.checkpoint, "--ranges",
                self.ranges, *self.options]

    def judge(self, done, kind):
        if done.status == 1 and "CUDA error" in done.error:
            return "told", None
        try:
            ranges = json.loads(done.out)["ranges"]
        except ValueError:
            return None, "no report"
        if done.status != 0 or len(ranges) != 4:
            return None, "an end that tells nothing"
        wrong = [row for row in ranges if row["result"] == 0 and row["hash"] != row["file_hash"]]
        if wrong:
            return None, f"wrong bytes: {wrong}"
        return ("told" if any(row["result"] for row in ranges) else "right"), None


class Sent(Planned):
    """The plan comes over the socket, when everything is loaded."""
    name = "plan by socket"
    options = ("--wait",)

    def environment(self, kind, number, folder):
        environment = super().environment(kind, number, folder)
        del environment["METASHARD_PLAN"]
        return {**environment, "METASHARD_CONTROL": os.path.join(folder, "control")}

    def send(self, kind, folder, process):
        """Whoever sends is told of what goes wrong, too, and does not wait for ever."""
        try:
            sent = subprocess.run([self.place.plan_tool, "send", self.plan, "--to", os.path.join(folder, "control")],
                                  capture_output=True, text=True, timeout=3 if is_lasting(kind) else DEADLINE_S / 3)
            if kind is None and sent.returncode != 0:
                raise SystemExit(f"the plan was not taken: {sent.stderr}")
        except subprocess.TimeoutExpired:
            if not is_lasting(kind):  # then a descriptor may come free at any time
                process.send_signal(signal.SIGABRT)

    def run(self, kind, number, folder):
        process = subprocess.Popen(self.command(folder), env=self.environment(kind, number, folder), cwd=folder,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ready = process.stdout.readline()
        if ready == "ready\n":
            self.send(kind, folder, process)
        done = Done(process, folder, time.monotonic() + DEADLINE_S)
        done.out = done.out if ready == "ready\n" else ready + done.out
        if os.path.lexists(os.path.join(folder, "control")) and done.call not in ("unlink", "lstat64"):
            done.error += "\nsimcuda: the socket is still there"
        return done


class Nccl(Flow):
    """A flow of several ranks, of which one has the fault."""
    kinds = [*KINDS, "nccl"]
    calls = (390, 110, 200)
    ranks = 2

    def __init__(self, place, name, case, guilty):
        super().__init__(place)
        self.name, self.case, self.guilty = name, case, guilty

    def prepare(self):
        programs = self.place.program("ranks", "flows")
        if not os.path.exists(os.path.join(programs, "flow_fsdp1")):
            return "built without nccl.h"
        folder = os.path.join(self.place.folder, "model")
        if not os.path.isdir(folder):
            os.mkdir(folder)
            models.SHAPES["faults"] = [("embed", [101, 33]), ("layers.0.q", [5, 7]), ("layers.0.o_proj", [129, 65]),
                                       ("norm", [65])]
            Nccl.model = models.Model(folder, "faults")
        self.options = types.SimpleNamespace(programs=programs, kernels=self.place.simulated("torch_kernels.so"),
                                             plan=self.place.plan_tool, granule=64 * KIB, bucket=8 * KIB, shim={}, users=False,
                                             preload="", cat=os.path.join(programs, "flow_kernels.so"))
        return super().prepare()

    def start(self, kind, number, folder, rank, plan):
        own = os.path.join(folder, str(rank))
        os.mkdir(own)
        environment = {**base_environment(self.place, own), **self.place.fault(kind, number, own),
                       "SIMNCCL_TIMEOUT_MS": "15000", "RANK": str(rank), "WORLD_SIZE": str(self.ranks),
                       "METASHARD_PLAN": plan}
        command = [os.path.join(self.options.programs, "flow_" + self.case.program), "--rank", str(rank), "--ranks",
                   str(self.ranks), "--id", os.path.join(folder, "id"), "--model", self.model.folder, "--out",
                   os.path.join(folder, f"out-{rank}"),
                   *running.arguments_of(self.options, self.case, self.ranks, running.Way("", True, True, {}))]
        return subprocess.Popen(command, env=environment, cwd=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace")

    def run(self, kind, number, folder):
        plan = running.make_plan(self.options, folder, self.case, self.model, self.ranks)
        started = [self.start(kind if rank == self.guilty else None, number, folder, rank, plan)
                   for rank in range(self.ranks)]
        end = time.monotonic() + DEADLINE_S
        done = Done(started[self.guilty], os.path.join(folder, str(self.guilty)), end)
        # The others wait for one that has given up: they are not judged then, beyond their bytes.
        if done.status != 0:
            time.sleep(0.2)
            for process in started:
                process.kill()
        done.others = [Done(process, os.path.join(folder, str(rank)), end)
                       for rank, process in enumerate(started) if rank != self.guilty]
        done.wrong = ""
        for rank, one in zip([rank for rank in range(self.ranks) if rank != self.guilty], done.others):
            if one.status == 0:
                done.wrong += self.compare(folder, rank, one)
            elif done.status == 0 and one.status != 1:
                done.wrong += f"rank {rank}: {one.last()}"
        if done.status == 0:
            done.wrong += self.compare(folder, self.guilty, done)
        return done

    def compare(self, folder, rank, one):
        return running.compare(folder, rank, running.parts_of(one.out), self.case.parts(self.model, rank, self.ranks))

    def judge_sound(self, done):
        return done.wrong or ("" if done.status == 0 and all(one.status == 0 for one in done.others) else "it fails")

    def judge(self, done, kind):
        if done.wrong:
            return None, done.wrong
        if done.status == 0 and all(one.status == 0 for one in done.others):
            return "right", None
        if done.status in (0, 1) and re.search(r" is \d+$", done.error + "".join(one.error for one in done.others), re.M):
            return "told", None
        return None, "an end that tells nothing"


def make(options, folder):
    import check_flows
    place = Place(options, folder)
    by_name = {flow.name: flow for flow in check_flows.FLOWS}
    out = [Persistent(place, False), Persistent(place, True), MainJob(place), FromScratch(place), Model(place), Slices(place), Planned(place), Sent(place)]
    out += [Nccl(place, "NCCL FSDP1 rank 0", by_name["FSDP1, coalesced"], 0),
            Nccl(place, "NCCL FSDP1 rank 1", by_name["FSDP1, coalesced"], 1),
            Nccl(place, "NCCL accelerate rank 1", by_name["accelerate, FSDP2"], 1)]
    return out
