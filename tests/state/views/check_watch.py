#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_watch.py TOOL MAKE_PAGE: metashard-dump show --watch, on a terminal and in a pipe. TAP."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import views
from views import Page, check, same

DEADLINE_S = 30
CLEAR = b"\x1b[H\x1b[J"


class Terminal:
    """The tool on a terminal of its own. What it wrote is in `text`."""

    def __init__(self, command, rows=24, columns=100):
        self.master, slave = pty.openpty()
        self.size(rows, columns)
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.text = b""

    def size(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """False: nothing more comes."""
        if not select.select([self.master], [], [], max(0, seconds))[0]:
            return True
        try:
            piece = os.read(self.master, 1 << 16)
        except OSError:
            return False
        self.text += piece
        return piece != b""

    def until(self, condition):
        end = time.monotonic() + DEADLINE_S
        while not condition() and time.monotonic() < end:
            if not self.read(end - time.monotonic()):
                break
        return condition()

    def pictures(self):
        """Whole ones: the next has begun, or it is over."""
        pieces = self.text.split(CLEAR)[1:]
        if self.process.poll() is None:
            pieces = pieces[:-1]
        return [re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", piece).decode().replace("\r", "") for piece in pieces]

    def press(self, key):
        os.write(self.master, key)

    def finish(self):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self.read(0.1) and self.process.poll() is None:
            pass
        status = self.process.wait(timeout=DEADLINE_S)
        while select.select([self.master], [], [], 0)[0] and self.read(0):
            pass
        os.close(self.master)
        return status


def requested(picture, pid):
    """The figure of the process in a picture, in MiB."""
    found = re.search(rf"\b{pid} +\w+ +([0-9.]+) MiB", picture)
    return float(found.group(1)) if found else None


def check_redrawn(tool, make_page, folder):
    page = Page(make_page, os.path.join(folder, "a"), [f"kernel{i}" for i in range(8)], 1, 2)
    terminal = Terminal([tool, "show", page.path, "--watch"])
    check("a terminal: it is drawn again and again", terminal.until(lambda: len(terminal.pictures()) >= 3))
    first = terminal.pictures()[0]
    same("a terminal: the figure is the page's", requested(first, page.pid), 60.0)
    check("a terminal: with the rank, what it does, causes and events", re.search(
        rf"\b1 +{page.pid} running ", first) and "Causes" in first and "kernel7" in first, first)
    check("a terminal: it has as many lines as there are", len(first.rstrip("\n").split("\n")) == 23, first)
    check("a terminal: lines end where it ends", max(map(len, first.split("\n"))) <= 100, first)
    begin, count = time.monotonic(), len(terminal.pictures())
    terminal.until(lambda: len(terminal.pictures()) >= count + 4)
    seconds = time.monotonic() - begin
    check("a terminal: twice a second", 1.2 < seconds < 12, f"4 pictures in {seconds:.2f} s")
    page.more()
    check("a terminal: new figures are seen",
          terminal.until(lambda: requested(terminal.pictures()[-1], page.pid) == 65.0), terminal.pictures()[-1])
    terminal.size(10, 60)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    check("a terminal: a new size is kept to", terminal.until(
        lambda: len(terminal.pictures()[-1].rstrip("\n").split("\n")) <= 9 and
        max(map(len, terminal.pictures()[-1].split("\n"))) <= 60), terminal.pictures()[-1])
    page.end()
    same("a terminal: it ends when the process does", terminal.finish(), 0)
    last = terminal.pictures()[-1]
    check("a terminal: the last picture says so", re.search(rf"\b{page.pid} ended ", last), last)
    check("a terminal: the cursor is hidden, and comes back",
          terminal.text.startswith(b"\x1b[?25l") and terminal.text.endswith(b"\x1b[?25h"), terminal.text[-40:])


def check_interrupt(tool, make_page, folder):
    page = Page(make_page, os.path.join(folder, "b"), ["a"])
    terminal = Terminal([tool, "show", page.path, "--watch"])
    terminal.until(lambda: len(terminal.pictures()) >= 1)
    begin = time.monotonic()
    terminal.press(b"\x03")
    status = terminal.finish()
    check("Ctrl-C: it ends well, and at once", status == 0 and time.monotonic() - begin < 5, status)
    check("Ctrl-C: the cursor comes back", terminal.text.endswith(b"\x1b[?25h"), terminal.text[-40:])
    page.kill()
    terminal = Terminal([tool, "show", page.path, "--watch"])
    same("a killed process: one picture, and the end", terminal.finish(), 0)
    check("a killed process: it says so", len(terminal.pictures()) == 1 and "killed" in terminal.pictures()[0])


def check_piped(tool, make_page, folder):
    pages = [Page(make_page, os.path.join(folder, "c"), ["a"], rank, 2) for rank in (1, 0)]
    watch = subprocess.Popen([tool, "show", *[page.path for page in pages], "--watch"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    lines = [watch.stdout.readline() for _ in range(2)]
    check("a pipe: a line for each process, by rank, at once", all(
        f"rank {rank}, process {page.pid} running: requested 60.0 MiB" in line
        for rank, page, line in zip((0, 1), reversed(pages), lines)), lines)
    time.sleep(1.2)
    pages[0].more()
    line = watch.stdout.readline()
    check("a pipe: the next line is what has changed", f"process {pages[0].pid} running: requested 65.0 MiB" in line,
          line)
    pages[0].end()
    pages[1].kill()
    rest, complaints = watch.communicate(timeout=DEADLINE_S)
    check("a pipe: ends are told", f"process {pages[0].pid} ended: requested 65.0 MiB" in rest and
          f"process {pages[1].pid} killed: requested 60.0 MiB" in rest and rest.count("\n") == 2, rest)
    check("a pipe: it ends well", watch.returncode == 0 and complaints == "", complaints)
    check("a pipe: lines are plain", "\x1b" not in "".join(lines) + line + rest)


def check_faults(tool, folder):
    done = subprocess.run([tool, "show", os.path.join(folder, "none"), "--watch"], capture_output=True, text=True)
    check("no page: one line", done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr)
    done = subprocess.run([tool, "show", "x", "--watch", "--json"], capture_output=True, text=True)
    check("--watch goes with no other output", done.returncode == 2 and "--watch" in done.stderr, done.stderr)


def main():
    tool, make_page = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_redrawn(tool, make_page, folder)
        check_interrupt(tool, make_page, folder)
        check_piped(tool, make_page, folder)
        check_faults(tool, folder)
    return views.finish()


if __name__ == "__main__":
    sys.exit(main())
