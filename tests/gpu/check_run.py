# SPDX-License-Identifier: Apache-2.0
"""Checks tests/gpu/run as far as it goes without a GPU: results, what is left alone the second time, limits.

    check_run.py --build DIR
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from alternating import medians  # noqa: E402
from run_tools import code_version, read_started, run_limited, without_shim  # noqa: E402

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
# Ends only when it is stopped, and so does what it starts, in a process group of its own.
SLEEPERS = """
import os, subprocess, sys, time
inner = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
print(inner.pid, flush=True)
time.sleep(600)
"""


def run(build, out, *arguments):
    """{part: row} of the summary."""
    done = subprocess.run([sys.executable, PROGRAM, "--simulated", "--no-build", "--build", build,
                           "--out", out, *arguments], capture_output=True, text=True,
                          env=without_shim(), check=False)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(out, "summary-simulated.json"), encoding="utf-8") as file:
        summary = json.load(file)
    for row in summary["parts"]:
        assert row["part"] in done.stdout and row["in_short"] in done.stdout, done.stdout
    return {row["part"]: row for row in summary["parts"]}


def check_parts(build):
    with tempfile.TemporaryDirectory() as out:
        rows = run(build, out, "--only", "conformance", "--only", "step-time")
        assert rows["conformance"]["result"] == "done", rows
        assert rows["step-time"]["result"] == "not run" and "GPU" in rows["step-time"]["in_short"], rows
        path = os.path.join(out, "conformance-simulated.json")
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        assert result["run"]["complete"] and result["run"]["gpu"] == "simulated", result["run"]
        again(build, out, path, result)


def again(build, out, path, result):
    """Left alone when it is of this code; not when it is of another, in part, or asked for."""
    if result["run"]["code"] == code_version():  # nobody is editing meanwhile
        assert run(build, out, "--only", "conformance")["conformance"]["result"] == "done before"
    for change in ({"code": "of yesterday"}, {"complete": False}):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(dict(result, run=dict(result["run"], **change)), file)
        assert run(build, out, "--only", "conformance")["conformance"]["result"] == "done", change
    assert run(build, out, "--only", "conformance", "--again")["conformance"]["result"] == "done"
    assert run(build, out, "--only", "conformance", "--again", "--minutes", "0")["conformance"]["result"] \
        == "not run"


def is_there(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check_limits(build):
    start = time.monotonic()
    done = run_limited([sys.executable, "-c", SLEEPERS], 2, session=True)
    assert done.timed_out and time.monotonic() - start < 15, done
    inner = int(done.out)
    for _ in range(100):
        if not is_there(inner):
            return
        time.sleep(0.05)
    raise AssertionError("a process that the part started goes on")


def check_figures(build):
    runs = {"without": [{"ms": 2}, {"ms": 4}, {"error": "no"}], "with": [{"ms": 3.3}]}
    assert medians(runs, ["ms"]) == {"ms": {"without": 3, "with": 3.3, "ratio": 1.1}}
    assert medians({}, ["ms"]) == {"ms": {"without": None, "with": None, "ratio": None}}
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write('{\n  "format": "x",\n  "first": {\n    "a": 1\n  },\n  "second": {\n    "b"')
        file.flush()
        assert read_started(file.name) == {"format": "x", "first": {"a": 1}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True)
    build = os.path.abspath(parser.parse_args().build)
    for check in (check_figures, check_limits, check_parts):
        check(build)
        print(check.__name__.replace("_", " "))


if __name__ == "__main__":
    main()
