# SPDX-License-Identifier: Apache-2.0
"""Checks of an installation, as TAP."""
import os

results = []


def check(name, holds, detail=""):
    results.append(bool(holds))
    print(f"{'ok' if holds else 'not ok'} {len(results)} {name}", flush=True)
    if not holds:
        print("\n".join("# " + line for line in str(detail).splitlines()[-30:]))


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def end():
    """The exit status."""
    print(f"1..{len(results)}")
    return 0 if all(results) else 1
