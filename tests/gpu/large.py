#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of models in the sizes that people have, on this GPU.

    large.py --shim libmetashard.so [--out FILE] [--seconds S]

The scripts are those of tests/frameworks/flows, the models those of tests/frameworks/scale: initialised on the device, or loaded
from sparse safetensors files, and sharded by fully_shard; one rank of many, whose process group does nothing. A model that fits on
the device runs without the preload too, and the rank's tensors must be the same; what was loaded must be what lies in the files.
Measured in each run: the most that the device has in use, as nvidia-smi says 20 times a second, less what it had before; the shim's own
figures; seconds, of the whole process. Prints, and writes after each run, one JSON object.
"""
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple

from part_script import SMI, Measurement, device_mib, failure_of, free_on_device, run_part, run_python
from run_tools import SOURCE, read_json, run_limited, without_shim

FLOWS = os.path.join(SOURCE, "tests", "frameworks", "flows")
SPARSE = os.path.join(SOURCE, "tests", "frameworks", "scale", "sparse_checkpoint.py")
RANK = 1  # not the first: what is cut off lies on both sides
TICK_SECONDS = 0.1  # a file this young could change unnoticed
GIB_OF_MODEL = {"70B": 131.4, "405B": 755.9, "tiny-70B": 2.0}  # in bfloat16
SPARE_GIB = 6  # beside the model, on the device

Case = namedtuple("Case", "name program arguments shape world is_loaded")
CASES = [Case("70B from scratch", "from_scratch", [], "70B", 64, False),
         Case("405B from scratch", "from_scratch", [], "405B", 512, False),
         Case("70B from safetensors", "safetensors_load", ["--path", "mapping"], "70B", 64, True),
         Case("405B from safetensors", "safetensors_load", ["--path", "mapping"], "405B", 512, True)]
TINY = [case._replace(name="tiny " + case.name[4:], shape="tiny-70B") for case in CASES[::2]]


class DeviceMemory(threading.Thread):
    """The most MiB in use while it runs, over what was in use before; None where nobody says."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before, self.most, self.watch = device_mib(), None, None
        if self.before is not None:
            self.watch = subprocess.Popen([*SMI, "-lms", "50"], stdout=subprocess.PIPE, text=True)
            self.start()

    def run(self):
        for line in self.watch.stdout:
            if line.strip().isdigit():
                self.most = max(self.most or 0, int(line))

    def end(self):
        if self.watch is None:
            return None
        self.watch.kill()
        self.join(5)
        return None if self.most is None else self.most - self.before


def run(options, case, mode, checkpoint, limit):
    with tempfile.TemporaryDirectory() as folder:
        out, memory = os.path.join(folder, "out"), DeviceMemory()
        arguments = [os.path.join(FLOWS, case.program + ".py"), *case.arguments, "--scale", case.shape, "--rank", str(RANK),
                     "--world", str(case.world), "--out", out] + ["--checkpoint", checkpoint] * case.is_loaded
        done, shim = run_python(options.shim if mode == "with" else None, arguments, limit)
        record = {"seconds": round(done.seconds, 1), "device_mib": memory.end(), **failure_of(done)}
        result = read_json(out)
    tensors = result.get("tensors", {})
    owners = {tensor["storage"]: tensor["bytes"] for tensor in tensors.values()}
    record.update(shard_bytes=sum(owners.values()), read_seconds=result.get("read_seconds"),
                  granule_bytes=result.get("granule_bytes"))
    if shim:
        record["shim"] = {name: shim.get(name) for name in (
            "backed_bytes_peak", "live_bytes_peak", "requested_bytes", "h2d_bytes", "file_read_bytes", "recorded_launches",
            "replayed_launches", "fallbacks")}
    return record, {name: tensor["sha256"] for name, tensor in tensors.items()}


def make_files(case, folder, limit):
    """The hashes of what the rank shall hold."""
    done = run_limited([sys.executable, SPARSE, case.shape, folder, "--rank", str(RANK), "--world", str(case.world)], limit,
                       without_shim())
    wanted = read_json(os.path.join(folder, "hashes.json")) if done.status == 0 else {}
    time.sleep(TICK_SECONDS)
    return wanted


def measure_case(measurement, case, room_gib):
    record, options = {"case": case.name, "ranks": case.world}, measurement.options
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        checkpoint = os.path.join(folder, "checkpoint")
        wanted = make_files(case, checkpoint, measurement.left()) if case.is_loaded else None
        record["with"], held = run(options, case, "with", checkpoint, measurement.left())
        if wanted is None and GIB_OF_MODEL[case.shape] + SPARE_GIB < room_gib and measurement.left() > 10:
            record["without"], wanted = run(options, case, "without", checkpoint, measurement.left())
        if wanted:
            record["tensors_compared"] = len(wanted)
            record["different"] = sorted(name for name in wanted if held.get(name) != wanted[name])
    return record


def measure(options):
    measurement, room_gib = Measurement(options, "metashard-large-1", cases=[]), (free_on_device() or 0) / 2**30
    for case in TINY if options.tiny else CASES:
        if measurement.left() < 10:
            return measurement.result
        measurement.result["cases"].append(measure_case(measurement, case, room_gib))
        measurement.write()
    return measurement.finish(True)


def gib(size):
    return "?" if size is None else f"{size / 2**30:.2f}"


def in_short(result):
    def one(case):
        under = case["with"]
        values = "not compared" if "different" not in case else f"{len(case['different'])} differ of {case['tensors_compared']}"
        return (f"{case['case']}, 1 of {case['ranks']}: {values}, shard {gib(under['shard_bytes'])} GiB, "
                f"peak {gib(under.get('shim', {}).get('backed_bytes_peak'))}")
    return "; ".join(map(one, result["cases"]))


def problems(result):
    return [f"{case['case']}, {mode}: {case[mode]['error']}" for case in result["cases"] for mode in ("without", "with")
            if "error" in case.get(mode, {})] + \
           [f"{case['case']}: {name} differs" for case in result["cases"] for name in case.get("different", [])[:3]]


if __name__ == "__main__":
    run_part(__doc__, measure, 300, ("--tiny", False, {"help": "short models, to try the script"}))
