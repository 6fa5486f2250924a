#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_security.py --build DIR --preload VALUE: what others could put in the way of the shim's files, programs with raised
privileges, and where the shim writes at all. TAP. docs/security.md says what is trusted."""
import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from sockets import sockets_of  # noqa: E402
from tap import end, report, skip  # noqa: E402

MIB = 1 << 20
NOBODY = 65534


class Place:
    def __init__(self, options, folder):
        self.folder, self.preload = folder, options.preload
        self.tests = os.path.join(options.build, "tests")
        self.program = os.path.join(self.tests, "robust", "hostile", "hostile")
        self.secure = os.path.join(self.tests, "robust", "hostile", "secure")
        self.data = os.path.join(folder, "data")
        with open(self.data, "wb") as file:
            file.write(random.Random(3).randbytes(4 * MIB))
        os.utime(self.data, (1e9, 1e9))
        os.chmod(folder, 0o755)

    def new(self, mode=0o700):
        folder = tempfile.mkdtemp(dir=self.folder)
        os.chmod(folder, mode)
        return folder

    def environment(self, **settings):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("METASHARD", "SIMCUDA_")) and name != "LD_PRELOAD"}
        environment.update(LD_LIBRARY_PATH=os.path.join(os.path.dirname(self.tests), "tools", "simcuda"),
                           SIMCUDA_GRANULE_KIB="64", METASHARD_MIN_BYTES="65536", METASHARD_STATE_DIR="", **settings)
        return environment

    def run(self, mode="job", before=None, **settings):
        """(exit status, lines, what was said)"""
        done = subprocess.run([self.program, mode, self.data], capture_output=True, text=True, timeout=60,
                              env={**self.environment(), "LD_PRELOAD": self.preload, **settings}, preexec_fn=before)
        return done.returncode, done.stdout.split(), done.stderr.splitlines()


def right(seen, said):
    """The job was right, with one line that matches, or none."""
    status, out, error = seen
    good = status == 0 and out == ["right"] and len(error) == (said is not None) and \
        (said is None or re.search(said, error[0]))
    return "" if good else f"expected the job to be right, and {said or 'silence'}: {seen}"


# --- the folder of the state page


def check_folders(place):
    outside = place.new()
    planted = {
        "a link to a folder": lambda path: os.symlink(outside, path),
        "a link to nothing": lambda path: os.symlink(os.path.join(outside, "not-there"), path),
        "a file": lambda path: open(path, "w").close(),
        "a FIFO": os.mkfifo,
        "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(path),
        "a folder for everybody": lambda path: (os.mkdir(path), os.chmod(path, 0o777)),
        "a folder for the group": lambda path: (os.mkdir(path), os.chmod(path, 0o770)),
        "a folder for everybody, with the sticky bit": lambda path: (os.mkdir(path), os.chmod(path, 0o1777)),
    }
    if os.getuid() == 0:
        planted["another user's folder"] = lambda path: (os.mkdir(path), os.chown(path, NOBODY, NOBODY))
    for name, plant in planted.items():
        path = os.path.join(place.new(), "state")
        plant(path)
        wrong = right(place.run(METASHARD_STATE_DIR=path), "no state page is kept")
        inside = os.listdir(outside) + (os.listdir(path) if os.path.isdir(path) else [])
        report(f"the state's place is {name}: no page", wrong or (f"something was written: {inside}" if inside else ""))
    folder = os.path.join(place.new(), "state")
    wrong = right(place.run(METASHARD_STATE_DIR=folder, before=lambda: os.umask(0)), None)
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in
             (folder, *(os.path.join(folder, name) for name in os.listdir(folder)))]
    report("the folder and all in it are the user's alone, whatever the umask is",
           wrong or ("" if modes[0] == 0o700 and set(modes[1:]) == {0o600} else f"modes {[oct(mode) for mode in modes]}"))


def check_names(place):
    """Files that lie where the page's own name would be. A shell that becomes the job knows the process id beforehand."""
    outside = os.path.join(place.new(), "victim")
    with open(outside, "w") as file:
        file.write("untouched")
    for name, plant in (("a link", f"ln -s {outside}"), ("a FIFO", "mkfifo"), ("a folder", "mkdir"), ("a file", "touch")):
        folder = place.new()
        done = subprocess.run(
            ["sh", "-c", f'{plant} {folder}/metashard-$$.state && LD_PRELOAD=$SHIM exec "$@"', "sh", place.program, "job",
             place.data], capture_output=True, text=True, timeout=60,
            env={**place.environment(), "SHIM": place.preload, "METASHARD_STATE_DIR": folder})
        names = sorted(name for name in os.listdir(folder) if not name.startswith(".selfcheck-"))
        good = done.returncode == 0 and done.stdout == "right\n" and not done.stderr and len(names) == 2 and \
            open(outside).read() == "untouched"
        report(f"{name} has the page's name: it stays, and the page has another", "" if good else
               f"{done.returncode} {done.stdout} {done.stderr} {names}")


def check_default(place):
    """Without a setting, and without a folder of the user's own, the place is in /tmp, where anybody may be first."""
    name = "the default place in /tmp was taken by another user: no page"
    user = random.randrange(61000, 64000)
    path = f"/tmp/metashard-{user}"
    if os.getuid() != 0 or os.path.lexists(path):
        skip(name, "needs root, to be two users")
        return

    def run():
        environment = {**place.environment(), "LD_PRELOAD": place.preload}
        del environment["METASHARD_STATE_DIR"]
        environment.pop("XDG_RUNTIME_DIR", None)
        done = subprocess.run([place.program, "job", place.data], env=environment, capture_output=True, text=True,
                              timeout=60, user=user, group=user, extra_groups=[])
        return done.returncode, done.stdout.split(), done.stderr.splitlines()
    try:
        if run()[1] != ["right"]:
            skip(name, "another user cannot run the job here")
            return
        mine = os.stat(path)
        report("the default place in /tmp is the user's alone", "" if
               (mine.st_uid, stat.S_IMODE(mine.st_mode)) == (user, 0o700) else f"{mine}")
        shutil.rmtree(path)
        for plant in (lambda: os.mkdir(path, 0o755), lambda: os.symlink("/tmp", path)):
            plant()
            wrong = right(run(), None)  # nobody has asked for a page: METASHARD_LOG=info tells
            report(name, wrong or (f"{os.listdir(path)}" if not os.path.islink(path) and os.listdir(path) else ""))
            (os.unlink if os.path.islink(path) else shutil.rmtree)(path)
    finally:
        if os.path.lexists(path):
            (os.unlink if os.path.islink(path) else shutil.rmtree)(path)


def check_race(place):
    """Somebody turns the folder into a link and back, all the time, while processes start."""
    folder, outside = place.new(), place.new(0o777)
    path, ends = os.path.join(folder, "state"), threading.Event()
    os.mkdir(path, 0o700)

    made = itertools.count()

    def put(source):
        """Takes the name, also from a folder that a process has just made there."""
        while True:
            try:
                return os.rename(source, path)
            except OSError:
                os.rename(path, os.path.join(folder, f"made-{next(made)}"))

    def swap():
        hidden, link = os.path.join(folder, "hidden"), os.path.join(folder, "link")
        while not ends.is_set():
            os.symlink(outside, link)
            os.rename(path, hidden)
            put(link)
            time.sleep(0.0005)
            os.unlink(path)
            put(hidden)
    thread = threading.Thread(target=swap)
    thread.start()
    wrong = ""
    for _ in range(12):
        status, out, error = place.run(METASHARD_STATE_DIR=path)
        if status != 0 or out != ["right"] or len(error) > 1:
            wrong = f"{status} {out} {error}"
    ends.set()
    thread.join()
    report("a folder that turns into a link and back: nothing is written behind the link",
           wrong or (f"{os.listdir(outside)}" if os.listdir(outside) else ""))


# --- the control socket


def check_socket(place):
    def listening(path):
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen()
        kept.append(server)
    kept = []
    victim = os.path.join(place.new(), "victim")
    with open(victim, "w") as file:
        file.write("untouched")
    for name, plant, is_free in (
            ("a link to a file", lambda path: os.symlink(victim, path), False),
            ("a link to nothing", lambda path: os.symlink(victim + "-not", path), False),
            ("a file", lambda path: open(path, "w").close(), False), ("a FIFO", os.mkfifo, False),
            ("a folder", os.mkdir, False), ("a socket that is served", listening, False),
            ("a socket that nobody serves", lambda path: socket.socket(socket.AF_UNIX).bind(path), True)):
        path = os.path.join(place.new(), "control")
        plant(path)
        before = os.lstat(path)
        wrong = right(place.run(METASHARD_CONTROL=path), None if is_free else "METASHARD_CONTROL: cannot make the socket")
        stays = os.path.lexists(path) and os.lstat(path).st_ino == before.st_ino
        if not wrong and stays == is_free:
            wrong = "it is gone" if not stays else "it is still there"
        if open(victim).read() != "untouched" or os.path.lexists(victim + "-not"):
            wrong = "something was written behind the link"
        report(f"the socket's name is {name}: " + ("it is taken over" if is_free else "it stays, and there is no socket"),
               wrong)


def check_socket_mode(place):
    """At no moment can another user connect: the mode is looked at from its first moment on. (A umask that takes from the
    owner does so here, too.)"""
    folder, seen, ends = place.new(), set(), threading.Event()
    path = os.path.join(folder, "control")

    def look():
        while not ends.is_set():
            try:
                seen.add(stat.S_IMODE(os.lstat(path).st_mode))
            except OSError:
                pass
    thread = threading.Thread(target=look)
    thread.start()
    wrong = ""
    for mask in (0, 0o077, 0o022):
        wrong = wrong or right(place.run(METASHARD_CONTROL=path, before=lambda mask=mask: os.umask(mask)), None)
    ends.set()
    thread.join()
    report("the socket has mode 600 from the first moment, whatever the umask is",
           wrong or ("" if seen <= {0o600} and seen else f"modes {[oct(mode) for mode in seen]}"))


# --- what the process listens on


def check_sockets(place):
    """In a job with deferred memory and with all threads that the shim has, no descriptor of any thread is a socket but the
    control socket, and that only if it was asked for."""
    folder = place.new()
    control, plan = os.path.join(folder, "control"), os.path.join(folder, "plan")
    with open(plan, "w") as file:
        json.dump({"format": "metashard-plan/1", "mesh": {"r": 2}, "rank": 0, "tensors": []}, file)
    everything = {"METASHARD_PLAN": plan, "METASHARD_STATE_DIR": os.path.join(folder, "state"), "METASHARD_EXPLAIN": "1",
                  "METASHARD_LOG": f"debug:{folder}/log", "METASHARD_DUMP": os.path.join(folder, "dump"),
                  "METASHARD_READ_THREADS": "4"}
    for name, settings, wanted in (
            ("by default the process has no socket", {"METASHARD_STATE_DIR": os.path.join(folder, "state")}, []),
            ("with everything but a control socket switched on it has none", everything, []),
            ("with a control socket it listens on that, and has no other", {**everything, "METASHARD_CONTROL": control},
             [f"unix {control} listens"])):
        job = subprocess.Popen([place.program, "stay", place.data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE, env={**place.environment(), "LD_PRELOAD": place.preload, **settings})
        ready, seen = job.stdout.readline(), sockets_of(job.pid)
        out, error = job.communicate()
        good = ready == "ready\n" and job.returncode == 0 and out == "right\n"
        report(name, "" if good and seen == wanted else f"{job.returncode} {ready}{out}{error}{seen}")


def check_replaced(place):
    """Somebody puts another file in the place of the socket while the process runs."""
    for name, plant in (("a file", lambda path: open(path, "w").close()), ("a FIFO", os.mkfifo)):
        path = os.path.join(place.new(), "control")
        job = subprocess.Popen([place.program, "stay", place.data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**place.environment(), "LD_PRELOAD": place.preload, "METASHARD_CONTROL": path})
        job.stdout.readline()
        os.unlink(path)
        plant(path)
        job.communicate()
        report(f"the socket's name has become that of {name}: it stays", "" if os.path.lexists(path) else "it is gone")


# --- log and dump


def check_modes(place):
    """New files are the user's alone, whatever the umask is. A file that is there keeps its mode."""
    for name, mode in (("new", 0o600), ("there", 0o640)):
        folder = place.new()
        paths = [os.path.join(folder, name) for name in ("log", "dump")]
        if name == "there":
            for path in paths:
                open(path, "w").close()
                os.chmod(path, mode)
        wrong = right(place.run(METASHARD_LOG="debug:" + paths[0], METASHARD_DUMP=paths[1], before=lambda: os.umask(0)), None)
        modes = [stat.S_IMODE(os.stat(path).st_mode) for path in paths if os.path.exists(path)]
        report(f"log and dump that are {name} have mode {mode:o}",
               wrong or ("" if modes == [mode] * 2 else f"modes {[oct(mode) for mode in modes]}"))


# --- raised privileges


SETTINGS = ("METASHARD_LOG", "METASHARD_DUMP", "METASHARD_CONTROL", "METASHARD_PLAN", "METASHARD_KERNEL_RULES",
            "METASHARD_STATE_DIR", "XDG_RUNTIME_DIR")


PLACES = [place.format(user) for user in (0, NOBODY) for place in ("/run/user/{}/metashard", "/tmp/metashard-{}")]  # by default


def file_of(path):
    """The numbers that tell a file from an earlier one of the same name, or None."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def pages():
    """Those in the default places. Ended processes leave some, and one of them may have had the number of the next process."""
    paths = [os.path.join(folder, entry) for folder in PLACES if os.path.isdir(folder) for entry in os.listdir(folder)]
    return {path: file_of(path) for path in paths}


def privileged(place, path, prefix=None):
    """The job in a program that the kernel runs with raised privileges: (what it printed, what it left)."""
    folder = place.new(0o777)
    settings = {name: os.path.join(folder, name.lower()) for name in SETTINGS}
    settings["METASHARD_LOG"] = "trace:" + settings["METASHARD_LOG"]
    environment = {"METASHARD_EXPLAIN": "1", "METASHARD_MIN_BYTES": "nonsense", "METASHARD_NO_SUCH": "1", **settings}
    user = {} if prefix else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    before = pages()
    job = subprocess.Popen([*(prefix or []), path, place.data], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, **user)
    out, error = job.communicate(timeout=60)
    own = [page for page, file in pages().items() if page.endswith(f"/metashard-{job.pid}.state") and before.get(page) != file]
    for page in own:
        os.unlink(page)
    left = os.listdir(folder) + own
    return subprocess.CompletedProcess(path, job.returncode, out, error), left


def is_open_to_others(path):
    """A young file of the folder that processes of the same user share: some of these end while one looks."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return time.time() - found.st_mtime < 5 and stat.S_IMODE(found.st_mode) != 0o600


CAP_NET_BIND_SERVICE, VFS_CAP_REVISION_2 = 10, 0x02000000


def give_capability(path):
    os.setxattr(path, "security.capability", struct.pack("<5I", VFS_CAP_REVISION_2 | 1, 1 << CAP_NET_BIND_SERVICE, 0, 0, 0))


def check_privileges(place):
    """A program that is linked with the shim, where a preload does not count."""
    raised = {"setuid": lambda path: os.chmod(path, 0o4755), "setgid": lambda path: os.chmod(path, 0o2755),
              "file capabilities": give_capability}
    path = os.path.join(place.new(0o755), "secure")
    for kind, give in raised.items():
        name = f"a program with {kind} ignores the environment"
        if os.getuid() != 0:
            skip(name, "needs root, to make one")
            continue
        shutil.copy(place.secure, path)
        try:
            give(path)
        except OSError as error:
            skip(name, f"none can be made here: {error}")
            continue
        done, left = privileged(place, path)
        if "secure 1" not in done.stdout:
            skip(name, "it has no effect here")
            continue
        for folder in PLACES:
            if os.path.isdir(folder):
                left += [entry for entry in os.listdir(folder) if is_open_to_others(os.path.join(folder, entry))]
        report(name, "" if "right" in done.stdout and "shim 1" in done.stdout and not done.stderr and not left
               else f"{done} {left}")
        os.unlink(path)
    if os.getuid() == 0:
        shutil.copy(place.secure, path)
        done, left = privileged(place, path)
        report("the same program without privileges follows it",
               "" if left and "secure 0" in done.stdout else f"{done.stdout} {done.stderr} {left}")


def check_system_preload(place):
    """/etc/ld.so.preload counts in all programs."""
    name = "a setuid program that has the shim by /etc/ld.so.preload ignores the environment"
    if os.getuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare") or \
            subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        skip(name, "needs root, setpriv, and a mount namespace")
        return
    etc = os.path.join(place.new(0o755), "etc")
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
    with open(os.path.join(etc, "ld.so.preload"), "w") as file:
        file.write(place.preload + "\n")
    path = os.path.join(place.new(0o755), "secure")
    shutil.copy(place.secure + "-alone", path)
    os.chmod(path, 0o4755)
    prefix = ["unshare", "-m", "sh", "-c", f'mount --bind {etc} /etc && exec setpriv --reuid {NOBODY} --regid {NOBODY} '
              '--clear-groups "$@"', "sh"]
    done, left = privileged(place, path, prefix=prefix)
    report(name, "" if all(word in done.stdout for word in ("secure 1", "shim 1", "right")) and
           not done.stderr and not left else f"{done} {left}")


# --- where is written


# Calls that make, change or remove something by a name.
CALLS = "open,openat,openat2,creat,mkdir,mkdirat,mknod,mknodat,link,linkat,symlink,symlinkat,rename,renameat,renameat2,unlink," \
        "unlinkat,truncate,chmod,fchmodat,chown,bind,connect"
WRITES = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(?:(open|openat|openat2)\((.*?O_(?:WRONLY|RDWR|CREAT|TRUNC).*)"
                    r"|(creat|mkdir|mkdirat|mknod|mknodat|link|linkat|symlink|symlinkat|rename|renameat|renameat2|unlink|unlinkat"
                    r"|truncate|chmod|fchmodat|chown|bind|connect)\((.*))\) += (?!-1 ENOENT)")


def written(place, preload, folder):
    """The names in all calls that write something, and what the trace was."""
    trace = os.path.join(folder, "trace")
    settings = {"METASHARD_STATE_DIR": f"{folder}/state", "METASHARD_CONTROL": f"{folder}/control",
                "METASHARD_DUMP": f"{folder}/dump", "METASHARD_LOG": f"debug:{folder}/log", "METASHARD_EXPLAIN": "1"}
    command = ["strace", "-f", "-qq", "-y", "-e", "trace=" + CALLS, "-o", trace, "-s", "300"]
    if preload:
        command += ["-E", "LD_PRELOAD=" + preload]
    done = subprocess.run([*command, place.program, "job", place.data], env={**place.environment(), **settings},
                          capture_output=True, text=True, timeout=120, cwd=place.new())
    if done.returncode != 0:
        return None, done.stderr
    names = set()
    with open(trace) as file:
        lines = file.readlines()
    for line in lines:
        found = WRITES.match(line)
        if found:
            for path in re.findall(r'"([^"]*)"', line):
                at = re.search(r"<([^<>]*)>, \"" + re.escape(path), line)
                names.add(path if path.startswith("/") or not at else os.path.join(at[1], path))
    return names, "".join(lines)


def check_writes(place):
    name = "nothing is written but in the places that were named"
    if not shutil.which("strace"):
        skip(name, "strace is not installed")
        return
    folder = place.new()
    alone, trace = written(place, ":".join(place.preload.split(":")[:-1]), folder)
    if alone is None:
        skip(name, "strace does not work here: " + trace.strip()[-99:])
        return
    with_shim, trace = written(place, place.preload, folder)
    added = sorted(with_shim - alone)
    # Places that are only read, by a descriptor that could write: none is wanted either.
    strange = [path for path in added if not path.startswith(folder + "/")]
    wanted = {"control", "dump", "log", "state"}
    missing = wanted - {os.path.relpath(path, folder).split("/")[0] for path in added if path.startswith(folder + "/")}
    report(name, f"{strange}\n{trace[-3000:]}" if strange else f"the trace has no {missing}: {added}" if missing else "")
    for path in added:
        print("# " + re.sub(r"\d{2,}", "N", os.path.relpath(path, folder)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--preload", required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="metashard-security-") as folder:
        place = Place(options, folder)
        check_folders(place)
        check_names(place)
        check_default(place)
        check_race(place)
        check_socket(place)
        check_socket_mode(place)
        check_sockets(place)
        check_replaced(place)
        check_modes(place)
        check_privileges(place)
        check_system_preload(place)
        check_writes(place)
    return end()


if __name__ == "__main__":
    sys.exit(main())
