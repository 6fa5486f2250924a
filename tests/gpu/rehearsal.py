# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the simulated driver, for run --rehearse: as in tests/frameworks/torch/run."""
import os
import subprocess

import build_all
from run_tools import REHEARSAL, SOURCE, result_page

TORCH = os.path.join(SOURCE, "tests", "frameworks", "torch")


def layouts_of(built, python, torch):
    """Where the parameters of the wheel's kernels lie; read once, which takes a minute."""
    path = built.path(f"torch-layouts-{torch}")
    if not os.path.exists(path):
        subprocess.run([python, os.path.join(TORCH, "check_wheel.py"),
                        os.path.join(SOURCE, "runtime", "kernel", "kernel-rules.txt"), path], stdout=subprocess.DEVNULL,
                       check=False)
    return path


def environment(built, python):
    """PyTorch's libraries find their own by a path that is inside of them, so the stand-ins are
    preloaded."""
    libraries = [built.path(build_all.STAND_IN), built.path(build_all.SIMULATED_NCCL)]
    torch, nccl = result_page.output_of(python, os.path.join(TORCH, "release.py")).split()
    folders = [os.path.dirname(built.path(build_all.SIMULATOR)), *map(os.path.dirname, libraries)]
    return {REHEARSAL: "1", "LD_LIBRARY_PATH": ":".join(folders), "LD_PRELOAD": ":".join(libraries),
            "SIMCUDA_FATBIN_LAYOUTS": layouts_of(built, python, torch),
            "SIMCUDA_FATBIN_KERNELS": built.path(build_all.TORCH_KERNELS),
            "SIMCUDA_POISON": "1",  # fresh device memory is not zero
            "SIMCUDA_MEMORY_MIB": "8192", "SIMNCCL_VERSION": nccl}
