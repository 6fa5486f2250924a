# SPDX-License-Identifier: Apache-2.0
"""`metashard suspend` and `metashard resume`: the device memory of a living process, or of all processes of a job, goes back
and comes again (docs/suspend.md). The processes need a control socket: METASHARD_CONTROL, or metashard run --control."""
from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import Optional

from . import installed

FAILED = 1
JOBS = ("METASHARD_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")
REMEDY = "start it with metashard run --control, or METASHARD_CONTROL"
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def environment_of(pid: int) -> dict[str, str]:
    """What a process of this user was started with; {} for others."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = (os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair)
            return {name: value for name, _, value in pairs}
    except OSError:
        return {}


def socket_of(pid: int) -> Optional[str]:
    """The path of its control socket, which need not be there."""
    pattern = environment_of(pid).get("METASHARD_CONTROL", "")
    if not pattern:
        return None
    try:
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None
    return os.path.join(folder, pattern.replace("%p", str(pid)))


def processes_of(job: str) -> list[int]:
    """The processes of a job that have a control socket."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and any(environment_of(int(name)).get(key) == job for key in JOBS):
            path = socket_of(int(name))
            if path is not None and os.path.exists(path):
                found.append(int(name))
    return sorted(found)


def ask(path: str, request: str) -> str:
    """The answer to one request, which may take as long as the device needs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(os.fsencode(request) + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            more = connection.recv(65536)
            if not more:
                break
            answer += more
    return answer.decode(errors="replace").strip()


def in_words(count: int) -> str:
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


def describe(told: dict[str, int]) -> str:
    stays = told["stays_exported_bytes"] + told["stays_mapped_bytes"] + told["stays_bytes"]
    text = (f"{in_words(told['freed_bytes'])} given back: {in_words(told['replayed_bytes'])} come from files again, "
            f"{in_words(told['stored_bytes'])} wait outside of the device, {in_words(told['zero_bytes'])} were zeros")
    text += f"; {in_words(stays)} stay, because others use them" if stays else ""
    others = told.get("others_bytes", 0)
    return f"{text}; the driver and other processes have {in_words(others)} of the device" if others else text


def tell(pid: int, command: str, request: str) -> bool:
    """Asks one process, and prints what it says."""
    path = socket_of(pid)
    try:
        if path is None:
            raise installed.Fault(f"has no control socket: {REMEDY}" if environment_of(pid) else "is not a process of this user")
        word, _, rest = ask(path, request).partition(" ")
    except installed.Fault as fault:
        word, rest = "error", str(fault)
    except OSError as error:
        word, rest = "error", f"{path}: {error.strerror or error}"
    if word != "ok":
        print(f"{pid}: {rest or 'no answer: the process has ended'}", file=sys.stderr)
    else:
        print(f"{pid}: {describe(json.loads(rest)) if command == 'suspend' else rest}")
    return word == "ok"


def make_parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"metashard {command}", description=__doc__, allow_abbrev=False)
    parser.add_argument("target", metavar="PID|JOB", help="a process, or the name of a job (METASHARD_JOB, or a scheduler's id)")
    if command == "suspend":
        parser.add_argument("--to", metavar="DIR", help="what cannot be read from files waits in a file of this folder, instead "
                            "of in host memory")
    return parser


def main(command: str, arguments: list[str]) -> int:
    options = make_parser(command).parse_args(arguments)
    to = os.path.abspath(options.to) if command == "suspend" and options.to is not None else None
    is_pid = options.target.isdigit() and os.path.isdir(f"/proc/{options.target}")
    pids = [int(options.target)] if is_pid else processes_of(options.target)
    if not pids:
        print(f"metashard {command}: {options.target} is neither a process nor a job of this user with a control socket: "
              f"{REMEDY}", file=sys.stderr)
        return FAILED
    request = f"{command} {to}" if to is not None else command
    return 0 if all([tell(pid, command, request) for pid in pids]) else FAILED
