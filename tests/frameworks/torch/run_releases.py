#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_releases.py [--keep] [--build FOLDER] RELEASE... [--flow FLOW]...: programs of tests/frameworks/flows with releases of
PyTorch that users have, on the simulated driver. Each is installed from PyPI for this Python into a virtual environment of its
own, which is deleted afterwards: 3 to 6 GB, one at a time. For wheels of CUDA 12 the stand-in for the runtime is built with that
release's headers.
--keep writes what came of it into releases.json (releases.py makes a page of it), also the reason where a release does
not run here. TAP.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import releases

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = releases.SOURCE
FLOWS = ("from_scratch", "safetensors_load:mapping", "torch_load:assign", "details:again", "details:cast")
BESIDE = ("numpy", "safetensors", "zstandard", "lz4")
MIB = 1 << 20


class NotHere(Exception):
    """Why a release does not run here."""


def called(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotHere(f"{os.path.basename(command[0])}: {lines[-1] if lines else 'exit status ' + str(done.returncode)}")
    return done.stdout


def install(release, folder):
    """A Python that has it."""
    python = os.path.join(folder, "bin", "python")
    called([sys.executable, "-m", "venv", folder])
    called([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile", "--only-binary", ":all:",
            f"torch=={release}", *BESIDE])
    return python


def runtime(build, python, folder, cuda):
    """The stand-in for the CUDA runtime of that major version: the build's, or one of its sources with the wheel's headers."""
    built = os.path.join(build, "tools", "simcuda", "cudart", f"libcudart.so.{cuda}")
    if os.path.exists(built):
        return built
    headers = called([python, "-c", "import nvidia.cuda_runtime as found; print(list(found.__path__)[0])"]).strip() + "/include"
    driver = called([sys.executable, os.path.join(SOURCE, "tests", "setup", "find_wheel_headers.py")]).split()
    driver = next((place for place in [*driver, "/usr/local/cuda/include"] if os.path.exists(os.path.join(place, "cuda.h"))), None)
    if not os.path.exists(headers) or driver is None:
        raise NotHere(f"no headers of CUDA {cuda}")
    first = os.path.join(folder, "driver-headers")
    os.makedirs(first, exist_ok=True)
    shutil.copy(os.path.join(driver, "cuda.h"), first)
    sources = os.path.join(SOURCE, "tools", "simcuda", "cudart")
    with open(os.path.join(sources, "cudart.map"), encoding="ascii") as file:
        versions = file.read().replace("libcudart.so.13", f"libcudart.so.{cuda}")
    script = os.path.join(folder, "cudart.map")
    with open(script, "w", encoding="ascii") as file:
        file.write(versions)
    library = os.path.join(folder, f"libcudart.so.{cuda}")
    called([os.environ.get("CC", "cc").split()[-1], "-std=gnu17", "-O2", "-fPIC", "-shared", "-fvisibility=default", "-I", SOURCE,
            "-isystem", first, "-isystem", headers, f"-Wl,-soname,libcudart.so.{cuda}", "-Wl,--version-script=" + script, "-o", library,
            *(os.path.join(sources, name + ".c") for name in ("absent", "core", "device", "launch", "memory")), "-ldl", "-lpthread"])
    return library


def environment(options, python, folder):
    """The simulated driver, and stand-ins for the libraries that PyTorch finds by a path within itself."""
    simulated = os.path.join(options.build, "tools", "simcuda")
    cuda = called([python, "-c", "import importlib.util, os, re; "
                   "text = open(os.path.join(os.path.dirname(importlib.util.find_spec('torch').origin), 'version.py')).read(); "
                   "print(re.search(r'''cuda.*?= '(\\d+)''', text)[1])"]).strip()
    cudart = runtime(options.build, python, folder, cuda)
    layouts = os.path.join(folder, "layouts")
    checked = subprocess.run([python, os.path.join(HERE, "check_wheel.py"), os.path.join(SOURCE, "runtime", "kernel", "kernel-rules.txt"),
                              layouts, cudart], capture_output=True, text=True, check=False)
    if not os.path.exists(layouts):
        raise NotHere("check_wheel.py: " + (checked.stderr.splitlines() or ["no layouts"])[-1])
    print("".join(f"# {line}\n" for line in checked.stdout.splitlines() if line.startswith("not ok")), end="", flush=True)
    nccl = called([python, os.path.join(HERE, "release.py")]).split()[1]
    folders = [simulated, os.path.dirname(cudart), os.path.join(simulated, "nccl")]
    return dict(os.environ, LD_LIBRARY_PATH=":".join(folders), SIMCUDA_FATBIN_LAYOUTS=layouts,
                SIMCUDA_FATBIN_KERNELS=os.path.join(simulated, "torch", "torch_host.so"), SIMCUDA_MEMORY_MIB="8192",
                SIMNCCL_VERSION=nccl, LD_PRELOAD=f"{cudart}:{os.path.join(simulated, 'nccl', 'libnccl.so.2')}",
                PYTHONDONTWRITEBYTECODE="1")


def row(record):
    """MiB: the shard, the peak without and with; or what was wrong."""
    if not record["equal"]:
        return "not the same values" if record["with"] else "not run"
    sizes = (record["ideal_bytes"], record["without"]["peak_bytes"], record["with"]["peak_bytes"])
    return [round(size / MIB, 1) for size in sizes]


def flows(options, python, folder):
    """The results of a release, as releases.json keeps them."""
    json_path = os.path.join(folder, "flows.json")
    done = subprocess.run([python, os.path.join(SOURCE, "tests", "frameworks", "flows", "run"), "--python", python,
                           "--shim", os.path.join(options.build, "shim", "libmetashard.so"), "--world", "8", "--ranks", "0",
                           "--scale", str(options.scale), "--json", json_path, *options.flow],
                          env=environment(options, python, folder), stdout=subprocess.PIPE, text=True, check=False)
    print("".join(f"# {line}\n" for line in done.stdout.splitlines() if line.startswith(("not ok", "#"))), end="", flush=True)
    if not os.path.exists(json_path):
        raise NotHere("flows/run: " + (done.stdout.splitlines() or ["nothing"])[-1])
    with open(json_path, encoding="utf-8") as file:
        records = json.load(file)["flows"]
    checks = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "not ok "))]
    return {"python": called([python, "-c", "import platform; print(platform.python_version())"]).strip(), "scale": options.scale,
            "passed": sum(line.startswith("ok ") and "# SKIP" not in line for line in checks),
            "failed": sum(line.startswith("not ok") for line in checks),
            "programs": {record["flow"]: row(record) for record in records}}


def one(options, release):
    with tempfile.TemporaryDirectory(prefix=f"metashard-torch-{release}-", dir=options.folder) as folder:
        try:
            return flows(options, options.python or install(release, folder), folder)
        except NotHere as reason:
            return {"reason": str(reason)[:300]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("releases", nargs="+", metavar="RELEASE")
    parser.add_argument("--python", help="one that has the release: nothing is installed")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build"), help="build folder")
    parser.add_argument("--flow", action="append", help=f"default: {' '.join(FLOWS)}")
    parser.add_argument("--scale", type=float, default=0.5, help="width of the model")
    parser.add_argument("--folder", help="where environments are made")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    options.build, options.flow = os.path.abspath(options.build), options.flow or list(FLOWS)
    failed = 0
    for number, release in enumerate(options.releases, 1):
        found = one(options, release)
        is_good = found.get("failed") == 0 and found["passed"] > 0
        failed += not is_good
        print(f"{'ok' if is_good else 'not ok'} {number} PyTorch {release}: {found}", flush=True)
        if options.keep:
            releases.keep(release, {"flows": found})
    print(f"1..{len(options.releases)}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
