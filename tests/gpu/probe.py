#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a driver the questions that the design stands on; README.md says which each section answers.

    probe.py --build DIR [--simulated] [--out FILE] [--group first|rest|faults] [--section NAME]...

Every section runs in a process of its own, which is forked before CUDA is initialised: a sticky error, a crash or a hang of one
leaves the others alone. Inside a section each row does the same for errors that do not poison the process: {"error": "..."}
stands in its place. --simulated: everything is smaller, and the kernels are those of a simulated driver. Without a driver or a
device the result is {"skipped": "..."}. The exit status says nothing about the answers; check_probe.py looks at them.
"""
import ctypes
import json
import os
import signal
import sys
import tempfile
import time

import build_all
import probe_calls as calls
import probe_driver as driver
import probe_memory as memory
import probe_order as order
from part_script import BUILD_ROW, options_of
from probe_rows import ALONE, LOADED, NOT_QUICK, Section
from run_tools import device_held, write_json

ALONE_SECONDS = 15
SAID = 99  # the exit status of a child that came to its end
# Sections that are cheap and needed first, that leave the device as it was, that make it fault.
GROUPS = ("first", "rest", "faults")
SECTIONS = [
    Section("device", "first", 30, memory.DEVICE),
    Section("shim", "first", 30, calls.SHIM),
    Section("accounting", "first", 30, memory.ACCOUNTING),
    Section("order", "first", 30, order.ORDER),
    Section("pageable", "first", 30, order.PAGEABLE),
    Section("parameters", "first", 30, order.PARAMETERS),
    Section("resolver", "rest", 30, order.RESOLVER),
    Section("reserve", "rest", 30, memory.RESERVE),
    Section("fresh_memory", "rest", 30, memory.FRESH_MEMORY),
    Section("cost", "rest", 30, memory.COST),
    Section("mappings", "rest", 30, memory.MAPPINGS),
    Section("pools", "rest", 30, memory.POOLS),
    Section("busy", "rest", 30, calls.BUSY),
    Section("alias", "rest", 30, memory.ALIAS),
    Section("attributes", "rest", 30, calls.ATTRIBUTES),
    Section("capture", "rest", 60, calls.CAPTURE),
    Section("edges", "rest", 30, calls.EDGES),
    Section("unmapped", "faults", 90, calls.UNMAPPED),
    Section("access_flags", "faults", 40, calls.ACCESS_FLAGS),
    Section("past_end", "faults", 60, calls.PAST_END),
]


def sections_of(group, names):
    """Those of the group, and those of these names; without either all."""
    return [section for section in SECTIONS if section.group == group or section.name in names or not (group or names)]


class Answers:
    """The answers of a section's processes: a process appends [path, answer] to one file as soon as there is an answer, so that
    a crash loses none."""

    def __init__(self, file, path=()):
        self.file, self.path = file, path

    def under(self, key):
        return self if key is None else Answers(self.file, (*self.path, key))

    def tell(self, *key_and_answer):
        """Without an answer: there is an object."""
        os.write(self.file.fileno(), json.dumps([self.path, *key_and_answer]).encode() + b"\n")

    def read(self):
        self.file.seek(0)
        result = {}
        for path, *told in map(json.loads, self.file):
            inner = result
            for key in path:
                inner = inner.setdefault(key, {})
            inner.update([told] if told else [])
        return result


def in_child(answers, seconds, body, *arguments):
    """A process of its own, and what became of it."""
    pid = os.fork()
    if pid == 0:
        # It must not outlive a probe that was stopped, and hold the device.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        guarded(answers, body, *arguments)
        # The driver's exit handlers can hang or crash after a sticky error.
        os._exit(SAID)
    deadline = time.monotonic() + seconds
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.0005)
    if ended == (0, 0):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        answers.tell("error", f"no answer after {seconds} s")
    elif os.WIFSIGNALED(ended[1]):
        answers.tell("error", f"ended by signal {os.WTERMSIG(ended[1])}")
    elif os.WEXITSTATUS(ended[1]) != SAID:
        answers.tell("error", f"exit status {os.WEXITSTATUS(ended[1])}")


def guarded(answers, body, *arguments):
    try:
        body(answers, *arguments)
    except Exception as error:  # whatever it is, it is the answer
        answers.tell("error", str(error) if isinstance(error, driver.Failed) else f"{type(error).__name__}: {error}")


def ask(answers, asked):
    if asked.when == LOADED:
        driver.load()
    else:
        driver.start()
    said = asked.body(*asked.arguments) or {}
    for key, answer in said.items() if isinstance(said, dict) else said:
        answers.tell(key, answer)


def ask_all(answers, rows):
    for asked in rows:
        if asked.when == NOT_QUICK and driver.quick:
            continue
        inner = answers.under(asked.key)
        inner.tell()
        if asked.when == ALONE:
            in_child(inner, ALONE_SECONDS, ask, asked)
        elif asked.key is None:
            ask(inner, asked)
        else:
            guarded(inner, ask, asked)


def measure(options):
    began = time.monotonic()
    wanted = sections_of(options.group, options.section or [])
    result = {"format": "metashard-probe-2", "sections": [section.name for section in wanted]}
    # Without persistence mode the driver shuts the device down when its last client ends, and every child would start it again.
    with device_held() as why_not:
        if why_not is not None:
            return result | {"skipped": why_not}
        result["driver_start_ms"] = round((time.monotonic() - began) * 1e3, 3)
        for section in wanted:
            since = time.monotonic()
            with tempfile.TemporaryFile("a+", encoding="utf-8") as file:
                answers = Answers(file)
                in_child(answers, section.seconds, ask_all, section.rows)
                result[section.name] = answers.read()
            write_json(options.out, result)
            print(f"{section.name:14} {time.monotonic() - since:7.2f} s", file=sys.stderr, flush=True)
    return result | {"seconds": round(time.monotonic() - began, 3)}


def main():
    options = options_of(__doc__, 0, BUILD_ROW, ("--simulated", False), ("--group", None, {"choices": GROUPS}),
                         ("--section", None, {"action": "append", "choices": [section.name for section in SECTIONS]}))
    driver.quick, driver.caller = options.simulated, os.path.join(options.build, build_all.PROBE)
    if options.simulated:
        driver.kernels = os.path.join(options.build, build_all.PROBE_KERNELS)
    result = measure(options)
    write_json(options.out, result)
    if options.out is None:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
