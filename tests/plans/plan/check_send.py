#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_send.py TOOL: metashard-plan send, against small servers. TAP."""
import os
import select
import socket
import sys
import tempfile
import threading

from check_plan import Plans

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, expect, run  # noqa: E402

PLAN = {"format": "metashard-plan/1", "world_size": 2, "tensors": [{"name": "*"}]}
LARGE = dict(PLAN, tensors=[{"name": f"a{i:0200}"} for i in range(20000)])  # more than a socket buffers


class Server:
    """Takes one client and answers as `serve(client)` does; `got` is what it read, None: nobody came."""

    def __init__(self, path, serve):
        self.got = None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(path)
        self.socket.listen(1)
        self.socket.settimeout(20)
        self.thread = threading.Thread(target=self.run, args=(serve,))
        self.thread.start()

    def run(self, serve):
        try:
            client, _ = self.socket.accept()
        except OSError:
            return
        with client:
            client.settimeout(20)
            self.got = serve(client)

    def close(self):
        """Returns what was read."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()
        return self.got


def read_plan(client):
    """The first line, then as many bytes as it says."""
    stream = client.makefile("rb")
    head = stream.readline()
    return head + stream.read(int(head.split()[1]))


def answering(*pieces):
    def serve(client):
        got = read_plan(client)
        for piece in pieces:
            client.sendall(piece)
        return got
    return serve


def refusing(answer, takes=0, waits=False):
    """Answers before the plan is read; keeps the connection or closes it."""
    def serve(client):
        got = client.recv(takes) if takes else b""
        client.sendall(answer)
        if waits:
            gone = select.poll()
            gone.register(client, 0)
            got = b"" if gone.poll(10000) else b"it still sends"
        return got
    return serve


def silent(first=b"", takes=True):
    """Answers nothing but `first`, as long as the client is there; `takes`: reads the plan."""
    def serve(client):
        got = read_plan(client) if takes else b""
        client.sendall(first)
        gone = select.poll()
        gone.register(client, 0)
        return got if gone.poll(15000) else b"it still waits"
    return serve


def send(plans, serve, plan=PLAN, *options):
    """(exit status, stdout, stderr, what the server got, the path of the socket)"""
    path = plans.path("socket")
    if os.path.exists(path):
        os.remove(path)
    server = Server(path, serve)
    try:
        done = plans.run("send", plans.write("plan.json", plan), "--to", path, *options)
    finally:
        got = server.close()
    return (*done, got, path)


def check_answers(plans):
    with_line_end = b'{"format": "metashard-plan/1", "world_size": 1, "tensors": []}\n\n'
    for plan in (PLAN, with_line_end, LARGE):
        status, out, error, got, _ = send(plans, answering(b"ok 3 tensors\n"), plan)
        with open(plans.path("plan.json"), "rb") as file:
            text = file.read()
        expect((status, out, error) == (0, "ok 3 tensors\n", ""), f"{status} {out} {error}")
        expect(got == b"plan %d\n%s" % (len(text), text), f"{got[:100]}, {len(got)} bytes")
    for pieces, wanted in (((b"error not now\n",), (1, "error not now\n")), ((b"ok\n",), (0, "ok\n")),
                           ((b"o", b"k 1", b" 2\n"), (0, "ok 1 2\n")), ((b"error\n",), (1, "error\n")),
                           ((b"ok one\nok two\n",), (0, "ok one\n")),
                           ((b"error a\x1b[2J\xc2\x85b\\\n",), (1, "error a\\u001b[2J\\u0085b\\\n")),
                           ((b"ok " + b"x" * 60000 + b"\n",), (0, "ok " + "x" * 60000 + "\n"))):
        status, out, error, _, _ = send(plans, answering(*pieces))
        expect((status, out, error) == (*wanted, ""), f"{pieces[0][:50]}: {status} {out[:100]} {error}")
        status, out, error, _, _ = send(plans, answering(*pieces), PLAN, "--quiet")
        expect((status, out, error) == (wanted[0], "", wanted[1] if wanted[0] else ""), f"--quiet: {pieces[0][:50]}: {status} {out[:100]} {error}")


def check_early_answers(plans):
    """The server need not read the plan to refuse it."""
    for serve in (refusing(b"error too large\n"), refusing(b"error too large\n", 10),
                  refusing(b"error too large\n", waits=True)):
        for plan in (PLAN, LARGE):
            status, out, error, got, _ = send(plans, serve, plan)
            expect((status, out, error) == (1, "error too large\n", ""), f"{status} {out} {error}")
            expect(len(got) <= 10, got)


def check_bad_answers(plans):
    for serve in (answering(), answering(b"ok"), answering(b"okay\n"), answering(b"\n"), answering(b"OK\n"),
                  answering(b" ok\n"), answering(b"errors\n"), answering(b"x" * 70000 + b"\n"),
                  answering(b"ok\0yes\0"), refusing(b""), refusing(b"", 10)):
        for plan in (PLAN, LARGE):
            status, out, error, _, path = send(plans, serve, plan)
            expect(status == 1 and out == "" and error.startswith(path + ": ") and error.count("\n") == 1,
                   f"{status} {out[:100]} {error}")


def check_silence(plans):
    """Also if a part of the answer came, or the plan is not taken."""
    for serve, plan in ((silent(), PLAN), (silent(b"ok 3"), PLAN), (silent(takes=False), LARGE)):
        status, out, error, got, path = send(plans, serve, plan, "--timeout", "1")
        expect((status, out, error) == (1, "", path + ": no answer within --timeout; the plan may still be taken\n"),
               f"{status} {out} {error}")
        expect(got != b"it still waits", "it waits for more than 15 s")


def check_full_queue(plans):
    path = plans.path("full")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            first.connect(path)
            status, out, error = plans.run("send", plans.write("plan.json", PLAN), "--to", path, "--timeout", "1")
    expect((status, out, error) == (1, "", path + ": too many clients wait there\n"), f"{status} {out} {error}")


def check_no_server(plans):
    plan = plans.write("plan.json", PLAN)
    unheard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unheard.bind(plans.path("unheard"))
    for path in (plans.path("none"), plan, plans.folder, plans.path("unheard"), plans.path("long" * 40), ""):
        status, out, error = plans.run("send", plan, "--to", path)
        expect(status == 1 and out == "" and error.startswith(path + ": ") and error.count("\n") == 1,
               f"{path}: {status} {out} {error}")
    unheard.close()


def check_bad_plans(plans):
    """Nobody is even asked."""
    for plan, place in ((b"", ":1:"), (b"{", ":1:"), (dict(PLAN, world_size=0), ": world_size: "),
                        (dict(PLAN, tensors=[{"name": "a\\"}]), ": tensors[0].name: ")):
        status, out, error, got, _ = send(plans, answering(b"ok\n"), plan)
        expect(status == 1 and out == "" and error.startswith(plans.path("plan.json") + place) and
               error.count("\n") == 1 and got is None, f"{status} {out} {error} {got}")
    for path in (plans.path("none.json"), plans.folder):
        status, out, error = plans.run("send", path, "--to", plans.path("none"))
        expect(status == 1 and out == "" and error.startswith(path + ": ") and error.count("\n") == 1,
               f"{status} {out} {error}")


def main():
    tests = [check_answers, check_early_answers, check_bad_answers, check_silence, check_full_queue, check_no_server, check_bad_plans]
    with tempfile.TemporaryDirectory(prefix="plan-send-") as folder:
        plans = Plans(os.path.abspath(sys.argv[1]), folder)
        for test in tests:
            run(test.__name__[6:].replace("_", " "), test, plans)
    return end()


if __name__ == "__main__":
    sys.exit(main())
