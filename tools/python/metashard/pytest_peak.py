# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: tests fail because of the device memory that they take, on a bound or, without a GPU, on a GPU.

    metashard run -- pytest -p metashard.pytest_peak --metashard-peak 512MiB

The peak is that of the process, so a test that stays below one before it does not fail. Without MetaShard, and as long as
nothing is deferred, all tests pass.

    @pytest.mark.fits(gpu="h100-80", world=8, steps=3)

Such a test runs in a dry run, alone, and fails if it does not fit, or if that cannot be said."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any, Generator, Optional

import pytest

from . import dry_run, dry_run_answer, installed, is_loaded

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", text)
    if found is None:
        raise pytest.UsageError(f"--metashard-peak: expected bytes as 512MiB, found {text}")
    return int(float(found[1]) * UNITS[found[2]])


def peak() -> int:
    """The peak of this process until now, in bytes; 0 if it has no state page."""
    if not is_loaded():
        return 0
    done = subprocess.run([installed.find("metashard-dump"), "show", "--json", str(os.getpid())], capture_output=True, check=False,
                          env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})
    return int(json.loads(done.stdout)["backed_bytes_peak"]) if done.returncode == 0 else 0


def pytest_addoption(parser: Any) -> None:
    parser.getgroup("metashard").addoption("--metashard-peak", metavar="BYTES", help="a test in which the peak of device memory goes "
                                           "above this fails: 512MiB")


def dry_run_of(test: str, folder: str, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Runs one test. The inner pytest leaves no cache."""
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return subprocess.run([sys.executable, "-m", "metashard", "dry-run", "--json", *options, "--", sys.executable, "-m", "pytest", "-q",
                           "-p", "metashard.pytest_peak", "-p", "no:cacheprovider", test],
                          cwd=folder, capture_output=True, text=True, check=False)


def why_not(done: subprocess.CompletedProcess[str]) -> Optional[str]:
    """The text of the test's failure, or None. The dry run prints its answer after the output of the test."""
    if done.returncode == dry_run.FITS:
        return None
    said, begin, answer = ("\n" + done.stdout).rpartition("\n{\n")
    if not begin:
        return done.stderr.strip()
    found = json.loads("{\n" + answer)
    text = dry_run_answer.text({dry_run.AS_IT_IS: found}).strip()
    return text if found["status"] == dry_run.DOES_NOT_FIT else f"{text}\n{said.strip()}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Optional[bool]:
    """Instead of a test that is marked, where this is no dry run."""
    marker = pyfuncitem.get_closest_marker("fits")
    if marker is None or "DRY_RUN_FOLDER" in os.environ:
        return None
    unknown = set(marker.kwargs) - {"gpu", "world", "rank", "steps"}
    if unknown or marker.args:
        pytest.fail(f"fits: expected gpu=, world=, rank= or steps=, found {', '.join(sorted(unknown)) or marker.args}", pytrace=False)
    why = why_not(dry_run_of(pyfuncitem.nodeid, str(pyfuncitem.config.rootpath), marker.kwargs))
    if why is not None:
        pytest.fail(why, pytrace=False)
    return True


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "fits(gpu, world, rank, steps): in a dry run, the test's memory fits on this GPU")
    text = config.getoption("--metashard-peak")
    config.metashard_most = None if text is None else bytes_of(text)


def pytest_report_header(config: Any) -> list[str]:
    """A bound that no test can break is a mistake."""
    if config.metashard_most is None or is_loaded():
        return []
    return ["metashard: --metashard-peak has no effect, because MetaShard is not loaded: start it as metashard run -- pytest ..."]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Generator[None, Any, Any]:
    most = item.config.metashard_most
    before = peak() if most is not None else 0
    result = yield
    after = peak() if most is not None else 0
    if most is not None and after > most and after > before:
        pytest.fail(f"the peak of device memory rose from {before / 2 ** 20:.1f} MiB to {after / 2 ** 20:.1f}, above "
                    f"{most / 2 ** 20:.1f}; metashard show {os.getpid()} says why", pytrace=False)
    return result
