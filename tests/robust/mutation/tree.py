# SPDX-License-Identifier: Apache-2.0
"""A copy of the project, its build, and one test of it at a time."""
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
MEMORY = 6 << 30  # of all processes of a test: what is changed may ask for more and more
DISK = 4 << 30  # that stays free
OUTPUT = 16 << 20


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def write(text, *path):
    """Only where it is another text, so that a build is a small one."""
    name = os.path.join(*path)
    if not os.path.exists(name) or read(name) != text:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)


class Tree:
    def __init__(self, work, *options):
        self.work, self.tree, self.folder = work, os.path.join(work, "tree"), os.path.join(work, "build")
        self.options = options

    def copy(self, changed=lambda name: None):
        """Copies only files that have changed. changed(name) is another text for a file, or None."""
        files = subprocess.run(["git", "-C", SOURCE, "ls-files", "-co", "--exclude-standard"], capture_output=True,
                               text=True, check=True).stdout.splitlines()
        for name in files:
            source, copy = os.path.join(SOURCE, name), os.path.join(self.tree, name)
            if not os.path.isfile(source):
                continue
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            text = changed(name)
            if text is not None:
                write(text, copy)
                shutil.copymode(source, copy)
            elif not os.path.exists(copy) or open(source, "rb").read() != open(copy, "rb").read():
                shutil.copy2(source, copy)
                os.utime(copy)

    def setup(self):
        if not os.path.exists(os.path.join(self.folder, "build.ninja")):
            meson = shutil.which("meson")
            command = [meson] if meson else [sys.executable, os.path.join(SOURCE, ".tools", "meson.py")]
            environment = dict(os.environ)
            if shutil.which("ccache"):
                environment.setdefault("CC", "ccache gcc")
            subprocess.run([*command, "setup", *self.options, self.folder, self.tree], check=True, stdout=subprocess.DEVNULL,
                           env=environment)
        self.ninja("build.ninja")
        introspected = os.path.join(self.folder, "meson-info")
        self.tests = {test["name"]: test for test in json.loads(read(introspected, "intro-tests.json"))}
        targets = json.loads(read(introspected, "intro-targets.json"))
        self.outputs = {target["id"]: [os.path.relpath(name, self.folder) for name in target["filename"]]
                        for target in targets}
        self.commands = {os.path.relpath(os.path.join(entry["directory"], entry["file"]), self.tree): entry
                         for entry in json.loads(read(self.folder, "compile_commands.json"))}

    def ninja(self, *targets, jobs=1):
        return subprocess.run(["ninja", "-C", self.folder, f"-j{jobs}", *targets], capture_output=True, text=True)

    def needed(self, name):
        """The outputs of the build that a test needs."""
        test = self.tests[name]
        needed = [output for each in test["depends"] for output in self.outputs.get(each, [])]
        program = os.path.relpath(test["cmd"][0], self.folder)
        return list(dict.fromkeys(needed + ([] if program.startswith("..") else [program])))

    def build(self, name):
        needed = self.needed(name)
        done = self.ninja(*needed) if needed else None
        return done.stdout[-3000:] if done is not None and done.returncode != 0 else None

    def run(self, name, seconds):
        """The failure of a red test, in words, or None."""
        test = self.tests[name]
        return Run(test["cmd"], dict(os.environ, **test["env"]), test["workdir"] or self.folder).watch(seconds)


def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become_reaper():
    """Processes that a test has started and left behind become children of this process, which ends them."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants():
    """{process: bytes in memory}"""
    parents, sizes = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = read("/proc", name, "stat").rpartition(")")[2].split()
            except (OSError, UnicodeDecodeError):
                continue
            parents[int(name)], sizes[int(name)] = int(words[1]), int(words[21]) * resource.getpagesize()
    ours = {os.getpid()}
    while True:
        more = {process for process, parent in parents.items() if parent in ours} - ours
        if not more:
            return {process: sizes[process] for process in ours - {os.getpid()}}
        ours |= more


def end_descendants():
    for _ in range(50):
        left = descendants()
        if not left:
            return
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.02)


class Run:
    """A test, ended at the first thing that is red."""
    RED = re.compile(rb"^not ok (?:\d+ )?-? ?([^#\n]*)(# *(?:TODO|SKIP))?[^\n]*\n", re.M)

    def __init__(self, command, environment, folder):
        read_end, write_end = os.pipe()
        self.output = os.fdopen(read_end, "rb", buffering=0)
        os.set_blocking(read_end, False)
        self.process = subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=write_end,
                                        stderr=write_end, start_new_session=True, preexec_fn=limit)
        os.close(write_end)
        self.said = b""

    def watch(self, seconds):
        try:
            return self.wait(time.monotonic() + seconds)
        finally:
            self.output.close()
            end_descendants()
            self.process.poll()

    def wait(self, until):
        looked = time.monotonic()
        while True:
            status = self.process.poll()
            self.read()
            red = next((found for found in self.RED.finditer(self.said) if not found[2]), None)
            if red:
                return red[1].decode(errors="replace").strip() or "not ok"
            if status is not None:
                return None if status in (0, 77) else f"exit status {status}"
            now = time.monotonic()
            if now > until:
                return "it hangs"
            if len(self.said) > OUTPUT:
                return "it says more and more"
            if now - looked > 0.3:
                looked = now
                if sum(descendants().values()) > MEMORY:
                    return "it takes more and more memory"
                if shutil.disk_usage("/tmp").free < DISK:
                    return "it writes more and more"
            time.sleep(0.01)

    def read(self):
        try:
            while more := self.output.read(1 << 16):
                self.said += more
        except BlockingIOError:
            pass
