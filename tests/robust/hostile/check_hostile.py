#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_hostile.py --build DIR --preload VALUE [--spawn N]: the job in hostile surroundings (hostile.c). TAP.

In each the job must be right. Each case tells what the shim says: nothing, or that the shim cannot do its work, in one line.
"""
import argparse
import glob
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402
from tap import end, report, skip  # noqa: E402

MIB = 1 << 20


class Case:
    """One run. jobs: how many lines say "right"; said: what a line of the shim must match, or None for silence."""

    def __init__(self, place, *arguments, jobs=1, said=None, deferred=True, preload=None, limits=(), prefix="",
                 driver="", **settings):
        self.folder = tempfile.mkdtemp(dir=place.folder)
        self.jobs, self.said, self.deferred = jobs, said, deferred
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("METASHARD", "SIMCUDA_"))}
        environment.update(
            LD_LIBRARY_PATH=place.simulated(driver), SIMCUDA_GRANULE_KIB="64", SIMCUDA_POISON="2", METASHARD_MIN_BYTES="65536",
            METASHARD_STATE_DIR=os.path.join(self.folder, "state"), METASHARD_DUMP=os.path.join(self.folder, "dump-%p"))
        environment.update({name: value.replace("FOLDER", self.folder) for name, value in settings.items()})
        libraries = place.preload if preload is None else preload
        command = [place.program, arguments[0], place.data,
                   *(argument.replace("FOLDER", self.folder) for argument in arguments[1:])]
        if prefix:  # a shell's words, and then the job
            environment.update(JOB_PRELOAD=libraries)
            command = ["sh", "-c", prefix.replace("FOLDER", self.folder) + ' && LD_PRELOAD=$JOB_PRELOAD exec "$@"', "sh",
                       *command]
            if "unshare" in prefix:
                command = ["unshare", "-m", *command[:2], prefix.replace("unshare", "true", 1).replace("FOLDER", self.folder)
                           + ' && LD_PRELOAD=$JOB_PRELOAD exec "$@"', "sh", *command[4:]]
        else:
            environment["LD_PRELOAD"] = libraries

        def limit():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for which, number in limits:
                resource.setrlimit(which, (number, number))
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=self.folder,
                                  preexec_fn=limit, stdin=subprocess.DEVNULL)
            self.status, self.out, self.error = done.returncode, done.stdout.splitlines(), done.stderr.splitlines()
        except subprocess.TimeoutExpired as late:
            self.status, self.out, self.error = "hangs", (late.stdout or b"").decode().splitlines(), []

    def wrong(self):
        text = f"status {self.status}\n" + "\n".join(self.out + self.error)[-1500:]
        if self.status != 0 or self.out.count("right") != self.jobs:
            return f"expected {self.jobs} jobs that are right\n{text}"
        own = [line for line in self.error if line.startswith("metashard[")]
        if self.said is None and self.error:
            return f"expected no line\n{text}"
        if self.said is not None and (len(own) != 1 or not re.search(self.said, own[0])):
            return f"expected one line with '{self.said}'\n{text}"
        dumps = [read_dump(path) for path in glob.glob(os.path.join(self.folder, "dump-*"))]
        if self.deferred and not any(dump["deferred_allocations"] for dump in dumps):
            return f"nothing was deferred\n{text}"
        if self.deferred is False and any(dump["deferred_allocations"] for dump in dumps):
            return f"something was deferred\n{text}"
        return ""


class Place:
    def __init__(self, options, folder):
        self.folder, self.tests, self.preload = folder, os.path.join(options.build, "tests"), options.preload
        self.program = self.built("robust", "hostile", "hostile")
        self.data = os.path.join(folder, "data")
        with open(self.data, "wb") as file:
            file.write(random.Random(3).randbytes(4 * MIB))
        os.utime(self.data, (1e9, 1e9))
        os.chmod(folder, 0o755)

    def built(self, *path):
        return os.path.join(self.tests, *path)

    def simulated(self, *path):
        return os.path.join(os.path.dirname(self.tests), "tools", "simcuda", *path)

    def check(self, name, *arguments, **settings):
        report(name, Case(self, *arguments, **settings).wrong())


def check_processes(place, options):
    place.check("the job alone", "job")
    place.check("fork before the start", "fork-before", jobs=2)
    place.check("fork after the start, and the child ends", "fork-after")
    place.check("fork after the start, with a socket", "fork-after", METASHARD_CONTROL="FOLDER/control")
    place.check("fork while threads work, and the child calls CUDA", "fork-threads", deferred=None)
    place.check("vfork and exec", "vfork", jobs=2)
    place.check("exec", "exec")
    place.check("a child without an environment", "clean", jobs=2)
    place.check("a child in the same memory that executes a program", "same-memory", jobs=2)
    place.check("a child of a bare system call ends, and leaves what is its parent's", "bare-fork", "FOLDER/control",
                METASHARD_CONTROL="FOLDER/control", METASHARD_DUMP="FOLDER/dump-early")
    case = Case(place, "exec")
    pages = glob.glob(os.path.join(case.folder, "state", "*.state"))
    report("exec leaves one state page", "" if len(pages) == 1 else f"{pages}")
    case = Case(place, "spawn", str(options.spawn), jobs=options.spawn, METASHARD_DUMP="", deferred=None,
                METASHARD_STATE_KEPT_BYTES="64M")
    pages = glob.glob(os.path.join(case.folder, "state", "*.state"))
    report(f"{options.spawn} short children", case.wrong() or ("" if len(pages) <= 24 else f"{len(pages)} state pages"))
    place.check("threads work while the process ends", "exit-threads", deferred=None, said=None)


def check_signals(place):
    place.check("signals, all the time", "signals")
    place.check("signals, with a plan's socket and the reading threads", "signals", METASHARD_CONTROL="FOLDER/control",
                METASHARD_READ_THREADS="4")


def check_libraries(place):
    plugin = place.built("robust", "hostile", "plugin.so")
    place.check("libcuda.so.1 is opened and closed again", "reload")
    place.check("a plugin is opened and closed again", "unload", plugin, jobs=3)
    place.check("a namespace of its own", "dlmopen", plugin, jobs=2)
    # All preloaded libraries then share 1664 bytes of thread-local data (tests/static/check_binary.py).
    auditors = [place.built("robust", "hostile", name + ".so") for name in ("audit", "second-audit")]
    place.check("an auditor of the dynamic linker", "job", LD_AUDIT=auditors[0])
    place.check("two of them", "job", LD_AUDIT=":".join(auditors))
    place.check("an auditor, and a child that executes a program", "vfork", jobs=2, LD_AUDIT=auditors[0])
    case = Case(place, "deepbind", plugin)
    if "refused" in case.out:  # the simulated driver says which access was illegal
        wrong = "" if case.status == 0 and case.out[0] == "right" else f"{case.status} {case.out} {case.error}"
    else:
        case.jobs, case.out = 2, [line for line in case.out if line != "read"]
        wrong = case.wrong()
    report("RTLD_DEEPBIND: right beside the shim, and deferred memory refused there", wrong)
    check_interposers(place)


def seen_by(case):
    return [open(os.path.join(case.folder, name)).read().split() for name in ("front", "behind")]


def check_interposers(place):
    """Two others, one before and one behind: the one before sees each call of the program that it sees without the shim, once,
    and none of the shim's own. The shim calls the driver itself, so the one behind sees nothing, and a line names it. With the
    shim switched off both see what they see without it."""
    libraries = place.preload.split(":")
    for kind, what in (("other", "replace functions"), ("hooks", "replace functions, and answer dlsym")):
        front, behind = (place.built("robust", "hostile", f"{kind}-{where}.so") for where in ("front", "behind"))
        told = rf"warn: \S*/{kind}-behind\.so replaces functions of the driver \(cuMemAlloc_v2\) .*it sees no call"
        for mode in ("job", "looked-up"):
            reports = {"FRONT_REPORT": "FOLDER/front", "BEHIND_REPORT": "FOLDER/behind"}
            alone = Case(place, mode, preload=":".join([*libraries[:-1], front, behind]), deferred=None, **reports)
            three = ":".join([*libraries[:-1], front, libraries[-1], behind])
            case = Case(place, mode, preload=three, said=told, **reports)
            seen, wanted = seen_by(alone), seen_by(case)
            silent = [word if word.startswith("cu") else "0" for word in seen[1]]
            wrong = alone.wrong() or case.wrong()
            if not wrong and (wanted[0] != seen[0] or seen[0] == silent):
                wrong = f"the one before saw {wanted[0]}, and without the shim {seen[0]}"
            if not wrong and wanted[1] != silent:
                wrong = f"the one behind saw {wanted[1]}"
            report(f"two others that {what}, one before and one behind: {mode}", wrong)
            off = Case(place, mode, preload=three, deferred=False, METASHARD="off", **reports)
            report(f"the same with the shim switched off: {mode}", off.wrong() or
                   ("" if seen_by(off) == seen and seen[1] != silent else f"they saw {seen_by(off)}, without the shim {seen}"))
            place.check(f"a library before the shim alone is no reason for a line: {mode}", mode, preload=":".join([*libraries[:-1], front, libraries[-1]]))
    check_system_interposer(place, place.built("robust", "hostile", "hooks-behind.so"), told)
    check_driver_shims(place)


def check_driver_shims(place):
    """Others that make the program's memory themselves (driver_shim.c). By their place in LD_PRELOAD and by how they find what
    they call, both work, or a line names the other."""
    libraries = place.preload.split(":")
    left_out = r"warn: \S*/shim-by-address\.so has functions of the driver \(cuMemAlloc_v2\) and .* it sees no call that a program looks up"
    bypassed = r"warn: \S*/shim-around\S*\.so stands before MetaShard and .*put libmetashard\.so first in LD_PRELOAD"
    behind = r"warn: \S*/shim-\S*\.so replaces functions of the driver \(cuMemAlloc_v2\) and stands behind MetaShard"
    for name, said in (("by-address", left_out), ("by-name", None), ("around", bypassed), ("around-but-cuinit", bypassed)):
        other = place.built("robust", "hostile", f"shim-{name}.so")
        before = ":".join([*libraries[:-1], other, libraries[-1]])
        for mode in ("job", "looked-up"):
            alone = Case(place, mode, preload=":".join([*libraries[:-1], other]), deferred=None)
            case = Case(place, mode, preload=before, said=said, deferred=said != bypassed)
            report(f"a shim of the driver ({name}) before MetaShard: {mode}", alone.wrong() or case.wrong() or
                   (wrong_page(place, case, other) if said == bypassed else ""))
            place.check(f"the same behind it: {mode}", mode, preload=":".join([*libraries, other]), said=behind)
        place.check(f"a child of a process with that shim ({name}) before MetaShard says nothing more", "fork-after", preload=before,
                    said=said, deferred=None)
        place.check(f"nor does MetaShard behind it when it is switched off ({name})", "job", preload=before, deferred=False,
                    METASHARD="off")
    check_order_before_a_run(place, libraries[-1])


def check_order_before_a_run(place, library):
    """`metashard run` names what stands before MetaShard and has functions of the driver, before it runs anything."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "python"))
    from metashard import preload_order
    shims = [place.built("robust", "hostile", name) for name in ("shim-by-address.so", "shim-around.so", "other-front.so")]
    none = [place.built("robust", "hostile", "audit.so"), place.data, "/no/such/file", "libc.so.6"]
    cases = [([shim, library], 1) for shim in shims] + [([library, shim], 0) for shim in shims] + [
        ([*none, library], 0), ([*none, *shims, library], 3), ([library], 0)]
    wrong = ""
    for preloads, count in cases:
        lines = preload_order.say_before(preloads, os.path.realpath(library))
        if [line.split()[0] for line in lines] != [path for path in preloads if path in shims][:count]:
            wrong += f"{preloads}: {lines}\n"
    with open(place.built("robust", "hostile", "shim-around.so"), "rb") as file:
        whole = file.read()
    cut = os.path.join(place.folder, "cut.so")
    for size in [*range(0, 64), *range(64, len(whole), 997)]:
        with open(cut, "wb") as file:
            file.write(whole[:size])
        list(preload_order.exports(cut))
    report("metashard run names what stands before MetaShard, and takes a library that is cut off", wrong)


def wrong_page(place, case, other):
    """`show` says that the process was bypassed, and by what."""
    tool = os.path.join(os.path.dirname(place.tests), "tools", "metashard-dump")
    pages = glob.glob(os.path.join(case.folder, "state", "*.state"))
    shown = [subprocess.run([tool, "show", *how, *pages], capture_output=True, text=True).stdout for how in ([], ["--brief"])]
    said = [re.sub(r"\s+", " ", text).count(f"{other} stands before MetaShard") for text in shown]
    return "" if len(pages) == 1 and said == [1, 1] else f"{pages}: {said}\n{shown}"


def check_system_interposer(place, other, told):
    """By /etc/ld.so.preload a library is always behind LD_PRELOAD."""
    if not can_unshare():
        skip("another by /etc/ld.so.preload", "needs a mount namespace")
        return
    etc = os.path.join(tempfile.mkdtemp(dir=place.folder), "etc")
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
    with open(os.path.join(etc, "ld.so.preload"), "w") as file:
        file.write(other + "\n")
    place.check("another by /etc/ld.so.preload is behind the shim, and a line names it", "looked-up", said=told,
                prefix=f"unshare && mount --bind {etc} /etc")


def planned(place, limits):
    """A request and a deeply nested plan come while the job waits (mode wait)."""
    case = Case(place, "wait", "FOLDER/control", limits=limits, METASHARD_CONTROL="FOLDER/control")
    return case.wrong() or ("" if "asked" in case.out else f"no answer: {case.out}")


def check_limits(place):
    place.check("16 descriptors", "job", limits=[(resource.RLIMIT_NOFILE, 16)])
    for number in (3, 4, 5, 6, 7, 8, 10, 12):
        limited = [(resource.RLIMIT_NOFILE, number)]
        alone = Case(place, "job", preload=":".join(place.preload.split(":")[:-1]), limits=limited)
        case = Case(place, "job", limits=limited, deferred=None)
        right = case.status == 0 and case.out == ["right"]
        told = case.status == 1 and "CUDA error" in "".join(case.out) and case.error
        if alone.status != 0:
            skip(f"{number} descriptors", "too few for the job without the preload")
        else:
            report(f"{number} descriptors: right, or an error and a line", "" if right or told else
                   f"status {case.status}\n" + "\n".join(case.out + case.error))
    for kib in (64, 128, 512):
        limited = [(resource.RLIMIT_STACK, kib << 10)]
        alone = Case(place, "job", preload=":".join(place.preload.split(":")[:-1]), limits=limited)
        if alone.status != 0:
            skip(f"stacks of {kib} KiB", "too little for the job without the preload")
        else:
            report(f"stacks of {kib} KiB, and a request by the socket", planned(place, limited))
    place.check("no locked memory", "job", limits=[(resource.RLIMIT_MEMLOCK, 0)])


def check_address_space(place):
    """From what the job needs without the preload up to where it is right with it: right, or an error and a line. The
    simulated driver's memory, and the job's own, are in the same address space: they may be short by themselves, without a line."""
    if "lib" in ":".join(place.preload.split(":")[:-1]):
        skip("little address space", "a sanitizer needs all of it")
        return
    limits = [mib for mib in range(40, 200, 8)
              if Case(place, "job", preload="", limits=[(resource.RLIMIT_AS, mib << 20)], deferred=None).status == 0]
    wrong, right = "", 0
    for mib in limits or [400]:
        case = Case(place, "job", limits=[(resource.RLIMIT_AS, mib << 20)], deferred=None)
        if case.status == 0 and case.out == ["right"]:
            right += 1
        elif any("simcuda: no thread" in line for line in case.error):
            pass  # the simulated driver has room for less than without the preload, and gives up
        elif case.status == 1 and ("failed with CUDA error 2" in "".join(case.out) or case.out == [""]):
            pass
        elif case.status != 1 or "CUDA error" not in "".join(case.out) or not case.error:
            wrong += f"{mib} MiB: status {case.status}\n" + "\n".join(case.out + case.error) + "\n"
    report(f"little address space: right in {right} of {len(limits or [400])} sizes, else an error and a line", wrong)


def can_unshare():
    return shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def check_file_systems(place):
    folder = os.path.join(place.folder, "read-only")
    names = ("no /proc", "a /proc with nothing to read", "a read-only folder for the state page", "a read-only /tmp",
             "a read-only place for everything", "a full disk")
    if not can_unshare():
        for name in names:
            skip(name, "no mount namespace can be made here")
        return
    os.mkdir(folder)
    tmpfs = "mount -t tmpfs -o {} none {}"
    place.check(names[0], "job", prefix="unshare && mount --make-rprivate / && umount -l /proc")
    place.check(names[1], "job", prefix="unshare && " + tmpfs.format("ro", "/proc"))
    place.check(names[2], "job", prefix="unshare && " + tmpfs.format("ro", folder), said="no state page is kept",
                METASHARD_STATE_DIR=folder)
    place.check(names[3], "job", prefix="unshare && mount --bind / /mnt && mount -o remount,bind,ro /mnt && mount --bind "
                "/mnt/tmp /tmp && mount -o remount,bind,ro /tmp" if not place.folder.startswith("/tmp") else "true",
                deferred=None)
    place.check(names[4], "job", prefix="unshare && " + tmpfs.format("ro", folder), said="METASHARD_DUMP: cannot write",
                METASHARD_STATE_DIR="", METASHARD_DUMP=folder + "/dump", deferred=None)
    place.check(names[5], "job", prefix="unshare && " + tmpfs.format("size=64k", folder), said="no state page is kept",
                METASHARD_STATE_DIR=folder + "/state")


def check_drivers(place):
    place.check("a driver without virtual memory management", "job", driver=place.built("robust", "hostile", "old"), deferred=None,
                said="MetaShard does nothing")
    place.check("a driver of CUDA 12.9", "job", driver="profile12")
    place.check("a driver that hides what is new", "job", SIMCUDA_PROFILE="12")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--preload", required=True)
    parser.add_argument("--spawn", type=int, default=60, help="how many short children")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metashard-hostile-") as folder:
        place = Place(options, folder)
        check_processes(place, options)
        check_signals(place)
        check_libraries(place)
        check_limits(place)
        check_address_space(place)
        check_file_systems(place)
        check_drivers(place)
    return end()


if __name__ == "__main__":
    sys.exit(main())
