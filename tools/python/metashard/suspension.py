# SPDX-License-Identifier: Apache-2.0
"""`metashard suspend` gives back the device memory of a living process, or of all processes of a job; `metashard resume`
restores it (docs/suspend.md). The processes need a control socket: METASHARD_CONTROL, or metashard run --control."""
from __future__ import annotations

import json
import os
import stat
import sys
from typing import Union

from . import control, installed
from .options import Parser

FAILED = 1
PATIENCE_S = 600.0
REMEDY = "start it with metashard run --control, or METASHARD_CONTROL"
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
Said = dict[str, Union[int, bool, str]]  # of one process: with --json, an element of the document's list
FIGURES = ("freed_bytes", "replayed_bytes", "made_bytes", "stored_bytes", "zero_bytes", "stays_exported_bytes", "stays_mapped_bytes",
           "stays_bytes", "others_bytes")


def in_words(count: int) -> str:
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


def figures_of(answer: str) -> dict[str, int]:
    """The figures in the answer of a process. Raises Fault if the answer is none of MetaShard's."""
    try:
        told = json.loads(answer)
        figures = {name: told.get(name, 0) for name in FIGURES}
    except (ValueError, RecursionError, AttributeError):
        figures = {}
    if not figures or not all(type(count) is int and 0 <= count < 1 << 64 for count in figures.values()):
        raise installed.Fault(f"an answer that is none of MetaShard's: {answer}")
    return figures


def describe(told: dict[str, int]) -> str:
    stays = told["stays_exported_bytes"] + told["stays_mapped_bytes"] + told["stays_bytes"]
    read = max(told["replayed_bytes"] - told["made_bytes"], 0)
    text = f"{in_words(told['freed_bytes'])} freed: {in_words(read)} to be reread from files, "
    text += f"{in_words(told['made_bytes'])} to be computed again, " if told["made_bytes"] else ""
    text += f"{in_words(told['stored_bytes'])} kept outside of the device, {in_words(told['zero_bytes'])} zeros"
    text += f"; {in_words(stays)} in use by others not freed" if stays else ""
    others = told["others_bytes"]
    return f"{text}; the driver and other processes use {in_words(others)} of the device" if others else text


def tell(pid: int, command: str, request: str, seconds: float) -> tuple[Said, str]:
    """Asks one process. Returns its answer as figures, and in words."""
    path = control.socket_of(pid)
    try:
        if path is None:
            raise installed.Fault(f"has no control socket: {REMEDY}" if control.is_own(pid) else "is not a process of this user")
        answer = control.ask(pid, path, request, seconds)
        figures = figures_of(answer) if command == "suspend" else {}
        return {"pid": pid, "done": True, **figures}, describe(figures) if figures else answer
    except installed.Fault as fault:
        why = str(fault)
    except OSError as error:
        why = f"{path}: {error.strerror or error}"
    return {"pid": pid, "done": False, "error": control.printable(why)}, why


def seconds_of(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e9:
        raise ValueError
    return seconds


def is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def make_parser(command: str) -> Parser:
    parser = Parser(prog=f"metashard {command}", description=__doc__, allow_abbrev=False,
                    epilog="The exit status is 0 if all processes did it, and 1 if a process could not.")
    parser.add_argument("target", metavar="PID|JOB", help="a process, or the name of a job (METASHARD_JOB, or a scheduler's id)")
    if command == "suspend":
        parser.add_argument("--to", metavar="DIR", help="keep modified data in a file of this folder, instead of in host memory")
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds_of, default=PATIENCE_S,
                        help="longest wait for the answer of each process; %(default)g by default")
    parser.add_json()
    parser.add_quiet()
    return parser


def main(command: str, arguments: list[str]) -> int:
    options = make_parser(command).parse_args(arguments)
    to = os.path.abspath(options.to) if command == "suspend" and options.to is not None else None
    is_pid = options.target.isdigit() and os.path.isdir(f"/proc/{options.target}")
    pids = [int(options.target)] if is_pid else control.processes_of(options.target)
    if not pids:
        target = control.printable(options.target)
        remedy = f"type the process id, as metashard {command} 4711" if is_socket(options.target) else \
            f"the process has ended, or {REMEDY}" if options.target.isdigit() else REMEDY
        print(f"metashard {command}: {target} is neither a process nor a job of this user with a control socket: {remedy}",
              file=sys.stderr)
        return FAILED
    request = f"{command} {to}" if to is not None else command
    processes = []
    for pid in pids:
        said, words = tell(pid, command, request, options.timeout)
        processes.append(said)
        if not options.json and not (options.quiet and said["done"]):
            print(control.printable(f"{pid}: {words}"), file=sys.stdout if said["done"] else sys.stderr)
    if options.json:
        print(json.dumps({"format": f"metashard-{command}/1", "processes": processes}, indent=2))
    return 0 if all(said["done"] for said in processes) else FAILED
