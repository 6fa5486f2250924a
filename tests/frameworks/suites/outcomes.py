# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: a line of JSON for each test as it ends, in the file SUITE_OUTCOMES, so that a run that breaks off
keeps what it has, and shows where."""
import json
import os

import pytest


def tell(**record):
    with open(os.environ["SUITE_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def first_line_of_failure(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).strip()


def pytest_runtest_logstart(nodeid):
    tell(test=nodeid, outcome="broke off", why="")


def pytest_runtest_logreport(report):
    if report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        tell(test=report.nodeid, outcome="skipped", why=why.removeprefix("Skipped: "))
    elif report.failed:
        tell(test=report.nodeid, outcome="failed", why=first_line_of_failure(report))
    elif report.when == "call":
        tell(test=report.nodeid, outcome="passed", why="")


def pytest_collectreport(report):
    if report.failed:
        tell(test=report.nodeid, outcome="failed", why=first_line_of_failure(report))
    elif report.skipped:
        tell(test=report.nodeid, outcome="skipped", why=report.longrepr[2].removeprefix("Skipped: "))


@pytest.fixture
def initialize_from_pytest_config(request):
    """In the place of a fixture of numba-cuda's repository, which its wheel lacks."""
    request.cls._dump_failed_filechecks = False
