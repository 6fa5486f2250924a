# SPDX-License-Identifier: Apache-2.0
"""For tests/gpu/run and its parts: programs with a limit, JSON files, and what code and machine this is."""
import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import result_page  # noqa: E402
from state_page import read_facts  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The sources that decide the results; results themselves are in docs/.
CODE = ["meson.build", "meson_options.txt", "runtime", "shim", "tests", "tools"]

LONGEST_LINE = 300  # of a result

Done = namedtuple("Done", "status timed_out seconds out error")


def members_of(leader):
    """Processes of a session, which a process group of their own does not leave; or of a process
    group."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if leader in (int(fields[2]), int(fields[3])):
            yield int(name)


def end(process, session):
    """Ends it with all that it started."""
    victims = list(members_of(process.pid)) if session else []
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for victim in victims:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass  # inside the kernel; nothing more can be done


def run_limited(command, limit, environment=None, session=False, show=False, on_timeout=None):
    """Runs it in a process group of its own, or a session, for at most so many seconds. on_timeout
    is handed its process id while it still runs."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as error:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=None if show else error, env=environment,
                                   start_new_session=session, process_group=None if session else 0)
        timed_out = False
        try:
            process.wait(max(limit, 0.1))
        except subprocess.TimeoutExpired:
            timed_out = True
            if on_timeout is not None:
                on_timeout(process.pid)
        finally:
            end(process, session)
        out.seek(0)
        error.seek(0)
        return Done(process.returncode, timed_out, time.monotonic() - start, out.read(), error.read())


def end_of(done, limit):
    """In words; "ends" where nothing is wrong."""
    if done.timed_out:
        return f"no end in {limit:.0f} s"
    return "ends" if done.status == 0 else f"exit status {done.status}: {last_line(done.error)}"


def read_json(path):
    try:
        return read_facts(path)
    except (OSError, ValueError):
        return {}


def compact(value, margin="\n"):
    """A record on a line: JSON that is broken up only where it would be longer than LONGEST_LINE."""
    text = json.dumps(value)
    if len(text) <= LONGEST_LINE or not isinstance(value, (dict, list)):
        return text
    inner = margin + " "
    members = [compact(member, inner) for member in value] if isinstance(value, list) else \
        [f"{json.dumps(name)}: {compact(member, inner)}" for name, member in value.items()]
    return text[0] + inner + ("," + inner).join(members) + margin + text[-1]


def write_json(path, value):
    """Whole or not at all: who is stopped while writing leaves the older one. None: nowhere."""
    if path is None:
        return
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(compact(value) + "\n")
    os.replace(path + ".new", path)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


REHEARSAL = "GPU_REHEARSAL"  # set: the simulated driver takes the real one's place, and keeps its settings


def without_shim(**more):
    """This environment, less what would change the shim or the simulated driver."""
    unwanted = ("METASHARD",) if REHEARSAL in os.environ else ("METASHARD", "SIMCUDA", "SIMNCCL", "SIM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return dict(kept, **more)


def under_shim(shim, dump, **more):
    preload = ":".join(filter(None, [shim, os.environ.get("LD_PRELOAD")]))
    return without_shim(**{"LD_PRELOAD": preload, "METASHARD_DUMP": dump, "METASHARD_LOG": "warn"} | more)


def counters_of(dump):
    """The shim's counters, without its lists."""
    return {name: value for name, value in read_json(dump).items() if not isinstance(value, list)}


def source_files():
    """Also where there is no git: what it would ignore is left out."""
    for entry in CODE:
        path = os.path.join(SOURCE, entry)
        if os.path.isfile(path):
            yield path
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            yield from (os.path.join(folder, name) for name in sorted(names))


def code_version():
    """A hash of the sources, the same with git and without."""
    digest = hashlib.sha256()
    for path in source_files():
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        digest.update(f"{os.path.relpath(path, SOURCE)} {content}\n".encode())
    return "sources-" + digest.hexdigest()[:16]


def commit():
    """The commit of the working tree, or None where there is no git; with a + where the sources differ from it."""
    head = result_page.output_of("git", "rev-parse", "HEAD")
    return head + ("+" if result_page.output_of("git", "status", "--porcelain", "--", *CODE) else "") if head else None


CALLS = """
import ctypes, json, sys
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        raise SystemExit(f"{name} gave {result}")
version, device, name = c_int(), c_int(), ctypes.create_string_buffer(256)
context, address, seen = c_void_p(), c_uint64(), (c_ubyte * 4096)()
call("cuInit", 0)
call("cuDeviceGet", byref(device), 0)
"""
ASK_DRIVER = CALLS + """
call("cuDriverGetVersion", byref(version))
call("cuDeviceGetName", name, 256, device)
print(json.dumps({"gpu": name.value.decode(), "cuda": version.value}))
"""
# A driver without persistence shuts the device down after its last process, and takes seconds to start it.
HOLD_DEVICE = CALLS + """
call("cuDevicePrimaryCtxRetain", byref(context), device)
print("held", flush=True)
sys.stdin.read()
"""
# Memory that is written, on the device, and read back; in a process of its own, whose context is a
# new one's.
ASK_HEALTH = CALLS + """
call("cuDevicePrimaryCtxRetain", byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", byref(address), c_size_t(4 << 20))
call("cuMemsetD8_v2", address, c_ubyte(0x5a), c_size_t(4 << 20))
call("cuMemcpyDtoH_v2", seen, address, c_size_t(len(seen)))
call("cuMemFree_v2", address)
if bytes(seen) != bytes([0x5a]) * len(seen):
    raise SystemExit("a byte that was written is another one")
"""
HEALTH_SECONDS = 5
ASK_TORCH = """
import importlib.util, json
if importlib.util.find_spec("torch") is None:
    raise SystemExit("PyTorch is not installed")
import torch
print(json.dumps({"torch": torch.__version__, "torch_sees_gpu": torch.cuda.is_available()}))
"""


def health(environment=None):
    """None, or what is wrong with the device."""
    done = run_limited([sys.executable, "-c", ASK_HEALTH], HEALTH_SECONDS, environment, session=True)
    if done.timed_out:
        return f"no answer in {HEALTH_SECONDS} s"
    return None if done.status == 0 else last_line(done.error)


@contextlib.contextmanager
def device_held():
    """Gives None, or why there is no device to hold."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD_DEVICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    try:
        first = holder.stdout.readline()
        yield None if first == "held\n" else last_line(first + holder.stdout.read())
    finally:
        holder.stdin.close()
        try:
            holder.wait(10)
        except subprocess.TimeoutExpired:
            holder.kill()


def run_script(build, name, *arguments, **environment):
    """(exit status, standard error, result) of a script of this folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        program = os.path.join(SOURCE, "tests", "gpu", name)
        done = subprocess.run([sys.executable, "-B", program, "--build", build, "--out", out, *arguments],
                              capture_output=True, text=True, env=without_shim(**environment), check=False)
        return done.returncode, done.stderr, read_json(out)


def run_checks(*checks):
    """Each with the build folder that --build names: what a test of this folder does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, type=os.path.abspath)
    build = parser.parse_args().build
    for check in checks:
        check(build)
        print(check.__name__.replace("_", " "), flush=True)


def driver_version():
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", file.read())
    except OSError:
        return None
    return found[1] if found else None


def machine(python, limit, environment=None):
    """({what this machine is}, why no GPU is used or None)."""
    facts = {"gpu": None, "cuda": None, "driver": driver_version(), "torch": None,
             "python": ".".join(map(str, sys.version_info[:3])), "cores": os.cpu_count()}
    done = run_limited([sys.executable, "-c", ASK_DRIVER], min(60, limit), environment)
    if done.status == 0:
        facts.update(json.loads(done.out))
        reason = None
    else:
        reason = "the driver did not answer in 60 s" if done.timed_out else last_line(done.error)
    return facts | ask_torch(python, limit, environment)[0], reason


def ask_torch(python, limit=120, environment=None):
    """({its version, and whether it sees a GPU}, why nothing can be run with it or None)"""
    done = run_limited([python, "-c", ASK_TORCH], min(120, limit), environment)
    if done.status != 0:
        return {}, "PyTorch did not answer within 120 s" if done.timed_out else last_line(done.error)
    facts = json.loads(done.out.splitlines()[-1])
    return facts, None if facts["torch_sees_gpu"] else "PyTorch sees no GPU"
