#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_verify.py VERIFY JOB KERNELS SHIM: what metashard-verify says of programs that behave the same with and without the
shim, of such that do not, and of such that cannot be compared. TAP."""
import os
import subprocess
import sys
import tempfile

VERIFY, JOB, KERNELS, SHIM = sys.argv[1:5]
results = []
# A mark in a Python that has CUDA: what its end says, and that its own sitecustomize still runs.
PYTHON = """
import ctypes, customised, sys
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
bad = cuda.cuInit(0) + cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) + cuda.cuCtxSetCurrent(context)
bad += cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 << 20))
bad += cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(3), ctypes.c_size_t(1 << 20))
class Freed:
    def __del__(self):
        cuda.cuMemFree_v2(address)
freed = Freed()
sys.exit(bad)
"""


def check(name, condition, detail=""):
    results.append(bool(condition))
    print(f"{'ok' if condition else 'not ok'} {len(results)} {name}")
    if not condition:
        print("# " + str(detail).replace("\n", "\n# "))


def verify(command, *options, **settings):
    environment = dict(os.environ, SIMCUDA_POISON="1", **settings)
    return subprocess.run([sys.executable, VERIFY, "--preload", SHIM, *options, "--", *command], env=environment,
                          capture_output=True, text=True, timeout=300)


def job(scenario, status, *texts, options=(), **settings):
    seen = verify([JOB, scenario, KERNELS], *options, **settings)
    good = seen.returncode == status and all(text in seen.stderr for text in texts)
    check(f"{scenario} {settings or ''}: exit status {status}", good, f"{texts}\n{seen.returncode}\n{seen.stderr}")
    return seen


def check_equal():
    for settings in ({}, {"METASHARD_MIN_BYTES": "1"}, {"SIMCUDA_DELAY_US": "1500"}, {"SIMCUDA_MEMORY_MIB": "64"}):
        job("plain", 0, "equal: 6 blocks", **settings)
        job("parts", 0, "equal: 3 blocks", **settings)
    job("kernel", 0, "equal")
    job("reset", 0, "equal: 1 blocks, 4.0 MiB, at 2 marks")
    job("threads", 0, "equal: 2 blocks, 8.0 MiB")
    job("ranks", 0, "equal: 18 blocks, ", "at 3 marks")
    seen = job("marks", 0, "equal: 4 blocks, 16.0 MiB, at 4 marks", "expected a name of 1 to 100 characters")
    check("a name that is not valid is refused, in both runs", seen.stderr.count("expected a name of 1 to") == 4, seen.stderr)


def check_different(folder):
    job("plain", 1, "differs: process.0, end of the process: allocation 1 of 8388608 bytes in thread 0", PLANT="1")
    job("parts", 1, "block 1 of 512 bytes in thread 0", PLANT="1")
    job("ranks", 1, "differs: rank-1.0, ", PLANT="1")
    seen = job("marks", 1, "differs: process.0, a step: allocation 1 of 4194304 bytes", "1 differ, of 4 blocks", PLANT="1")
    check("what is equal at the end is not named", "end of the process" not in seen.stderr, seen.stderr)
    job("reset", 1, "differs: process.0, end of a context: ", PLANT="1")
    job("status", 1, "exit status is 3 under MetaShard and 0 without", PLANT="1")
    rules = os.path.join(folder, "rules")
    with open(rules, "w") as file:
        file.write("write-only sum_map32\n")
    job("kernel", 1, "layer.0.weight (allocation 2 of 4194304 bytes in thread 0)", METASHARD_KERNEL_RULES=rules)


def check_plan(folder):
    """What the plan gives to another rank cannot be read, and is left out in both runs."""
    plan = os.path.join(folder, "plan.json")
    with open(plan, "w") as file:
        file.write('{"format": "metashard-plan/1", "mesh": {"tp": 2}, "rank": 0, '
                   '"tensors": [{"name": "w", "placements": {"tp": {"shard": 0}}}]}')
    settings = {"METASHARD_PLAN": plan, "METASHARD_PLAN_MODE": "enforce"}
    job("planned", 0, "equal: 1 blocks, 4.0 MiB", "4.0 MiB that are other ranks' were left out", **settings)
    job("planned", 1, "w (allocation 1 of 8388608 bytes in thread 0)", PLANT="1", **settings)
    job("planned", 0, "equal: 1 blocks, 8.0 MiB", METASHARD_PLAN=plan)


def check_not_compared(folder):
    job("status", 2, "fails with exit status 3, also without")
    job("by_time", 2, "the sequence of allocations is not the same")
    job("killed", 2, "did not end by exit")
    seen = verify(["true"])
    check("a command without CUDA", seen.returncode == 2 and "no process used CUDA" in seen.stderr, seen.stderr)
    seen = verify([os.path.join(folder, "nothing")])
    check("a command that is not there", seen.returncode == 2 and "No such file" in seen.stderr, seen.stderr)
    seen = verify(["true"], METASHARD="off")
    check("MetaShard is off", seen.returncode == 2 and "METASHARD is off" in seen.stderr, seen.stderr)
    name = "no\x9b31m\u202esuch"
    seen = subprocess.run([sys.executable, VERIFY, "--preload", name, "--", "true"], capture_output=True, text=True, timeout=60)
    check("what a terminal obeys is a '?'", "no?31m?such: no such file" in seen.stderr, seen.stderr)
    for arguments in (["--what", "--", "true"], ["--"], ["--keep"], ["--preload", "/nothing", "--", "true"]):
        seen = subprocess.run([sys.executable, VERIFY, *arguments], capture_output=True, text=True, timeout=60)
        check(f"arguments {arguments}: exit status 2", seen.returncode == 2 and seen.stderr != "", seen.stderr)


def check_kept(folder):
    kept = os.path.join(folder, "kept")
    job("plain", 0, options=("--keep", kept))
    check("the hashes are kept", sorted(os.listdir(kept)) == ["python", "with", "without"] and
          os.listdir(os.path.join(kept, "with")) == ["process.0"], os.listdir(kept))
    job("plain", 2, "is not empty", options=("--keep", kept))


def check_python(folder):
    for name, text in (("sitecustomize.py", "import builtins, sys\nsys.modules['customised'] = builtins\n"),
                       ("job.py", PYTHON)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    seen = verify([sys.executable, os.path.join(folder, "job.py")], PYTHONPATH=folder)
    check("Python: compared before it frees its objects", seen.returncode == 0 and "equal: 1 blocks, 4.0 MiB" in seen.stderr,
          f"{seen.returncode}\n{seen.stdout}{seen.stderr}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_equal()
        check_different(folder)
        check_not_compared(folder)
        if "--plans" in sys.argv:
            check_plan(folder)
        check_kept(folder)
        if "--python" in sys.argv:
            check_python(folder)
    print(f"1..{len(results)}")
    return not all(results)


if __name__ == "__main__":
    sys.exit(main())
