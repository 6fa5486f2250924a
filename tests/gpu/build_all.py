# SPDX-License-Identifier: Apache-2.0
"""Builds what tests/gpu/run needs, with the machine's meson and ninja, or those that prepare
fetched.

Targets that cannot be built are missing afterwards, and only the parts that need them say so.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import time

from run_tools import SOURCE, code_version

# Subjects of tools/simcuda/tests/test_*.c; those that the design leans on most come first.
SUBJECTS = ["vmm", "memory", "copy", "stream", "query", "launch", "capture", "graph", "lookup", "environment"]
PROBE, RECORDER = "tests/gpu/libprobe_call.so", "tests/gpu/liblaunch_recorder.so"
SHIM, SIMULATOR = "shim/libmetashard.so", "tools/simcuda/libcuda.so.1"
PLAN_TOOL, DUMP_TOOL = "tools/metashard-plan", "tools/metashard-dump"
PROBE_KERNELS, TEST_KERNELS = "tests/gpu/libprobe_sim_kernels.so", "tools/simcuda/test_kernels.so"
CONFORMANCE = [f"tests/gpu/conformance_{subject}" for subject in SUBJECTS]
# Subjects of tools/simcuda/tests/nccl/test_*.c; only where nccl.h is.
NCCL_SUBJECTS = ["alone", "collectives", "comms", "groups", "numbers", "registration"]
SIMULATED_NCCL = "tools/simcuda/nccl/libnccl.so.2"
NCCL_CONFORMANCE = [f"tests/gpu/conformance_nccl_{subject}" for subject in NCCL_SUBJECTS]
NCCL_TARGETS = [SIMULATED_NCCL, *NCCL_CONFORMANCE]
# The most important first.
TARGETS = [PROBE, SHIM, RECORDER, PLAN_TOOL, DUMP_TOOL, SIMULATOR, PROBE_KERNELS, TEST_KERNELS, *CONFORMANCE,
           *NCCL_TARGETS]
IMPORTANT = TARGETS.index(CONFORMANCE[0])  # so many are needed in the first call
# PyTorch on the simulated driver (run --rehearse); the systems need the last two, which are built where cublasLt.h is.
STAND_IN, TORCH_KERNELS = "tools/simcuda/cudart/libcudart.so.13", "tools/simcuda/torch/torch_host.so"
REHEARSAL_TARGETS = [STAND_IN, TORCH_KERNELS]
REHEARSAL_EXTRAS = [f"tools/simcuda/cublas/lib{name}.so.13" for name in ("cublasLt", "cublas")]
HEADER_PLACES = ["/usr/local/cuda/include", "/usr/local/cuda-13.0/include", "/opt/cuda/include",
                 "/usr/include", "/usr/local/include", "/usr/lib/cuda/include"]
HEADER_VARIABLES = {"cuda.h": "CUDA_HEADERS", "nccl.h": "NCCL_HEADERS"}
CODE_FILE = "code"  # in the folder: the code_version() that it was built from


class Builder:
    def __init__(self, folder, python=sys.executable, deadline=float("inf")):
        self.folder, self.python, self.deadline = os.path.abspath(folder), python, deadline
        os.makedirs(self.folder, exist_ok=True)
        self.log = os.path.join(self.folder, "run-build.log")
        # A Python that has meson or ninja as packages has them beside it.
        fetched = glob.glob(os.path.join(SOURCE, ".tools", "ninja-*", "scripts"))
        places = [os.path.dirname(python), os.environ.get("PATH", ""), *fetched]
        self.environment = dict(os.environ, PATH=":".join(places))

    def path(self, target):
        return os.path.join(self.folder, target)

    def call(self, *command):
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(" ".join(command) + "\n")
            log.flush()
            try:
                return subprocess.run(command, cwd=SOURCE, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      env=self.environment, check=False,
                                      timeout=max(0.1, min(self.deadline - time.monotonic(), 3600))).returncode == 0
            except (OSError, subprocess.TimeoutExpired) as error:
                log.write(f"{error}\n")
                return False

    def missing(self):
        return [target for target in TARGETS if not os.path.exists(self.path(target))]

    def code(self):
        """The version of the sources that the folder was built from, or None."""
        try:
            with open(self.path(CODE_FILE), encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return None

    def meson(self):
        carried = os.path.join(SOURCE, ".tools", "meson.py")
        if shutil.which("meson", path=self.environment["PATH"]):
            return ["meson"]
        return [sys.executable, carried] if os.path.exists(carried) else None

    def build(self, targets):
        meson = self.meson()
        if meson is None or shutil.which("ninja", path=self.environment["PATH"]) is None:
            with open(self.log, "a", encoding="utf-8") as log:
                log.write("meson or ninja is missing: tests/gpu/prepare fetches them, where there is a network\n")
            return
        if not os.path.exists(self.path("build.ninja")):
            found = {"cuda": headers_with("cuda.h", self.python), "nccl": headers_with("nccl.h", self.python)}
            options = [f"-D{name}-headers={folder}" for name, folder in found.items() if folder is not None]
            if not self.call(*meson, "setup", self.folder, *options):
                return
        # The most important first, should the time not suffice. Whatever fails, the rest is built;
        # what is left of an older build must not pass for it.
        if not all(self.call("ninja", "-k", "0", "-C", self.folder, *some) for some in (targets[:IMPORTANT], targets)):
            for target in targets:
                if not self.call("ninja", "-C", self.folder, target) and os.path.exists(self.path(target)):
                    os.remove(self.path(target))
        with open(self.path(CODE_FILE), "w", encoding="ascii") as file:
            file.write(code_version() + "\n")


def toolkit_of_nvcc():
    """The include folder beside the compiler that is on the path."""
    nvcc = shutil.which("nvcc")
    return [os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")] if nvcc else []


def has(folder, header):
    """cuda.h of CUDA 13; any nccl.h."""
    try:
        with open(os.path.join(folder, header), encoding="utf-8", errors="replace") as file:
            return header != "cuda.h" or re.search(r"#define CUDA_VERSION 1[3-9]", file.read()) is not None
    except OSError:
        return False


def headers_with(header, python):
    """The folder to take the header from, or None. One that has crt/ as well is whole: PyTorch's
    wheels have none, and the headers of NCCL and of the CUDA runtime include files of it.
    """
    given = os.environ.get(HEADER_VARIABLES[header])
    if given:
        return given
    wheels = subprocess.run([python, "tests/setup/find_wheel_headers.py"], cwd=SOURCE, capture_output=True, text=True,
                            check=False).stdout.split()
    places = [place for place in toolkit_of_nvcc() + HEADER_PLACES + wheels if has(place, header)]
    whole = [place for place in places if os.path.isdir(os.path.join(place, "crt"))]
    return next(iter(whole if header == "cuda.h" and whole else places), None)
