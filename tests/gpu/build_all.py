# SPDX-License-Identifier: Apache-2.0
"""Builds what tests/gpu/run needs: with meson where it is, else with cc alone. Both put it in the same places.

What cannot be built is missing afterwards, and only the parts that need it say so.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

from run_tools import SOURCE

# Of tests/simcuda/tests/test_*.c; what the design leans on most comes first.
SUBJECTS = ["vmm", "memory", "copy", "stream", "query", "launch", "capture", "graph", "lookup",
            "environment"]
PROBE, RECORDER = "tests/gpu/probe", "tests/gpu/liblaunch_recorder.so"
SHIM, SIMULATOR = "shim/libmetashard.so", "tests/simcuda/libcuda.so.1"
PROBE_KERNELS, TEST_KERNELS = "tests/gpu/libprobe_sim_kernels.so", "tests/simcuda/test_kernels.so"
CONFORMANCE = [f"tests/gpu/conformance_{subject}" for subject in SUBJECTS]
# Of tests/simcuda/tests/nccl/test_*.c; only where nccl.h is.
NCCL_SUBJECTS = ["alone", "collectives", "comms", "groups", "numbers", "registration"]
NCCL_ALIAS, SIMULATED_NCCL = "tests/gpu/nccl_alias", "tests/simcuda/nccl/libnccl.so.2"
NCCL_CONFORMANCE = [f"tests/gpu/conformance_nccl_{subject}" for subject in NCCL_SUBJECTS]
NCCL_TARGETS = [SIMULATED_NCCL, NCCL_ALIAS, *NCCL_CONFORMANCE]
# The most important first.
TARGETS = [PROBE, SHIM, RECORDER, SIMULATOR, PROBE_KERNELS, TEST_KERNELS, *CONFORMANCE, *NCCL_TARGETS]
LONGEST_SECONDS = 240  # of one command
HEADER_PLACES = ["/usr/local/cuda/include", "/usr/local/cuda-13.0/include", "/opt/cuda/include",
                 "/usr/include", "/usr/local/include", "/usr/lib/cuda/include"]


class Builder:
    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.log = os.path.join(self.folder, "run-build.log")

    def path(self, target):
        return os.path.join(self.folder, target)

    def call(self, *command):
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(" ".join(command) + "\n")
            log.flush()
            try:
                return subprocess.run(command, cwd=SOURCE, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      timeout=LONGEST_SECONDS, check=False).returncode == 0
            except (OSError, subprocess.TimeoutExpired) as error:
                log.write(f"{error}\n")
                return False

    def missing(self):
        return [target for target in TARGETS if not os.path.exists(self.path(target))]

    def with_meson(self):
        if shutil.which("meson") is None or shutil.which("ninja") is None:
            return False
        if not os.path.exists(self.path("build.ninja")):
            setup = ["meson", "setup", self.folder]
            for option, variable in (("cuda-headers", "CUDA_HEADERS"), ("nccl-headers", "NCCL_HEADERS")):
                if os.environ.get(variable):
                    setup.append(f"-D{option}={os.environ[variable]}")
            # Without jemalloc the shim takes the libc's heap.
            if not self.call(*setup) and not self.call(*setup, "-Dheap=libc"):
                return False
        # Whatever fails, the rest is built; what is left of an older build must not pass for it.
        if not self.call("ninja", "-k", "0", "-C", self.folder, *TARGETS):
            for target in TARGETS:
                if not self.call("ninja", "-C", self.folder, target):
                    self.remove(target)
        return True

    def remove(self, target):
        if os.path.exists(self.path(target)):
            os.remove(self.path(target))

    def with_cc(self):
        headers, nccl_headers = headers_with("cuda.h", "CUDA_HEADERS"), headers_with("nccl.h", "NCCL_HEADERS")
        if headers is None:
            print("run: cuda.h was not found; name its folder in CUDA_HEADERS", file=sys.stderr)
            return
        common = ["-std=gnu17", "-O2", "-g", "-D_GNU_SOURCE", "-I.", "-isystem", headers]
        for target, arguments in {**self.probe_rules(), **self.shim_rules(), **self.simulator_rules(),
                                  **self.conformance_rules(), **self.nccl_rules(nccl_headers)}.items():
            os.makedirs(os.path.dirname(self.path(target)), exist_ok=True)
            self.remove(target)
            self.call(os.environ.get("CC", "cc"), *common, *arguments, "-o", self.path(target))

    def probe_rules(self):
        recorders = [f"tests/gpu/{name}_recorder.c" for name in ("launch", "block")]
        own = [path for path in sources("tests/gpu/probe*.c") if not path.endswith("probe_sim_kernels.c")]
        return {PROBE: [*own, "-lpthread", "-lm", "-ldl"],
                RECORDER: ["-fPIC", "-shared", "-fvisibility=hidden", *recorders, "-lpthread", "-ldl"]}

    def shim_rules(self):
        rules, runtime = self.path("builtin_rules.c"), "shim/runtime.o"
        with open(rules, "w", encoding="utf-8") as file:
            subprocess.run(["runtime/kernel/embed.sh", "runtime/kernel/kernel-rules.txt"], cwd=SOURCE,
                           stdout=file, check=False)
        with_plans, without = plan_sources()
        inner = [path for path in sources("runtime/*.c") + sources("runtime/*/*.c")
                 if not path.endswith("heap_jemalloc.c") and (path in without or path not in with_plans)]
        return {runtime: ["-r", "-nostdlib", "-fPIC", "-fvisibility=hidden", "-fno-semantic-interposition",
                          f'-DMETASHARD_VERSION="{version()}"', *inner, rules],
                SHIM: ["-fPIC", "-shared", "-fno-semantic-interposition", *sources("shim/*.c"),
                       "shim/trampoline.S", self.path(runtime),
                       "-Wl,--version-script=shim/metashard.map", "-Wl,-Bsymbolic", "-Wl,-z,nodelete",
                       "-Wl,-z,now", "-lpthread", "-ldl"]}

    def simulator_rules(self):
        own = sources("tests/simcuda/driver/*.c")
        library = ["-fPIC", "-shared"]
        return {SIMULATOR: [*library, "-fvisibility=hidden", "-D__CUDA_API_VERSION_INTERNAL",
                            "-D__CUDA_API_PUSH_VISIBILITY_DEFAULT", "-DSIM_BUILT_VERSION=13000", *own,
                            "-Wl,-Bsymbolic", "-Wl,--version-script=tests/simcuda/driver/simcuda.map",
                            "-Wl,-soname,libcuda.so.1", "-lpthread", "-ldl"],
                PROBE_KERNELS: [*library, "tests/gpu/probe_sim_kernels.c"],
                TEST_KERNELS: [*library, "tests/simcuda/kernels/test_kernels.c"]}

    def conformance_rules(self):
        # As in meson.build, where it is told why.
        return {target: ["-O0", "-include", "tests/gpu/conformance.h", f"tests/simcuda/tests/test_{subject}.c",
                         "tests/gpu/conformance.c", "-Wl,-z,lazy", "-Wl,--no-as-needed",
                         self.path(SIMULATOR), "-lpthread", "-ldl"]
                for target, subject in zip(CONFORMANCE, SUBJECTS)}


    def nccl_rules(self, headers):
        if headers is None:
            print("run: nccl.h was not found; name its folder in NCCL_HEADERS", file=sys.stderr)
            return {}
        common = ["-isystem", headers, "-D__CUDA_FP16_H__", "-D__CUDA_BF16_H__"]
        own = sources("tests/simcuda/nccl/*.c")
        libraries = ["-Wl,-z,lazy", "-Wl,--no-as-needed", self.path(SIMULATOR), self.path(SIMULATED_NCCL), "-lpthread",
                     "-lm", "-ldl"]
        tests = {target: [*common, "-O0", "-include", "tests/gpu/conformance.h", f"tests/simcuda/tests/nccl/test_{subject}.c",
                          "tests/simcuda/tests/nccl/ranks.c", "tests/gpu/conformance.c", *libraries]
                 for target, subject in zip(NCCL_CONFORMANCE, NCCL_SUBJECTS)}
        return {SIMULATED_NCCL: [*common, "-fPIC", "-shared", "-fvisibility=hidden", "-fsemantic-interposition", *own,
                                 "-Wl,--version-script=tests/simcuda/nccl/simnccl.map", "-Wl,-soname,libnccl.so.2",
                                 "-lpthread", "-lm", "-ldl"],
                NCCL_ALIAS: [*common, "tests/gpu/nccl_alias.c", *libraries], **tests}


def version():
    with open(os.path.join(SOURCE, "meson.build"), encoding="utf-8") as file:
        return re.search(r"version: '([^']+)'", file.read())[1]


def plan_sources():
    """What runtime/meson.build takes with jansson, and without: here, without plans."""
    with open(os.path.join(SOURCE, "runtime", "meson.build"), encoding="utf-8") as file:
        branches = re.search(r"if jansson\.found\(\)\n(.*?)\nelse\n(.*?)\nendif", file.read(), re.DOTALL)
    return [["runtime/" + path for path in re.findall(r"'([^']+\.c)'", branch)] for branch in branches.groups()]


def sources(pattern):
    return sorted(glob.glob(pattern, root_dir=SOURCE))


def headers_with(header, variable):
    given = os.environ.get(variable)
    wheels = subprocess.run([sys.executable, "tests/setup/find_wheel_headers.py"], cwd=SOURCE,
                            capture_output=True, text=True, check=False).stdout.split()
    for place in [given] if given else HEADER_PLACES + wheels:
        if os.path.exists(os.path.join(place, header)):
            return place
    return None


def build(folder):
    """The Builder, after it has built what it could."""
    builder = Builder(folder)
    if not builder.with_meson():
        builder.with_cc()
    return builder
