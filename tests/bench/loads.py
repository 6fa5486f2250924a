#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""loads.py PROGRAM PRELOAD [--check]: system calls that the shim adds, for each MiB that a loader copies.

PROGRAM (loads.c) loads a checkpoint through a buffer, which hides where the bytes come from, so the shim compares each byte with the
file. Counted are the calls of all threads while it loads one half more than another time: what a start costs is not for each MiB. Calls
that depend on when threads meet (futex) are left out, and those made so many times a second for the leases. --check: compares them with
LIMIT. Without it, there also are the calls and the processor seconds of each GiB, with the driver's: of a loader by hand, and of
each way without and with the preload. Without strace the exit status is 77.
"""
import collections
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
GIB = 1 << 30
LIMIT = 4
WAYS = ("mapped", "pinned", "read")
RUNS = 5  # of which the processor time is the median
CASES = [(24, 4 * MIB), (4, 16 * MIB)]  # tensors, bytes of each; and twice as many
CALL = re.compile(r"(\d+) +(\w+)\((.*)")
CLOCKED = {"futex", "fcntl", "statx"}
CONTENT = bytes(os.urandom(16 * MIB))


def make_checkpoint(path, tensors, tensor_bytes):
    header = {f"t{number}": {"dtype": "U8", "shape": [tensor_bytes],
                             "data_offsets": [number * tensor_bytes, (number + 1) * tensor_bytes]} for number in range(tensors)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for number in range(tensors):
            out.write(number.to_bytes(8, "little") + CONTENT[:tensor_bytes - 8])
    time.sleep(0.1)  # its times are older than a tick of the file system's clock


def count(trace):
    """Calls by name, while it loads; the lease thread sleeps in between."""
    calls, is_loading = collections.defaultdict(collections.Counter), False
    with open(trace, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            call = CALL.match(line)
            if call is None:
                continue
            thread, name, arguments = call.groups()
            if '"/begin"' in arguments or '"/loaded"' in arguments:
                is_loading = '"/begin"' in arguments
            elif is_loading and name not in CLOCKED:
                calls[thread][name] += 1
    return sum((seen for seen in calls.values() if "clock_nanosleep" not in seen), collections.Counter())


def start(program, preload, way, checkpoint, tensors, folder, trace=None):
    """What it prints. With `trace`, under strace."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("METASHARD")}
    environment.update(METASHARD_SETTLE_MS="0", METASHARD_STATE_DIR=os.path.join(folder, "state"))
    tool = [] if trace is None else ["strace", "-f", "-qq", "-o", trace, *(["-E", f"LD_PRELOAD={preload}"] if preload else [])]
    if preload and trace is None:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run([*tool, program, way, checkpoint, str(tensors)], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{way}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def checkpoint_of(tensors, tensor_bytes, folder):
    path = os.path.join(folder, f"{tensors}-{tensor_bytes}.safetensors")
    if not os.path.exists(path):
        make_checkpoint(path, tensors, tensor_bytes)
    return path


def count_more(program, preload, way, tensors, tensor_bytes, folder):
    """Calls of the second half, when twice as many tensors are loaded."""
    trace, seen = os.path.join(folder, "trace"), []
    for number in (2 * tensors, tensors):
        start(program, preload, way, checkpoint_of(number, tensor_bytes, folder), number, folder, trace)
        seen.append(count(trace))
    seen[0].subtract(seen[1])
    return seen[0]


def count_for_mib(program, preload, way, tensors, tensor_bytes, folder):
    """Added by the preload: all, and the most frequent in words."""
    seen = count_more(program, preload, way, tensors, tensor_bytes, folder)
    seen.subtract(count_more(program, None, way, tensors, tensor_bytes, folder))
    mib = tensors * tensor_bytes / MIB
    return sum(seen.values()) / mib, ", ".join(f"{name} {number / mib:.2f}" for name, number in seen.most_common(6))


def show_gib(program, preload, tensors, tensor_bytes, folder):
    cases = [("by hand", "by hand", None), *((way, *pair) for way in WAYS for pair in ((way, None), (way, preload)))]
    checkpoint, gib = checkpoint_of(2 * tensors, tensor_bytes, folder), tensors * tensor_bytes / GIB
    spent = collections.defaultdict(list)
    for _ in range(RUNS):
        for case in cases:
            seconds = start(program, case[2], case[1], checkpoint, 2 * tensors, folder).split()
            spent[case].append([float(one) / (2 * gib) for one in seconds])
    for name, way, used in cases:
        calls = sum(count_more(program, used, way, tensors, tensor_bytes, folder).values()) / gib
        loading, back = (statistics.median(one) for one in zip(*spent[name, way, used]))
        print(f"{name:8} tensors of {tensor_bytes // MIB:2} MiB, {'with' if used else 'without':7}: "
              f"{calls:6.0f} system calls a GiB, "
              f"processor seconds a GiB: {loading:.3f} loading, {back:.3f} copying back", flush=True)


def main():
    if shutil.which("strace") is None or subprocess.run(["strace", "-o", "/dev/null", "/bin/true"],
                                                        capture_output=True).returncode != 0:
        print("skipped: strace is not installed, or does not work here")
        return 77
    program, preload = map(os.path.abspath, sys.argv[1:3])
    is_check, faults = "--check" in sys.argv, 0
    with tempfile.TemporaryDirectory() as folder:
        for tensors, tensor_bytes in CASES:
            for way in WAYS:
                case = (program, preload, way, tensors, tensor_bytes, folder)
                total, seen = count_for_mib(*case)
                if is_check and total > LIMIT:  # once a second all mappings are looked at
                    total, seen = min((total, seen), count_for_mib(*case), key=lambda counted: counted[0])
                print(f"{way:8} tensors of {tensor_bytes // MIB:2} MiB: {total:6.2f} system calls a MiB ({seen})", flush=True)
                if is_check and total > LIMIT:
                    print(f"TOO MANY: at most {LIMIT}")
                    faults += 1
            if not is_check:
                show_gib(program, preload, tensors, tensor_bytes, folder)
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
