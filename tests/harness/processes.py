# SPDX-License-Identifier: Apache-2.0
"""Processes that a test has started, or that others have started for it."""


def is_there(process):
    """False for a zombie: the process has ended, and nobody has waited for it."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
