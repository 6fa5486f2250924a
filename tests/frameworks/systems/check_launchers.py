#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_launchers.py --build FOLDER [--python PYTHON]: torchrun and `accelerate launch` with real PyTorch hand the preload and the
variables on to their ranks, and these to the workers of data loaders. TAP. Looks at what the shim wrote, as tests/frameworks/launchers does.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 2
LINE = re.compile(r"process (\d+) rank (\d+) byte (\d+) loaded (\d+)")
results = []


def check(name, seen, wanted=True):
    results.append(seen == wanted)
    print(f"{'ok' if results[-1] else 'not ok'} {len(results)} {name}", flush=True)
    if not results[-1]:
        print(f"# {str(seen)[-1500:]!r}, expected {wanted!r}")


def environment_of(options, folder):
    torch, nccl = subprocess.run([options.python, os.path.join(HERE, "..", "torch", "release.py")], capture_output=True,
                                 text=True, check=True).stdout.split()
    sim = os.path.join(os.path.abspath(options.build), "tools", "simcuda")
    libraries = [os.path.join(os.path.abspath(options.build), "shim", "libmetashard.so"),
                 os.path.join(sim, "cudart", "libcudart.so.13"), os.path.join(sim, "nccl", "libnccl.so.2")]
    common = {name: value for name, value in os.environ.items()
              if not name.startswith(("METASHARD", "SIMCUDA_", "SIMNCCL_", "LD_"))}
    return dict(common, LD_PRELOAD=":".join(libraries), LD_LIBRARY_PATH=":".join([sim, *map(os.path.dirname, libraries[1:])]),
                SIMCUDA_FATBIN_LAYOUTS=os.path.join(options.build, "torch-layouts-" + torch),
                SIMCUDA_FATBIN_KERNELS=os.path.join(sim, "torch", "torch_host.so"), SIMCUDA_DEVICES=str(RANKS),
                SIMNCCL_VERSION=nccl, METASHARD_LOG=f"info:{folder}/log-%p", METASHARD_DUMP=f"{folder}/dump-%p",
                METASHARD_STATE_DIR=f"{folder}/state")


def check_launcher(options, name, command, method):
    name = f"{name}, workers by {method}"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, os.path.join(HERE, "launched.py"), method], env=environment_of(options, folder),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
        said = [tuple(map(int, line)) for line in LINE.findall(done.stdout)]
        dumps = {}
        for path in glob.glob(f"{folder}/dump-*"):
            dump = read_dump(path)
            dumps[dump["pid"]] = dump["deferred_allocations"]
        pages = {int(re.search(r"-(\d+)\.state$", path)[1]) for path in glob.glob(f"{folder}/state/metashard-*.state")}
        ranks = {}
        for path in glob.glob(f"{folder}/log-*"):
            with open(path, encoding="utf-8") as file:
                ranks.update((int(pid), int(rank)) for rank, pid in re.findall(r"metashard\[rank (\d+) pid (\d+)\]", file.read()))
    check(f"{name}: every rank ran", (done.returncode, sorted(line[1:] for line in said)),
          (0, [(rank, RANKS * (RANKS + 1) // 2, 63 * 32) for rank in range(RANKS)]))
    if done.returncode != 0:
        print("# " + done.stderr[-1500:].replace("\n", "\n# "))
    check(f"{name}: the shim was in each, and knew its rank", ranks, {pid: rank for pid, rank, _, _ in said})
    # A launcher that asks for the number of devices, where there is no NVML to ask, starts the driver, and no more.
    others = {pid: count for pid, count in dumps.items() if pid not in ranks}
    check(f"{name}: the launcher deferred nothing, and workers left nothing",
          (len(others) <= 1, sum(others.values()), pages == set(dumps), all(dumps[pid] > 0 for pid in ranks)), (True, 0, True, True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--python", default=os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                                                         "metashard", "systems", "bin", "python"))
    options = parser.parse_args()
    torchrun = [options.python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--master-port", "0",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    accelerate = [options.python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(RANKS),
                  "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    check_launcher(options, "torchrun", torchrun, "fork")
    check_launcher(options, "torchrun", torchrun, "spawn")
    check_launcher(options, "accelerate launch", accelerate, "forkserver")
    print(f"1..{len(results)}")
    return not all(results)


if __name__ == "__main__":
    sys.exit(main())
