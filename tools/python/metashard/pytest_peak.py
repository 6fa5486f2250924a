# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: the test in which the peak of device memory goes above a bound fails.

    metashard run -- pytest -p metashard.pytest_peak --metashard-peak 512MiB

The peak is that of the process, so a test that stays below one before it does not fail. Without MetaShard, and as long as
nothing is deferred, all tests pass."""
from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any, Generator

import pytest

from . import installed, is_loaded

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", text)
    if found is None:
        raise pytest.UsageError(f"--metashard-peak: expected bytes as 512MiB, found {text}")
    return int(float(found[1]) * UNITS[found[2]])


def peak() -> int:
    """Of this process until now, in bytes; 0 if it has no state page."""
    if not is_loaded():
        return 0
    done = subprocess.run([installed.find("metashard-dump"), "show", "--json", str(os.getpid())], capture_output=True, check=False,
                          env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})
    return int(json.loads(done.stdout)["backed_bytes_peak"]) if done.returncode == 0 else 0


def pytest_addoption(parser: Any) -> None:
    parser.getgroup("metashard").addoption("--metashard-peak", metavar="BYTES", help="a test in which the peak of device memory goes "
                                           "above this fails: 512MiB")


def pytest_configure(config: Any) -> None:
    text = config.getoption("--metashard-peak")
    config.metashard_most = None if text is None else bytes_of(text)


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
