#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_memory.py SITTER DUMP [CHECK...]: suspending where host memory is short (sitter.c): in real control groups, with limits of the process, in a
folder that lies in memory. Nobody is killed, nothing is lost, and a line says why. Skips what this machine does not let it make. TAP."""
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time

from check_command import MIB, Sitter, fails, works, write_weights

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, expect, run, skip  # noqa: E402

# File system, and what a hierarchy of it must have to limit memory; the files for the limit and for processes.
VERSIONS = {"v1": ("cgroup", "memory.limit_in_bytes"), "v2": ("cgroup2", "memory.max")}
WEIGHTS_MIB = 24  # beside which little else of a process counts
SHORT_MIB, ENOUGH_MIB = WEIGHTS_MIB * 3 // 4, 16 * WEIGHTS_MIB  # WEIGHTS_MIB have to wait; the simulated device is host memory


def write(path, text):
    with open(path, "w") as file:
        file.write(str(text))


class Group:
    """A control group for memory."""

    def __init__(self, above, limit_file):
        self.limit_file = limit_file
        self.path = tempfile.mkdtemp(prefix="metashard-", dir=above)

    def limit(self, mib):
        write(os.path.join(self.path, self.limit_file), mib * MIB)

    def take(self, one):
        """With what it has by now elsewhere: memory stays in the group where it was taken."""
        write(os.path.join(self.path, "cgroup.procs"), one.pid)

    def end(self):
        """Also of processes that a test which failed has left there."""
        with open(os.path.join(self.path, "cgroup.procs")) as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        for _ in range(100):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)


def make_group(version):
    """None: this machine does not let it be made."""
    kind, limit_file = VERSIONS[version]
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    for words in mounts:
        if words[words.index("-") + 1] != kind:
            continue
        try:
            if version == "v2":
                write(os.path.join(words[4], "cgroup.subtree_control"), "+memory")
            group = Group(words[4], limit_file)
        except OSError:
            continue
        if os.path.exists(os.path.join(group.path, limit_file)):
            return group
        group.end()
    return None


def check_group(place, sitter, version):
    """The limit of its own group, and that of the group above it; then there is enough."""
    above = make_group(version)
    below = Group(above.path, above.limit_file) if version == "v1" else above
    try:
        for group in {above.path: above, below.path: below}.values():
            one = Sitter(place, sitter)
            below.take(one)
            for to in ([], ["--to", "/dev/shm"]):
                group.limit(SHORT_MIB)
                fails("the memory limit of its cgroup leaves no room for more: name a folder on a disk", "suspend", one.pid, *to)
                expect(one.status()["backed_bytes"] == 2 * WEIGHTS_MIB * MIB, "a suspension that failed has changed something")
            works("suspend", one.pid, "--to", place)
            group.limit(ENOUGH_MIB)
            one.use()
            works("suspend", one.pid)
            one.use()
            one.end()
    finally:
        for group in (below, above):
            group.end()


def check_limit_that_is_named(place, sitter, version):
    """METASHARD_SUSPEND_BYTES does not make memory."""
    group = make_group(version)
    try:
        one = Sitter(place, sitter, METASHARD_SUSPEND_BYTES="1G")
        group.take(one)
        group.limit(SHORT_MIB)
        fails("the memory limit of its cgroup", "suspend", one.pid)
        group.limit(ENOUGH_MIB)
        one.use()
        one.end()
    finally:
        group.end()


def check_together(place, sitter, version):
    """Ranks of one container that are suspended at the same time, with room for each alone, and not for all."""
    group = make_group(version)
    try:
        ranks = [Sitter(place, sitter, METASHARD_SUSPEND_SIGNAL=str(int(signal.SIGUSR2)), METASHARD_LOG="error") for _ in range(3)]
        for one in ranks:
            group.take(one)
        group.limit(WEIGHTS_MIB * 5 // 2)
        for one in ranks:
            os.kill(one.process.pid, signal.SIGUSR2)
        suspended = sum(one.status()["suspended"] for one in ranks)  # the thread that answers has suspended before
        expect(suspended < len(ranks), "all are suspended, and there is no room for all")
        group.limit(ENOUGH_MIB)
        for one in ranks:
            one.use()
            one.end()
    finally:
        group.end()


def leave_addresses(one, number, mib):
    used = {resource.RLIMIT_AS: "VmSize:", resource.RLIMIT_DATA: "VmData:"}[number]
    with open(f"/proc/{one.pid}/status") as file:
        kib = next(int(line.split()[1]) for line in file if line.startswith(used))
    resource.prlimit(one.process.pid, number, ((kib << 10) + mib * MIB, resource.RLIM_INFINITY))


def check_process_limits(place, sitter):
    """Addresses are refused by the kernel; what is left of them is the program's."""
    for number, name in ((resource.RLIMIT_AS, "RLIMIT_AS"), (resource.RLIMIT_DATA, "RLIMIT_DATA")):
        one = Sitter(place, sitter)
        leave_addresses(one, number, SHORT_MIB)
        fails(f"{name} leaves no room for more", "suspend", one.pid)
        expect(one.status()["backed_bytes"] == 2 * WEIGHTS_MIB * MIB, f"{name}: it has changed something")
        leave_addresses(one, number, ENOUGH_MIB)
        works("suspend", one.pid)
        resource.prlimit(one.process.pid, number, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        one.use()
        one.end()


def main():
    sitter = os.path.abspath(sys.argv[1])
    checks = [(check_process_limits, ())]
    for version in VERSIONS:
        if re.search("lib[at]san", os.environ.get("LD_PRELOAD", "")):
            skip(f"group, {version}", "memory that a sanitizer takes beside the program's counts in the group, and nobody asks for it")
            continue
        group = make_group(version)
        if group is None:
            skip(f"group, {version}", f"no group of {version} with a limit of memory can be made here")
            continue
        group.end()
        checks += [(check, (version,)) for check in (check_group, check_limit_that_is_named, check_together)]
    for check, arguments in checks:
        name = check.__name__.removeprefix("check_")
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        place = tempfile.mkdtemp(prefix="memory-", dir="/var/tmp")
        write_weights(os.path.join(place, "weights.safetensors"), WEIGHTS_MIB)
        time.sleep(0.05)
        run(", ".join([name, *arguments]), check, place, sitter, *arguments)
        shutil.rmtree(place)
    return end()


if __name__ == "__main__":
    sys.exit(main())
