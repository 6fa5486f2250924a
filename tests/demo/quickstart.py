#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The main job: ranks build the whole model from a checkpoint and shard it, without and with MetaShard.

Makes a safetensors checkpoint, runs one process per rank of tests/demo/client (a plain CUDA program)
and prints what each rank's device memory and bus saw. The last line is "RESULT {json}".

On a machine without a GPU the simulated driver counts, and as many ranks run at a time as the
machine's memory holds whole models. On a GPU the ranks run one after another; a second process samples the device's memory from the moment that the rank has its context, and copies
are counted by the client and by the shim.
"""
import argparse
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from state_page import read_dump  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
WITH = {False: "without", True: "with"}


def fail(message, status=1):
    print(f"quickstart: {message}", file=sys.stderr)
    sys.exit(status)


def available_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def parse_arguments():
    parser = argparse.ArgumentParser(prog="quickstart", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, help="number of processes (4)")
    parser.add_argument("--size-mib", type=int, default=1024, help="size of the checkpoint (1024)")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build"), help="build folder")
    parser.add_argument("--folder", help="where to make the checkpoint ($TMPDIR, else the build "
                        "folder)")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoint")
    parser.add_argument("--json", action="store_true", help="print the RESULT line alone")
    parser.add_argument("--simulated", action="store_true", help="never use a GPU")
    parser.add_argument("--preload", help=argparse.SUPPRESS)
    parser.error = lambda message: fail(message, 2)
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    if not 1 <= arguments.ranks <= 64:
        fail(f"--ranks is {arguments.ranks}: expected 1 to 64", 2)
    if not 8 <= arguments.size_mib <= 65536:
        fail(f"--size-mib is {arguments.size_mib}: expected 8 to 65536", 2)
    return arguments


class Job:
    def __init__(self, arguments, folder):
        self.ranks = arguments.ranks
        self.processes = []
        self.folder = folder
        self.checkpoint = os.path.join(folder, "checkpoint")
        self.tool = lambda name: os.path.join(arguments.build, "tests", "demo", name)
        self.preload = arguments.preload or os.path.join(arguments.build, "shim",
                                                         "libmetashard.so")
        self.simulator = os.path.join(arguments.build, "tools", "simcuda")
        for needed in (self.tool("client"), self.preload.split(":")[-1]):
            if not os.path.exists(needed):
                fail(f"{needed} is not there: build first, or run ./quickstart")
        self.gpu = None if arguments.simulated else self.find_gpu()
        self.model_bytes = arguments.size_mib * MIB
        if not self.gpu and self.model_bytes > available_bytes():
            fail(f"without MetaShard a rank holds {arguments.size_mib} MiB, on a simulated device in this machine's memory: "
                 f"{available_bytes() // MIB} MiB are free; choose a smaller --size-mib")
        self.most = self.at_a_time()

    def find_gpu(self):
        done = subprocess.run([self.tool("monitor"), "--name"], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    def make_checkpoint(self, size_mib):
        free = shutil.disk_usage(self.folder).free
        if free < (size_mib + 64) * MIB:
            fail(f"{self.folder} has {free // MIB} MiB free, the checkpoint needs {size_mib} MiB; "
                 "set TMPDIR or --folder")
        os.makedirs(self.checkpoint)
        done = subprocess.run([self.tool("make_checkpoint"), self.checkpoint, str(size_mib)],
                              capture_output=True, text=True)
        if done.returncode != 0:
            fail(done.stderr.strip())
        return done.stdout.strip()

    def start_rank(self, rank, with_shim):
        kind = WITH[with_shim]
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("METASHARD") and name != "LD_PRELOAD"}
        environment["RANK"] = str(rank)
        if not self.gpu:
            environment["LD_LIBRARY_PATH"] = self.simulator
            environment["SIMCUDA_STATS"] = f"{self.folder}/{kind}-{rank}.json"
            environment["SIMCUDA_MEMORY_MIB"] = "131072"
        if with_shim:
            environment["LD_PRELOAD"] = self.preload
            environment["METASHARD_DUMP"] = f"{self.folder}/dump-{rank}"
        command = [self.tool("client"), str(rank), str(self.ranks), self.checkpoint]
        # A rank's output is one line, which a pipe holds; its complaints have no limit.
        errors = open(f"{self.folder}/{kind}-{rank}.err", "w+")
        process = subprocess.Popen(command + (["--wait"] if self.gpu else []), env=environment,
                                   stdin=subprocess.PIPE if self.gpu else subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=errors, text=True)
        self.processes.append(process)
        return rank, process, errors

    @staticmethod
    def progress(text):
        """For who looks on; the next line takes its place."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text and text + ' ...'}", end="", file=sys.stderr, flush=True)

    @staticmethod
    def finish_rank(started):
        """The rank's report, or None when it failed, which is said."""
        rank, process, errors = started
        text = process.communicate()[0]
        errors.seek(0)
        complaint = errors.read()
        errors.close()
        print(complaint, file=sys.stderr, end="")
        if process.returncode != 0:
            print(f"quickstart: rank {rank} ended with status {process.returncode}",
                  file=sys.stderr)
            return None
        return json.loads(text)

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def run_all(self, with_shim):
        """Runs every rank; returns their reports with peak_bytes and h2d_bytes added."""
        reports = self.run_on_gpu(with_shim) if self.gpu else self.run_simulated(with_shim)
        if None in reports:
            sys.exit(1)
        return reports

    def at_a_time(self):
        """Ranks: a simulated device's memory is the machine's."""
        return min(self.ranks, max(1, available_bytes() // 2 // self.model_bytes))

    def run_simulated(self, with_shim):
        reports, waiting, started = [], list(range(self.ranks)), []
        while waiting or started:
            while waiting and len(started) < self.most:
                started.append(self.start_rank(waiting.pop(0), with_shim))
            self.progress(f"{len(reports)} of {self.ranks} ranks {WITH[with_shim]} MetaShard")
            reports.append(self.finish_rank(started.pop(0)))
        for report in filter(None, reports):
            name = f"{WITH[with_shim]}-{report['rank']}.json"
            with open(os.path.join(self.folder, name)) as file:
                counted = json.load(file)
            report["peak_bytes"] = counted["physical_bytes_peak"]
            report["h2d_bytes"] = counted["h2d_bytes"]
        return reports

    def run_on_gpu(self, with_shim):
        reports = []
        for rank in range(self.ranks):
            self.progress(f"{rank} of {self.ranks} ranks {WITH[with_shim]} MetaShard")
            started = self.start_rank(rank, with_shim)
            started[1].stdout.readline()  # it has its context and waits
            monitor = subprocess.Popen([self.tool("monitor")], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
            self.processes.append(monitor)
            monitor.stdout.readline()  # it knows what was in use before
            report = self.finish_rank(started)
            peak_bytes = monitor.communicate()[0]
            reports.append(report)
            if report is None:
                break
            report["peak_bytes"] = int(peak_bytes)
            report["h2d_bytes"] = report["copied_bytes"]
            if with_shim:
                counted = read_dump(f"{self.folder}/dump-{rank}")
                report["h2d_bytes"] = counted["h2d_bytes"] + report["small_bytes"]
        return reports


def mib(value):
    return f"{value / MIB:.1f}"


def table_of(without, with_shim):
    rows = [("rank", "its shard", "peak without", "peak with", "copied without", "copied with",
             "values")]
    for plain, shimmed in zip(without, with_shim):
        rows.append((str(plain["rank"]), mib(plain["shard_bytes"]), mib(plain["peak_bytes"]),
                     mib(shimmed["peak_bytes"]), mib(plain["h2d_bytes"]),
                     mib(shimmed["h2d_bytes"]), "same" if is_same(plain, shimmed) else "DIFFERENT"))
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths))
             for row in rows]
    return "\nDevice memory and bytes copied to the device, in MiB:\n\n" + "\n".join(lines) + "\n"


def is_same(plain, shimmed):
    return plain["hash"] == shimmed["hash"] == plain["file_hash"] == shimmed["file_hash"]


def summary_of(result):
    ideal = result["ideal_bytes_per_rank"]
    saved = 1 - result["peak_bytes_with"] / result["peak_bytes_without"]
    return (f"Each rank's peak is {result['peak_bytes_with'] / ideal:.3f} of its shard (without: "
            f"{result['peak_bytes_without'] / ideal:.3f}); {saved:.0%} less device memory.")


def result_of(arguments, without, with_shim):
    def most(reports, field):
        return max(report[field] for report in reports)
    return {
        "ranks": arguments.ranks,
        "checkpoint_bytes": without[0]["checkpoint_bytes"],
        "ideal_bytes_per_rank": most(without, "shard_bytes"),
        "peak_bytes_without": most(without, "peak_bytes"),
        "peak_bytes_with": most(with_shim, "peak_bytes"),
        "h2d_bytes_without": most(without, "h2d_bytes"),
        "h2d_bytes_with": most(with_shim, "h2d_bytes"),
        "values_match": all(is_same(*pair) for pair in zip(without, with_shim)),
    }


def run_job(arguments, job):
    say = (lambda text: None) if arguments.json else functools.partial(print, flush=True)
    job.progress("making the checkpoint")
    checkpoint = job.make_checkpoint(arguments.size_mib)
    job.progress("")
    say(f"Checkpoint: {checkpoint}")
    say(f"Device: {job.gpu or 'simulated (no GPU here)'}")
    began = time.monotonic()
    without = job.run_all(with_shim=False)
    middle = time.monotonic()
    with_shim = job.run_all(with_shim=True)
    job.progress("")
    say(f"{arguments.ranks} ranks without MetaShard: {middle - began:.1f} s, "
        f"with: {time.monotonic() - middle:.1f} s")
    result = result_of(arguments, without, with_shim)
    say(table_of(without, with_shim))
    say(summary_of(result))
    print("RESULT " + json.dumps(result))
    return 0 if result["values_match"] else 1


def main():
    arguments = parse_arguments()
    # So that the checkpoint is removed then too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    place = arguments.folder or os.environ.get("TMPDIR") or arguments.build
    if not os.path.isdir(place):
        fail(f"{place} is not a folder", 2)
    try:
        folder = tempfile.mkdtemp(prefix="metashard-", dir=place)
    except OSError as error:
        fail(f"cannot make a folder in {place}: {error.strerror}")
    job = None
    try:
        job = Job(arguments, folder)
        return run_job(arguments, job)
    except KeyboardInterrupt:
        return 130
    finally:
        if job:
            job.stop()
        if arguments.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
