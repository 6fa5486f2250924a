# SPDX-License-Identifier: Apache-2.0
"""Calls of a real PyTorch to the driver: launches, replayed launches, reports about blocks.

    probe_torch.py --recorder liblaunch_recorder.so [--out FILE]

Prints one JSON object. Without PyTorch or without a GPU it says {"skipped": "..."} and ends with
status 0. Every part runs in a process of its own under the recorder, with a time limit, so one that
fails leaves the others alone; inside a part, a measurement that fails is {"error": "..."}.
"""
import argparse
import json
import os
import sys

from part_script import Measurement, options_of
from run_tools import ask_torch, run_limited, write_json


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


def run_part(function, extra, limit, recorder):
    # In front of what is preloaded already: a stand-in for the CUDA runtime, say.
    preload = ":".join(filter(None, [recorder, os.environ.get("LD_PRELOAD")]))
    done = run_limited([sys.executable, os.path.abspath(__file__), "--recorder", recorder, "--part", function], limit,
                       dict(os.environ, LD_PRELOAD=preload, **extra))
    if done.timed_out:
        return {"error": f"no answer after {limit} s"}
    try:
        result = json.loads(done.out[done.out.index("{"):])
    except ValueError:
        result = {"error": f"exit status {done.status}", "stderr": done.error[:900] + done.error[900:][-300:]}
    result["seconds"] = round(done.seconds, 2)
    return result


def measure(options):
    measurement = Measurement(options, "metashard-probe-torch-1")
    skipped = ask_torch(sys.executable)[1]
    if skipped is None and not os.path.exists(options.recorder):
        skipped = "the launch recorder is not built: " + options.recorder
    if skipped is not None:
        return measurement.result | {"skipped": skipped}
    for name, function, extra, limit in PARTS:
        found = measurement.result[name] = run_part(function, extra, limit, options.recorder)
        print(f"{name:28} {found.get('seconds', limit):7.2f} s", file=sys.stderr)
        measurement.write()
    return measurement.finish(True)


def main():
    options = options_of(__doc__, 0, ("--recorder", None, {"required": True, "type": os.path.abspath}),
                         ("--part", None, {"help": argparse.SUPPRESS}))
    if options.part is not None:
        # The parts import torch; this file must start without it.
        import probe_torch_parts
        result = probe_torch_parts.run(options.part, options.recorder)
    else:
        result = measure(options)
        write_json(options.out, result)
    if options.out is None:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
