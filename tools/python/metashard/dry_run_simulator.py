# SPDX-License-Identifier: Apache-2.0
"""The libraries that take the place of CUDA's, and whether PyTorch can run on them."""
from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

from . import installed

CUDA = "13"  # of the stand-ins, which PyTorch finds by names that end so
PRELOADED = (f"libcudart.so.{CUDA}", "libnccl.so.2", f"libcublasLt.so.{CUDA}", f"libcublas.so.{CUDA}")
OTHERS = ("libcuda.so.1", "libnvidia-ml.so.1")
HOST_KERNELS = "torch_host.so"
INSTALL = "pip install 'metashard[simulator]'"
QUESTION = """
import importlib.metadata as m, importlib.util as u, json, os
spec = u.find_spec("torch")
found = {}
if spec is not None:
    text = {}
    exec(open(os.path.join(os.path.dirname(spec.origin), "version.py")).read(), text)
    nccl = [p.version for p in m.distributions() if (p.metadata["Name"] or "").startswith("nvidia-nccl")]
    found = {"torch": text["__version__"], "cuda": text.get("cuda"), "nccl": nccl[0] if nccl else None}
print(json.dumps(found))
"""


class Simulator(NamedTuple):
    folders: list[str]
    preloads: list[str]
    nccl_version: str
    torch_version: str


def installed_library(name: str) -> str:
    try:
        package = importlib.metadata.distribution("metashard-simulator")
    except importlib.metadata.PackageNotFoundError:
        raise installed.Fault(f"cannot say: the simulated driver is not installed: {INSTALL}") from None
    if package.version != installed.version():
        raise installed.Fault(f"cannot say: metashard-simulator is of version {package.version}, and metashard of "
                              f"{installed.version()}: {INSTALL}")
    for path in package.files or ():
        if path.name == name:
            return os.path.realpath(os.fspath(path.locate()))
    raise installed.Fault(f"cannot say: {name} is not in the package metashard-simulator")


def places() -> dict[str, str]:
    """The path of each library, by its name: DRY_RUN_SIMULATOR is the folder tools/simcuda of a build, otherwise they are installed."""
    build = os.environ.get("DRY_RUN_SIMULATOR")
    if build is None:
        return {name: installed_library(name) for name in PRELOADED + OTHERS}
    found = {}
    for name in PRELOADED + OTHERS:
        paths = [os.path.join(build, folder, name) for folder in ("", "cudart", "nccl", "cublas")]
        found[name] = next((os.path.abspath(path) for path in paths if os.path.exists(path)), "")
        if not found[name]:
            raise installed.Fault(f"DRY_RUN_SIMULATOR: {name} is not in {build}")
    return found


def python_of(program: str) -> str:
    """The Python that a program runs on: itself, or that of a script's first line."""
    path = shutil.which(program) or program
    try:
        with open(path, "rb") as file:
            first = file.readline(512).decode(errors="replace")
    except OSError:
        return sys.executable
    words = first[2:].split() if first.startswith("#!") else []
    if "python" in os.path.basename(path):
        return path
    return words[0] if words and "python" in os.path.basename(words[0]) else sys.executable


def ask(python: str) -> dict:
    done = subprocess.run([python, "-c", QUESTION], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}


def find(program: str) -> Simulator:
    python = python_of(program)
    torch = ask(python)
    if not torch:
        raise installed.Fault(f"cannot say: {python} has no PyTorch")
    if not torch["cuda"]:
        raise installed.Fault(f"cannot say: PyTorch {torch['torch']} is built without CUDA")
    if torch["cuda"].split(".")[0] != CUDA:
        raise installed.Fault(f"cannot say: PyTorch {torch['torch']} is built for CUDA {torch['cuda']}, and the stand-ins are for "
                              f"CUDA {CUDA}")
    major, minor, patch = ([int(part) for part in (torch["nccl"] or "2.28.9").split(".")[:3]] + [0, 0])[:3]
    found = places()
    return Simulator(list(dict.fromkeys(os.path.dirname(found[name]) for name in OTHERS + PRELOADED)),
                     [found[name] for name in PRELOADED], str(10000 * major + 100 * minor + patch), torch["torch"].split("+")[0])


def host_versions(torch_version: str) -> dict[str, str]:
    """Kernels that compute on the CPU, and what their arguments are in this release of PyTorch."""
    build, layouts = os.environ.get("DRY_RUN_SIMULATOR"), f"torch-layouts-{torch_version}"
    try:
        paths = [os.path.join(build, "torch", HOST_KERNELS), os.environ.get("DRY_RUN_LAYOUTS", "")] if build is not None else \
            [installed_library(HOST_KERNELS), installed_library(layouts)]
    except installed.Fault:
        paths = [""]
    if not all(map(os.path.exists, paths)):
        raise installed.Fault(f"cannot say: --compute: {HOST_KERNELS} and {layouts} are not in the package metashard-simulator: "
                              "`tools/python/build_simulator --layouts`, in a clone, makes one that has them (docs/dry-run.md)")
    return {"SIMCUDA_DRY": "2", "SIMCUDA_FATBIN_KERNELS": paths[0], "SIMCUDA_FATBIN_LAYOUTS": paths[1]}
