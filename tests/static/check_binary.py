#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_binary.py LIBRARY [--sanitized] [--private-heap] [--glibc VERSION]: the preloaded object as the dynamic linker sees it.

It needs libc alone, and of glibc nothing that is newer than 2.34 (of 2021) or VERSION; exports dlsym and dlvsym, the wrappers of the entry table, of NCCL and of file_calls.def, the block observer, the check of PyTorch and metashard.h and
nothing else, and none of
these under a symbol version (a version would keep dlsym from being interposed). The dynamic linker relocates it in every
process, also where CUDA is not used: few pointers in tables (MOST_RELATIVE), none packed in a way that glibc knows since
2.36 (DT_RELR), and functions of libc are looked up when they are called first. With a heap of its
own it does not ask for malloc.
"""
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

GLIBC = (2, 34)
MOST_RELATIVE = {"X86-64": 300, "AArch64": 340}  # clang makes 20 more there
# With LD_AUDIT all preloaded libraries share 1664 bytes (glibc, csu/dl-tls_static_surplus.c), and others need some of that.
MOST_THREAD_LOCAL = 1024
CUT_CACHES = (2632, 2696)  # bytes, of a jemalloc whose caches are cut off, with pages of 4 and of 64 KiB
# Names that the headers of glibc 2.38 and newer give strtoul and its kin: programs built there do not run on older ones.
BY_HEADERS = re.compile(r"__isoc23_\w+")


def read(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library = sys.argv[1]
    glibc = tuple(map(int, sys.argv[sys.argv.index("--glibc") + 1].split("."))) if "--glibc" in sys.argv else GLIBC
    faults = []
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", read("readelf", "-d", library))
    allowed = r"libc\.so\.6|ld-linux-.*" + (r"|lib(a|t|ub)san\.so.*|libm\.so\.6"
                                            if "--sanitized" in sys.argv else "")
    allowed += r"|lib(dl|pthread)\.so\.\d" if glibc < GLIBC else ""  # of glibc, whose libc has it since then
    faults += [f"needs {name}" for name in needed if not re.fullmatch(allowed, name)]

    undefined = re.findall(r"(\w+)@+GLIBC_(\d+)\.(\d+)", read("nm", "-D", "--undefined-only", library))
    if not any(name == "memcpy" for name, _, _ in undefined):
        faults.append("no memcpy of glibc, that cannot be right")
    faults += [f"needs {name} of glibc {major}.{minor}" for name, major, minor in undefined
               if (int(major), int(minor)) > glibc and not BY_HEADERS.fullmatch(name)]

    thread_local = [int(bytes_, 16) for bytes_ in re.findall(r"^\s+TLS(?:\s+\w+){4}\s+(0x\w+)", read("readelf", "-lW", library), re.M)]
    caches = [int(size) for size in re.findall(r"(\d+) +TLS .*je_tsd_tls$", read("readelf", "-sW", library), re.M)]
    # runtime/base/private-jemalloc.sh knows what to cut off of some versions only.
    if caches and caches[0] not in CUT_CACHES and sum(thread_local) - caches[0] < MOST_THREAD_LOCAL:
        print(f"{sum(thread_local)} bytes of thread-local data: too much for LD_AUDIT, with the {caches[0]} of this jemalloc")
    elif "--sanitized" not in sys.argv and sum(thread_local) >= MOST_THREAD_LOCAL:
        faults.append(f"{sum(thread_local)} bytes of thread-local data, expected less than {MOST_THREAD_LOCAL}: ms_thread_memory")

    dynamic = read("readelf", "-dW", library)
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    if soname != ["libmetashard.so"]:  # by which the linker knows that a program's library is the preloaded one
        faults.append(f"the name of the shared object is {soname}, expected libmetashard.so")
    relative = len(re.findall(r"R_\w+_RELATIVE\b", read("readelf", "-rW", library)))
    if "--sanitized" not in sys.argv:
        most = MOST_RELATIVE[re.search(r"Machine:.*?([\w-]+)$", read("readelf", "-h", library), re.M)[1]]
        if not 0 < relative <= most:
            faults.append(f"{relative} relative relocations, at most {most}: a table of strings can be of char[][N]")
        faults += [f"has {tag}" for tag in ("RELR", "BIND_NOW", "NOW") if re.search(rf"\b{tag}\b", dynamic)]
    if "--sanitized" not in sys.argv:
        faults += [f"needs {name}: thread-local data that is not of the model initial-exec" for name, _, _ in undefined
                   if name == "__tls_get_addr"]
    if "--private-heap" in sys.argv:
        faults += [f"needs {name}, the program's heap" for name, _, _ in undefined if name in ("malloc", "calloc", "realloc")]

    with open(os.path.join(SOURCE, "shim", "entries.def")) as file:
        rows = re.findall(r"^MS_ENTRY(?:_PLAIN)?(?:_TWINS)?\((?:OWN|OBSERVE|SEAL), (\w+), (?:\w+, )?\d+,\s+(\w*)", file.read(), re.M)
    wanted = {symbol for symbol, _ in rows} | {symbol + suffix for symbol, suffix in rows if suffix.startswith("_")}
    wanted |= {"dlsym", "dlvsym"}
    with open(os.path.join(SOURCE, "shim", "observer.c")) as file:
        wanted |= set(re.findall(r"^#define REPORT\w* (\w+)$", file.read(), re.M))
    with open(os.path.join(SOURCE, "shim", "torch_errors.c")) as file:
        wanted |= set(re.findall(r"^#define CHECK\w* (\w+)$", file.read(), re.M))
    with open(os.path.join(SOURCE, "shim", "file_calls.def")) as file:
        wanted |= set(re.findall(r"^MS_FILE_CALL\((\w+)\)$", file.read(), re.M))
    with open(os.path.join(SOURCE, "shim", "metashard.h")) as file:
        wanted |= set(re.findall(r"^METASHARD_API .*?\b(metashard_\w+)\(", file.read(), re.M))
    with open(os.path.join(SOURCE, "shim", "nccl.def")) as file:
        rows = re.findall(r"^MS_NCCL(_COLLECTIVE|_WITH_CONFIG)?\((nccl\w+),", file.read(), re.M)
    wanted |= {name for _, name in rows} | {name + "Config" for kind, name in rows if kind == "_WITH_CONFIG"}
    exports = {line.split()[-1] for line in
               read("nm", "-D", "--defined-only", library).splitlines()}
    faults += [f"does not export {name}" for name in sorted(wanted - exports)]
    faults += [f"exports {name}" for name in sorted(exports - wanted)]
    print("\n".join(faults) or f"{len(exports)} exports, {relative} relative relocations, needs {', '.join(needed)}")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
