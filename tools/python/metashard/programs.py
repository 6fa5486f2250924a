# SPDX-License-Identifier: Apache-2.0
"""Programs that a preload does not reach, and why."""
from __future__ import annotations

import os
import shutil
import stat
import struct
import sys
from typing import BinaryIO, NamedTuple, Optional

MACHINES = {62: "x86_64", 183: "aarch64"}
PT_INTERP = 3
ROW_BYTES = 56  # of a program header
# They start the program with another environment, or elsewhere.
CLEARING = {
    "sudo": "sudo removes LD_PRELOAD: put sudo before metashard",
    "doas": "doas removes LD_PRELOAD: put doas before metashard",
    "pkexec": "pkexec removes LD_PRELOAD: run metashard as that user",
    "su": "su starts a shell with its own environment: run metashard in that shell",
    "ssh": "ssh starts the command on another machine: put metashard run behind the host's name",
    **{name: f"{name} starts the command in a container, which has its own environment: put metashard run into the container "
             "(docs/launchers.md)" for name in ("docker", "podman", "nerdctl", "kubectl")}}


class Elf(NamedTuple):
    bits: int
    machine: str
    interpreter: Optional[str]  # none: it is linked statically


def interpreter_of(file: BinaryIO, head: bytes) -> Optional[str]:
    """None: it names none."""
    at, = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    file.seek(at)
    table = file.read(ROW_BYTES * count) if size == ROW_BYTES else b""
    for row in (table[at:at + ROW_BYTES] for at in range(0, len(table) - ROW_BYTES + 1, ROW_BYTES)):
        if struct.unpack_from("<I", row)[0] == PT_INTERP:
            begin, length = struct.unpack_from("<Q16xQ", row, 8)
            file.seek(begin)
            return file.read(min(length, 4096)).rstrip(b"\0").decode(errors="replace")
    return None


def opened(path: str) -> BinaryIO:
    """A program may be executable and not readable: then nothing is known of it."""
    return open(path if os.access(path, os.R_OK) else os.devnull, "rb")


def elf_of(path: str) -> Optional[Elf]:
    """The facts by which the kernel starts a program; None: a script, or no program."""
    with opened(path) as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or len(head) < 64:
            return None
        number, = struct.unpack_from("<H", head, 18)
        machine = MACHINES.get(number, f"another machine ({number})")
        if head[4] != 2:
            return Elf(32, machine, "")
        try:
            return Elf(64, machine, interpreter_of(file, head))
        except (OSError, OverflowError, ValueError):  # places behind the end of any file
            return None


def why_unreached(path: str) -> Optional[str]:
    """Why a preload does not reach the program; None where it does."""
    name = os.path.basename(path)
    if name in CLEARING:
        return CLEARING[name]
    if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID):
        return f"{path} runs with raised privileges (setuid), and ignores a preload"
    elf = elf_of(path)
    if elf is None:
        return None
    if elf.bits != 64:
        return f"{path} is a program of 32 bits, and MetaShard a library of 64"
    if elf.machine != os.uname().machine:
        return f"{path} is for {elf.machine}, and this machine is {os.uname().machine}"
    if elf.interpreter is None:
        return f"{path} is linked statically, and ignores a preload"
    if "ld-musl" in elf.interpreter:
        return f"{path} uses the C library musl, and MetaShard needs glibc: use an image with glibc"
    return None


def python_of(name: str) -> Optional[str]:
    """The Python that runs a command: the command itself, or the one that the first line of a script names, as torchrun's does."""
    path = shutil.which(name)
    if path is None or os.path.basename(name).startswith("python"):
        return path
    with opened(path) as file:
        words = os.fsdecode(file.readline(4096)).removeprefix("#!").split() if file.read(2) == b"#!" and file.seek(0) == 0 else []
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
    return shutil.which(words[0]) if words and os.path.basename(words[0]).startswith("python") else None


def is_other_python(name: str) -> Optional[str]:
    """The Python that runs a command, where it is another one than this."""
    path = python_of(name)
    if path is None or not os.path.exists(sys.executable):
        return None
    folders = [os.path.dirname(os.path.abspath(which)) for which in (path, sys.executable)]
    return None if folders[0] == folders[1] or os.path.samefile(path, sys.executable) and sys.prefix == sys.base_prefix else path
