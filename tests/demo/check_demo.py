#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_demo.py --build DIR --preload VALUE: the main job, small, and the files it works on."""
import argparse
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import ledger  # noqa: E402
from tap import check, end, report, skip  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
BESIDE = {"peak_bytes": 16 * MIB, "h2d_bytes": 0}  # its shard


def read_header(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    header.pop("__metadata__")
    return length, header, os.path.getsize(path)


def check_checkpoint(build):
    with tempfile.TemporaryDirectory() as folder:
        tool = os.path.join(build, "tests", "demo", "make_checkpoint")
        subprocess.run([tool, folder, "16", "3"], check=True, capture_output=True)
        paths = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
        faults, names = [], []
        for path in paths:
            length, header, size = read_header(path)
            at = 0
            for name, entry in header.items():
                elements = 1
                for extent in entry["shape"]:
                    elements *= extent
                if entry["data_offsets"] != [at, at + 2 * elements]:
                    faults.append(f"{name}: {entry}")
                at += 2 * elements
            if length % 8 or size != 8 + length + at:
                faults.append(f"{path}: {size} bytes, header {length}, data {at}")
            names += header
        with open(os.path.join(folder, "model.safetensors.index.json")) as file:
            index = json.load(file)
        if sorted(index["weight_map"]) != sorted(names) or len(paths) != 3:
            faults.append("the index does not name the tensors of the files")
        check("the checkpoint is a sound safetensors checkpoint", not faults, "\n".join(faults))
        check_with_library(folder, paths, names)
        check_damaged(build, folder, paths[0])


def check_with_library(folder, paths, names):
    try:
        from safetensors import safe_open
    except ImportError:
        skip("the safetensors package reads it", "the Python package safetensors is not installed")
        return
    seen = []
    for path in paths:
        with safe_open(path, framework="np") as file:
            seen += list(file.keys())
    check("the safetensors package reads it", sorted(seen) == sorted(names), seen)


def check_damaged(build, folder, path):
    client = [os.path.join(build, "tests", "demo", "client"), "0", "1", folder]
    for name, change in (("truncated", lambda data: data[:len(data) // 2]),
                         ("cut in the header", lambda data: data[:100]),
                         ("not JSON", lambda data: data[:8] + b"[" + data[9:]),
                         ("with a wild length", lambda data: b"\xff" * 8 + data[8:])):
        with open(path, "rb") as file:
            sound = file.read()
        with open(path, "wb") as file:
            file.write(change(sound))
        done = subprocess.run(client, capture_output=True, text=True)
        with open(path, "wb") as file:
            file.write(sound)
        check(f"a file that is {name} is one clear line",
              done.returncode == 2 and done.stderr.count("\n") == 1 and path in done.stderr,
              f"{done.returncode} {done.stderr}")


def run_quickstart(arguments, *options):
    command = [sys.executable, os.path.join(HERE, "quickstart.py"), "--simulated", "--build",
               arguments.build, "--preload", arguments.preload, *options]
    return subprocess.run(command, capture_output=True, text=True)


def check_job(arguments, ranks, size_mib):
    name = f"{ranks} ranks, {size_mib} MiB"
    done = run_quickstart(arguments, "--ranks", str(ranks), "--size-mib", str(size_mib))
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    check(f"{name}: runs", done.returncode == 0 and last.startswith("RESULT {"),
          done.stdout + done.stderr)
    if not last.startswith("RESULT {"):
        return
    result = json.loads(last[len("RESULT "):])
    ideal = result["ideal_bytes_per_rank"]
    check(f"{name}: every value is the same", result["values_match"], last)
    check(f"{name}: nothing is said", done.stderr == "", done.stderr)
    without, under = ({figure: result[f"{figure}_{way}"] for figure in BESIDE} for way in ("without", "with"))
    report(f"{name}: the ledger", "\n".join(ledger.compare(name, without, under, ledger.Kept(ideal, BESIDE)).wrong))
    check(f"{name}: without the shim both are the whole",
          result["h2d_bytes_without"] == result["checkpoint_bytes"] <= result["peak_bytes_without"], last)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--preload", required=True)
    arguments = parser.parse_args()
    check_checkpoint(arguments.build)
    check_job(arguments, 3, 256)
    check_job(arguments, 1, 256)
    for option, value in (("--ranks", "0"), ("--ranks", "two"), ("--size-mib", "7"),
                          ("--folder", "/nowhere")):
        done = run_quickstart(arguments, option, value)
        check(f"{option} {value} is refused in one line",
              done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr)
    return end()


if __name__ == "__main__":
    sys.exit(main())
