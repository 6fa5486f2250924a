# SPDX-License-Identifier: Apache-2.0
"""Runs `metashard dry-run` and `metashard fit` of this tree, on the simulator of a build, with a Python that has PyTorch."""
import datetime
import json
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "metashard")
PYTHON, SYSTEMS = (os.path.join(CACHE, name, "bin", "python") for name in ("torch", "systems"))


def add_options(parser):
    parser.add_argument("--build", default=os.path.join(SOURCE, "build"))
    parser.add_argument("--python", default=PYTHON, help="by default that which tests/frameworks/torch/run makes")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a command")


def environment(build, python):
    folder = os.path.dirname(os.path.abspath(python))
    return {**os.environ, "DRY_RUN_SIMULATOR": os.path.join(build, "tools", "simcuda"),
            "DRY_RUN_LIBRARY": os.path.join(build, "shim", "libmetashard.so"), "PYTHONPATH": os.path.join(SOURCE, "tools", "python"),
            "PYTHONDONTWRITEBYTECODE": "1", "PATH": f"{folder}:{os.environ['PATH']}"}


def run(options, environment_, arguments, command, what="dry-run", python=None):
    """The exit status, the answer, and the output of the program with the messages. python: another than that of the options."""
    done = subprocess.run([python or options.python, "-m", "metashard", what, "--json", *arguments, "--", *command],
                          cwd=HERE, capture_output=True, text=True, check=False, env=environment_, timeout=options.timeout)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def has(python, package):
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def python_with(options, package):
    """The Python of the options, or that of tests/frameworks/systems/run, whichever has the package; None if neither does."""
    return next((python for python in (options.python, SYSTEMS) if os.path.exists(python) and has(python, package)), None)


def made():
    """The last commit that changed MetaShard or its simulator, with a + where there are changes since; and today."""
    folders = ("shim", "runtime", "tools")
    done = [subprocess.run(["git", *words, "--", *folders], cwd=SOURCE, capture_output=True, text=True, check=True)
            for words in (["log", "-1", "--abbrev=8", "--format=%h"], ["status", "--porcelain"])]
    commit, changed = (one.stdout.strip() for one in done)
    return {"commit": commit + "+" * bool(changed), "day": datetime.date.today().isoformat()}
