# SPDX-License-Identifier: Apache-2.0
"""METASHARD_CONTROL: what may be said to the socket, by whom, and what comes of it. Never a hang, and the program
has the bytes of its files whatever is said."""
import json
import os
import socket
import stat
import struct
import time

from workplace import Control, Run, check_memory, expect, is_error, is_ok, ranges_of, wait_until

RANK, WORLD = 1, 4
ANSWER_S = 10  # that another client may take at most
CLIENTS, PATIENCE_S = 32, 10  # of the socket (runtime/control/control_internal.h)


class Session:
    """A client of the driver that has loaded everything, and waits."""

    def __init__(self, place, checkpoint, made, options=(), path=None, **settings):
        self.place, self.checkpoint, self.made = place, checkpoint, made
        self.ranges = ranges_of(made, checkpoint, RANK)
        self.pattern = path or place.path("control-%p")
        listed = ["--ranges", place.write_ranges(self.ranges)]
        self.run = Run(place, checkpoint, RANK, WORLD, ["--wait", *listed, *options],
                       METASHARD_CONTROL=self.pattern, **settings).until_ready()
        self.path = self.pattern.replace("%p", str(self.run.process.pid))

    def connect(self):
        return Control(self.path, ANSWER_S)

    def status(self):
        answer = self.connect().send(b"status\n").answer()
        expect(is_ok(answer), f"status: expected 'ok ...', found {answer!r}\n{self.run.said}")
        return answer

    def finish(self, planned=None):
        """planned: whether the plan must be at work."""
        self.run.finish().values()
        expect(not os.path.lexists(self.path), f"{self.path} is still there after the end of the program")
        if planned:
            check_memory(self.run, self.ranges)
        if planned is False:
            seen = self.run.dump.get("plan") or {}
            expect(not seen.get("tensors"), f"a plan is at work: {seen}\n{self.run.said}")
        return self.run


def check_place(place, checkpoint, made):
    """A socket for its owner alone, there while the program runs, with a process id in its name or without."""
    for path in (place.path("control-%p"), place.path("control")):
        session = Session(place, checkpoint, made, path=path)
        mode = os.lstat(session.path).st_mode
        expect(stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600,
               f"{session.path}: mode {mode:o}, expected a socket with 600")
        session.status()
        session.finish(False).is_silent()


def as_another_user(talk):
    """The function's result, 0 to 255, when a user who owns nothing calls the function."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setgid(65534)
            os.setuid(65534)
            status = talk()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_other_user(place, checkpoint, made):
    """Another user cannot connect, nor, where somebody has changed the mode, say anything. Where this one may not
    become another, nothing is tested."""
    session = Session(place, checkpoint, made)

    def talk():
        try:
            control = Control(session.path, 5)
        except PermissionError:
            return 0
        return 1 if is_ok(control.plan(made)) else 2
    if os.getuid() == 0:
        os.chmod(place.folder, 0o755)
        status = as_another_user(talk)
        expect(status == 0, f"another user could connect, or failed in another way than by permission ({status})")
        os.chmod(session.path, 0o666)
        status = as_another_user(talk)
        expect(status == 2, f"another user, with mode 666: {status}, expected 2: connected, and no plan is taken")
        session.status()
    session.finish(False)


def check_plan(place, checkpoint, made):
    """A plan in one piece, in many, with the command in a packet of its own; one client after the other."""
    text = json.dumps(made, indent=1).encode()
    whole = b"plan %d\n" % len(text) + text
    for pieces in ([whole], [whole[:3], whole[3:9], whole[9:]], [bytes([byte]) for byte in whole],
                   [whole[:-len(text)], text]):
        session = Session(place, checkpoint, made, METASHARD_PLAN_MODE="enforce")
        control = session.connect()
        control.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for piece in pieces:
            control.send(piece)
        answer = control.answer()
        expect(is_ok(answer), f"expected 'ok ...', found {answer!r}")
        session.status()
        session.finish(True).is_silent()


def check_garbage(place, checkpoint, made):
    """The answer to bytes that are no command, or no plan, is 'error ...'; the next command is understood."""
    session = Session(place, checkpoint, made)
    text = json.dumps(made).encode()
    for said in (b"hello\n", b"\n", b"\0\n", b"plan\n", b"plan x\n", b"plan -1\n", b"plan 99999999999999999999999\n",
                 b"plan 0\n", b"plan 5\n{\"a\":", b"plan 12 x\n{\"format\": 1}", b"plan 3\n{}}", b"status now\n",
                 b"PLAN %d\n" % len(text) + text, b"plan %d\n" % (len(text) - 1) + text, bytes(range(256)) * 64,
                 b"x" * (1 << 20)):
        control = session.connect().send(said)
        try:
            control.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed on the other side
        answer = control.answer()
        control.close()
        expect(is_error(answer) or answer == "" and len(said) > 4096,
               f"{said[:40]!r}: expected 'error ...', found {answer!r}")
        session.status()
    run = session.finish(False)
    expect(len(run.lines) <= 16, f"{len(run.lines)} lines are said, expected one at most for each")


def check_too_big(place, checkpoint, made):
    """More than a plan may have is refused before it is sent."""
    session = Session(place, checkpoint, made)
    for size in ((256 << 20) + 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1):
        answer = session.connect().send(b"plan %d\n" % size).answer()
        expect(is_error(answer), f"a plan of {size} bytes: expected 'error ...', found {answer!r}")
    session.status()
    session.finish(False)


def check_half(place, checkpoint, made):
    """Clients that go away in the middle, at every place of a message, orderly or not."""
    text = json.dumps(made).encode()
    whole = b"plan %d\n" % len(text) + text
    session = Session(place, checkpoint, made)
    for at in (0, 1, 4, 5, 6, 8, 9, 20, len(whole) // 2, len(whole) - 1):
        for reset in (False, True):
            control = session.connect().send(whole[:at])
            if reset:
                control.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            control.close()
    control = session.connect().send(whole)  # all of it, and does not wait for the answer
    control.close()
    session.status()
    session.finish()


def check_silent(place, checkpoint, made):
    """Clients that say nothing, or half of something, and stay, do not hold up others, nor the end."""
    text = json.dumps(made).encode()
    session = Session(place, checkpoint, made)
    silent = [session.connect(), session.connect().send(b"pl"), session.connect().send(b"plan 100000\n{"),
              session.connect().send(b"plan %d\n" % len(text) + text[:-1])]
    answer = session.connect().plan(made)
    expect(is_ok(answer), f"a plan next to {len(silent)} silent clients: expected 'ok ...', found {answer!r}")
    session.status()
    session.finish(True)
    for control in silent:
        control.close()


def check_full(place, checkpoint, made):
    """More clients than there is room for are refused, and those that say nothing for 10 s are dropped."""
    session = Session(place, checkpoint, made)
    silent = [session.connect() for _ in range(CLIENTS)]
    refused = session.connect()
    answer = refused.send(b"status\n").answer()
    expect("too many connections" in answer, f"client {CLIENTS + 1}: {answer!r}")
    for control in silent:
        control.socket.settimeout(PATIENCE_S + 20)  # on a machine that is busy
        expect(control.socket.recv(1) == b"", "a client that says nothing is answered")
    session.status()
    session.finish(False)


def check_two(place, checkpoint, made):
    """Two at once: both are answered, and the later plan is in force."""
    session = Session(place, checkpoint, made)
    other, text = json.dumps({**made, "rank": 3}).encode(), json.dumps(made).encode()
    first, second = session.connect(), session.connect()
    first.send(b"plan %d\n" % len(other) + other[:100])
    second.send(b"plan %d\n" % len(text) + text[:100])
    first.send(other[100:])
    answer = first.answer()
    expect(is_ok(answer), f"the first: expected 'ok ...', found {answer!r}")
    second.send(text[100:])
    answer = second.answer()
    expect(is_ok(answer), f"the second: expected 'ok ...', found {answer!r}")
    seen = session.finish().dump["plan"]
    expect(seen["rank"] == RANK, f"rank {seen['rank']} of the first plan, expected {RANK} of the second")


def check_bad_plans(place, checkpoint, made):
    """A plan that the tensors contradict, and one of another world."""
    session = Session(place, checkpoint, made)
    for wrong in ({**made, "mesh": {"dp": 5}}, {**made, "tensors": [{"nmae": "x"}]}):
        answer = session.connect().plan(wrong)
        expect(is_error(answer), f"{wrong}: expected 'error ...', found {answer!r}")
        expect("5" in answer or "nmae" in answer, f"{answer!r}: expected what is wrong")
    session.status()
    session.finish(False)


def check_occupied(place, checkpoint, made):
    """A path that cannot be a socket: one line, and what is there stays. A socket that a dead process left is replaced."""
    ordinary = place.write(b"keep me")
    folder = place.path("a-folder")
    os.makedirs(folder, exist_ok=True)
    ranges = place.write_ranges(ranges_of(made, checkpoint, RANK))
    for path in (ordinary, folder, place.path("no-folder/control"), place.path("x" * 200)):
        run = place.run(checkpoint, RANK, WORLD, ["--ranges", ranges], METASHARD_CONTROL=path)
        run.values()
        expect(len(run.lines) == 1 and path[:60] in run.lines[0], f"{path}: expected one line, found {run.lines}")
    with open(ordinary) as file:
        expect(file.read() == "keep me", f"{ordinary} was changed")
    left = place.path("left-behind")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(left)
    session = Session(place, checkpoint, made, path=left)
    session.status()
    session.finish(False)


def check_taken(place, checkpoint, made):
    """Two programs with one path: the first keeps it, or the second has it; both run."""
    path = place.path("shared")
    first = Session(place, checkpoint, made, path=path)
    second = Session(place, checkpoint, made, path=path)
    first.status()
    second.run.finish().values()
    first.run.finish().values()


def check_fork(place, checkpoint, made):
    """A child that ends does not take the socket with it."""
    session = Session(place, checkpoint, made, options=["--fork"])
    session.status()
    answer = session.connect().plan(made)
    expect(is_ok(answer), f"expected 'ok ...', found {answer!r}")
    session.finish(True).is_silent()


def check_while_loading(place, checkpoint, made):
    """A plan that comes while the program copies: in force at the end, wherever it met the program."""
    for number in range(4):
        path = place.path(f"early-{number}")
        ranges = ranges_of(made, checkpoint, RANK)
        run = Run(place, checkpoint, RANK, WORLD, ["--wait", "--pieces", 4, "--ranges", place.write_ranges(ranges)],
                  METASHARD_CONTROL=path)
        wait_until(lambda path=path: is_listening(path), path)
        time.sleep(number * 0.005)
        answer = Control(path, ANSWER_S).plan(made)
        expect(is_ok(answer), f"expected 'ok ...', found {answer!r}")
        run.until_ready()
        expect(is_ok(Control(path, ANSWER_S).plan(made)), "the same plan again, for what was loaded behind it")
        run.finish().values()
        check_memory(run, ranges)


def is_listening(path):
    try:
        Control(path).close()
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False


def check_storm(place, checkpoint, made):
    """Plans of all ranks, one after the other, while the program loads and reads: advice, whatever it says."""
    everything = {tensor.name: [[begin, min(begin + 30000, tensor.bytes())] for begin in
                                range(0, tensor.bytes(), 30000)] for tensor in checkpoint.tensors}
    ranges, answers = place.write_ranges(everything), []
    for options in ([], ["--carve", "--twice"], ["--kernel", place.kernels], ["--pieces", 3, "--reload"]):
        path = place.path(f"storm-{len(answers)}")
        run = Run(place, checkpoint, RANK, WORLD, ["--ranges", ranges, "--wait", *options], METASHARD_CONTROL=path,
                  METASHARD_LOG="error")
        wait_until(lambda path=path: is_listening(path), path)
        for rank in range(20):
            if rank == 10:
                run.until_ready().go_on()
            try:
                answers.append(Control(path, ANSWER_S).plan({**made, "rank": rank % WORLD}))
            except OSError:
                break  # the end of the program
        run.finish().values()
        run.is_silent()
    taken = sum(map(is_ok, answers))
    expect(taken >= 40, f"{taken} plans were taken, expected 10 of each program at least")


TESTS = [("its place and its mode", check_place), ("another user", check_other_user), ("a plan", check_plan),
         ("garbage", check_garbage), ("more than a plan may have", check_too_big), ("half a message", check_half),
         ("clients that say nothing", check_silent), ("as many clients as there can be", check_full),
         ("two clients", check_two), ("bad plans", check_bad_plans),
         ("a path that is occupied", check_occupied), ("two programs, one path", check_taken),
         ("a child that ends", check_fork), ("while the program loads", check_while_loading),
         ("a storm of plans", check_storm)]
