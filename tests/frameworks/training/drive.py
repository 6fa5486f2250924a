#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""drive.py: runs scripts as all ranks of a world. Each line of standard input is a job, as JSON: {"script", "arguments",
"folder", "seconds", "ranks": [{variable: value}]}; each is answered with a line, the exit status of each rank.

A rank is a process of its own, forked when PyTorch has been imported, once for all of them, and before anything of CUDA was
called. It writes to out-R and error-R of the folder, R is the rank.
"""
import gc
import json
import os
import runpy
import signal
import sys
import time

FAILED_SECONDS = 20  # the others have, when a rank has failed


def import_all():
    """Imports the scripts' modules, and those that PyTorch imports for them later; none calls CUDA."""
    import safetensors.torch  # noqa: F401
    import torch._dynamo  # noqa: F401
    import torch.distributed.checkpoint.state_dict  # noqa: F401
    import torch.distributed.fsdp  # noqa: F401
    gc.collect()
    gc.freeze()  # so that collections do not copy what the ranks share


def start(job, rank):
    """The process's id; does not return in the child."""
    process = os.fork()
    if process != 0:
        with open(os.path.join(job["folder"], f"pid-{rank}"), "w", encoding="ascii") as file:
            file.write(str(process))
        return process
    for name, descriptor in (("out", 1), ("error", 2)):
        file = os.open(os.path.join(job["folder"], f"{name}-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin = open(os.devnull, encoding="ascii")
    os.environ.update(job["ranks"][rank])
    sys.argv = [job["script"], *job["arguments"]]
    sys.path[0] = os.path.dirname(job["script"])
    runpy.run_path(job["script"], run_name="__main__")
    sys.exit(0)


def run(job):
    """The exit status of each rank; minus the signal for one that had to be killed."""
    left = {start(job, rank): rank for rank in range(len(job["ranks"]))}
    statuses, end = [None] * len(left), time.monotonic() + job["seconds"]
    while left:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            if time.monotonic() > end:
                for other in left:
                    os.kill(other, signal.SIGKILL)
            time.sleep(0.05)
            continue
        statuses[left.pop(process)] = os.waitstatus_to_exitcode(status)
        if status != 0:
            end = min(end, time.monotonic() + FAILED_SECONDS)
    return statuses


def main():
    import_all()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
