# SPDX-License-Identifier: Apache-2.0
"""Runs the probe on the simulated driver and checks the answers that the design relies on.

    check_probe.py --build DIR [--json FILE]

With --json a result that is already there is checked instead, as one from a GPU: what fails then is
a difference between that driver and what the design assumes.
"""
import os
import sys

import build_all
from part_script import BUILD_ROW, options_of
from probe import SECTIONS
from probe_rows import facts_of
from run_tools import read_json, run_script

# Parts that may fail: (path, text in the error, why).
ALLOWED_ERRORS = [
    ("alias.partial", "cuMemMap: CUDA_ERROR_NOT_SUPPORTED",
     "an earlier probe maps a part of a handle once more, also where that is refused"),
    *((f"unmapped.{call}", "ended by signal 11", "where no memory of the device is, an address is one of the host")
      for call in ("cuMemcpy_to", "cuMemcpy_from", "cuMemcpyAsync_to")),
]
# A fact -> what its result lacks if an older probe wrote it, whose own question ended the capture (it asked a stream).
NOT_ASKED = {"capture.thread_local_during_a_free.capture": "capture.thread_local_during_a_free.began_after_ms"}


def look_up(result, path):
    for key in path.split("."):
        if not isinstance(result, dict) or key not in result:
            raise LookupError(f"{path}: no {key}")
        result = result[key]
    return result


def errors_in(value, path=""):
    if isinstance(value, dict):
        if "error" in value:
            yield path, value["error"]
        for key, inner in value.items():
            yield from errors_in(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from errors_in(inner, path)


def was_asked(result, path):
    try:
        return path not in NOT_ASKED or look_up(result, NOT_ASKED[path]) is not None
    except LookupError:
        return False


def facts_asked(result):
    """Those of the sections that the probe was asked for, whether they are there or not."""
    return {path: wanted for section in SECTIONS if section.name in result["sections"]
            for path, wanted in facts_of(section).items() if was_asked(result, path)}


def check(result):
    problems = [f"{path}: {error}" for path, error in errors_in(result)
                if not any(path == allowed and text in error for allowed, text, _ in ALLOWED_ERRORS)]
    for path, wanted in facts_asked(result).items():
        try:
            seen = look_up(result, path)
        except LookupError as error:
            problems.append(str(error))
            continue
        if not (wanted(seen) if callable(wanted) else seen == wanted):
            expected = "" if callable(wanted) else f", not {wanted!r}"
            problems.append(f"{path} is {seen!r}{expected}")
    return problems


def in_short(result):
    return f"{len(facts_asked(result))} facts, {len(check(result))} not as the design assumes"


def main():
    options = options_of(__doc__, 0, BUILD_ROW, ("--json", None))
    if options.json:
        result = read_json(options.json)
    else:
        folder = os.path.join(options.build, os.path.dirname(build_all.SIMULATOR))
        _, said, result = run_script(options.build, "probe.py", "--simulated", LD_LIBRARY_PATH=folder)
        print(said)
    if "skipped" in result:
        raise SystemExit("the driver was not started: " + result["skipped"])
    problems = check(result)
    print("\n".join([*problems, in_short(result)]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
