# SPDX-License-Identifier: Apache-2.0
"""The control socket of a process (METASHARD_CONTROL, runtime/control/control.h), as its clients need it: where it is, and one
request. A process of another user is not asked, whatever its environment names, and a socket counts as a process's only if that
process listens on it. Answers have a length and a time at most."""
from __future__ import annotations

import os
import re
import socket
import struct
import time
from typing import Optional

from . import installed

SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")
JOBS = ("METASHARD_JOB", *SCHEDULERS)
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
NAME_BYTES = 64  # of what stands for a letter behind %
ENVIRONMENT_BYTES, ANSWER_BYTES = 8 << 20, 4096  # the server's answers have less than 2,048
CONNECT_S, PAUSE_S = 10.0, 0.05


def printable(text: str) -> str:
    """For a terminal, which obeys what names and answers may hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def status_of(pid: int) -> dict[str, list[str]]:
    """/proc/PID/status; {}: there is no such process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().decode(errors="replace").split("\n")
            return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    except OSError:
        return {}


def is_own(pid: int) -> bool:
    """Whether it is a process of this user, also by its real user id: a program that is set-user-id has an environment of the
    user who started it."""
    return set(status_of(pid).get("Uid", ())) == {str(os.geteuid())}


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process of this user was started with; {} for others."""
    if not is_own(pid):
        return {}
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (os.fsdecode(pair).partition("=") for pair in file.read(ENVIRONMENT_BYTES).split(b"\0") if pair)
            return {name: value for name, _, value in pairs}
    except OSError:
        return {}


def rank_of(environment: dict[str, str]) -> str:
    """As runtime/base/launcher.c has it; "": none."""
    for name in RANKS:
        number = re.fullmatch("0*([0-9]{1,10})", environment.get(name, ""))
        if number and int(number[1]) < 1 << 31:
            return str(int(number[1]))
    return ""


def job_of(environment: dict[str, str]) -> str:
    found = (environment.get(name, "") for name in SCHEDULERS)
    return environment.get("METASHARD_JOB", "") or next((job for job in found if job not in ("", "none")), "")


def expand(pattern: str, pid: int, environment: dict[str, str]) -> str:
    """A name with %p, %r, %j and %h, as the process itself expands it (runtime/config/config.c)."""
    known = {"p": status_of(pid).get("NSpid", [str(pid)])[-1], "r": rank_of(environment), "j": job_of(environment),
             "h": os.uname().nodename}

    def replace(found: re.Match[str]) -> str:
        return os.fsdecode(os.fsencode(known[found[1]] or "none")[:NAME_BYTES]).replace("/", "_")
    return re.sub("%([prjh])", replace, pattern)


def socket_of(pid: int) -> Optional[str]:
    """The path of its control socket, which need not be there."""
    environment = environment_of(pid)
    pattern = environment.get("METASHARD_CONTROL", "")
    if not pattern:
        return None
    try:
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None
    return os.path.join(folder, expand(pattern, pid, environment))


def processes_of(job: str) -> list[int]:
    """The processes of a job that are this user's and have a control socket."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and any(environment_of(int(name)).get(key) == job for key in JOBS):
            path = socket_of(int(name))
            if path is not None and os.path.exists(path):
                found.append(int(name))
    return sorted(found)


def connect(connection: socket.socket, path: str) -> None:
    """A socket whose queue is full does not make a client wait that has a limit of time: it is tried again."""
    until = time.monotonic() + CONNECT_S
    connection.settimeout(CONNECT_S)
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise installed.Fault(f"{path}: too many clients wait there") from None
            time.sleep(PAUSE_S)


def check_peer(connection: socket.socket, path: str, pid: int) -> None:
    """The kernel says who listens there."""
    size = struct.calcsize("3i")
    peer, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if peer != pid or user != os.geteuid():
        raise installed.Fault(f"{path} is the socket of another process ({peer or 'unknown'}): it was not asked")


def receive(connection: socket.socket, seconds: float) -> str:
    """One line, or what came of it before the end."""
    until, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n"):
        left = until - time.monotonic()
        try:
            connection.settimeout(max(left, PAUSE_S))
            more = connection.recv(ANSWER_BYTES + 1 - len(line)) if left > 0 else None
        except socket.timeout:
            more = None
        if more is None:
            raise installed.Fault(f"no answer within {seconds:g} s; what was asked may still be done")
        line += more
        if len(line) > ANSWER_BYTES:
            raise installed.Fault(f"an answer of more than {ANSWER_BYTES} bytes, which is none of MetaShard's")
        if not more:
            break
    return line.decode(errors="replace")


def ask(pid: int, path: str, request: str, seconds: float) -> str:
    """The process's answer behind "ok". Raises Fault or OSError: the answer behind "error", or why there is no answer."""
    if re.search("[\n\0]", request):
        raise installed.Fault("a request is one line")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connect(connection, path)
        check_peer(connection, path, pid)
        try:
            connection.settimeout(CONNECT_S)
            connection.sendall(os.fsencode(request) + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # a client who is refused is told why before
        line = receive(connection, seconds)
    word, _, rest = line.rstrip("\n").partition(" ")
    if not line.endswith("\n"):
        raise installed.Fault("no answer: the process has ended")
    if word not in ("ok", "error") or not rest:
        raise installed.Fault(f"an answer that is none of MetaShard's: {line.strip()}")
    if word == "error":
        raise installed.Fault(rest)
    return rest
