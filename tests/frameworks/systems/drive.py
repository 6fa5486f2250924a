#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""drive.py: runs users' scripts as all ranks of a world, then writes down what each rank holds.

Each line of standard input is a folder with a job.json: {"script", "arguments", "ranks": [{variable: value}]}. Each rank
is a process of its own, forked when PyTorch has been imported, once for all of them, and before anything of CUDA was
called. It runs the script as its own program would be run; then every parameter and buffer of the script's `model`,
and every tensor of its `values`, is read back. Written to the folder, R is the rank: out-R, what it holds and what it
took; said-R and error-R; pid-R; ready-R, when the script is through; status-R, the exit status.

The figures in out-R: seconds, until the device has done all that the script queued; read_seconds, from then on until everything
that the script left has been read back, which brings into memory what is still deferred; step_seconds, of each
optimizer step but the first, on the device's clock. The first step is what is left of the seconds.
"""
import gc
import hashlib
import json
import os
import runpy
import sys
import time
from types import SimpleNamespace


def import_all():
    """Imports the scripts' modules, and those that PyTorch imports for them later; none calls CUDA. A row may do without."""
    try:
        import safetensors.torch  # noqa: F401
        import torch._dynamo  # noqa: F401 # with the first fully_shard
        import torch.distributed.checkpoint.state_dict  # noqa: F401
        import torch.distributed.fsdp  # noqa: F401
        import torch.distributed.tensor.parallel  # noqa: F401
    except ImportError:
        pass
    gc.collect()
    gc.freeze()  # so that collections do not copy what the ranks share


def own_status(name):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))


def bytes_read():
    """By system calls, of files, pipes and sockets; what is read through mappings is not in it."""
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar:"))


def digest(state):
    return hashlib.sha256(state.numpy()).hexdigest()


def result_of(variables):
    import torch

    from common import tensors_of
    tensors = tensors_of(variables["model"]) if "model" in variables else []
    tensors += [(name, value if isinstance(value, torch.Tensor) else torch.as_tensor(value))
                for name, value in variables.get("values", {}).items()]
    if not tensors:
        sys.exit("the script left neither `model` nor `values`")
    return tensors


def note_steps(marks):
    """An event at the end of each optimizer step: nothing waits for it before the script is through."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def mark(*_):
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append(event)

    register_optimizer_step_post_hook(mark)


def step_seconds(marks):
    return [round(before.elapsed_time(after) / 1000, 3) for before, after in zip(marks, marks[1:])]


def run_rank(job, rank):
    """Runs the script, and reads its tensors afterwards, of which the script learns nothing."""
    def path(name):
        return os.path.join(job["folder"], f"{name}-{rank}")

    sys.argv = [job["script"], *job["arguments"]]
    if "torch" in sys.modules:  # unseeded, its generator begins elsewhere in each driver
        sys.modules["torch"].default_generator.manual_seed(1)
    marks = []
    if "torch" in sys.modules:
        note_steps(marks)
    start, read = time.monotonic(), bytes_read()
    variables = runpy.run_path(job["script"], run_name="__main__")
    import torch
    if torch.cuda.is_initialized():  # a script may end long before what it has queued, whose memory is the process's here
        torch.cuda.synchronize()
    taken = {"read_bytes": bytes_read() - read, "host_peak_bytes": own_status("VmHWM"), "host_bytes": own_status("VmRSS")}
    open(path("ready"), "w", encoding="ascii").close()

    from common import finish
    if torch.cuda.is_initialized():
        taken["seconds"] = round(time.monotonic() - start, 2)
        taken["step_seconds"] = step_seconds(marks)
        taken["cuda_generator"] = digest(torch.cuda.get_rng_state())
    taken.setdefault("seconds", round(time.monotonic() - start, 2))
    taken["generator"] = digest(torch.get_rng_state())
    options = SimpleNamespace(out=path("out"), dump=None, device="cuda", rank=rank, world=len(job["ranks"]))
    finish(result_of(variables), options, **taken)


def start_rank(job, rank):
    """The process's id; does not return in the child."""
    process = os.fork()
    if process != 0:
        return process
    for name, descriptor in (("said", 1), ("error", 2)):
        file = os.open(os.path.join(job["folder"], f"{name}-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(job["ranks"][rank])
    sys.stdin = open(os.devnull, encoding="ascii")
    run_rank(job, rank)
    sys.exit(0)


def run_world(folder):
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = dict(json.load(file), folder=folder)

    def write(name, rank, number):
        path = os.path.join(folder, f"{name}-{rank}")
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(str(number))
        os.rename(path + ".new", path)

    ranks = {}
    for rank in range(len(job["ranks"])):
        process = start_rank(job, rank)
        ranks[process] = rank
        write("pid", rank, process)
    while ranks:
        process, status = os.wait()
        write("status", ranks.pop(process), os.waitstatus_to_exitcode(status))


def main():
    import_all()
    for line in sys.stdin:
        run_world(line.rstrip("\n"))


if __name__ == "__main__":
    main()
