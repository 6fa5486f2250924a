#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_command.py SITTER DUMP [CHECK...]: `metashard suspend` and `metashard resume`, for processes and jobs (sitter.c), also on a device that
has room for one of them. TAP."""
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import Wrong, end, expect, run  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MIB, PAGE = 1 << 20, 4096
WEIGHTS_MIB = 8  # and a cache of as many bytes
ROUNDS = 100
# Driver functions at which a suspension and its end are killed: the waits, the reads, what gives memory back and takes it.
STEPS = {"suspend": ("cuCtxRecordEvent", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuMemUnmap", "cuMemRelease"),
         "resume": ("cuMemGetInfo_v2", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize")}
KILLS = 3  # of each: the first call, the second, the fourth
OTHER_USER = 65534


DUMP = os.path.abspath(sys.argv[2])


class Sitter:
    def __init__(self, place, sitter, **settings):
        self.place = place
        weights = os.path.join(place, "weights.safetensors")
        self.process = subprocess.Popen(
            [sitter, "sits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=place,
            env={**os.environ, "SITTER_FILE": weights, "SITTER_MIB": str(os.path.getsize(weights) // MIB),
                 "METASHARD_CONTROL": "control-%p", "METASHARD_STATE_DIR": "", **settings})
        self.pid = str(self.process.pid)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline().strip()
        expect(line == "ok", f"the sitter says {line!r}")

    def use(self):
        print("use", file=self.process.stdin, flush=True)
        self.answer()

    def refuses(self):
        print("use", file=self.process.stdin, flush=True)
        line = self.process.stdout.readline().strip()
        expect(line == "CUDA error 2", f"without memory the sitter says {line!r}")

    def ask(self, request):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(f"/proc/{self.pid}/cwd/control-{self.pid}")
            connection.sendall(request)
            answer = connection.recv(65536).decode()
            expect(answer.startswith("ok "), f"{request[:20]}: {answer}")
            return answer[3:]

    def status(self):
        return json.loads(self.ask(b"status\n"))

    def send(self, line):
        """Its answer: whether it is "ok"."""
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip() == "ok"

    def starts(self, request):
        """The request begins; nobody waits for its answer."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(f"/proc/{self.pid}/cwd/control-{self.pid}")
        connection.sendall(request)
        return connection

    def counters(self):
        """The counters of the process's state page."""
        done = subprocess.run([DUMP, "show", self.pid, "--json"], capture_output=True, text=True, check=True,
                              env={"METASHARD_STATE_DIR": self.place})
        return json.loads(done.stdout)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def plan(self, rank, world):
        text = json.dumps({"format": "metashard-plan/1", "world_size": world, "rank": rank,
                           "tensors": [{"name": "weights", "placements": [{"shard": 0}]}]}).encode()
        self.ask(b"plan %d\n" % len(text) + text)

    def end(self):
        self.process.communicate("end\n", timeout=60)
        expect(self.process.returncode == 0, f"the sitter ends with {self.process.returncode}")


def write_weights(path, count=WEIGHTS_MIB):
    """One tensor of so many MiB, as safetensors, whose header is a page."""
    described = json.dumps({"weights": {"dtype": "F32", "shape": [count * 64, 4096], "data_offsets": [0, count * MIB]}})
    with open(path, "wb") as file:
        file.write((PAGE - 8).to_bytes(8, "little") + described.encode().ljust(PAGE - 8))
        for _ in range(count):
            file.write(os.urandom(MIB))


def metashard(*arguments):
    done = subprocess.run([sys.executable, "-m", "metashard", *arguments], capture_output=True, text=True, timeout=120, check=False,
                          env={**{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
                               "PYTHONPATH": os.path.join(SOURCE, "tools", "python")})
    return done.returncode, done.stdout + done.stderr


def works(*arguments):
    status, said = metashard(*arguments)
    expect(status == 0, f"metashard {' '.join(arguments)}: {said}")
    return said


def fails(why, *arguments):
    status, said = metashard(*arguments)
    expect(status != 0 and why in said, f"metashard {' '.join(arguments)}: expected {why!r}, found {status} and {said!r}")


def check_process(place, sitter):
    one = Sitter(place, sitter)
    said = works("suspend", one.pid)
    expect(f"{WEIGHTS_MIB}.0 MiB to be reread from files" in said and f"{WEIGHTS_MIB}.0 MiB kept outside" in said, said)
    expect(one.status()["backed_bytes"] == 0 and one.status()["suspended"], f"{one.status()}")
    works("resume", one.pid)
    expect(one.status()["backed_bytes"] == 2 * WEIGHTS_MIB * MIB and not one.status()["suspended"], f"{one.status()}")
    one.use()
    works("suspend", one.pid)
    one.use()
    one.end()


def host_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def check_folder(place, sitter):
    one = Sitter(place, sitter)
    before = host_kib(one.pid)
    os.mkdir(os.path.join(place, "kept"))
    works("suspend", one.pid, "--to", os.path.join(place, "kept"))
    expect(os.listdir(os.path.join(place, "kept")) == [], "the folder has a file with a name")
    added = host_kib(one.pid) - before
    one.use()
    fails("expected the absolute path of a folder", "suspend", one.pid, "--to", os.path.join(place, "nowhere"))
    expect(added < WEIGHTS_MIB * 8 // 3 << 10, f"with a folder, {added} KiB of host memory more")
    one.use()
    one.end()


def check_job(place, sitter):
    two = [Sitter(place, sitter, METASHARD_JOB="a-job") for _ in range(2)]
    said = works("suspend", "a-job")
    expect(all(one.pid + ":" in said for one in two), said)
    expect(all(one.status()["backed_bytes"] == 0 for one in two), "something of the job is in memory")
    works("resume", "a-job")
    for one in two:
        one.use()
        one.end()


def check_turns(place, sitter):
    """A device that has room for one, and a little."""
    shared = {"SIMCUDA_SHARED": os.path.join(place, "device"), "SIMCUDA_MEMORY_MIB": str(2 * WEIGHTS_MIB + WEIGHTS_MIB // 4)}
    models = []
    for _ in range(3):
        if models:
            works("suspend", models[-1].pid)
        models.append(Sitter(place, sitter, **shared))
    models[0].refuses()
    fails("has no memory", "resume", models[0].pid)
    for turn in range(9):
        works("suspend", models[(turn + 2) % 3].pid)
        if turn % 2:
            works("resume", models[turn % 3].pid)
        models[turn % 3].use()
    for one in models:
        one.end()


def check_waiting(place, sitter):
    """METASHARD_RESUME_MS: memory comes while a call waits for it."""
    shared = {"SIMCUDA_SHARED": os.path.join(place, "device"), "SIMCUDA_MEMORY_MIB": str(2 * WEIGHTS_MIB + WEIGHTS_MIB // 4),
              "METASHARD_RESUME_MS": "60000"}
    first = Sitter(place, sitter, **shared)
    works("suspend", first.pid)
    second = Sitter(place, sitter, **shared)
    print("use", file=first.process.stdin, flush=True)
    time.sleep(0.3)
    works("suspend", second.pid)
    first.answer()
    first.end()
    second.end()


def check_elastic(place, sitter):
    """A plan of another world while it is suspended: the rank holds its new part, and what no file has."""
    one = Sitter(place, sitter)
    for rank, world in ((0, 2), (3, 4), (0, 1)):
        works("suspend", one.pid)
        one.plan(rank, world)
        expect(one.status()["backed_bytes"] == 0, f"rank {rank} of {world}: the plan has fetched while it was suspended")
        works("resume", one.pid)
        backed = one.status()["backed_bytes"]
        expect(backed == (WEIGHTS_MIB // world + WEIGHTS_MIB) * MIB, f"rank {rank} of {world}: {backed} bytes are in memory")
    one.use()
    one.end()


def small(place):
    """The settings of a sitter with weights of 8 MiB."""
    path = os.path.join(place, "small.safetensors")
    if not os.path.exists(path):
        write_weights(path, 8)
        time.sleep(0.05)
    return {"SITTER_FILE": path, "SITTER_MIB": "8", "METASHARD_STATE_DIR": place}


def check_again(place, sitter):
    """To the host goes what no file has, each time; what is read back is the file's bytes, and nothing is sent twice."""
    one = Sitter(place, sitter, **small(place))
    for number in range(ROUNDS):
        told = json.loads(one.ask(b"suspend\n"))
        before = one.counters()
        expect((told["stored_bytes"], told["replayed_bytes"], told["freed_bytes"]) == (8 * MIB, 8 * MIB, 16 * MIB),
               f"round {number}: {told}")
        one.ask(b"resume\n")
        after = one.counters()
        sent, read = (after[key] - before[key] for key in ("h2d_bytes", "file_read_bytes"))
        expect(sent == 16 * MIB and read == 8 * MIB, f"round {number}: {sent} bytes were sent to the device, {read} read")
        if number % 5 == 0:
            one.use()
    one.use()
    one.end()


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()


def check_kill(place, sitter):
    """A process that is killed at a step of its suspension, or of its end: its file is whole, nobody waits for a lease, the
    folder is empty, its state page can be read, the device has its memory again, and another process goes on."""
    shared = {**small(place), "SIMCUDA_SHARED": os.path.join(place, "device"), "SIMCUDA_MEMORY_MIB": "40"}
    path, kept = shared["SITTER_FILE"], os.path.join(place, "kept")
    os.mkdir(kept)
    was = digest(path)
    other, killed = Sitter(place, sitter, **shared), 0
    for command, functions in STEPS.items():
        for function in functions:
            for nth in (1, 2, 4)[:KILLS]:
                one = Sitter(place, sitter, **shared)
                if command == "resume":
                    one.ask(b"suspend %s\n" % kept.encode())
                if not one.send(f"stop {function} {nth}"):
                    raise Wrong(f"there is no {function}")
                one.starts(b"suspend %s\n" % kept.encode() if command == "suspend" else b"resume\n")
                killed += one.send("stopped")
                one.kill()
                what = f"{command}, {function} {nth}"
                expect(digest(path) == was, f"{what}: the file is another one")
                expect(os.listdir(kept) == [], f"{what}: the folder has {os.listdir(kept)}")
                expect(one.counters()["pid"] == int(one.pid), f"{what}: no state page")
                began = time.monotonic()
                os.close(os.open(path, os.O_WRONLY))
                expect(time.monotonic() - began < 5, f"{what}: somebody holds the file")
                other.use()
    expect(killed > 2 * len(STEPS), f"{killed} were killed at a step")
    print(f"# {killed} were killed where they had to wait")
    one = Sitter(place, sitter, **shared)
    one.use()
    os.rename(path, path + ".old")
    other.use()
    one.end()
    other.end()


# Names of the socket, and the environment that says what each means.
NAMES = (("%p-%r-%j-%h-%x-%%p%", {}),
         ("%r-%j", {"RANK": "3", "SLURM_JOB_ID": "4711", "METASHARD_JOB": "a/b"}),
         ("%r-%j", {"RANK": "x", "SLURM_PROCID": "007", "TORCHELASTIC_RUN_ID": "none", "METASHARD_JOB": ""}),
         ("%r-%j", {"RANK": "2147483648", "PMI_RANK": "5", "TORCHELASTIC_RUN_ID": "run"}),
         ("%j", {"METASHARD_JOB": "x" + 40 * "\u00e4"}))  # it is cut within a character


def check_names(place, sitter):
    """The command expands the name as the process does, wherever it has its rank, its job and its host from."""
    for name, settings in NAMES:
        one = Sitter(place, sitter, METASHARD_CONTROL=name, **settings)
        works("suspend", one.pid)
        works("resume", one.pid)
        one.end()


def check_signal(place, sitter):
    one = Sitter(place, sitter, METASHARD_SUSPEND_SIGNAL=str(int(signal.SIGUSR2)))
    for is_suspended in (True, False, True):
        os.kill(one.process.pid, signal.SIGUSR2)
        until = time.monotonic() + 30
        while one.status()["suspended"] != is_suspended and time.monotonic() < until:
            time.sleep(0.02)
        expect(one.status()["backed_bytes"] == (0 if is_suspended else 2 * WEIGHTS_MIB * MIB), f"after a signal: {one.status()}")
    one.use()
    one.end()
    alone = Sitter(place, sitter)  # nobody has asked for it
    os.kill(alone.process.pid, signal.SIGUSR2)
    expect(alone.process.wait(30) == -signal.SIGUSR2, "a signal that is not asked for is handled")


def check_gone(place, sitter):
    """The file is removed while its bytes are there alone, or another one gets its name."""
    for goes in (os.remove, lambda path: os.replace(shutil.copy(os.path.join(place, "other.safetensors"), path + ".new"), path)):
        path = os.path.join(place, "weights.safetensors")
        write_weights(os.path.join(place, "other.safetensors"))
        write_weights(path)
        time.sleep(0.05)
        one = Sitter(place, sitter)
        works("suspend", one.pid)
        goes(path)
        works("resume", one.pid)
        one.use()
        one.end()


def check_overwritten(place, sitter):
    """Without leases nobody holds up who writes: what was lost is told, each time, and the rest is there."""
    one = Sitter(place, sitter, METASHARD_LEASES="off")
    works("suspend", one.pid)
    write_weights(os.path.join(place, "weights.safetensors"))
    fails("cannot be restored", "resume", one.pid)
    expect(one.status()["suspended"], "it is not suspended any more")
    one.kill()


def as_other_user(pid):
    """What `metashard suspend PID` says to somebody else."""
    sys.path.insert(0, os.path.join(SOURCE, "tools", "python"))
    from metashard import suspension
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        os.dup2(writing, 2)
        os._exit(suspension.main("suspend", [pid]))
    os.close(writing)
    with os.fdopen(reading) as said:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.read()


def check_other_user(place, sitter):
    if os.geteuid() != 0:
        print("# not as root: there is no other user")
        return
    one = Sitter(place, sitter)
    status, said = as_other_user(one.pid)
    expect(status == 1 and "is not a process of this user" in said, f"another user is told {status} and {said!r}")
    expect(not one.status()["suspended"], "another user has suspended it")
    one.use()
    one.end()


def check_wrong(place, sitter):
    fails("neither a process nor a job", "suspend", "no-such-job")
    fails("neither a process nor a job", "suspend", "999999999")
    fails("no control socket", "suspend", str(os.getpid()))
    alone = subprocess.Popen(["sleep", "60"], env={"METASHARD_CONTROL": os.path.join(place, "nobody")})
    fails("nobody: No such file", "resume", str(alone.pid))
    alone.kill()
    alone.wait()
    one = Sitter(place, sitter, METASHARD_SUSPEND_BYTES=f"{WEIGHTS_MIB // 2}M")
    fails("METASHARD_SUSPEND_BYTES", "suspend", one.pid)
    expect(one.status()["backed_bytes"] == 2 * WEIGHTS_MIB * MIB, "a suspension that failed has changed something")
    one.use()
    one.end()


def main():
    sitter = os.path.abspath(sys.argv[1])
    checks = [check_process, check_folder, check_job, check_turns, check_waiting, check_elastic, check_wrong, check_again,
              check_kill, check_names, check_signal, check_gone, check_overwritten, check_other_user]
    checks = [check for check in checks if not sys.argv[3:] or check.__name__.removeprefix("check_") in sys.argv[3:]]
    for check in checks:
        place = tempfile.mkdtemp(prefix="suspend-")
        write_weights(os.path.join(place, "weights.safetensors"))
        time.sleep(0.05)
        run(check.__name__.removeprefix("check_"), check, place, sitter)
        shutil.rmtree(place)
    return end()


if __name__ == "__main__":
    sys.exit(main())
