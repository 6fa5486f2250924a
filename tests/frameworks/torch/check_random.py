#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_random.py SHIM [--seeds FIRST-LAST] [--ops N]: random PyTorch programs without and with the shim. TAP.

The settings vary with the seed: everything deferred, a slow device, little memory, early settling.
"""
import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from check_wheel import Tap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "random_program.py")
SETTINGS = [{}, {"METASHARD_MIN_BYTES": "1"}, {"SIMCUDA_DELAY_US": "300"}, {"METASHARD_SETTLE_MS": "1"},
            {"SIMCUDA_MEMORY_MIB": "128"}, {"METASHARD_SNAPSHOT_BYTES": "1M"}]


def run(seed, ops, preload, **settings):
    environment = dict(os.environ, SIMCUDA_POISON="1", **settings)
    environment["LD_PRELOAD"] = ":".join(filter(None, [preload, os.environ.get("LD_PRELOAD")]))
    return subprocess.run([sys.executable, PROGRAM, str(seed), str(ops)], env=environment,
                          capture_output=True, text=True, timeout=600)


def both(seed, options):
    """(title, good, what the shim counted, what to show when it is not good)"""
    settings = SETTINGS[seed % len(SETTINGS)]
    alone = run(seed, options.ops, "")
    with tempfile.TemporaryDirectory() as folder:
        dump = os.path.join(folder, "dump")
        seen = run(seed, options.ops, options.shim, METASHARD_DUMP=dump, **settings)
        facts = {}
        if os.path.exists(dump):
            facts = read_dump(dump)
    title, good = f"program {seed}: same output", alone.returncode == 0 and alone.stdout == seen.stdout
    if "SIMCUDA_MEMORY_MIB" in settings and "out of memory" in seen.stderr:
        # An honest end; up to there all must be the same.
        title += " # SKIP memory did not suffice"
        good = alone.stdout.startswith(seen.stdout)
    lines = zip(alone.stdout.splitlines(), seen.stdout.splitlines())
    first = next((f"line {at}: {a} | {b}" for at, (a, b) in enumerate(lines) if a != b), "")
    return title, good, facts, f"{settings}\n{first}\n{alone.stderr[-600:]}\n{seen.stderr[-600:]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim", type=os.path.abspath)
    parser.add_argument("--seeds", default="1-24")
    parser.add_argument("--ops", type=int, default=300)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    tap, totals = Tap(), {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seeds = range(first, last + 1)
        for title, good, facts, detail in pool.map(lambda seed: both(seed, options), seeds):
            tap.check(title, good, detail)
            for name in ("recorded_launches", "replayed_launches", "observed_blocks", "evicted_bytes",
                         "settles"):
                totals[name] = totals.get(name, 0) + facts.get(name, 0)
    tap.check("the programs used what they are to test", all(totals.values()), totals)
    tap.end()


if __name__ == "__main__":
    main()
