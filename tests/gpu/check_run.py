# SPDX-License-Identifier: Apache-2.0
"""Checks tests/gpu/run without a GPU, with parts of its own where a GPU's take too long.

    check_run.py --build DIR

Results, what is left alone the second time, the end at the deadline, what stays when the run is
killed, the archive, a build that was made elsewhere, a device that does not answer, what is kept of
a part that hangs, and the version of the code.
"""
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import SimpleNamespace
from unittest import mock

sys.dont_write_bytecode = True

import build_all  # noqa: E402
import flow_torch  # noqa: E402
import run_tools  # noqa: E402
from archive import write_archive  # noqa: E402
from evidence import read  # noqa: E402
from part_script import medians  # noqa: E402
from parts import GROUPS, PARTS, Part  # noqa: E402
from probe import sections_of  # noqa: E402
from run_tools import (CODE, SOURCE, code_version, health, read_json, run_checks, run_limited,  # noqa: E402
                       without_shim, write_json)

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
# Ends only when it is stopped, and so does what it starts, in a process group of its own.
SLEEPERS = """
import os, subprocess, sys, time
inner = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
print(inner.pid, flush=True)
time.sleep(600)
"""
# A part's program: writes its result, a section at a time, and then takes as long as it is told.
WRITER = """
import sys, time
print("so it says", flush=True)
def write(text):
    with open(sys.argv[1], "w") as file:
        file.write(text)
write('{"first": {"a": 1}}')
time.sleep(float(sys.argv[2]))
write('{"first": {"a": 1}, "second": {"b": 2}}')
"""
# A flow's script: with the shim in the process it starts CUDA, defers, and never ends.
HANGS_UNDER_THE_SHIM = """
import ctypes, faulthandler, os, sys, time
faulthandler.dump_traceback_later(float(sys.argv[2]), exit=False)
def where_it_hangs():
    time.sleep(600)
if "libmetashard" in os.environ.get("LD_PRELOAD", ""):
    cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20))
    where_it_hangs()
print('{"a": "b"}')
"""


def run(build, out, *arguments):
    """{part: row} of the summary."""
    done = subprocess.run([sys.executable, PROGRAM, "--simulated", "--no-build", "--build", build,
                           "--out", out, *arguments], capture_output=True, text=True,
                          env=without_shim(), check=False)
    assert done.returncode == 0, done.stderr
    summary = read_json(os.path.join(out, "summary-simulated.json"))
    for row in summary["parts"]:
        assert row["part"] in done.stdout and row["in_short"] in done.stdout, done.stdout
    return {row["part"]: row for row in summary["parts"]}


def check_parts(build):
    with tempfile.TemporaryDirectory() as out:
        rows = run(build, out, "--only", "conformance", "--only", "step-time")
        assert rows["conformance"]["result"] == "done", rows
        assert rows["step-time"]["result"] == "not run" and "GPU" in rows["step-time"]["in_short"], rows
        path = os.path.join(out, "conformance-simulated.json")
        result = read_json(path)
        assert result["run"]["complete"] and result["run"]["gpu"] == "simulated", result["run"]
        assert set(result["left_out"]) == {"vmm.unmapping_under_queued_work_is_a_race", "stream.callbacks_hear_of_errors",
                                           "launch.illegal_access_is_sticky"}, result["left_out"]
        again(build, out, path, result)


def again(build, out, path, result):
    """Left alone when it is of this code; not when it is of another, in part, or asked for."""
    if result["run"]["code"] == code_version():  # nobody is editing meanwhile
        assert run(build, out, "--only", "conformance")["conformance"]["result"] == "done before"
    for change in ({"code": "of yesterday"}, {"complete": False}):
        write_json(path, dict(result, run=dict(result["run"], **change)))
        assert run(build, out, "--only", "conformance")["conformance"]["result"] == "done", change
    assert run(build, out, "--only", "conformance", "--again")["conformance"]["result"] == "done"
    assert run(build, out, "--only", "conformance", "--again", "--minutes", "0.2")["conformance"]["result"] == "not run"


def check_limits(build):
    start = time.monotonic()
    done = run_limited([sys.executable, "-c", SLEEPERS], 2, session=True)
    assert done.timed_out and time.monotonic() - start < 15, done
    wait_for(lambda: not os.path.exists(f"/proc/{int(done.out)}/stat") or ") Z " in read(f"/proc/{int(done.out)}/stat"))


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come in 30 s")


# --- with parts of its own


def writer(name, seconds, most=60):
    return Part(name, "first", most, [], False,
                lambda run, out, limit: [sys.executable, "-c", WRITER, out, str(seconds)],
                lambda result: f"has {len(result)}")


def load(parts):
    """The program as a module, with these parts."""
    loader = SourceFileLoader("gpu_run", PROGRAM)
    module = module_from_spec(spec_from_loader("gpu_run", loader))
    loader.exec_module(module)
    module.PARTS, module.SHORTEST_S, module.RESERVE_S = parts, 1, 2
    module.GROUPS = {"first": [part.name for part in parts]}
    module.commit = lambda: None  # git takes a second
    return module


def start(parts, build, out, *arguments, change=None):
    """Runs it in this process: (exit status, {part: row}, what it printed)."""
    module = load(parts)
    if change is not None:
        change(module)
    printed = io.StringIO()
    argv = [PROGRAM, "--simulated", "--no-build", "--build", build, "--out", out, *arguments]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        status = module.main()
    for name in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)
    summary = read_json(os.path.join(out, "summary-simulated.json"))
    return status, {row["part"]: row for row in summary["parts"]}, printed.getvalue()


def check_deadline(build):
    """A part that takes too long is stopped, and what it has by then counts; the others are not
    begun."""
    with tempfile.TemporaryDirectory() as out:
        began = time.monotonic()
        status, rows, printed = start([writer("quick", 0), writer("slow", 600), writer("late", 0)], build, out,
                                      "--minutes", "0.2")
        assert time.monotonic() - began < 25, time.monotonic() - began
        assert rows["quick"]["result"] == "done" and rows["quick"]["in_short"] == "has 3", rows
        assert rows["slow"]["result"] == "in part" and rows["slow"]["in_short"] == "has 2", rows
        assert rows["late"]["result"] == "not run" and "no time left" in rows["late"]["in_short"], rows
        assert status == 0 and "late" in printed
        result = read_json(os.path.join(out, "slow-simulated.json"))
        assert result["first"] == {"a": 1} and not result["run"]["complete"], result
        # The evidence of a hanging part.
        log = os.path.join(out, "logs-simulated", "slow")
        assert "so it says" in read(os.path.join(log, "said.log"))
        [seen] = os.listdir(os.path.join(log, "hung"))
        text = read(os.path.join(log, "hung", seen))
        assert "wchan" in text and "python" in text.split("== status")[0] and "r-xp" in text, text


def check_silent_part(build):
    """One that has no result in its time failed; in what was left of the run's time it did not."""
    def silent(most):
        return writer("silent", 600, most)._replace(command=lambda run, out, limit: ["sleep", "600"])

    for most, minutes, wanted in ((3, "1", "failed"), (60, "0.2", "not run")):
        with tempfile.TemporaryDirectory() as out:
            status, rows, _ = start([silent(most)], build, out, "--minutes", minutes)
            assert rows["silent"]["result"] == wanted and status == (wanted == "failed"), rows


def check_end_of_the_run_itself(build):
    """Whatever hangs outside of a part: the summary is written in time."""
    stuck = writer("stuck", 0)._replace(command=lambda run, out, limit: time.sleep(600))
    with tempfile.TemporaryDirectory() as out:
        began = time.monotonic()
        status, rows, printed = start([writer("quick", 0), stuck], build, out, "--minutes", "0.15")
        assert time.monotonic() - began < 20, time.monotonic() - began
        assert status == 1 and rows["quick"]["result"] == "done" and "time was up" in rows["run"]["in_short"], rows
        assert "quick" in printed and os.path.exists(os.path.join(out, "summary-simulated.txt"))


def check_killed(build):
    """Somebody ends the run at once: results, the summary and the archive are there of all parts
    before, and what the part had written."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as elsewhere:
        archive = os.path.join(elsewhere, "all.tar.gz")
        started = os.path.join(out, "slow-simulated.started.json")
        child = os.fork()
        if child == 0:
            os.setsid()
            start([writer("quick", 0), writer("slow", 600)], build, out, "--archive", archive)
            os._exit(1)
        try:
            wait_for(lambda: read_json(started))
        finally:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            # The part is a session of its own, and its parent, which would end it, is gone.
            for process in filter(str.isdigit, os.listdir("/proc")):
                if started in read(f"/proc/{process}/cmdline"):
                    os.kill(int(process), signal.SIGKILL)
        assert read_json(started) == {"first": {"a": 1}}
        assert os.path.exists(os.path.join(out, "quick-simulated.json"))
        with tarfile.open(archive) as found:
            summary = json.load(found.extractfile("summary-simulated.json"))
            assert {"summary-simulated.txt", "quick-simulated.json", "logs-simulated/quick/said.log"} <= set(found.getnames()), \
                found.getnames()
        assert [row["part"] for row in summary["parts"]] == ["build", "quick"], summary


def check_archive(build):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "all.tar.gz")
        sizes = {"small.json": 2000, "long.log": 9 << 20, "page.state": 1 << 20}
        for name, size in sizes.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(os.urandom(size))
        write_archive(path, folder, [*sizes, "gone.json"], limit=5 << 20)
        assert os.path.getsize(path) <= 5 << 20, os.path.getsize(path)
        with tarfile.open(path) as archive:
            found = {entry.name: entry.size for entry in archive.getmembers()}
            left_out = archive.extractfile("left-out.txt").read().decode()
        # The archive has the beginning and the end of a log, and names files that do not fit or are gone.
        assert found["small.json"] == 2000 and 4 << 20 < found["long.log"] < 5 << 20, found
        assert "page.state" in left_out and "gone.json" in left_out, left_out


def check_build_made_elsewhere(build):
    """--no-build takes what is there, builds nothing, and says when it is of other code."""
    with tempfile.TemporaryDirectory() as carried, tempfile.TemporaryDirectory() as out:
        for target in (build_all.PROBE, build_all.PROBE_KERNELS, build_all.SIMULATOR):
            os.makedirs(os.path.dirname(os.path.join(carried, target)), exist_ok=True)
            shutil.copy(os.path.join(build, target), os.path.join(carried, target))
        for code, said in ((code_version(), ""), ("sources-of-yesterday", "other code: sources-of-yesterday")):
            with open(os.path.join(carried, build_all.CODE_FILE), "w", encoding="ascii") as file:
                file.write(code + "\n")
            rows = run(carried, out, "--only", "probe-first", "--only", "conformance", "--again")
            assert rows["probe-first"]["result"] == "done", rows
            assert "not built: tools/simcuda/test_kernels.so" in rows["conformance"]["in_short"], rows
            assert said in rows["build"]["in_short"] and ("other code" in rows["build"]["in_short"]) == bool(said), rows
        assert not os.path.exists(os.path.join(carried, "build.ninja"))


def check_headers(build):
    """Those of CUDA 13, of a folder that has crt/, as the others lack files that their headers
    include; for NCCL's, it does not matter."""
    with tempfile.TemporaryDirectory() as folder:
        places = old, wheel, toolkit = [os.path.join(folder, name) for name in ("old", "wheel", "toolkit")]
        for place, version in zip(places, (12040, 13000, 13000)):
            os.makedirs(os.path.join(place, "crt" if place != wheel else ""))
            with open(os.path.join(place, "cuda.h"), "w", encoding="ascii") as file:
                file.write(f"#define CUDA_VERSION {version}\n")
        shutil.copy(os.path.join(wheel, "cuda.h"), os.path.join(wheel, "nccl.h"))
        with mock.patch.multiple(build_all, HEADER_PLACES=list(places), toolkit_of_nvcc=lambda: [],
                                 HEADER_VARIABLES=dict.fromkeys(("cuda.h", "nccl.h"), "NO_VARIABLE")):
            found = [build_all.headers_with(header, sys.executable) for header in ("cuda.h", "nccl.h")]
    assert found == [toolkit, wheel], found


def check_device_that_does_not_answer(build):
    """A call that fails on the device is noticed; then the run stops, and names the part."""
    simulated = {"LD_LIBRARY_PATH": os.path.join(build, "tools", "simcuda")}
    assert health(without_shim(**simulated)) is None
    for fault in ("cuMemsetD8_v2:1=719", "cuMemcpyDtoH_v2:1=700"):
        reason = health(dict(without_shim(**simulated), SIMCUDA_FAULTS=fault))
        assert reason == f"{fault.split(':')[0]} gave {fault.split('=')[1]}", reason
    began = time.monotonic()
    with mock.patch.object(run_tools, "ASK_HEALTH", "import time; time.sleep(60)"):
        assert health() == "no answer in 5 s" and time.monotonic() - began < 15

    answers = [None, "cuInit gave 999"]

    def change(module):
        module.health = lambda environment: answers.pop(0)

    with tempfile.TemporaryDirectory() as out:
        status, rows, _ = start([writer(name, 0) for name in ("good", "bad", "next")], build, out, change=change)
    assert status == 1 and rows["good"]["result"] == rows["bad"]["result"] == "done", rows
    assert rows["device"]["in_short"] == "it does not answer after bad: cuInit gave 999", rows
    assert rows["next"]["result"] == "not run" and "after bad" in rows["next"]["in_short"], rows


def check_flow_that_hangs(build):
    """Under the shim alone: what was found without it is kept, and the log, the state page, threads
    and stacks tell where."""
    with mock.patch.multiple(flow_torch, SCRIPT=HANGS_UNDER_THE_SHIM, ask_torch=lambda python: ({}, None)), \
            mock.patch.dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "tools", "simcuda")), \
            tempfile.TemporaryDirectory() as keep:
        result = flow_torch.measure(SimpleNamespace(
            shim=os.path.join(build, build_all.SHIM), out=os.path.join(keep, "out.json"), keep=keep, rows=1, allocator=None,
            verify=False, seconds=18, device="simulated"))
        assert read_json(os.path.join(keep, "out.json")) == result
        hung = os.listdir(os.path.join(keep, "with", "hung"))
        said, log = (read(os.path.join(keep, "with", name)) for name in ("error.log", "shim.log"))
    assert result["without"]["hashes"] == {"a": "b"} and not result["complete"] and not result["values_equal"], result
    assert result["with"]["error"].startswith("no end in"), result
    assert any(name.startswith("process-") for name in hung) and any(name.endswith(".state") for name in hung), hung
    assert "in where_it_hangs" in said and "debug" in log, (said, log)


def check_order(build):
    """First contact first; what faults on purpose last, and in no other call."""
    names = [part.name for part in PARTS]
    assert names[:3] == ["probe-first", "flow-torch", "load-time"] and GROUPS["first"][:2] == names[:2], names
    assert set(names[-2:]) == set(GROUPS["faults"]) == {"conformance-faults", "probe-faults"}, names
    faulting = {"unmapped", "access_flags", "past_end"}
    assert {section.name for section in sections_of("faults", [])} == faulting
    for group in ("first", "rest"):
        assert not faulting & {section.name for section in sections_of(group, [])}, group


def check_code_version(build):
    """The same without git, and with what Python leaves; another one with one byte more."""
    ask = [sys.executable, "-c", "import run_tools; print(run_tools.code_version(), run_tools.commit())"]
    with tempfile.TemporaryDirectory() as copy:
        for entry in CODE:
            path = os.path.join(SOURCE, entry)
            (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, os.path.join(copy, entry))
        os.makedirs(os.path.join(copy, "tests", "gpu", "__pycache__"), exist_ok=True)
        with open(os.path.join(copy, "tests", "gpu", "__pycache__", "run_tools.cpython-312.pyc"), "wb") as file:
            file.write(b"a")

        def said():
            done = subprocess.run(ask, cwd=os.path.join(copy, "tests", "gpu"), capture_output=True, text=True,
                                  check=True, env=dict(os.environ, GIT_CEILING_DIRECTORIES=copy))
            return done.stdout.split()

        assert said() == [code_version(), "None"], (said(), code_version())
        with open(os.path.join(copy, "shim", "another.c"), "w", encoding="ascii"):
            pass
        assert said()[0] != code_version()


def check_figures(build):
    runs = {"without": [{"ms": 2}, {"ms": 4}, {"error": "no"}], "with": [{"ms": 3.3}]}
    assert medians(runs, ["ms"]) == {"ms": {"without": 3, "with": 3.3, "ratio": 1.1}}
    assert medians({}, ["ms"]) == {"ms": {"without": None, "with": None, "ratio": None}}


if __name__ == "__main__":
    run_checks(check_figures, check_order, check_code_version, check_headers, check_limits, check_archive, check_deadline,
               check_silent_part, check_end_of_the_run_itself, check_killed, check_device_that_does_not_answer,
               check_flow_that_hangs, check_build_made_elsewhere, check_parts)
