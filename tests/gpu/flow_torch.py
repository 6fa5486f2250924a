# SPDX-License-Identifier: Apache-2.0
"""A real PyTorch under the shim: initialise whole tensors, keep one part of each, compare.

    flow_torch.py --shim libmetashard.so [--out FILE] [--seconds S] [--keep DIR]

Runs the same plain script without and with the preload and prints one JSON object: whether every
byte is the same, what each run took, and the shim's counters. DIR gets what both said, the shim's
log at debug and its state page; and of a run that does not end, the stacks of its threads. Without
PyTorch or a GPU it says {"skipped": "..."} and ends with status 0.
"""
import json
import os
import shutil
import sys
import tempfile

import evidence
from part_script import Measurement, failure_of, run_part
from run_tools import ask_torch, read_json, run_limited, under_shim, without_shim

# The script: what a user writes who initialises on the device and then shards. Large tensors, so that
# the caching allocator asks the driver for each.
SCRIPT = """
import faulthandler, hashlib, json, sys
faulthandler.dump_traceback_later(float(sys.argv[2]), exit=False)
import torch
torch.manual_seed(1234)
rows, columns = int(sys.argv[1]), 2 * int(sys.argv[1])
rows_of = lambda t: t.chunk(4)[1].clone()
columns_of = lambda t: t.chunk(4, dim=1)[2].clone()
ways = {
    "normal": lambda t: t.normal_(0, 0.02),
    "uniform": lambda t: t.uniform_(-1, 1),
    "trunc_normal": lambda t: torch.nn.init.trunc_normal_(t, std=0.02),
    "kaiming": lambda t: torch.nn.init.kaiming_uniform_(t),
    "chain": lambda t: t.normal_().mul_(0.5).add_(1),
    "ones": lambda t: t.fill_(1),
    "zeros": lambda t: t.zero_(),
}
work = lambda x: x @ x
if sys.argv[3] == "simulated":  # such a device has few kernels
    del ways["trunc_normal"]
    work = lambda x: x + x
hashes, shards = {}, {}
def empty(dtype, rows=rows):
    return torch.empty(rows, columns, dtype=dtype, device="cuda")
def keep(name, of, make):
    whole = make()
    shards[f"{name}.{of}"] = rows_of(whole)
    shards[f"{name}.columns.{of}"] = columns_of(whole)
    del whole
    torch.cuda.empty_cache()
for dtype in (torch.float32, torch.bfloat16):
    for name, initialise in ways.items():
        keep(name, dtype, lambda: initialise(empty(dtype)))
for dtype in (torch.bfloat16, torch.float16):
    keep("cast", dtype, lambda: empty(torch.float32).normal_().to(dtype))
for dimension in (0, 1):
    keep("cat", dimension, lambda: torch.cat([empty(torch.bfloat16, rows // 2).uniform_() for _ in range(2)], dim=dimension))
for name, shard in shards.items():
    bits = shard.cpu().view(torch.uint8).numpy().tobytes()
    hashes[name] = hashlib.sha256(bits).hexdigest()
x = torch.randn(512, 512, device="cuda")
hashes["work"] = hashlib.sha256(work(x).cpu().numpy().tobytes()).hexdigest()
json.dump(hashes, sys.stdout)
"""
KNOWN_BEFORE_S = 4  # the stacks of Python are written so long before the end
FOR_EVIDENCE_S = 8  # to look at a process that hangs


def run(options, shim, limit):
    """One process; what it leaves is in a folder of its own under --keep."""
    name = "without" if shim is None else "with"
    folder = os.path.join(options.keep, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    state = os.path.join(folder, "state")
    environment = without_shim()
    if shim is not None:
        environment = under_shim(shim, os.path.join(folder, "dump.state"), METASHARD_STATE_DIR=state,
                                 METASHARD_LOG="debug:" + os.path.join(folder, "shim.log"),
                                 METASHARD="verify" if options.verify else "on")
    if options.allocator:
        environment["PYTORCH_ALLOC_CONF"] = options.allocator
    done = run_limited([sys.executable, "-c", SCRIPT, str(options.rows), str(max(1, limit - KNOWN_BEFORE_S)),
                        options.device], limit, environment,
                       on_timeout=lambda process: evidence.look(process, os.path.join(folder, "hung"), [state]))
    with open(os.path.join(folder, "error.log"), "w", encoding="utf-8") as file:
        file.write(done.error)
    result = {"status": done.status, "seconds": round(done.seconds, 2), "errors": done.error[-2000:]}
    result.update({"error": f"no end in {limit:.0f} s"} if done.timed_out else
                  failure_of(done) or {"hashes": json.loads(done.out)})
    counters = read_json(os.path.join(folder, "dump.state"))
    if counters:
        counters.pop("blocks", None)
        result["shim"] = counters
    return result


def measure(options):
    """Written after each run: what is known of the first is not lost with the second."""
    measurement = Measurement(options, "metashard-flow-torch-2", values_equal=False, different=[])
    result, (_, skipped) = measurement.result, ask_torch(sys.executable)
    if skipped is not None:
        return {"skipped": skipped}
    result["without"] = run(options, None, (measurement.left() - FOR_EVIDENCE_S) / 2)
    measurement.write()
    result["with"] = run(options, options.shim, max(5, measurement.left() - FOR_EVIDENCE_S))
    wanted, seen = (result[name].get("hashes", {}) for name in ("without", "with"))
    result.update(values_equal=bool(wanted) and wanted == seen,
                  different=sorted(name for name in wanted if wanted[name] != seen.get(name)))
    return measurement.finish(bool(wanted) and bool(seen))


def measure_and_keep(options):
    with tempfile.TemporaryDirectory() as folder:
        options.keep = os.path.abspath(options.keep or folder)
        return measure(options)


if __name__ == "__main__":
    run_part(__doc__, measure_and_keep, 240, ("--keep", None, {"help": "folder for logs; default: a temporary one"}),
             ("--rows", 4096, {"help": "of each tensor; it has twice as many columns"}),
             ("--verify", False, {"help": "the second run with METASHARD=verify"}),
             ("--allocator", None, {"help": "of both runs: PYTORCH_ALLOC_CONF"}))
