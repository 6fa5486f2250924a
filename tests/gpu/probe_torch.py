# SPDX-License-Identifier: Apache-2.0
"""What a real PyTorch does at the driver: launches, replayed launches, reports about blocks.

    probe_torch.py --recorder liblaunch_recorder.so [--out FILE]

Prints one JSON object. Without PyTorch or without a GPU it says {"skipped": "..."} and ends with
status 0. Every part runs in a process of its own under the recorder, with a time limit, so one that
fails leaves the others alone; inside a part, a measurement that fails is {"error": "..."}.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

def allocator(setting):
    """The first name is the newer one; older versions of PyTorch know only the second."""
    return {"PYTORCH_ALLOC_CONF": setting, "PYTORCH_CUDA_ALLOC_CONF": setting}


# name, function of probe_torch_parts, extra environment, limit in seconds
PARTS = [
    ("facts", "facts", {}, 60),
    ("launches", "launches", {}, 90),
    ("replay", "replay", {}, 90),
    ("blocks", "blocks", {}, 60),
    ("blocks_expandable_segments", "blocks", allocator("expandable_segments:True"), 60),
    ("blocks_cuda_malloc_async", "blocks", allocator("backend:cudaMallocAsync"), 60),
    ("launches_eager_loading", "launches", {"CUDA_MODULE_LOADING": "EAGER"}, 120),
]
AVAILABLE = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"


def reason_to_skip(recorder):
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed for " + sys.executable
    if not os.path.exists(recorder):
        return "the launch recorder is not built: " + recorder
    try:
        ended = subprocess.run([sys.executable, "-c", AVAILABLE], capture_output=True, text=True,
                               timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "PyTorch did not say within 120 s whether there is a GPU"
    if ended.returncode == 3:
        return "PyTorch sees no GPU"
    if ended.returncode != 0:
        return "PyTorch cannot be imported: " + ended.stderr.strip()[-200:]
    return None


def run_part(function, extra, limit, recorder):
    # In front of what is preloaded already: a stand-in for the CUDA runtime, say.
    preload = ":".join(filter(None, [recorder, os.environ.get("LD_PRELOAD")]))
    environment = dict(os.environ, LD_PRELOAD=preload, **extra)
    command = [sys.executable, os.path.abspath(__file__), "--recorder", recorder,
               "--part", function]
    start = time.monotonic()
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True,
                               timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer after {limit} s"}
    try:
        result = json.loads(ended.stdout[ended.stdout.index("{"):])
    except ValueError:
        result = {"error": f"exit status {ended.returncode}", "stderr": ended.stderr[:900] + ended.stderr[900:][-300:]}
    result["seconds"] = round(time.monotonic() - start, 2)
    return result


def write(result, path):
    text = json.dumps(result, indent=2) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    # Whole or not at all: who is stopped leaves the parts before.
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def run_parts(recorder, path):
    result = {"format": "metashard-probe-torch-1", "complete": False}
    skipped = reason_to_skip(recorder)
    if skipped is not None:
        result["skipped"] = skipped
        return result
    for name, function, extra, limit in PARTS:
        result[name] = run_part(function, extra, limit, recorder)
        print(f"{name:28} {result[name].get('seconds', limit):7.2f} s", file=sys.stderr)
        if path is not None:
            write(result, path)
    result["complete"] = True
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorder", required=True, help="the preload library to measure with")
    parser.add_argument("--out", help="file for the JSON; default: standard output")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    recorder = os.path.abspath(arguments.recorder)
    if arguments.part is not None:
        # The parts import torch; this file must start without it.
        import probe_torch_parts
        result = probe_torch_parts.run(arguments.part, recorder)
    else:
        result = run_parts(recorder, arguments.out)
    write(result, arguments.out)


if __name__ == "__main__":
    main()
