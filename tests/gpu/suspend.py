#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory that a suspension frees on this GPU, its cost, and bytes that cuda-checkpoint copies before and after one.

    suspend.py --shim libmetashard.so [--out FILE] [--seconds S]

A process under the preload loads 2 GiB from safetensors (less where there is no room), lets kernels read them, and has
1/8 as much that kernels write. It is suspended and resumed, by request and by its next kernel, with what has to wait
on the host and in a file. If there is a `cuda-checkpoint`, the process is stopped and woken by it, without a
suspension before it and with one. After each the process reads all its bytes on the device: they have to be the same.
Measured for each: seconds, the device's memory in use as nvidia-smi has it, and the process's memory on the host. Prints, and
writes after each, one JSON object.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from load_time import affordable, files_of, make_checkpoint, warm
from part_script import Measurement, device_mib, run_part
from run_tools import SOURCE, under_shim

sys.path.append(os.path.join(SOURCE, "tools", "python"))
from metashard import control  # noqa: E402 (the path is set above)

GIB = 1 << 30
LARGEST, SMALLEST = 2 * GIB, 1 << 20
WRITTEN_PART = 8
CHECKPOINT = "cuda-checkpoint"


def sleep(folder, options):
    """In a process of its own: answers each line of its input with what its memory holds."""
    import torch
    from safetensors.torch import load_file
    device = options.device
    tensors = {name: tensor for path in files_of(folder) for name, tensor in load_file(path, device=device).items()}
    size = sum(tensor.nbytes for tensor in tensors.values())
    written = torch.zeros(size // WRITTEN_PART // 4, dtype=torch.float32, device=device)
    print(json.dumps({"bytes": size, "written_bytes": written.nbytes}), flush=True)
    for number, _ in enumerate(sys.stdin, 1):
        written.add_(1)
        sums = [tensor.reshape(-1).view(torch.int64).sum().item() for tensor in tensors.values()]
        least, most = written.min().item(), written.max().item()
        print(json.dumps({"sums": hash(tuple(sums)), "written_is_right": least == most == number}), flush=True)


class Sleeper:
    def __init__(self, options, folder):
        self.control = os.path.join(folder, "control")
        environment = under_shim(options.shim, os.path.join(folder, "dump"))
        environment.update(METASHARD_CONTROL=self.control, PYTHONHASHSEED="0")
        command = [sys.executable, os.path.abspath(__file__), "--sleep", folder, "--device", options.device]
        self.process = subprocess.Popen(command, text=True, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.made = self.answer()
        self.right = self.work()["sums"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process has ended with {self.process.wait()}")
        return json.loads(line)

    def work(self):
        self.process.stdin.write("work\n")
        self.process.stdin.flush()
        return self.answer()

    def ask(self, request):
        """The answer to a request on the control socket: an object, if it is one."""
        answer = control.ask(self.process.pid, self.control, request, 600)
        return json.loads(answer) if answer.startswith("{") else answer

    def toggle(self):
        command = [CHECKPOINT, "--toggle", "--pid", str(self.process.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{CHECKPOINT}: {(done.stderr or done.stdout).strip()}")

    def host_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) << 10

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


# --- the cases: each a list of steps


def cases(folder):
    suspend, resume = ("suspend", lambda one: one.ask("suspend")), ("resume", lambda one: one.ask("resume"))
    found = {"by request": [suspend, resume], "by a kernel": [suspend],
             "in a file": [("suspend", lambda one: one.ask("suspend " + folder)), resume]}
    if shutil.which(CHECKPOINT) is not None:
        stop, wake = ("stop", Sleeper.toggle), ("wake", Sleeper.toggle)
        found[f"{CHECKPOINT} alone"] = [stop, wake]
        found[f"{CHECKPOINT} of what is suspended"] = [suspend, stop, wake, resume]
    return found


def run_case(one, steps):
    record = {"before": {"device_mib": device_mib(), "host_bytes": one.host_bytes()}}
    for name, step in steps:
        began = time.monotonic()
        told = step(one)
        record[name] = {"seconds": round(time.monotonic() - began, 3), "device_mib": device_mib(), "host_bytes": one.host_bytes()}
        if isinstance(told, dict):
            record[name]["told"] = told
    began = time.monotonic()
    seen = one.work()
    record["work"] = {"seconds": round(time.monotonic() - began, 3)}
    record["same"] = seen["sums"] == one.right and seen["written_is_right"]
    return record


def measure(options):
    with tempfile.TemporaryDirectory() as folder:
        size = affordable(options, folder)
        if size < SMALLEST:
            return {"skipped": "no room for a checkpoint"}
        make_checkpoint(folder, size)
        warm(folder)
        time.sleep(0.1)  # a file that has just been written is not trusted
        one, planned = Sleeper(options, folder), cases(folder)
        measurement = Measurement(options, "metashard-suspend-1", **one.made, cases={})
        seen = measurement.result["cases"]
        for name, steps in planned.items():
            if measurement.left() < options.seconds / 10:
                break
            try:
                seen[name] = run_case(one, steps)
            except (RuntimeError, control.installed.Fault) as error:
                seen[name] = {"same": False, "error": str(error)}
            measurement.write()
        one.end()
        return measurement.finish(len(seen) == len(planned))


def in_short(result):
    if "cases" not in result:
        return result.get("skipped", "nothing")
    wrong = [f"{name}: {case.get('error', 'other bytes')}" for name, case in result["cases"].items() if not case["same"]]
    took = [f"{name} {case['suspend']['seconds']} s, {case['work']['seconds']} s" for name, case in result["cases"].items()
            if "suspend" in case]
    return "; ".join(wrong or ["all bytes the same"]) + "; suspended and at work again: " + ", ".join(took)


if __name__ == "__main__":
    run_part(__doc__, measure, 120, ("--bytes", LARGEST, {"help": "of the checkpoint, at most"}), children={"--sleep": sleep})
