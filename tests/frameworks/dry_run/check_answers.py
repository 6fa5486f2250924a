#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_answers.py: what `metashard dry-run` does without PyTorch: reads histories of an allocator, answers queries of a store,
names what it cannot do. TAP."""
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
import urllib.error

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "tools", "python")
sys.path[:0] = [PACKAGE, os.path.join(PACKAGE, "metashard", "dry_run_inside")]

import metashard_dry_curve as curve  # noqa: E402
import metashard_dry_failure as failure  # noqa: E402
import metashard_dry_generation as generation  # noqa: E402
from metashard import dry_run, dry_run_answer, dry_run_page, dry_run_store  # noqa: E402
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from processes import is_there  # noqa: E402
from tap import end, equal  # noqa: E402

GIB = 1 << 30
SECONDS = 60


def entry(time, action, address, gibibytes, line=1):
    return {"time_us": time, "action": action, "addr": address, "size": gibibytes * GIB,
            "frames": [{"filename": "/x/torch/a.py", "line": 9}, {"filename": "train.py", "line": line}]}


# One step: weights, an activation that backward frees, a temporary of forward, a gradient, a state.
HISTORY = [entry(1, "segment_alloc", 0, 100), entry(2, "alloc", 0, 10, line=1), entry(11, "alloc", 20 * GIB, 20, line=2),
           entry(12, "alloc", 50 * GIB, 5, line=3), entry(13, "free_requested", 50 * GIB, 5),
           entry(21, "alloc", 60 * GIB, 10, line=4), entry(22, "free_requested", 20 * GIB, 20),
           entry(23, "free_completed", 20 * GIB, 20), entry(31, "alloc", 80 * GIB, 8, line=5), entry(41, "segment_alloc", 0, 1)]
MARKS = [(0, curve.BUILD, 1), (10, curve.FORWARD, 1), (20, curve.BACKWARD, 1), (25, curve.FORWARD, 1), (30, curve.OPTIMIZER, 1),
         (40, curve.FORWARD, 2)]
LABELS = [(30, {0: curve.WEIGHTS, 60 * GIB: curve.GRADIENTS})]


def check_curve():
    read = curve.read(HISTORY, MARKS, LABELS)
    equal("the peaks", (read["peak_reserved"], read["peak_allocated"]), (101 * GIB, 40 * GIB))
    equal("the phase and the step of the peak", (read["peak_phase"], read["peak_step"]), (curve.BACKWARD, 1))
    equal("the kinds of memory at the peak", read["kinds"],
          {curve.WEIGHTS: 10 * GIB, curve.ACTIVATIONS: 20 * GIB, curve.GRADIENTS: 10 * GIB})
    equal("the line that has most", (read["places"][0]["place"], read["places"][0]["bytes"]), ("train.py:2", 20 * GIB))
    equal("the peak of each phase", {row["phase"]: row["allocated"] // GIB for row in read["phases"]},
          {curve.BUILD: 10, curve.FORWARD: 35, curve.BACKWARD: 40, curve.OPTIMIZER: 28, "later steps": 28})
    guessed = curve.read(HISTORY, MARKS, [])
    equal("phases tell the kinds without labels", guessed["kinds"],
          {curve.WEIGHTS: 10 * GIB, curve.ACTIVATIONS: 20 * GIB, curve.GRADIENTS: 10 * GIB})
    equal("no history is no answer", curve.read([], [], []), None)


def text(data):
    return struct.pack("<q", len(data)) + data


def check_store():
    child, port = dry_run_store.start()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            answers = client.makefile("rb")
            client.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + struct.pack("<I", 77))
            equal("a ping", struct.unpack("<I", answers.read(4))[0], 77)
            client.sendall(b"\1" + text(b"/metashard/world") + text(b"8") + b"\1" + text(b"/own") + text(b"value"))
            client.sendall(b"\4" + text(b"/count") + struct.pack("<q", 1))
            equal("all ranks add", struct.unpack("<q", answers.read(8))[0], 8)
            client.sendall(b"\3" + text(b"/own"))
            equal("a value of this rank", answers.read(13), text(b"value"))
            client.sendall(b"\3" + text(b"/another"))
            equal("a value of another rank", answers.read(136), text(bytes(128)))
            client.sendall(b"\1" + text(b"/gathered/3") + text(b"mine") + b"\3" + text(b"/gathered/5"))
            equal("under the number of another rank, what this one has", answers.read(12), text(b"mine"))
            client.sendall(b"\5" + struct.pack("<q", 2) + text(b"/own") + text(b"/another"))
            equal("a value that is not there yet", answers.read(1), b"\1")
            client.sendall(b"\6" + struct.pack("<q", 1) + text(b"/another"))
            equal("nobody waits", answers.read(1), b"\0")
        for name, query in (("a length that is negative", b"\3" + struct.pack("<q", -1)),
                            ("a length that is too great", b"\3" + struct.pack("<q", (64 << 20) + 1)),
                            ("keys that are too many", b"\5" + struct.pack("<q", (128 << 10) + 1)),
                            ("texts that are too long together", b"\2" + 2 * text(b"key") + struct.pack("<q", 64 << 20)),
                            ("a number that is none", b"\1" + text(b"/word") + text(b"two") + b"\4" + text(b"/word") + bytes(8)),
                            ("a query that does not exist", b"\x7f")):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(query)
                equal(f"{name} ends the connection", client.recv(8), b"")
    finally:
        dry_run_store.stop(child)


def check_store_is_bounded():
    kept = dry_run_store.Values()
    for number in range(16):
        value = bytes((64 << 20) - dry_run_store.ENTRY_BYTES - 2)
        kept.set(f"{number}", value)
        kept.set(f"{number}", value)
    seen = []
    for store in (kept.set, kept.push):
        try:
            store("more", bytes(64))
        except ValueError:
            seen.append("refused")
    kept.drop("3")
    kept.push("more", bytes(64))
    equal("a store that is full takes no more", (seen, kept.pop("more")), (["refused", "refused"], bytes(64)))


def run(*arguments, paths=()):
    done = subprocess.run([sys.executable, "-m", "metashard", "dry-run", *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": ":".join([*paths, PACKAGE]), "PYTHONDONTWRITEBYTECODE": "1"})
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def check_bad_input():
    equal("no such GPU", run("--gpu", "abacus", "--", "python")[1].split(";")[0], "metashard: --gpu abacus: no such GPU")
    equal("no command", run("--world", "8")[0], 2)
    equal("no such rank", "no rank 8 of 8" in run("--world", "8", "--rank", "8", "--", "python")[1], True)
    equal("no such program", run("--", "no-such-program")[1], "metashard: cannot say: no-such-program: no such program in PATH")
    equal("no such script", run("--", "python3", "no-such-script.py")[1], "metashard: cannot say: no-such-script.py: no such program")
    for name in ("deepspeed", "srun", "mpirun"):
        equal(f"{name} starts ranks by itself", run("--", name, "train.py")[1].split(",")[0],
              f"metashard: cannot say: {name} starts ranks by itself")


def error_of(function):
    """The function's exception, as it would reach the end of a program, or None."""
    try:
        function()
    except Exception as error:
        return error
    return None


def fails_of_network():
    try:
        raise socket.gaierror(-2, "Name or service not known")
    except socket.gaierror as error:
        raise OSError("no such model") from error


def fails_of_memory():
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate")


def check_failures():
    class GatedRepoError(Exception):
        pass
    cases = [("data", FileNotFoundError(2, "No such file", "train.bin"), "wants data that are not here"),
             ("the network", urllib.error.URLError("refused"), "wants the network"),
             ("the network behind another error", error_of(fails_of_network), "wants the network"),
             ("a token", GatedRepoError("no access"), "wants a model or a token"),
             ("the machine's memory", error_of(fails_of_memory), "own memory is too small"),
             ("a compiler", OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
              "wants CUDA's compiler"),
             ("a package", ModuleNotFoundError("No module named 'tiktoken'"), "a package that the program needs"),
             ("anything else", ValueError("no\nsense"), "the program failed with ValueError: no")]
    for name, error, wanted in cases:
        equal(f"a line for {name}", (wanted in failure.reason(error), "\n" in failure.reason(error)), (True, False))


def check_releases():
    """A PyTorch of which the package's version alone is read."""
    for cuda, wanted in (("'12.8'", "built for CUDA 12.8, and the stand-ins are for CUDA 13"), ("None", "built without CUDA")):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "torch"))
            for name, text in (("__init__.py", ""), ("version.py", f"__version__ = '2.9.0'\ncuda = {cuda}\n")):
                with open(os.path.join(folder, "torch", name), "w", encoding="utf-8") as file:
                    file.write(text)
            line = run("--", "python3", "-c", "", paths=[folder])[1]
            equal(f"a release without a stand-in: CUDA {cuda}", wanted in line, True)


class Sequences:
    is_cuda = True

    def __init__(self, length):
        self.shape = (2, length)


def check_generation():
    """Loops of which the device says that they have ended, or not, whatever is so."""
    class GenerationMixin:
        def _has_unfinished_sequences(self, is_finished):
            return not is_finished

    class StoppingCriteriaList(list):
        max_length = 8

        def __call__(self, ids):
            return ids
    os.environ["SIMCUDA_DRY"] = "1"
    generation.change(types.SimpleNamespace(GenerationMixin=GenerationMixin, StoppingCriteriaList=StoppingCriteriaList))

    def length(says, most=8):
        model, criteria, ids, says = GenerationMixin(), StoppingCriteriaList(), 3, iter([False, *says])
        criteria.max_length = most
        while model._has_unfinished_sequences(next(says)):
            ids += 1
            criteria(Sequences(ids))
        return ids
    found = [length([says] * 9) for says in (True, False, True)]
    equal("generation goes on to its greatest length", found, [8, 8, 8])
    equal("generation without one goes on to where the device says", length([False, True], None), 5)


def check_text():
    answer = {"status": 1, "reason": "the command failed", "total": 80 * GIB, "outside": GIB, "device": "a GPU", "rank": "0",
              "world": "8", "steps": 0, "peak_reserved": 78 * GIB, "peak_allocated": 77 * GIB,
              "shortages": [{"wanted": 4 * GIB, "free": GIB, "phase": "forward", "step": 1, "lines": ["train.py:3 y = f(x)"]}]}
    lines = dry_run_answer.text({"as it is": answer})
    equal("the answer tells where and by how much a run does not fit",
          "does NOT fit" in lines and "3.00 GiB missing, in forward of step 1" in lines and "train.py:3" in lines, True)


def check_notes():
    """An answer says how narrowly a job fits, and where numbers that nobody computed decided."""
    answer = {"status": 0, "reason": None, "total": 80 * GIB, "outside": GIB, "device": "a GPU", "rank": "0", "world": "8", "steps": 3,
              "peak_reserved": 70 * GIB, "peak_allocated": 60 * GIB, "driver": {"unknown_reads": 7},
              "reads": [{"place": "train.py:9", "times": 7}], "choices": [{"place": "train.py:8", "elements": 4096}]}
    wide, narrow = (dry_run_answer.text({"as it is": {**answer, "peak_reserved": peak * GIB}}) for peak in (70, 77))
    equal("a run that fits narrowly", ("fits (" in wide, "it may not fit there" in wide, "fits narrowly (" in narrow,
                                       "it may not fit there" in narrow), (True, False, True, True))
    equal("the answer tells where numbers were read", "train.py:9 (7)" in wide, True)
    equal("the answer tells which masks decided a size", "all true" in wide and "train.py:8 (4096)" in wide, True)


def check_ways():
    read = curve.read(HISTORY, MARKS, LABELS)
    answer = {"status": 0, "reason": None, "total": 160 * GIB, "outside": GIB, "device": "a <GPU>", "rank": "0", "world": "1", "steps": 1,
              "driver": {"launches": 10, "empty_launches": 4}, **read}
    lines = dry_run_answer.text({"as it is": answer, "expandable segments": {**answer, "peak_reserved": 90 * GIB}})
    equal("side by side", [line.split()[2::2] for line in lines.splitlines() if line.startswith("    peak reserved")],
          [["101.00", "90.00"]])
    equal("how much was computed", "of 10 launches 6 were computed" in lines, True)
    seen = [dry_run_answer.text({"as it is": answer, "with MetaShard": {**answer, "driver": {"launches": 10, "empty_launches": empty}}})
            for empty in (4, 10)]
    equal("under MetaShard, which counts can differ, and that more would be deferred on a GPU",
          [(text.count("PyTorch's counts include"), text.count("MetaShard recorded no kernel")) for text in (lines, *seen)],
          [(0, 0), (1, 0), (1, 1)])
    page = dry_run_page.text({"as it is": answer})
    equal("the page has the curve, the phases, the device and the words",
          [part in page for part in ("<svg", "backward 1", "the device, without", "a &lt;GPU&gt;", "101.00 GiB")], [True] * 5)
    equal("a page without a history", "There is no curve" in dry_run_page.text({"as it is": {**answer, "curve": []}}), True)
    equal("expandable segments, beside what the user set",
          [dry_run.allocator_of({name: value}) for name, value in
           (("X", ""), ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:False"))],
          [{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
           {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}])


LAUNCHER = """trap '' TERM
setsid sh -c "trap '' TERM INT; echo \\$\\$ > %s.part; mv %s.part %s; sleep 1000; sleep 1000" & wait; exit 1"""


def pid_in(path):
    until = time.monotonic() + SECONDS
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.02)
    with open(path, encoding="ascii") as file:
        return int(file.read())


def check_stopped(folder):
    """Ctrl-C, which a terminal sends to all of its group, when a launcher has a rank in a session of its own, which does not hear it."""
    path, said = os.path.join(folder, "rank"), os.path.join(folder, "said")
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        dry_run.environment_of = lambda *_: dict(os.environ)
        os._exit(dry_run.main(["--", "sh", "-c", LAUNCHER % (path, path, path)]))
    rank = pid_in(path)
    os.killpg(child, signal.SIGINT)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(said, encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if "ended by SIGINT: --steps" in line]
    equal("Ctrl-C ends all ranks, with a line: exit status 2", (status, is_there(rank), len(lines)), (2, False, 1))


check_curve()
check_ways()
check_store()
check_store_is_bounded()
check_bad_input()
check_failures()
check_releases()
check_generation()
check_text()
check_notes()
with tempfile.TemporaryDirectory() as shared:
    check_stopped(shared)
sys.exit(end())
