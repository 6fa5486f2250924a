#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_copies.py SHIM: a tensor is loaded and copied, and the program changes one of the two in place. Both are used afterwards, and
the bytes are sent once, as without the shim. TAP.

check_copies.py --program FILE WAY CHANGED: such a program. FILE: a checkpoint, or "host": numbers that are made on the host.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
NUMBERS = 2053 * 1031  # nothing ends with a granule
SELF_CHECK = MIB // 2  # the device is asked what it does, when it is used first
WAYS = ("none", "add", "twice", "part", "cast", "filled", "third")
CHANGED = ("original", "copy")


def load(path):
    import torch
    from safetensors.torch import load_file
    if path != "host":
        return load_file(path, device="cuda")["a"]
    return torch.arange(NUMBERS, dtype=torch.float32).mul_(1e-3).to("cuda")


def program(path, way, changed):
    import torch
    original = load(path)
    copy = original.clone()
    x, y = (original, copy) if changed == "original" else (copy, original)
    more = []
    if way in ("add", "twice"):
        x.add_(1)
    if way == "twice":
        x.mul_(2)
    elif way == "part":
        x[1000:NUMBERS // 2].add_(1)
    elif way == "cast":
        more = [torch.empty(NUMBERS, dtype=torch.bfloat16, device="cuda").copy_(x)]
        x.add_(1)
    elif way == "filled":
        x[:300].fill_(2)
        x.add_(1)
    elif way == "third":
        more = [torch.zeros(NUMBERS, device="cuda").copy_(x).add_(1)]
    for tensor in [x, *more, y]:
        print(tensor.sum(dtype=torch.float64).item(), tensor[-1].item())


def run(row, folder, preload):
    """What the program prints, what the simulated driver counted, and the program's complaint."""
    stats = os.path.join(folder, "stats")
    done = subprocess.run([sys.executable, __file__, "--program", *row], capture_output=True, text=True, timeout=600,
                          env=dict(os.environ, SIMCUDA_POISON="1", SIMCUDA_STATS=stats, LD_PRELOAD=preload))
    if done.returncode != 0:
        return "", {}, done.stderr[-900:] or f"exit status {done.returncode}"
    with open(stats, encoding="ascii") as file:
        return done.stdout, json.load(file), ""


def check(tap, row, folder, shim, before):
    wanted, then, wrong = run(row, folder, before)
    found, now, also_wrong = run(row, folder, ":".join(filter(None, [shim, before])))
    name = f"{'host' if row[0] == 'host' else 'file'}, {row[1]}, the {row[2]} is changed"
    tap.check(f"{name}: the same numbers", not wrong + also_wrong and found == wanted, f"{wrong}{also_wrong}{wanted}{found}")
    for what, more in (("h2d_bytes", SELF_CHECK), ("physical_bytes_peak", 4 * MIB)):
        tap.check(f"{name}: not more {what}", bool(now) and now[what] <= then[what] + more,
                  f"{now.get(what)}, without the shim {then.get(what)}")


def main():
    import torch
    from safetensors.torch import save_file
    from check_wheel import Tap
    tap, before = Tap(), os.environ.get("LD_PRELOAD", "")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.safetensors")
        save_file({"a": torch.arange(NUMBERS, dtype=torch.float32)}, path)
        time.sleep(0.1)  # a file that has just been written is not trusted
        for source in (path, "host"):
            for way in WAYS:
                for changed in CHANGED:
                    if (way, changed) != ("none", "copy"):
                        check(tap, (source, way, changed), folder, os.path.abspath(sys.argv[1]), before)
    tap.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        program(*sys.argv[2:])
    else:
        main()
