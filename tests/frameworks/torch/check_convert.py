#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_convert.py SHIM: a checkpoint is converted under its own name, without and with the shim. TAP.

Tensors that torch.load(mmap=True) brings to the device are cast, sliced, or saved as they are, over the file they came from.
"""
import hashlib
import os
import subprocess
import sys
import tempfile

from check_wheel import Tap

WAYS = {
    "cast": "{k: v.to(torch.bfloat16) for k, v in torch.load(path, map_location='cuda', mmap=True).items()}",
    "as it is": "torch.load(path, map_location='cuda', mmap=True)",
    "rows": "{k: v[: len(v) // 2].clone() for k, v in torch.load(path, map_location='cuda', mmap=True).items()}",
    "columns": "{k: v[:, 256:768].contiguous() for k, v in torch.load(path, map_location='cuda', mmap=True).items()}",
    "on the host": "{k: v.half() for k, v in torch.load(path, map_location='cpu', mmap=True).items()}",
}
PROGRAM = """
import sys, torch
path = sys.argv[1]
torch.save(%s, path)
"""
FILE = "with open(path, 'wb') as file: torch.save(state, file)"


def make(path):
    import torch
    generator = torch.Generator().manual_seed(1)
    torch.save({f"layer{i}": torch.randn(1024, 1024, generator=generator) for i in range(4)}, path)


def tensors(path):
    import torch
    state = torch.load(path, map_location="cpu")
    return {k: (str(v.dtype), tuple(v.shape), hashlib.sha256(v.view(torch.uint8).numpy().tobytes()).hexdigest())
            for k, v in state.items()}


def convert(program, preload, **settings):
    """The tensors in the file afterwards, or the program's error."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        make(path)
        environment = dict(os.environ, **settings)
        environment["LD_PRELOAD"] = ":".join(filter(None, [preload, os.environ.get("LD_PRELOAD")]))
        done = subprocess.run([sys.executable, "-c", program, path], env=environment, capture_output=True, text=True,
                              timeout=300)
        try:
            return tensors(path) if done.returncode == 0 else done.stderr[-1500:]
        except Exception as error:  # a file that was cut off
            return f"{error}\n{done.stderr[-1500:]}"


def check(tap, shim, name, program, **settings):
    alone, seen = convert(program, ""), convert(program, shim, **settings)
    tap.check(name, isinstance(alone, dict) and seen == alone, f"{alone}\n{seen}")


def main():
    shim = os.path.abspath(sys.argv[1])
    tap = Tap()
    for name, state in WAYS.items():
        check(tap, shim, name, PROGRAM % state)
    through_file = PROGRAM.replace("torch.save(%s, path)", f"state = {WAYS['cast']}\n{FILE}")
    check(tap, shim, "cast, through a file", through_file)
    check(tap, shim, "cast, without leases", PROGRAM % WAYS["cast"], METASHARD_LEASES="off")
    tap.end()


if __name__ == "__main__":
    main()
