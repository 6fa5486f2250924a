# SPDX-License-Identifier: Apache-2.0
"""`metashard doctor`: whether MetaShard would work here, in a line for each thing that it needs, and why not. COMMAND: whether a
preload reaches that program."""
from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import sys
from typing import Callable, Iterator, Optional

from . import installed, programs, run
from .options import Parser

USAGE = "metashard doctor [--json] [--quiet] [COMMAND [ARGUMENT...]]"
OK, NOTE, NO = "ok", "note", "no"
Finding = tuple[str, str]  # one of these, and the text
NEEDED = "cuMemAddressReserve"  # virtual memory management
HAS_VMM, SUCCESS = 102, 0  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, CUDA_SUCCESS
FIRST_TORCH, LAST_TORCH = (2, 4), (2, 15)  # docs/results/torch-releases.md
NAMED_WRITERS = (6, 11)  # the Linux that tells who can write to a file


def version_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def system() -> Finding:
    libc, version = platform.libc_ver()
    if platform.machine() not in ("x86_64", "aarch64") or sys.maxsize < 1 << 32:
        return NO, f"{platform.machine()}: expected x86_64 or aarch64, 64 bits"
    if libc != "glibc":
        return NO, f"the C library is {libc or 'not glibc (musl?)'}: use an image with glibc"
    return OK, f"{platform.machine()}, glibc {version}"


def kernel() -> Finding:
    release = platform.release()
    if version_of(release) < NAMED_WRITERS:
        return NOTE, f"Linux {release}: before 6.11 each use of a file looks through the process's mappings, which takes longer"
    return OK, f"Linux {release}"


def proc() -> Finding:
    for path in ("/proc/self/maps", "/proc/self/pagemap"):
        if not os.access(path, os.R_OK):
            return NOTE, f"{path} is not readable: copies from files are kept in host memory instead of being deferred"
    return OK, "/proc/self/maps and pagemap are readable"


def library() -> Finding:
    try:
        return OK, installed.library()
    except (installed.Fault, importlib.metadata.PackageNotFoundError) as fault:
        return NO, str(fault)


def attribute(cuda: ctypes.CDLL, device: int) -> bool:
    value, handle = ctypes.c_int(), ctypes.c_int()
    return cuda.cuDeviceGet(ctypes.byref(handle), device) == SUCCESS and \
        cuda.cuDeviceGetAttribute(ctypes.byref(value), HAS_VMM, handle) == SUCCESS and value.value != 0


def driver() -> Finding:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return NO, "there is no CUDA driver (libcuda.so.1): in a container, start it with --gpus all; metashard dry-run needs none"
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    if not hasattr(cuda, NEEDED):
        return NO, f"the driver ({text}) has no virtual memory management: install a newer one"
    status = cuda.cuInit(0)
    if status != SUCCESS or cuda.cuDeviceGetCount(ctypes.byref(count)) != SUCCESS or count.value == 0:
        return NO, f"the driver ({text}) gives no device (cuInit: {status}): see nvidia-smi, and CUDA_VISIBLE_DEVICES"
    lacking = [str(device) for device in range(count.value) if not attribute(cuda, device)]
    if lacking:
        return NO, f"device {', '.join(lacking)} has no virtual memory management"
    return OK, f"{text}, {count.value} device{'s' if count.value > 1 else ''}"


def preloads() -> Finding:
    others = [path for path in re.split("[ :]+", os.environ.get("LD_PRELOAD", "")) if path and "libmetashard" not in path]
    try:
        with open("/etc/ld.so.preload", encoding="utf-8") as file:
            others += file.read().split()
    except OSError:
        pass
    if any("vgpu" in path for path in others):
        return NO, f"{', '.join(others)}: with a quota for GPUs (HAMi-core) leave MetaShard out: the quota would not hold"
    return (NOTE, f"{', '.join(others)} is preloaded too: one that replaces functions of the driver belongs before MetaShard") \
        if others else (OK, "no other library is preloaded")


def switch() -> Finding:
    value = os.environ.get("METASHARD", "on")
    if value.lower() in ("off", "0", "false", "no"):
        return NO, f"METASHARD={value} disables MetaShard"
    if value.lower() not in ("on", "1", "true", "yes", "verify"):
        return NOTE, f"METASHARD={value} is not understood, and counts as on: expected on, off or verify"
    return OK, f"METASHARD={value}"


def state() -> Finding:
    folder = os.environ.get("METASHARD_STATE_DIR", "auto")
    if folder == "":
        return NOTE, "METASHARD_STATE_DIR is empty: metashard show will have nothing"
    if folder == "auto":
        run = os.environ.get("XDG_RUNTIME_DIR", "")
        places = [run if run.startswith("/") else "", f"/run/user/{os.geteuid()}", "/tmp"]
        folder = next(place for place in places if place and (os.access(place, os.W_OK) or place == "/tmp"))
    place = folder
    while not os.path.exists(place):
        place = os.path.dirname(os.path.abspath(place))
    if not os.path.isdir(place) or not os.access(place, os.W_OK):
        return NO, f"{place} is not a folder that you can write: set METASHARD_STATE_DIR to one that is"
    return OK, f"pages go below {folder}"


def leases() -> Finding:
    try:
        with open("/proc/sys/fs/leases-enable", encoding="ascii") as file:
            is_on = file.read().strip() == "1"
    except OSError:
        is_on = False
    return (OK, "the kernel grants read leases") if is_on else (
        NOTE, "the kernel grants no read leases: a checkpoint that changes while it is loaded makes its use fail")


def memory() -> Finding:
    """Memory that processes share: PyTorch's loaders and NCCL need the folder."""
    if not os.path.isdir("/dev/shm") or not os.access("/dev/shm", os.W_OK):
        return NOTE, "there is no /dev/shm that you can write: NCCL and PyTorch's data loaders fail; in a container, use --shm-size=1g"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        return NOTE, f"the address space has a limit of {limit >> 20} MiB (ulimit -v): CUDA and deferred memory need addresses"
    return OK, "/dev/shm is there, and the address space has no limit"


def home() -> Finding:
    """Where metashard check-torch keeps its result, as runtime/kernel has it."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    place = cache if cache.startswith("/") else os.path.expanduser("~/.cache")
    while not os.path.exists(place):
        place = os.path.dirname(os.path.abspath(place))
    return (OK, f"results are kept below {place}") if os.access(place, os.W_OK) else (
        NOTE, f"{place} is not writable: set METASHARD_TORCH_CHECKS to a file that can be written before metashard check-torch")


def torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return NOTE, f"{sys.executable} has no PyTorch; other programs work too, with whole allocations as the unit"
    if FIRST_TORCH <= version_of(version) <= LAST_TORCH:
        return OK, f"PyTorch {version}"
    return NOTE, f"PyTorch {version} is none of the releases that were checked, 2.4 to 2.15: run metashard check-torch"


def program(name: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return NO, f"{name}: {run.why_not(name)[1]}"
    why = programs.why_unreached(path)
    if why is not None:
        return NO, why
    other = programs.is_other_python(name)
    if other is not None:
        return NOTE, f"{other} is another Python than this, {sys.executable}: PyTorch may differ, and import metashard fails there"
    return OK, f"a preload reaches {path}"


CHECKS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("system", system), ("kernel", kernel), ("/proc", proc), ("library", library), ("driver", driver), ("preloads", preloads),
    ("switch", switch), ("state", state), ("leases", leases), ("memory", memory), ("cache", home), ("PyTorch", torch))


def findings(command: Optional[str]) -> Iterator[tuple[str, Finding]]:
    for name, check in CHECKS:
        yield name, check()
    if command is not None:
        yield "command", program(command)


def make_parser() -> Parser:
    parser = Parser(prog="metashard doctor", usage=USAGE, description=__doc__, allow_abbrev=False,
                    epilog="The exit status is 1 if a line begins with no, else 0. A note costs memory or time, and nothing else.")
    parser.add_json()
    parser.add_quiet()
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER,
                        help="a program that would run under MetaShard; its arguments may follow, and do not count")
    return parser


def main(arguments: list[str]) -> int:
    options = make_parser().parse_args(arguments)
    command = [word for word in options.command if word != "--"]
    found = list(findings(command[0] if command else None))
    if options.json:
        rows = [{"outcome": outcome, "about": name, "text": text} for name, (outcome, text) in found]
        print(json.dumps({"format": "metashard-doctor/1", "findings": rows}, indent=2))
    else:
        shown = [line for line in found if line[1][0] == NO or not options.quiet]
        print("".join(f"{outcome:<5}{name:<9} {text}\n" for name, (outcome, text) in shown), end="")
    return int(any(outcome == NO for _, (outcome, _) in found))
