# SPDX-License-Identifier: Apache-2.0
"""For the parts of tests/gpu/run about NCCL: where the library is, and several ranks on one GPU."""
import json
import os
import sys
from collections import namedtuple

import build_all
from run_tools import run_limited, without_shim

Library = namedtuple("Library", "path version")
NO_NCCL = {"skipped": "no libnccl.so.2; name one in NCCL_LIBRARY"}
PYTHON_ROW = "--python", sys.executable, {"help": "whose NCCL is used"}

# The wheel that PyTorch brings is not where the linker looks.
FIND = """
import ctypes, glob, json, os, sys
places = [os.environ["NCCL_LIBRARY"]] if os.environ.get("NCCL_LIBRARY") else []
for folder in sys.path:
    places += glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so.2"))
for place in places + ["libnccl.so.2"]:
    try:
        library = ctypes.CDLL(place)
    except OSError:
        continue
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    with open("/proc/self/maps") as file:
        mapped = [line.split()[-1] for line in file if "libnccl.so" in line]
    print(json.dumps([mapped[0], version.value]))
    break
"""


def library_of(options, simulated):
    """The one that --simulated asks for; or that of this Python's PyTorch, or None. NCCL_LIBRARY names another."""
    if simulated:
        return Library(os.path.realpath(os.path.join(options.build, build_all.SIMULATED_NCCL)), 22809)
    done = run_limited([options.python, "-c", FIND], 60, without_shim())
    return Library(*json.loads(done.out)) if done.status == 0 and done.out.strip() else None


def nccl_environment(library, driver_folder=None):
    """So that programs find this NCCL; and the driver in a folder, if that is not the system's."""
    folders = [os.path.dirname(library.path)] + ([driver_folder] if driver_folder else [])
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": ":".join(folders + ([before] if before else []))}


# Ranks look like several machines, whose network is the loopback device: NCCL before 2.30 takes one rank for a GPU
# of a machine. Few channels, so that kernels of all ranks fit on the device.
SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_MAX_NCHANNELS": "2"}


def ways_of(library):
    """{name: (settings of all ranks, is each a host of its own)}: how several ranks get onto one GPU."""
    ways = {"hosts": (SOCKETS, True)}
    if library.version >= 23000:
        ways["multi_rank_gpu"] = ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2",
                                   "NCCL_NET_GDR_LEVEL": "LOC"}, False)
    return ways


def json_lines(text):
    rows = []
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            rows.append({"error": f"not JSON: {line[:200]}"})
    return rows


def refuse_simulated(library, build, simulated):
    """The simulated NCCL must never pass for the real one, nor the other way round."""
    is_own = library.path.startswith(os.path.realpath(build) + os.sep)
    if is_own != simulated:
        sys.exit(f"the {'simulated' if simulated else 'real'} NCCL was wanted, and {library.path} answered")
