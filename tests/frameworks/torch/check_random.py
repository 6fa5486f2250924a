#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_random.py SHIM [--seeds FIRST-LAST] [--ops N]: random PyTorch programs without and with the shim. TAP.

The settings vary with the seed: everything deferred, a slow device, little memory, early settling. Counted are the bytes sent to
the device, and the most memory that there was. The check reports costs above those without the shim that COSTS does not allow.
"""
import argparse
import json
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
MIB = 1 << 20
# Allowed costs of a program beyond those without the shim, by count of the simulated driver: (what, bytes, why).
COSTS = {
    "h2d_bytes": (("self-check", MIB, "the device is asked what it does, when it is used first"),),
    "physical_bytes_peak": (("sink", 2 * MIB, "one granule, kept once something was replayed"),
                            ("scratch memory", 6 * MIB, "that of the last replay is kept, until memory is needed")),
}


def run(seed, ops, preload, stats, **settings):
    environment = dict(os.environ, SIMCUDA_POISON="1", SIMCUDA_STATS=stats, **settings)
    environment["LD_PRELOAD"] = ":".join(filter(None, [preload, os.environ.get("LD_PRELOAD")]))
    return subprocess.run([sys.executable, PROGRAM, str(seed), str(ops)], env=environment,
                          capture_output=True, text=True, timeout=600)


def read_counts(path):
    if not os.path.exists(path):  # a program that crashed: its output says so
        return dict.fromkeys(COSTS, 0)
    with open(path, encoding="ascii") as file:
        counts = json.load(file)
    os.unlink(path)
    return {name: counts[name] for name in COSTS}


def dearer(wanted, counts, settings):
    """Costs beyond the allowed ones, in words; none where memory is short: there, data that was given back is sent again."""
    if "SIMCUDA_MEMORY_MIB" in settings:
        return ""
    return ", ".join(f"{name} {counts[name]}, without the shim {wanted[name]}" for name, rows in COSTS.items()
                     if counts[name] > wanted[name] + sum(bytes for _, bytes, _ in rows))


def both(seed, options):
    """(title, good, what it costs too much, what the shim counted, what to show when it is not good)"""
    settings = SETTINGS[seed % len(SETTINGS)]
    with tempfile.TemporaryDirectory() as folder:
        dump, stats = (os.path.join(folder, name) for name in ("dump", "stats"))
        alone = run(seed, options.ops, "", stats)
        wanted = read_counts(stats)
        seen = run(seed, options.ops, options.shim, stats, METASHARD_DUMP=dump, **settings)
        counts = read_counts(stats)
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
    more = dearer(wanted, counts, settings)
    return title, good, more, facts, f"{settings}\n{first}\n{alone.stderr[-600:]}\n{seen.stderr[-600:]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim", type=os.path.abspath)
    parser.add_argument("--seeds", default="1-24")
    parser.add_argument("--ops", type=int, default=300)
    parser.add_argument("--costs", action="store_true", help="what costs more than COSTS allows is a failure, and not told alone")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    tap, totals = Tap(), {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seeds = range(first, last + 1)
        for title, good, more, facts, detail in pool.map(lambda seed: both(seed, options), seeds):
            tap.check(title, good, detail)
            if options.costs:
                tap.check(title.split(":")[0] + ": no more bytes sent, and no more memory", not more, more)
            elif more:
                print(f"# {title.split(':')[0]} costs more: {more}", flush=True)
            for name in ("recorded_launches", "replayed_launches", "observed_blocks", "evicted_bytes",
                         "settles"):
                totals[name] = totals.get(name, 0) + facts.get(name, 0)
    tap.check("the programs used what they are to test", all(totals.values()), totals)
    tap.end()


if __name__ == "__main__":
    main()
