#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_claims.py --meson 'COMMAND introspect' --build DIR --preload P: claims.txt against README.md and docs/faq.md. Each part of
these pages has a line there, each line is in them, the tests and commands that it names are there, and what takes less than a minute
is run. tests/static/check_claims.py compares figures. TAP."""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from claims import claims, parts  # noqa: E402
from tap import check, end  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
LEAST_RUN, MOST_SECONDS = 8, 60


def tests_of(options):
    done = subprocess.run([*shlex.split(options.meson), options.build, "--tests"], capture_output=True, text=True, check=True)
    return {test["name"] for test in json.loads(done.stdout)}


def run(options, by, folder, environment):
    command, _, wanted = by.partition(" => ")
    begin = time.monotonic()
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=10 * MOST_SECONDS, check=False)
    seconds = time.monotonic() - begin
    check(command, done.returncode == 0 and wanted in done.stdout + done.stderr, f"{done.returncode}\n{done.stdout}{done.stderr}")
    print(f"# {seconds:.1f} s")


def check_runs(options, commands):
    with tempfile.TemporaryDirectory() as folder:
        demo, llama = os.path.join(options.build, "tests", "demo"), os.path.join(folder, "llama")
        os.mkdir(llama)
        subprocess.run([os.path.join(demo, "make_checkpoint"), llama, "64", "2"], stdout=subprocess.DEVNULL, check=True)
        environment = {**{name: value for name, value in os.environ.items() if not name.startswith("METASHARD")},
                       "PATH": os.path.join(options.build, "tools") + ":" + os.environ["PATH"], "LLAMA": llama,
                       "CLIENT": os.path.join(demo, "client"), "LIBRARY": options.preload,
                       "STATES": os.path.join(folder, "states"), "METASHARD_STATE_DIR": os.path.join(folder, "states")}
        for command in dict.fromkeys(commands):
            run(options, command, folder, environment)


def main():
    parser = argparse.ArgumentParser()
    for option in ("meson", "build", "preload"):
        parser.add_argument("--" + option, required=True)
    options = parser.parse_args()
    told, there = list(claims()), list(parts())
    whole = "\n".join(there)
    lost = [text for text, _, _ in told if text not in whole]
    check("each line of claims.txt is in a page", not lost, "\n".join(lost))
    bare = [part for part in there if not any(text in part for text, _, _ in told)]
    check("each part of the pages has a line", not bare and len(there) > 50, "\n".join(bare))
    tests = tests_of(options)
    # Without its header there are no tests of NCCL.
    unknown = [by for _, kind, by in told if kind == "test" and by not in tests and
               (not by.startswith("nccl") or "nccl alone" in tests)]
    check("each test is there", not unknown, unknown)
    missing = [by for _, kind, by in told if kind == "hand" and not os.access(os.path.join(SOURCE, by.split()[0]), os.X_OK)]
    check("each command that is run by hand is there", not missing, missing)
    strange = [(text, kind) for text, kind, _ in told if kind not in ("run", "test", "hand", "says", "row", "count", "distinct", "sum", "name")]
    check("each line says how it is shown", not strange, strange)
    long = [by for _, kind, by in told if kind == "run" and " => " not in by]
    check("each that is run says what it prints", not long, long)
    commands = [by for _, kind, by in told if kind == "run"]
    check("some are run here", len(set(commands)) >= LEAST_RUN, commands)
    check_runs(options, commands)
    return end()


if __name__ == "__main__":
    sys.exit(main())
