#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""command.py VERIFY PROGRAM KERNELS SHIM PLANTED COMPARE: what metashard-verify says of commands, and its exit status. TAP."""
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import check, end  # noqa: E402

VERIFY, PROGRAM, KERNELS, SHIM, PLANTED, COMPARE = sys.argv[1:7]
FAULT = {"SIMCUDA_DELAY_US": "20000", "METASHARD_SETTLE_MS": "0"}


class Commands:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("METASHARD")}
        self.environment.update(SIMCUDA_POISON="1", SIMCUDA_PTX_KERNELS=COMPARE, VERIFY_FILE=os.path.join(folder, "staged"),
                                TMPDIR=os.path.join(folder, "temporary"))
        os.mkdir(self.environment["TMPDIR"])

    def job(self, scenario, data="data"):
        return [PROGRAM, KERNELS, scenario, os.path.join(self.folder, data)]

    def start(self, command, *options, preload=SHIM, **settings):
        return subprocess.Popen([sys.executable, VERIFY, "--preload", preload, *options, "--", *command], text=True,
                                env=dict(self.environment, **settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def check(self, name, command, status, *texts, preload=SHIM, **settings):
        """The sentence is one line of the program's own, the last."""
        process = self.start(command, preload=preload, **settings)
        _, error = process.communicate(timeout=120)
        lines = [line for line in error.splitlines() if line.startswith("metashard-verify: ")]
        good = process.returncode == status and len(lines) == 1 and error.endswith(lines[0] + "\n")
        check(name, good and all(re.search(text, error, re.M) for text in texts), f"{texts}\n{process.returncode}\n{error}")

    def script(self, text, **jobs):
        return ["sh", "-c", text.format(**{name: shlex.join(job) for name, job in jobs.items()})]


def check_sums(commands):
    several = commands.job("several")
    whole = r"^metashard-verify: 1 process: 8 ranges, 64\.0 MiB compared, 0 differ; nothing was left out$"
    commands.check("all is equal", several, 0, whole)
    commands.check("a planted fault", commands.job("order"), 1, "error: verify: 4096 of the bytes 0 to 4096 ",
                   r"1 ranges, 4\.0 KiB compared, 1 differ; ", preload=PLANTED, PLANT="order", **FAULT)
    commands.check("the same job without the fault", commands.job("order"), 0, "0 differ; ", preload=PLANTED, **FAULT)
    commands.check("a sample", several, 0, r"1 process: .* 0 differ; \d+\.\d MiB was left out$", METASHARD_VERIFY_SAMPLE="50")
    both = commands.script("{one} & {other} & wait", one=several, other=commands.job("several", "other"))
    commands.check("two processes", both, 0, r"2 processes: 16 ranges, 128\.0 MiB compared, 0 differ; nothing")
    both = commands.script("{one}; PLANT=order {other}", one=several, other=commands.job("order"))
    commands.check("a fault in the second of two", both, 1, "2 processes: 9 ranges, .* 1 differ; ", preload=PLANTED, **FAULT)
    commands.check("a process that calls _exit", commands.job("killed"), 0,
                   "1 process: .* 0 differ; nothing was left out; 1 did not end by exit, so ")


def check_statuses(commands):
    several = commands.job("several")
    process = commands.start(commands.script("echo said; {job}; exit 3", job=several), "--json")
    out, error = process.communicate(timeout=120)
    check("as JSON", (process.returncode, json.loads(out)) == (3, {
        "format": "metashard-verify/1", "processes": 1, "ranges": 8, "bytes": 64 << 20, "differing_ranges": 0, "left_out_bytes": 0, "not_ended": 0,
        "command_status": 3}) and "said\n" in error, f"{process.returncode}\n{out}\n{error}")
    failing = commands.script("{job}; exit 3", job=several)
    commands.check("the command fails", failing, 3, "0 differ; nothing was left out; the command's exit status is 3$")
    failing = commands.script("{job}; exit 3", job=commands.job("order"))
    commands.check("and something differs", failing, 1, "1 differ; .*; the command's exit status is 3$", preload=PLANTED,
                   PLANT="order", **FAULT)
    commands.check("a signal ends it", ["sh", "-c", "kill -9 $$"], 137, "nothing was compared: .* exit status is 137$")
    commands.check("no CUDA", ["true"], 2, "nothing was compared: no process allocates device memory")
    # The dynamic linker looks where the simulated driver is not: a real one is one, too.
    found = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], env={"PATH": os.environ["PATH"]},
                           stderr=subprocess.DEVNULL)
    if found.returncode != 0:
        commands.check("no driver", ["true"], 2, r"nothing was compared: there is no CUDA driver here \(libcuda\.so\.1\)$", LD_LIBRARY_PATH="")
    commands.check("nothing is large enough", several, 2, "nothing was compared: nothing was deferred: ",
                   METASHARD_MIN_BYTES="1G")
    commands.check("all is left out", several, 2, "nothing was compared: all [0-9.]+ MiB of 1 process was left out$",
                   METASHARD_VERIFY_SAMPLE="0")
    commands.check("MetaShard is off", several, 2, "METASHARD is off", METASHARD="off")
    commands.check("no state page", several, 2, "METASHARD_STATE_DIR is empty", METASHARD_STATE_DIR="")
    commands.check("a command that is not there", ["no\x9b31m\u202esuch"], 2, r"no\?31m\?such: No such file")
    process = commands.start(["sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"])
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    check("a signal is handed on", process.returncode == 7, f"{process.returncode}\n{error}")


def check_settings(commands):
    """The user's settings are in force."""
    pages, log, dump = (os.path.join(commands.folder, name) for name in ("pages", "log", "dump"))
    settings = {"METASHARD_STATE_DIR": pages, "METASHARD_LOG": f"info:{log}", "METASHARD_DUMP": dump}
    for count in (1, 2):
        commands.check(f"with settings, run {count}", commands.job("several"), 0, "^metashard-verify: 1 process: 8 ranges, ",
                       **settings)
        check(f"{count} state pages stay", len(glob.glob(pages + "/metashard-*.state")) == count, os.listdir(pages))
    with open(log) as file:
        check("the log is in its file", file.read().count(" verify: 8 ranges, 67108864 bytes compared, 0 differ\n") == 2)
    check("the dump is written", os.path.getsize(dump) > 0)
    left = os.listdir(commands.environment["TMPDIR"])
    check("no temporary folder is left", not left, left)


with tempfile.TemporaryDirectory() as directory:
    all_commands = Commands(directory)
    for part in (check_sums, check_statuses, check_settings):
        part(all_commands)
    sys.exit(end())
