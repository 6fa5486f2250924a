#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ways.py --build DIR --driver FILE --preload FILE --kernels FILE: whole programs, and the same done by hand.

The main job (tests/demo/client.c), one rank of 8, in three ways: by hand, which is the lower bound (allocate the rank's
rows and copy these); as written (map the file, copy everything, slice), without MetaShard; and that with it. And a model that is
initialised on the device and then sharded (tests/frameworks/flows/from_scratch.c), in the last two ways. A line each:
peak device memory and bytes copied to the device, over the rank's shard; instructions outside of the program itself (shim,
driver, libc, on all threads), in millions and over those by hand, counted by callgrind: with what threads do while they wait,
so they differ by some hundredths from run to run. Without valgrind these are left out.

WAYS_MIB (default 256) is the size of the checkpoint.
"""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

from instructions import costs, without_debug_information

MIB = 1 << 20
RANK, RANKS = 3, 8
MODEL = ["--dim", "512", "--layers", "2", "--vocab", "8016"]


def run(command, folder, driver, preload, counted):
    """(what it printed, statistics of the driver, millions of instructions or None)"""
    stats, out = os.path.join(folder, "stats"), os.path.join(folder, "callgrind")
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("METASHARD", "SIMCUDA")) and name != "LD_PRELOAD"}
    environment.update(LD_LIBRARY_PATH=os.path.dirname(driver), SIMCUDA_STATS=stats, METASHARD_SETTLE_MS="0")
    if preload:
        environment["LD_PRELOAD"] = preload
    wrapper = ["valgrind", "--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no",
               f"--callgrind-out-file={out}"] if counted else []
    done = subprocess.run(wrapper + command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stderr}")
    with open(stats) as file:
        seen = json.load(file)
    if not counted:
        return done.stdout, seen, None
    spent = sum(number for part in glob.glob(out + "*") for place, callee, number in costs(part)
                if callee is None and os.path.basename(place) != os.path.basename(command[0]))
    for part in glob.glob(out + "*"):
        os.unlink(part)
    return done.stdout, seen, spent / 1e6


def report(name, way, shard, seen, spent, base):
    words = ["-", "-"] if spent is None else [f"{spent:.1f}", "-" if base is None else f"{spent / base:.2f}"]
    print(f"{name:24} {way:12} shard MiB {shard / MIB:7.1f}  peak/shard {seen['physical_bytes_peak'] / shard:7.3f}  "
          f"copied/shard {seen['h2d_bytes'] / shard:7.4f}  instructions M {words[0]:>9}  over by hand {words[1]:>6}",
          flush=True)


def main_job(options, folder, counted):
    size = os.environ.get("WAYS_MIB", "256")
    tool = os.path.join(options.build, "tests", "demo", "make_checkpoint")
    checkpoint = os.path.join(folder, "checkpoint")
    os.makedirs(checkpoint)
    subprocess.run([tool, checkpoint, size], check=True, stdout=subprocess.DEVNULL)
    client, driver, preload = without_debug_information(
        folder, os.path.join(options.build, "tests", "demo", "client"), options.driver, options.preload)
    base, hashes = None, set()
    for way, shim, arguments in (("by hand", None, ["--by-hand"]), ("without", None, []), ("with", preload, [])):
        text, seen, spent = run([client, str(RANK), str(RANKS), checkpoint, *arguments], folder, driver, shim, counted)
        said = json.loads(text)
        hashes |= {said["hash"], said["file_hash"]}
        base = base or spent
        report(f"main job, {size} MiB", way, said["shard_bytes"], seen, spent, base)
    if len(hashes) != 1:
        sys.exit("the main job: other bytes in one of the ways")


def from_scratch(options, folder, counted):
    program, driver, preload = without_debug_information(
        folder, os.path.join(options.build, "tests", "frameworks", "flows", "from_scratch"), options.driver, options.preload)
    command = [program, "--kernels", options.kernels, "--rank", str(RANK), "--ranks", str(RANKS), "--end", *MODEL]
    outputs = set()
    for way, shim in (("without", None), ("with", preload)):
        text, seen, spent = run(command, folder, driver, shim, counted)
        outputs.add(text)
        line = [line for line in text.splitlines() if line.startswith("bytes ")][0]
        report("init, then shard", way, int(line.split()[1]), seen, spent, None)
    if len(outputs) != 1:
        sys.exit("init, then shard: other values with the preload")


def main():
    parser = argparse.ArgumentParser()
    for name in ("build", "driver", "preload", "kernels"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    counted = shutil.which("valgrind") is not None and shutil.which("objcopy") is not None
    with tempfile.TemporaryDirectory(prefix="metashard-ways-", dir=os.environ.get("TMPDIR") or options.build) as folder:
        main_job(options, folder, counted)
        from_scratch(options, folder, counted)


if __name__ == "__main__":
    main()
