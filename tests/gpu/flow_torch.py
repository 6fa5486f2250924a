# SPDX-License-Identifier: Apache-2.0
"""A real PyTorch under the shim: initialise whole tensors, keep one part of each, compare.

    flow_torch.py --shim libmetashard.so [--out FILE]

Runs the same plain script without and with the preload and prints one JSON object: whether every byte is
the same, what each run took, and the shim's counters. Without PyTorch or a GPU it says {"skipped": "..."}
and ends with status 0.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from state_page import read_dump  # noqa: E402

# The script: what a user writes who initialises on the device and then shards. Large tensors, so that
# the caching allocator asks the driver for each.
SCRIPT = """
import hashlib, json, sys, torch
torch.manual_seed(1234)
ways = {
    "normal": lambda t: t.normal_(0, 0.02),
    "uniform": lambda t: t.uniform_(-1, 1),
    "trunc_normal": lambda t: torch.nn.init.trunc_normal_(t, std=0.02),
    "kaiming": lambda t: torch.nn.init.kaiming_uniform_(t),
    "chain": lambda t: t.normal_().mul_(0.5).add_(1),
    "ones": lambda t: t.fill_(1),
    "zeros": lambda t: t.zero_(),
}
hashes, shards = {}, {}
for dtype in (torch.float32, torch.bfloat16):
    for name, initialise in ways.items():
        whole = torch.empty(4096, 8192, dtype=dtype, device="cuda")
        initialise(whole)
        shards[f"{name}.{dtype}"] = whole.chunk(4)[1].clone()
        del whole
        torch.cuda.empty_cache()
for name, shard in shards.items():
    bits = shard.cpu().view(torch.uint8).numpy().tobytes()
    hashes[name] = hashlib.sha256(bits).hexdigest()
x = torch.randn(512, 512, device="cuda")
hashes["work"] = hashlib.sha256((x @ x).cpu().numpy().tobytes()).hexdigest()
json.dump(hashes, sys.stdout)
"""
AVAILABLE = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"


def reason_to_skip(shim):
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed for " + sys.executable
    if not os.path.exists(shim):
        return "the shim is not built: " + shim
    if subprocess.run([sys.executable, "-c", AVAILABLE], capture_output=True, timeout=120,
                      check=False).returncode != 0:
        return "PyTorch sees no GPU"
    return None


def run(shim, folder):
    environment = dict(os.environ)
    dump = os.path.join(folder, "dump.json")
    if shim is not None:
        preload = ":".join(filter(None, [shim, environment.get("LD_PRELOAD")]))
        environment.update(LD_PRELOAD=preload, METASHARD_DUMP=dump, METASHARD_LOG="info")
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True,
                          text=True, timeout=240, check=False)
    result = {"status": done.returncode, "seconds": round(time.monotonic() - start, 2),
              "errors": done.stderr[-2000:]}
    if done.returncode == 0:
        result["hashes"] = json.loads(done.stdout)
    if shim is not None and os.path.exists(dump):
        counters = read_dump(dump)
        counters.pop("blocks", None)
        result["shim"] = counters
    return result


def measure(shim):
    reason = reason_to_skip(shim)
    if reason is not None:
        return {"skipped": reason}
    with tempfile.TemporaryDirectory() as folder:
        without, under = run(None, folder), run(shim, folder)
    wanted, seen = without.get("hashes", {}), under.get("hashes", {})
    return {"values_equal": bool(wanted) and wanted == seen,
            "different": sorted(name for name in wanted if wanted[name] != seen.get(name)),
            "without": without, "with": under}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shim", required=True)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    text = json.dumps(measure(os.path.abspath(arguments.shim)), indent=1) + "\n"
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
