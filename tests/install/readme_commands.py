#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme_commands.py --wheels DIR [--driver DIR]: installs the wheels in a fresh virtual environment, without network,
and runs the README's commands there, on the simulated driver: that of the simulator's wheel, if --driver names no other. TAP.

It needs Python alone, so that it runs in an empty container. A checkpoint of one tensor stands for the model, a script that
uses device memory for train.py, and one that starts the script once for torchrun. The
dry run is left out, which needs PyTorch: tests/setup/bare_machines runs the same one.
"""
import argparse
import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "harness"))
from tap import check, end, equal, skip  # noqa: E402

BUILT = "pip install ."  # for which the wheel stands
WITH_SIMULATOR = "pip install 'metashard[simulator]'"
COMMANDS = {"run", "plan", "show", "verify", "dry-run"}
SETTINGS = re.compile(r"(?:METASHARD|LD_PRELOAD|LD_LIBRARY_PATH|PYTHON|PIP_|VIRTUAL_ENV|RANK$|WORLD_SIZE$)")
TRAIN = r'''
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, memory, size = ctypes.c_void_p(), ctypes.c_uint64(), 64 << 20
results = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
           cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)), cuda.cuMemsetD8_v2(memory, 7, ctypes.c_size_t(size))]
data = ctypes.create_string_buffer(16)
results += [cuda.cuMemcpyDtoH_v2(data, memory, ctypes.c_size_t(16)), cuda.cuMemFree_v2(memory)]
assert not any(results) and data.raw == bytes([7] * 16), (results, data.raw)
'''
TORCHRUN = "#!/bin/sh\nfor word; do case $word in *.py) exec python3 \"$word\" ;; esac; done\nexit 2\n"


def write(path, text, mode="w"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode) as file:
        file.write(text)


def commands_of(text):
    """Each command of the page, without its comment."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


class Place:
    def __init__(self, folder, wheels, driver):
        self.folder, self.venv = os.path.join(folder, "job"), os.path.join(folder, "venv")
        self.settings = {name: value for name, value in os.environ.items() if not SETTINGS.match(name)}
        self.settings.update(PATH=f"{self.venv}/bin:{os.environ['PATH']}", METASHARD_STATE_DIR=os.path.join(folder, "state"),
                             PIP_NO_INDEX="1", PIP_FIND_LINKS=wheels, HOME=folder,
                             LD_LIBRARY_PATH=driver or os.path.join(self.venv, "simulator"))
        os.makedirs(self.folder)

    def run(self, command):
        return subprocess.run(command, shell=True, cwd=self.folder, env=self.settings, stdin=subprocess.DEVNULL, timeout=300,
                              capture_output=True, text=True, check=False)

    def prepare(self):
        header = json.dumps({"model.layers.0.up.weight": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, 16384]}}).encode()
        write(os.path.join(self.folder, "Llama-3.1-70B", "model.safetensors"), struct.pack("<Q", len(header)) + header + bytes(16384), "wb")
        write(os.path.join(self.folder, "train.py"), TRAIN)
        write(os.path.join(self.venv, "bin", "torchrun"), TORCHRUN)
        os.chmod(os.path.join(self.venv, "bin", "torchrun"), 0o755)


def check_commands(folder, wheels, text, driver=None):
    """The commands of the text, each with the status 0."""
    place = Place(folder, wheels, driver)
    has_simulator = bool(glob.glob(os.path.join(wheels, "metashard_simulator-*.whl")))
    done = place.run(f"{sys.executable} -m venv {place.venv} && pip install --quiet 'metashard{'[simulator]' * has_simulator}' && "
                     f"ln -s {place.venv}/lib/python*/site-packages/metashard_simulator {place.venv}/simulator")
    equal("the wheels are installed where there is Python alone", (done.returncode, done.stderr), (0, ""))
    place.prepare()
    commands = commands_of(text)
    own = [command for command in commands if command != BUILT]
    equal("each of the README's commands is known here", {command.split()[1] for command in own if command.startswith("metashard ")}, COMMANDS)
    for command in own:
        if command.startswith("metashard dry-run") or command == WITH_SIMULATOR and not has_simulator:
            skip(f"README: {command}", "it needs PyTorch, and the simulator's wheel")
            continue
        done = place.run(command)
        check(f"README: {command}", done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-1500:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--wheels", required=True)
    parser.add_argument("--driver", help="its folder")
    options = parser.parse_args()
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        check_commands(folder, os.path.abspath(options.wheels), text, options.driver and os.path.abspath(options.driver))
    return end()


if __name__ == "__main__":
    sys.exit(main())
