#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_launchers.py JOB PRELOAD: what starts a job's ranks hands the preload and the variables on: mpirun, srun, a
shell's usual wrappers, a virtual environment's Python, data loaders' workers. TAP.

Each launcher really starts processes, which use the simulated driver; what the shim writes in each of them shows
where it was, and which rank it takes itself for.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import slurm

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402
from tap import end, equal, skip  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 4
TIMEOUT_SECONDS = 60
LINE = re.compile(r"^process (\d+) rank (-?\d+) byte (\d+)$", re.M)
# Variables of an outer job, in which this test may run.
OUTER = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_RANK|OMPI_.*|PMIX_.*|PMI_.*|SLURM_.*|METASHARD.*|LD_PRELOAD)$")

JOB, PRELOAD = os.path.abspath(sys.argv[1]), sys.argv[2]


class Launch:
    """One command under the preload, and what was left by the processes in which the shim worked."""

    def __init__(self, command, preload=PRELOAD, settings=None):
        with tempfile.TemporaryDirectory() as folder:
            environment = {name: value for name, value in os.environ.items() if not OUTER.match(name)}
            environment.update(settings or {})
            if preload is not None:
                environment.update(LD_PRELOAD=preload, METASHARD_LOG=f"info:{folder}/log-%p",
                                   METASHARD_DUMP=f"{folder}/dump-%p", METASHARD_STATE_DIR=f"{folder}/state")
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=TIMEOUT_SECONDS, check=False, cwd=folder)
            self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
            self.dumps = {read_dump(path)["pid"] for path in glob.glob(f"{folder}/dump-*")}
            self.pages = {int(re.search(r"-(\d+)\.state$", path)[1])
                          for path in glob.glob(f"{folder}/state/metashard-*.state")}
            said = "".join(self.read(path) for path in glob.glob(f"{folder}/log-*"))
            self.ranks = {int(pid): int(rank) for rank, pid in re.findall(r"metashard\[rank (\d+) pid (\d+)\] info: \d+ allocations", said)}
        self.jobs = {int(pid): int(rank) for pid, rank, _ in LINE.findall(self.out)}
        self.bytes = sorted(int(byte) for _, _, byte in LINE.findall(self.out))

    @staticmethod
    def read(path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def told(self):
        return self.status, self.out, self.err


def check_ranks(name, launch, ranks=RANKS):
    """All ranks ran, each with the shim in it, which knows the rank; and nobody else made a file."""
    equal(f"{name}: every rank ran, with its own bytes", (launch.status, launch.bytes),
          (0, list(range(1, ranks + 1))))
    equal(f"{name}: the shim was in each, and knew its rank", launch.ranks, launch.jobs)
    equal(f"{name}: the launcher's own processes left nothing", (launch.dumps, launch.pages),
          (set(launch.jobs), set(launch.jobs)))


def check_unseen(name, launch, ranks=RANKS):
    """The ranks ran without the shim."""
    equal(f"{name}: every rank ran", (launch.status, launch.bytes), (0, list(range(1, ranks + 1))))
    equal(f"{name}: without the shim", (launch.ranks, launch.dumps, launch.pages), ({}, set(), set()))


# --- launchers

def check_mpirun():
    mpirun = shutil.which("mpirun")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout if mpirun else ""
    if "Open MPI" not in version:
        skip("mpirun", "there is no Open MPI here")
        return
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [mpirun, "--oversubscribe", "-np", str(RANKS)]
    check_ranks("mpirun", Launch([*command, JOB], settings=settings))
    # Given to the ranks alone, by the launcher, as it must be for ranks on other machines.
    given = [word for variable in (f"LD_PRELOAD={PRELOAD}", "METASHARD_LOG=info:log-%p", "METASHARD_DUMP=dump-%p",
                                   "METASHARD_STATE_DIR=state") for word in ("-x", variable)]
    check_ranks("mpirun -x", Launch([*command, *given, JOB], preload=None, settings=settings))


def check_srun(name, srun, settings):
    settings = settings | {"METASHARD_MIN_BYTES": "4M"}
    command = [*srun, "-n", str(RANKS), "--overcommit"]
    check_ranks(f"{name}", Launch([*command, JOB], settings=settings))
    check_ranks(f"{name} --export=ALL,NAME=VALUE",
                Launch([*command, "--export=ALL,METASHARD_SETTLE_MS=0", JOB], settings=settings))
    check_unseen(f"{name} --export=NONE", Launch([*command, "--export=NONE", JOB], settings=settings))
    # Without the library's own folder, the simulated driver would not be found.
    few = "--export=LD_PRELOAD,LD_LIBRARY_PATH,METASHARD_LOG,METASHARD_DUMP,METASHARD_STATE_DIR"
    check_ranks(f"{name}, with what is needed alone", Launch([*command, few, JOB], settings=settings))


def check_slurm():
    check_srun("srun's stand-in", [sys.executable, os.path.join(HERE, "srun.py")], {})
    if not slurm.is_installed():
        skip("srun", "there is no Slurm here")
        return
    with tempfile.TemporaryDirectory() as folder, slurm.cluster(folder) as settings:
        if settings is None:
            skip("srun", "Slurm does not start here")
        else:
            check_srun("srun", [slurm.find("srun")], settings)


def check_shell():
    """Programs between a launcher and the program hand the preload on."""
    settings = {"RANK": "0", "WORLD_SIZE": "1"}
    for name, command in {
            "a shell": ["sh", "-c", '"$@"; exit $?', "sh"], "env": ["env", "OMP_NUM_THREADS=1"], "nice": ["nice"],
            "timeout": ["timeout", "50"], "setsid": ["setsid", "--wait"],
            "a Python that runs it": [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"],
    }.items():
        check_ranks(name, Launch([*command, JOB], settings=settings), 1)
    path = os.environ.get("LD_LIBRARY_PATH", "")
    check_unseen("env -i", Launch(["env", "-i", "RANK=0", "LD_LIBRARY_PATH=" + path, JOB], settings=settings), 1)


def check_namespace():
    """A container, as far as processes are concerned: process ids are those inside."""
    unshare = shutil.which("unshare")
    command = [unshare or "unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if unshare is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        skip("a namespace of processes", "this user can make none")
        return
    launch = Launch([*command, JOB], settings={"RANK": "0", "WORLD_SIZE": "1"})
    check_ranks("a namespace of processes", launch, 1)
    equal("a namespace of processes: the numbers are those inside", set(launch.ranks), {1})


# --- Python

def check_environment():
    """A virtual environment's Python is another program, and no other process."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], capture_output=True, check=False)
        if made.returncode != 0:
            skip("a virtual environment", "this Python makes none")
            return
        check_workers("a virtual environment, spawn", os.path.join(folder, "bin", "python"), "spawn", "cuda", {0, 1, 2})


def without_last(text):
    return text.rpartition("processes:")[0]


def check_workers(name, python, method, how, working, leaving=None):
    """working: whose shims work: the program, 0, and its workers, from 1 on; leaving: who of them says so at its
    end, which those do not that leave by _exit()."""
    command = [python, os.path.join(HERE, "loader.py"), method, how]
    # Python 3.12 warns of a fork in a process with threads, by its number: a driver has some when memory is used.
    settings = {"RANK": "3", "WORLD_SIZE": "4", "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    alone, under = Launch(command, preload=None, settings=settings), Launch(command, settings=settings)
    equal(f"{name}: the same output", (under.status, without_last(under.out), under.err),
          (alone.status, without_last(alone.out), alone.err))
    equal(f"{name}: it went well", (alone.status, "driver: 0 0 0" in alone.out, "ends: [0, 0]" in alone.out),
          (0, True, True))
    pids = [int(pid) for pid in under.out.rpartition("processes:")[2].split()]
    left = {pids[number] for number in leaving or working if number < len(pids)}
    equal(f"{name}: in whom the shim works", under.pages, {pids[number] for number in working if number < len(pids)})
    equal(f"{name}: who says so at the end, with the rank", (under.dumps, under.ranks), (left, dict.fromkeys(left, 3)))


def main():
    check_mpirun()
    check_slurm()
    check_shell()
    check_namespace()
    for method in ("fork", "spawn", "forkserver"):
        check_workers(f"workers by {method}", sys.executable, method, "plain", {0})
    # The driver does not work in a forked child; others are programs of their own.
    check_workers("workers by fork that try to use CUDA", sys.executable, "fork", "cuda", {0})
    check_workers("workers by spawn that use CUDA", sys.executable, "spawn", "cuda", {0, 1, 2})
    # multiprocessing ends these by _exit(): their state pages are all that they leave.
    check_workers("workers by forkserver that use CUDA", sys.executable, "forkserver", "cuda", {0, 1, 2}, {0})
    check_environment()
    return end()


if __name__ == "__main__":
    sys.exit(main())
