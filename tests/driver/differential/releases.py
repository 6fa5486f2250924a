#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""releases.py PROGRAM KERNELS SHIM: which releases of PyTorch the built-in kernel rules are used with. $TORCH_CUDA is a
stand-in for libtorch_cuda.so, whose build-id is STAND_IN's."""
import json
import os
import sys

from scenarios import main

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
RULES = os.path.join(SOURCE, "runtime", "kernel", "kernel-rules.txt")
STAND_IN = bytes.fromhex("11" * 20)
MIB = 1 << 20
PATIENT = {"METASHARD_KERNEL_RULES": "", "METASHARD_TORCH_CHECKS": "auto", "XDG_CACHE_HOME": "/nowhere",
           "METASHARD_SETTLE_MS": "0", "METASHARD_IDLE_MS": "5000"}  # however busy the machine is


def torch(folder, build_id, commit=None):
    """A folder as PyTorch's, with the library and version.py; the settings of a program that loads it."""
    library = os.path.join(folder, "torch", "lib", "libtorch_cuda.so")
    version = os.path.join(folder, "torch", "version.py")
    os.makedirs(os.path.dirname(library), exist_ok=True)
    with open(os.environ["TORCH_CUDA"], "rb") as file:
        data = file.read()
    assert data.count(STAND_IN) == 1
    with open(library, "wb") as file:
        file.write(data.replace(STAND_IN, bytes.fromhex(build_id)))
    if os.path.exists(version):
        os.remove(version)
    if commit is not None:
        with open(version, "w") as file:
            file.write(f"from typing import Optional\n\n__version__ = '9.9.0+cu999'\ngit_version = '{commit}'\n")
    return dict(PATIENT, TORCH_LIBRARY=library)


sys.path.insert(0, os.path.join(SOURCE, "tools", "check_torch"))
from torch_check import kept  # noqa: E402


def checks(test, build_id, other):
    """Checks that users have made themselves, in their cache."""
    cache = os.path.join(test.folder, "cache")
    path = os.path.join(cache, "metashard", "torch-checks")
    settings = dict(torch(test.folder, build_id, other), XDG_CACHE_HOME=cache)
    with open(RULES, "rb") as file:
        rules = file.read()

    def run(name, recorded, said, **changed):
        seen, dump = test.both("initialise", {**settings, **changed})
        test.check(name, dump["recorded_launches"] == recorded and [word in line for word, line in zip(
            said, seen.stderr.splitlines())] == [True] * len(said) and seen.stderr.count("\n") == len(said),
            f"{dump['recorded_launches']}: {seen.stderr}")

    kept.keep(path, build_id, rules, "9.9.0+cu999", True)
    run("a release that the user has checked: recorded, and nothing is said", 16, [])
    os.chmod(path, 0o666)
    run("in a file that others may write: no kernel is recorded", 0, ["is not used", "this PyTorch"])
    os.chmod(path, 0o600)
    elsewhere = os.path.join(cache, "elsewhere")
    os.rename(path, elsewhere)
    run("in a file that a variable names", 16, [], METASHARD_TORCH_CHECKS=elsewhere)
    kept.keep(elsewhere, "22" * 20, rules, "9.9.1", True)
    run("beside another one", 16, [], METASHARD_TORCH_CHECKS=elsewhere)
    kept.keep(elsewhere, build_id, rules, "9.9.0+cu999", False)
    run("checked again, and not good: no kernel is recorded", 0, ["this PyTorch"], METASHARD_TORCH_CHECKS=elsewhere)
    kept.keep(elsewhere, build_id, rules + b"#\n", "9.9.0+cu999", True)
    run("checked with other rules: no kernel is recorded", 0, ["this PyTorch"], METASHARD_TORCH_CHECKS=elsewhere)
    kept.keep(elsewhere, build_id, rules, "9.9.0+cu999", True)
    run("the file is not looked for", 0, ["this PyTorch"], METASHARD_TORCH_CHECKS="")
    with open(elsewhere, "w", encoding="utf-8") as file:
        file.write(f"metashard-torch-checks/2\n{build_id} {kept.sum_of(rules)} 9.9.0\n")
    run("a file of another form", 0, ["this PyTorch"], METASHARD_TORCH_CHECKS=elsewhere)


def releases(test):
    with open(os.path.join(SOURCE, "tests", "frameworks", "torch", "releases.json")) as file:
        kept = json.load(file)
    by_age = sorted(kept, key=lambda release: [int(part) for part in release.split(".")])
    newest = kept[by_age[-1]]
    changed = newest["build_id"][:-1] + "e0"[newest["build_id"][-1] == "e"]
    other = newest["commit"][:-1] + "e0"[newest["commit"][-1] == "e"]
    checked = [("no PyTorch", None), (by_age[0], (kept[by_age[0]]["build_id"], None)), (by_age[-1], (newest["build_id"], None)),
               ("another build of the newest", (changed, newest["commit"]))]
    for name, torch_of in checked:
        settings = torch(test.folder, *torch_of) if torch_of else PATIENT
        seen, dump = test.both("initialise", settings)
        test.check(f"{name}: its kernels are recorded, and nothing is said",
                   dump["recorded_launches"] == 16 and seen.stderr == "", f"{dump['recorded_launches']}: {seen.stderr}")
    for name, torch_of in (("a changed build-id", (changed, None)), ("a newer release", (changed, other))):
        seen, dump = test.both("initialise", torch(test.folder, *torch_of))
        test.check(f"{name}: no kernel is recorded, what comes from a file is deferred",
                   dump["recorded_launches"] == 0 and 32 * MIB <= dump["backed_bytes_peak"] <= 40 * MIB, dump)
        test.check(f"{name}: one line says so", seen.stderr.count("\n") == 1 and "this PyTorch" in seen.stderr and
                   changed in seen.stderr and (torch_of[1] is None or "version 9.9.0+cu999" in seen.stderr), seen.stderr)
    seen, dump = test.both("loaded_late", torch(test.folder, changed, other))
    test.check("loaded late: what was recorded before is right, and what is new runs",
               dump["recorded_launches"] == 2 and seen.stderr.count("\n") == 1, f"{dump['recorded_launches']}: {seen.stderr}")
    settings = dict(torch(test.folder, changed, other), METASHARD_KERNEL_RULES=RULES)
    seen, dump = test.both("initialise", settings)
    test.check("a newer release, the rules given by the user: recorded, and nothing is said",
               dump["recorded_launches"] == 16 and seen.stderr == "", f"{dump['recorded_launches']}: {seen.stderr}")

    checks(test, changed, other)


main(releases)
