#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_command.py SITTER: `metashard suspend` and `metashard resume`, for processes and jobs (sitter.c), also on a device that
has room for one of them. TAP."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MIB, PAGE = 1 << 20, 4096
WEIGHTS_MIB = 24  # and a cache of as many bytes


class Wrong(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Wrong(what)


class Sitter:
    def __init__(self, place, sitter, **settings):
        self.process = subprocess.Popen(
            [sitter, "sits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=place,
            env={**os.environ, "SITTER_FILE": os.path.join(place, "weights.safetensors"), "SITTER_MIB": str(WEIGHTS_MIB),
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

    def plan(self, rank, world):
        text = json.dumps({"format": "metashard-plan/1", "world_size": world, "rank": rank,
                           "tensors": [{"name": "weights", "placements": [{"shard": 0}]}]}).encode()
        self.ask(b"plan %d\n" % len(text) + text)

    def end(self):
        self.process.communicate("end\n", timeout=60)
        expect(self.process.returncode == 0, f"the sitter ends with {self.process.returncode}")


def write_weights(path):
    """One tensor, as safetensors, whose header is a page."""
    described = json.dumps({"weights": {"dtype": "F32", "shape": [WEIGHTS_MIB * 64, 4096], "data_offsets": [0, WEIGHTS_MIB * MIB]}})
    with open(path, "wb") as file:
        file.write((PAGE - 8).to_bytes(8, "little") + described.encode().ljust(PAGE - 8))
        for _ in range(WEIGHTS_MIB):
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
    expect(f"{WEIGHTS_MIB}.0 MiB come from files again" in said and f"{WEIGHTS_MIB}.0 MiB wait outside" in said, said)
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
    expect(added < 64 << 10, f"with a folder, {added} KiB of host memory more")
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
    shared = {"SIMCUDA_SHARED": os.path.join(place, "device"), "SIMCUDA_MEMORY_MIB": str(2 * WEIGHTS_MIB + 8)}
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
    shared = {"SIMCUDA_SHARED": os.path.join(place, "device"), "SIMCUDA_MEMORY_MIB": str(2 * WEIGHTS_MIB + 8),
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
        works("resume", one.pid)
        backed = one.status()["backed_bytes"]
        expect(backed == (WEIGHTS_MIB // world + WEIGHTS_MIB) * MIB, f"rank {rank} of {world}: {backed} bytes are in memory")
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
    one = Sitter(place, sitter, METASHARD_SUSPEND_BYTES="8M")
    fails("METASHARD_SUSPEND_BYTES", "suspend", one.pid)
    expect(one.status()["backed_bytes"] == 2 * WEIGHTS_MIB * MIB, "a suspension that failed has changed something")
    one.use()
    one.end()


def main():
    sitter = os.path.abspath(sys.argv[1])
    checks = [check_process, check_folder, check_job, check_turns, check_waiting, check_elastic, check_wrong]
    print(f"1..{len(checks)}")
    is_good = True
    for number, check in enumerate(checks, 1):
        place = tempfile.mkdtemp(prefix="suspend-")
        write_weights(os.path.join(place, "weights.safetensors"))
        time.sleep(0.05)
        name = check.__name__.removeprefix("check_")
        try:
            check(place, sitter)
            print(f"ok {number} {name}", flush=True)
        except Wrong as wrong:
            is_good = False
            print(f"not ok {number} {name}\n# {wrong}", flush=True)
        shutil.rmtree(place)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
