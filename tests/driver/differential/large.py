# SPDX-License-Identifier: Apache-2.0
"""Random programs on large memory: program.c, which checks every byte it reads against a model of its own.

Program i of P has seed S + i and N / P operations. Each runs on the simulated driver: alone, under the shim with its
defaults, deferring everything, deferring everything without snapshots at low addresses (where wishes are honoured) with
pageable memory, on a slow device whose fresh memory is
never the same, and on a small device while settling all the time. Here the outputs are compared.
"""
import os
import subprocess
import tempfile

SETTINGS = (
    ("with the shim", {}),
    ("deferring everything", {"METASHARD_MIN_BYTES": "1"}),
    ("deferring everything, no snapshots, low addresses, pageable memory",
     {"METASHARD_MIN_BYTES": "1", "METASHARD_SNAPSHOT_BYTES": "0", "SIMCUDA_LOW": "1", "SIMCUDA_PAGEABLE": "1"}),
    ("deferring everything, slow device, poisoned memory",
     {"METASHARD_MIN_BYTES": "1", "SIMCUDA_DELAY_US": "100", "SIMCUDA_POISON": "2"}),
    ("deferring everything, settling at once, little memory",
     {"METASHARD_MIN_BYTES": "1", "METASHARD_SETTLE_MS": "1", "SIMCUDA_MEMORY_MIB": "96"}),
)


def run_program(command, extra, preload):
    environment = dict(os.environ, **extra)
    if preload:
        environment["LD_PRELOAD"] = preload
    else:
        environment.pop("LD_PRELOAD", None)
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def first_difference(wanted, seen):
    for number, (a, b) in enumerate(zip(wanted.splitlines(), seen.splitlines()), 1):
        if a != b:
            return f"line {number}: expected '{a}', got '{b}'"
    return f"{len(wanted.splitlines())} lines expected, {len(seen.splitlines())} seen"


def run(arguments):
    """How many runs diverged."""
    program = os.path.join(arguments.build, "tests", "driver", "differential", "program")
    kernels = [os.path.join(arguments.build, "tests", "simcuda", name)
               for name in ("test_kernels.so", "torch_kernels.so")]
    preload = arguments.preload or os.path.join(arguments.build, "shim", "libmetashard.so")
    operations = max(1, arguments.large // arguments.programs)
    divergences = 0
    with tempfile.TemporaryDirectory() as folder:
        for index in range(arguments.programs):
            seed = arguments.seed + index
            command = [program, str(seed), str(operations), os.path.join(folder, "data"), *kernels]
            status, wanted, errors = run_program(command, {}, None)
            if status != 0:
                print(f"seed {seed}: fails without the shim\n{wanted[-300:]}{errors[-2000:]}")
                divergences += 1
                continue
            for name, extra in SETTINGS:
                status, seen, errors = run_program(command, extra, preload)
                if status != 0 or seen != wanted or errors:
                    divergences += 1
                    print(f"seed {seed} {name}: exit status {status}, "
                          f"{first_difference(wanted, seen)}\n{seen[-300:]}{errors[-2000:]}")
    return divergences
