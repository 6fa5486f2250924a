# SPDX-License-Identifier: Apache-2.0
"""One dry run of a search: in a session of its own, so that all that it starts can be ended, with what it says in a file."""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
import traceback

from . import dry_run, installed

PR_SET_PDEATHSIG = 1
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 5
TICK_SECONDS = 0.05
LAST_LINES = 10


class Run:
    def __init__(self, options: argparse.Namespace, folder: str):
        self.options, self.folder = options, folder
        self.said, self.answer = os.path.join(folder, "said"), os.path.join(folder, "answer.json")

    def measure(self) -> dict:
        """The answer of the dry run. None of its processes is left, whatever ends it."""
        dry_run.adopt()
        if os.path.exists(self.answer):
            os.unlink(self.answer)  # of an earlier run
        child = os.fork()
        if child == 0:
            self._run_here()
        try:
            is_over = wait(child, self.options.timeout)
        finally:
            end(child)
        if not is_over:
            return unsaid(f"the command neither ended nor made {self.options.steps} steps of an optimizer within {self.options.timeout} "
                          "seconds: give it longer (--timeout), or less to do (--steps)")
        if not os.path.exists(self.answer):
            return unsaid("the dry run ended without an answer")
        with open(self.answer, encoding="utf-8") as file:
            return json.load(file)

    def last_lines(self) -> list[str]:
        """The last lines of the program's output."""
        if not os.path.exists(self.said):
            return []
        with open(self.said, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()[-LAST_LINES:]

    def _run_here(self) -> None:
        """Ends this process."""
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            for number in STOPPING:
                signal.signal(number, signal.SIG_DFL)
            self._redirect()
            tempfile.tempdir = self.folder  # which is removed where this process cannot
            self._write(self._answer_here())
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _answer_here(self) -> dict:
        try:
            return dry_run.run_once(self.options, dry_run.AS_IT_IS)
        except (installed.Fault, OSError) as error:
            return unsaid(str(error).replace("cannot say: ", ""))

    def _write(self, answer: dict) -> None:
        with open(self.answer + ".part", "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.rename(file.name, self.answer)

    def _redirect(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        said = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(source, target)


def unsaid(reason: str) -> dict:
    return {"status": dry_run.CANNOT_SAY, "reason": reason}


def wait(child: int, seconds: float) -> bool:
    """Did it end in that time?"""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(TICK_SECONDS)
    return False


def end(child: int) -> None:
    """First as a user would, who lets launchers end their ranks. Then whatever is left: ranks that have sessions of their own are
    this process's children when the process that started them has ended."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    os.kill(child, signal.SIGTERM)
    wait(child, GRACE_SECONDS)
    dry_run.end_children()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
