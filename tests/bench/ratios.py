#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ratios.py --build DIR: the main job against its ideal, for 1, 2 and 8 ranks and 1 to 8 GiB.

Prints one row a job: peak device memory and bytes copied to the device over the rank's shard, and
seconds with and without the shim. BENCH_SIZES_MIB and BENCH_RANKS (comma
separated) choose other jobs. A size that does not fit on the disk or in memory is left out, and
said.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20


def numbers(name, default):
    return [int(part) for part in os.environ.get(name, default).split(",")]


def free_memory():
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+) kB", file.read())[1]) * 1024


def reason_to_skip(folder, size_mib):
    """The checkpoint lies on disk; the ranks' shards together, twice (device and read-back), in
    memory."""
    disk = shutil.disk_usage(folder).free
    if disk < (size_mib + 256) * MIB:
        return f"{folder} has only {disk // MIB} MiB free"
    memory = free_memory()
    if memory < (2 * size_mib + 1024) * MIB:
        return f"only {memory // MIB} MiB of memory are free"
    return None


def run_job(build, folder, ranks, size_mib):
    done = subprocess.run([sys.executable, os.path.join(SOURCE, "tests", "demo", "quickstart.py"),
                           "--simulated", "--build", build, "--folder", folder, "--ranks",
                           str(ranks), "--size-mib", str(size_mib)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    seconds = re.search(r"without MetaShard: ([\d.]+) s, with: ([\d.]+) s", done.stdout)
    return json.loads(done.stdout.strip().splitlines()[-1][len("RESULT "):]), seconds.groups()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    build = parser.parse_args().build
    folder = os.environ.get("TMPDIR") or build
    print("ranks  size MiB  shard MiB  peak/shard  without  copied/shard  without  seconds  without"
          "  values")
    for size_mib in numbers("BENCH_SIZES_MIB", "1024,2048,4096,8192"):
        reason = reason_to_skip(folder, size_mib)
        if reason:
            print(f"       {size_mib:8}  left out: {reason}")
            continue
        for ranks in numbers("BENCH_RANKS", "1,2,8"):
            result, (without, with_shim) = run_job(build, folder, ranks, size_mib)
            ideal = result["ideal_bytes_per_rank"]
            print(f"{ranks:5}  {size_mib:8}  {ideal / MIB:9.1f}  "
                  f"{result['peak_bytes_with'] / ideal:10.3f}  "
                  f"{result['peak_bytes_without'] / ideal:7.3f}  "
                  f"{result['h2d_bytes_with'] / ideal:12.4f}  "
                  f"{result['h2d_bytes_without'] / ideal:7.3f}  {with_shim:>7}  {without:>7}  "
                  f"{'same' if result['values_match'] else 'DIFFERENT'}", flush=True)


if __name__ == "__main__":
    main()
