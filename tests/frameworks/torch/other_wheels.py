#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""other_wheels.py [--keep] WHEEL...: no kernel rule names a kernel of another library. Each is unknown then: what its parameters
point to is in memory before it runs, however it is launched (tests/driver/groups/launches.c). WHEELs are files, as `pip
download --no-deps` fetches them. --keep writes what was found into others.json, of which releases.py makes a part of its page. TAP.
"""
import argparse
import json
import os
import sys
import tempfile
import zipfile

import releases
from torch_check import fatbin, promises

PREFERRED = 90


def kernels_of(path):
    """Those for the architecture that is preferred, or for the newest."""
    there = fatbin.architectures(path)
    return set(fatbin.kernels(path, PREFERRED if PREFERRED in there else max(there))) if there else set()


def libraries(wheel):
    """(name, its kernels) of each shared object that has some"""
    with zipfile.ZipFile(wheel) as file, tempfile.TemporaryDirectory(prefix="metashard-wheel-") as folder:
        for name in file.namelist():
            if name.endswith(".so") or ".so." in name:
                path = file.extract(name, folder)
                kernels = kernels_of(path)
                os.remove(path)
                if kernels:
                    yield os.path.basename(name), kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("wheels", nargs="+", metavar="WHEEL")
    options = parser.parse_args()
    rules, failed = promises.read_rules(promises.rules_path()), 0
    for number, path in enumerate(options.wheels, 1):
        package, version = os.path.basename(path).split("-")[:2]
        found = dict(libraries(path))
        named = [name for kernels in found.values() for name in kernels if promises.first_match(rules, name) is not None]
        is_good = bool(found) and not named
        failed += not is_good
        print(f"{'ok' if is_good else 'not ok'} {number} {package} {version}: {len(found)} libraries with kernels", flush=True)
        print("".join(f"# {name[:200]}\n" for name in named[:5]), end="")
        if options.keep and is_good:
            kept = releases.read(releases.OTHERS)
            kept[package] = {"version": version, "libraries": {name: len(kernels) for name, kernels in sorted(found.items())}}
            with open(releases.OTHERS, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1, sort_keys=True)
                file.write("\n")
    print(f"1..{len(options.wheels)}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
