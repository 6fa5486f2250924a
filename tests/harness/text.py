# SPDX-License-Identifier: Apache-2.0
import os


def read(*path):
    """The text of a file; path: its folders, and its name."""
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()
