#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_fit.py: what `metashard fit` runs, answers and ends, with dry runs that are made up here. TAP."""
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import types

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "tools", "python")
sys.path.insert(0, PACKAGE)
from metashard import dry_run, fit, fit_run, fit_search  # noqa: E402
sys.path.insert(0, os.path.join(HERE, "..", "..", "harness"))
from processes import is_there  # noqa: E402
from tap import end, equal  # noqa: E402

GIB = 1 << 30
TOTAL = 80 * GIB
SECONDS = 60


def answer_of(gibibytes):
    """The answer for a job that needs so much, beside one GiB outside of the allocator."""
    fits = gibibytes + 1 <= 80
    shortages = [] if fits else [{"wanted": (gibibytes - 70) * GIB, "free": 9 * GIB, "phase": "forward", "step": 1, "lines": []}]
    return {"status": 0 if fits else 1, "reason": None, "total": TOTAL, "outside": GIB, "device": "a GPU", "rank": "0", "world": "1",
            "steps": 3, "peak_reserved": min(gibibytes, 79) * GIB, "peak_allocated": 0, "shortages": shortages}


# --- which runs a search makes

def searched(lengths, need):
    """The place that a search finds, the places that it ran, and whether they are in order; need: GiB that a place needs."""
    search = fit_search.Search(lengths, lambda place: answer_of(need(*place)))
    return search.find(), list(search.tried), search.is_ordered


def check_search():
    equal("a search of four values runs two or three", [searched([4], lambda at, most=most: 10 if at < most else 100)[:2] for most in range(5)],
          [(None, [(1,), (0,), (3,)]), ((0,), [(1,), (0,)]), ((1,), [(1,), (2,)]), ((2,), [(1,), (2,), (3,)]), ((3,), [(1,), (2,), (3,)])])
    for length in (1, 2, 3, 7, 8, 31, 32):
        found = [searched([length], lambda at, most=most: 10 if at < most else 100) for most in range(1, length + 1)]
        equal(f"a search of {length} values finds the last that fits, by halves", ([place for place, _, _ in found],
                                                                                   max(len(tried) for _, tried, _ in found)),
              ([(most,) for most in range(length)], length.bit_length()))


def check_order():
    """The earlier of two parameters comes first; the later one's least need decides whether a value of the earlier fits at all."""
    best, tried, _ = searched([3, 4], lambda world, batch: (world + 1) * (batch + 1) * 10)
    equal("the best of the first, then of the second", best, (2, 1))
    equal("and what is next to it was run, and does not fit", (2, 2) in tried, True)
    best, tried, _ = searched([4, 3], lambda batch, world: (world + 1) * (batch + 1) * 10)
    equal("the other way round", (best, len(tried) <= 5), ((3, 0), True))


def check_disorder():
    needs = [30, 20, 10, 40]
    equal("peaks that fall: all are run", searched([4], lambda at: needs[at])[0::2], ((3,), False))
    equal("values the wrong way round, of which the first does not fit", searched([4], lambda at: 100 - 30 * at)[0::2], ((3,), False))
    equal("nothing fits, either way round", searched([4], lambda at: 100)[0::2], (None, True))
    equal("a little less is no other order", searched([3], lambda at: 50 - at / 4)[2], True)


# --- the command, with dry runs of a function instead of a driver

def run_fit(job, *arguments):
    """The exit status, the JSON or None, and what was said. job(options): the answer of each dry run."""
    kept, dry_run.run_once = dry_run.run_once, lambda options, way: job(options)
    handlers = {number: signal.getsignal(number) for number in fit_run.STOPPING}
    out, error = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = fit.main(list(arguments))
    except SystemExit as end_:
        status = end_.code
    finally:
        dry_run.run_once = kept
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return status, json.loads(out.getvalue()) if out.getvalue() else None, error.getvalue()


def needs(options):
    """A GiB for each of a batch, shared by the ranks."""
    os.write(1, b"the program says\n")
    batch = int(options.command[-1].split("=")[-1])
    return answer_of(8 * 20 * batch // (options.world or 8))


COMMAND = ("--", "python3", "-c", "0", "batch={batch-size}")


def check_answers():
    status, _, said = run_fit(needs, "--vary", "batch-size=1,2,3,4,8", *COMMAND)
    equal("the largest that fits: exit status 0",
          (status, "metashard fit: batch-size=3 fits on a GPU: peak 61.00 GiB, 19.00 GiB left" in said), (0, True))
    rows = [re.split(r"  +", line.strip()) for line in said.splitlines() if line.startswith("  ")]
    equal("the table of what was tried", rows, [["batch-size", "peak", "left"], ["3", "61.00 GiB", "19.00 GiB", "fits", "<-"],
                                                ["4", "-", "-1.00 GiB", "does not fit"]])
    equal("a line for each run", [line for line in said.splitlines() if "dry run " in line],
          ["metashard: dry run 1 of at most 3: batch-size=3 ... fits, 19.00 GiB left",
           "metashard: dry run 2 of at most 3: batch-size=4 ... does not fit, 1.00 GiB missing"])
    status, found, _ = run_fit(needs, "--json", "--vary", "world=8,32,16", "--vary", "batch-size=4,8", *COMMAND)
    equal("the fewest ranks, in whatever order they stand", (status, found["answer"]["values"]), (0, {"world": "16", "batch-size": "4"}))
    equal("the answer as JSON", (found["answer"]["peak"], found["answer"]["left"], found["ordered"], found["reason"]),
          (41 * GIB, 39 * GIB, True, None))
    status, found, _ = run_fit(needs, "--json", "--vary", "batch-size=4,8", *COMMAND)
    equal("nothing fits: exit status 1", (status, found["answer"], [row["verdict"] for row in found["tried"]]),
          (1, None, ["does not fit"] * 2))
    status, found, said = run_fit(lambda options: {"status": 2, "reason": "the program wants the network"}, "--json",
                                  "--vary", "batch-size=1,2", *COMMAND)
    equal("no answer: exit status 2, with the reason", (status, found["reason"], len(found["tried"])),
          (2, "with batch-size=1: the program wants the network", 1))


def fails(options):
    os.write(1, b"the program says why\n")
    raise dry_run.installed.Fault("cannot say: no PyTorch")


def check_failures():
    status, _, said = run_fit(fails, "--vary", "batch-size=1,2", *COMMAND)
    equal("a dry run that cannot start", (status, "cannot say: with batch-size=1: no PyTorch" in said), (2, True))
    equal("the answer has what the program said last", "    the program says why\n" in said, True)
    equal("a program that has an answer is not shown", "the program says" in run_fit(needs, "--vary", "batch-size=1", *COMMAND)[2], False)
    status, _, said = run_fit(lambda options: os._exit(3), "--vary", "batch-size=1", *COMMAND)
    equal("a dry run that is killed", (status, "without an answer" in said), (2, True))


def check_bad_input():
    for name, arguments, wanted in (
            ("no values", COMMAND, "expected --vary"),
            ("no command", ("--vary", "a=1"), "expected a command"),
            ("values that are none", ("--vary", "batch-size=1,,2", *COMMAND), "expected NAME=VALUE,VALUE..., found batch-size=1,,2"),
            ("a value twice", ("--vary", "batch-size=1,1", *COMMAND), "stands twice"),
            ("a name twice", ("--vary", "batch-size=1", "--vary", "batch-size=2", *COMMAND), "twice"),
            ("a free place", ("--vary", "world=1,2", *COMMAND), "{batch-size} in the command has no values: add --vary batch-size="),
            ("a name without a place", ("--vary", "lr=1,2", "--vary", "batch-size=1", *COMMAND), "the command has no {lr}"),
            ("no number of ranks", ("--vary", "world=0,8", *COMMAND), "expected numbers of ranks"),
            ("a rank that is not there", ("--rank", "8", "--vary", "world=8,16", "--vary", "batch-size=1", *COMMAND), "no rank 8 of 8"),
            ("two numbers of ranks", ("--world", "8", "--vary", "world=8,16", "--vary", "batch-size=1", *COMMAND), "leave one out")):
        status, _, said = run_fit(needs, *arguments)
        equal(f"a line for {name}", (status, wanted in said.splitlines()[-1]), (2, True))
    for name, arguments, wanted in (("no such GPU", ("--gpu", "abacus", "--vary", "a=1", "--", "python3", "{a}"), "no such GPU"),
                                    ("no such program", ("--vary", "a=1", "--", "no-such-program", "{a}"), "no such program")):
        done = subprocess.run([sys.executable, "-m", "metashard", "fit", *arguments], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"})
        equal(f"a line for {name}", (done.returncode, wanted in done.stderr, len(done.stderr.splitlines())), (2, True, 1))


def check_places():
    equal("places are filled, and braces stay that are none",
          fit.filled(["a{n}b", "--x={n}", "{{n}}", '{"n": 1}', "{}"], {"n": "7"}), ["a7b", "--x=7", "{n}", '{"n": 1}', "{}"])


# --- what does not end by itself

def written(path):
    """The numbers in a file, as soon as they are there."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                return [int(word) for word in file.read().split()]
        time.sleep(0.02)
    raise TimeoutError(path)


def job_of_ranks(path):
    """A launcher that waits for ever, with a rank in a session of its own, which does not hear what ends the launcher."""
    def job(options):
        ranks = [subprocess.Popen(["sh", "-c", "trap '' TERM INT; sleep 1000 & wait; sleep 1000"], start_new_session=own)
                 for own in (False, True)]
        with open(path + ".part", "w", encoding="ascii") as file:
            print(*(rank.pid for rank in ranks), file=file)
        os.rename(path + ".part", path)
        return dry_run.run.run_command(["sleep", "1000"], dict(os.environ))
    return job


def check_endless(folder):
    path = os.path.join(folder, "endless")
    status, _, said = run_fit(job_of_ranks(path), "--timeout", "1", "--vary", "batch-size=1,2", *COMMAND)
    equal("a command that never ends: exit status 2, with what to do",
          (status, "within 1 seconds: give it longer (--timeout)" in said), (2, True))
    equal("and all that it started has ended", [is_there(process) for process in written(path)], [False, False])


def check_stopped(folder, number):
    """As a terminal, or a scheduler, stops it."""
    path = os.path.join(folder, f"stopped-{number}")
    child = os.fork()
    if child == 0:
        status, found, _ = run_fit(job_of_ranks(path), "--json", "--vary", "batch-size=1,2", *COMMAND)
        os._exit(status if "stopped" in found["reason"] else 99)
    ranks = written(path)
    os.kill(child, number)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    equal(f"{number.name} ends all ranks: exit status 2", (status, [is_there(process) for process in ranks]), (2, [False, False]))


# --- the marker of the plugin for pytest, which need not be there

class Failed(Exception):
    pass


def fail(text, pytrace):
    raise Failed(text)


def marked(status, printed, **settings):
    """How a marked test ends, of which the dry run ends so: None, True or the first line, and what was run."""
    sys.modules["pytest"] = types.SimpleNamespace(fail=fail, UsageError=ValueError, hookimpl=lambda **_: lambda hook: hook)
    from metashard import pytest_peak
    runs = []

    def run_dry(*arguments):
        runs.append(arguments)
        return subprocess.CompletedProcess([], status, printed, "metashard: no such GPU\n")
    pytest_peak.dry_run_of = run_dry
    marker = types.SimpleNamespace(args=(), kwargs=settings) if settings else None
    item = types.SimpleNamespace(nodeid="test_a.py::test_b", config=types.SimpleNamespace(rootpath="/x"), get_closest_marker=lambda _: marker)
    try:
        return pytest_peak.pytest_pyfunc_call(item), runs
    except Failed as error:
        return str(error).splitlines(), runs


def check_marker():
    of_test = "{\n1 failed\n"
    equal("a test without the marker runs", marked(0, ""), (None, []))
    equal("a test that fits on this GPU passes, and does not run here", marked(0, "", gpu="l4"),
          (True, [("test_a.py::test_b", "/x", {"gpu": "l4"})]))
    lines = marked(1, of_test + json.dumps(answer_of(90), indent=2), gpu="l4")[0]
    equal("a test that does not says so first, and not what it printed", ("does NOT fit" in lines[0], "1 failed" in lines), (True, False))
    lines = marked(2, of_test + json.dumps({"status": 2, "reason": "wants data"}, indent=2), gpu="l4")[0]
    equal("a test without an answer says why, and what it printed", lines, ["metashard dry-run: cannot say: wants data", "{", "1 failed"])
    equal("a test that cannot be run", marked(2, "", gpu="l4")[0], ["metashard: no such GPU"])
    equal("a setting that there is not", marked(0, "", gpus="l4")[0], ["fits: expected gpu=, world=, rank= or steps=, found gpus"])
    os.environ["DRY_RUN_FOLDER"] = "/x"
    equal("in the dry run it runs", marked(0, "", gpu="l4"), (None, []))
    del os.environ["DRY_RUN_FOLDER"]


check_search()
check_order()
check_disorder()
check_answers()
check_failures()
check_bad_input()
check_places()
check_marker()
with tempfile.TemporaryDirectory() as shared:
    check_endless(shared)
    for stopping in (signal.SIGINT, signal.SIGTERM):
        check_stopped(shared, stopping)
sys.exit(end())
