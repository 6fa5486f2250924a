# SPDX-License-Identifier: Apache-2.0
"""Where the installed files are."""
from __future__ import annotations

import importlib.metadata
import os


class Fault(Exception):
    """The command cannot do what the user asked; the text says why."""


def version() -> str:
    try:
        return importlib.metadata.version("metashard")
    except importlib.metadata.PackageNotFoundError:  # the sources, run where they are
        raise Fault("the version is not known: this package is not installed") from None


def find(name: str) -> str:
    """The path of the library, a tool or another file of the wheel; its folders may stand before its name."""
    try:
        files = importlib.metadata.files("metashard") or ()
    except importlib.metadata.PackageNotFoundError:  # the sources, run where they are
        files = ()
    for path in files:
        if f"/{path}".endswith(f"/{name}"):
            found = os.path.realpath(os.fspath(path.locate()))
            if os.path.exists(found):
                return found
    # pip install --target moves files without correcting its list of them.
    target = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for folder in ("bin", "share", os.path.join("share", "metashard")):
        found = os.path.join(target, folder, name)
        if os.path.exists(found):
            return os.path.realpath(found)
    raise Fault(f"{name} is not installed with this package: an editable installation has none, pip install . has it")


def library() -> str:
    """The path for LD_PRELOAD."""
    path = find("libmetashard.so")
    if " " in path or ":" in path:
        raise Fault(f"LD_PRELOAD cannot name {path}: install into a path without spaces and colons")
    return path
