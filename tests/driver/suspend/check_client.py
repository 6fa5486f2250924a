#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_client.py [CHECK...]: what `metashard suspend` and `metashard resume` make of processes that do not answer as MetaShard does, and
whom they ask at all. Each process is this program, which serves its control socket in one of these ways. TAP."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, expect, run  # noqa: E402

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "python")
OTHER_USER = "65534"
FIGURES = {"freed_bytes": 3 << 20, "replayed_bytes": 2 << 20, "made_bytes": 1 << 20, "stored_bytes": 1 << 20, "zero_bytes": 0,
           "stays_exported_bytes": 0, "stays_mapped_bytes": 0, "stays_bytes": 0, "others_bytes": 0}
GOOD = b"ok " + json.dumps(FIGURES).encode() + b"\n"
TIMEOUT_S = 2
JOB = f"clients-{os.getpid()}"  # other tests have jobs too
# By name: what is sent for an answer, and what the command says of it. None: nothing is sent.
ANSWERS = {
    "nothing": (None, "no answer within 2 s"),
    "half a line": (b"ok {", "no answer within 2 s"),
    "an end": (b"", "no answer: the process has ended"),
    "an end within a line": (GOOD[:-1], "no answer: the process has ended"),
    "no end": (b"ok " + b"x" * (1 << 20), "more than 4096 bytes"),
    "a line that is too long": (b"ok " + b" " * 4096 + GOOD[3:], "more than 4096 bytes"),
    "another word": (b"yes\n", "none of MetaShard's: yes"),
    "an empty line": (b"\n", "none of MetaShard's"),
    "ok alone": (b"ok\n", "none of MetaShard's"),
    "no JSON": (b"ok everything\n", "none of MetaShard's: everything"),
    "JSON that is no object": (b"ok [1]\n", "none of MetaShard's"),
    "deep JSON": (b"ok " + b"[" * 4000 + b"\n", "none of MetaShard's"),
    "a figure that is text": (b'ok {"freed_bytes": "1"}\n', "none of MetaShard's"),
    "a figure below zero": (b'ok {"freed_bytes": -1}\n', "none of MetaShard's"),
    "a figure without end": (b'ok {"freed_bytes": 1' + b"0" * 400 + b"}\n", "none of MetaShard's"),
    "no number": (b'ok {"freed_bytes": NaN}\n', "none of MetaShard's"),
    "no UTF-8": (b"error \xff\xfe\n", "\ufffd"),
    "what a terminal obeys": (b"error \x1b]0;title\x07\x1b[31m\xc2\x9b31m \xe2\x80\xae\r\n", "?]0;title??[31m?31m ??"),
    "what a terminal obeys, for figures": (b"ok \x1b[2J\n", "?[2J"),
}


def serve(way, path, user):
    """One process. Says "ready", and for each request "asked"."""
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    held = []
    while True:
        connection = listener.accept()[0]
        held.append(connection)  # so that it does not end
        line = connection.makefile("rb").readline()
        if line:
            print("asked", line, flush=True)
        answer = GOOD if way == "good" else ANSWERS[way][0]
        try:
            connection.sendall(answer or b"")
        except OSError:
            pass  # the client has had enough
        if answer is not None and (not answer.endswith(b"\n") or way == "good") and answer != b"ok {":
            connection.shutdown(socket.SHUT_RDWR)


class Process:
    """job: of METASHARD_JOB. named: the socket that its environment names, if it is not the one that it serves."""

    def __init__(self, place, way, job, user="", named=None):
        self.path = tempfile.mktemp(dir=place)
        command = [sys.executable, os.path.abspath(__file__), "serve", way, self.path, user]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                        env={"METASHARD_CONTROL": named or self.path, "METASHARD_JOB": job})
        self.pid = str(self.process.pid)
        expect(self.process.stdout.readline() == "ready\n", "the process does not start")

    def end(self):
        """Whether it was asked."""
        self.process.kill()
        return "asked" in self.process.communicate()[0]


def metashard(*arguments):
    """Exit status, lines of stdout and of stderr. Expects the lines to be printable."""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "metashard", *arguments, "--timeout", str(TIMEOUT_S)], capture_output=True, timeout=60,
                          check=False, env={"PYTHONPATH": PYTHON, "PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8"})
    out, err = done.stdout.decode().splitlines(), done.stderr.decode().splitlines()
    said = "".join(done.stdout.decode().split("\n") + done.stderr.decode().split("\n"))
    expect(said.isprintable(), f"a terminal obeys {said!r}")
    expect("Traceback" not in said, said)
    return done.returncode, out, err, time.monotonic() - begin


def check_answers(place):
    """One line for each, and the process behind it is asked all the same."""
    for way, (_, expected) in ANSWERS.items():
        pair = [Process(place, way, JOB), Process(place, "good", JOB)]
        status, out, err, seconds = metashard("suspend", JOB)
        expect(all(one.end() for one in pair), f"{way}: one of the two was not asked")
        expect(status == 1 and len(err) == 1 and expected in err[0], f"{way}: {status}, {err}, expected {expected!r}")
        expect(err[0].startswith(pair[0].pid + ": "), f"{way}: {err}")
        expect(out == [f"{pair[1].pid}: 3.0 MiB freed: 1.0 MiB to be reread from files, 1.0 MiB to be computed again, 1.0 MiB kept "
                       "outside of the device, 0 bytes zeros"], f"{way}: {out}")
        expect(seconds < 20 * TIMEOUT_S, f"{way}: {seconds} s")


def check_other_user(place):
    """Who names the job, and a socket: not asked, and nothing of it is shown."""
    if os.geteuid() != 0:
        print("# not as root: there is no other user")
        return
    os.chmod(place, 0o777)
    one, own = Process(place, "what a terminal obeys", JOB, user=OTHER_USER), Process(place, "good", JOB)
    status, out, err, _ = metashard("suspend", JOB)
    expect(status == 0 and len(out) == 1 and not err, f"{status}, {out}, {err}")
    status, out, err, _ = metashard("suspend", one.pid)
    expect(status == 1 and not out and err == [f"{one.pid}: is not a process of this user"], f"{status}, {out}, {err}")
    asked = one.end()
    expect(own.end() and not asked, "the other user's process was asked, or the own was not")


def check_other_process(place):
    """A process whose environment names the socket of another one: of the same user, and of another."""
    users = [""] + ([OTHER_USER] if os.geteuid() == 0 else [])
    os.chmod(place, 0o777)
    for user in users:
        other = Process(place, "good", "another-job", user=user)
        one = Process(place, "good", JOB, named=other.path)
        status, out, err, _ = metashard("suspend", JOB)
        expect(status == 1 and not out and len(err) == 1 and "socket of another process" in err[0], f"{status}, {out}, {err}")
        asked = other.end()
        expect(not asked and not one.end(), "it was asked")


def check_full(place):
    """A socket whose queue is full, as of a process that is stopped."""
    path = os.path.join(place, "full")
    code = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(0); print('ready', flush=True); " \
           "c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, env={"METASHARD_CONTROL": path}) as one:
        one.stdout.readline()
        status, out, err, _ = metashard("resume", str(one.pid))
        one.kill()
    expect(status == 1 and not out and "too many clients wait there" in "".join(err), f"{status}, {out}, {err}")


def check_json(place):
    """One document, also of processes that could not."""
    pair = [Process(place, "good", JOB), Process(place, "what a terminal obeys, for figures", JOB)]
    status, out, err, _ = metashard("suspend", JOB, "--json")
    told = json.loads("".join(out))
    good, bad = sorted(told.pop("processes"), key=lambda said: not said["done"])
    expect((status, err, told) == (1, [], {"format": "metashard-suspend/1"}), f"{status}, {err}, {told}")
    expect(good == {"pid": int(pair[0].pid), "done": True, **FIGURES}, f"{good}")
    expect((bad["pid"], bad["done"]) == (int(pair[1].pid), False) and bad["error"].endswith("?[2J"), f"{bad}")
    expect(all(one.end() for one in pair), "one of the two was not asked")


def check_arguments(place):
    one = Process(place, "good", JOB)
    for to in ("a\nresume", "a\x1b[31m\n"):
        status, out, err, _ = metashard("suspend", one.pid, "--to", to)
        expect(status == 1 and not out and "a request is one line" in err[0], f"{to!r}: {status}, {out}, {err}")
    status, out, err, _ = metashard("suspend", "\x1b[31mjob")
    expect(status == 1 and "?[31mjob is neither a process nor a job" in err[0], f"{status}, {out}, {err}")
    expect(not one.end(), "it was asked")


def main():
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    checks = (check_answers, check_other_user, check_other_process, check_full, check_json, check_arguments)
    for check in [check for check in checks if not sys.argv[1:] or check.__name__.removeprefix("check_") in sys.argv[1:]]:
        place = tempfile.mkdtemp(prefix="client-")
        run(check.__name__.removeprefix("check_"), check, place)
        shutil.rmtree(place)
    return end()


if __name__ == "__main__":
    sys.exit(main())
