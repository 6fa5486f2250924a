# SPDX-License-Identifier: Apache-2.0
"""The file of the PyTorch builds that the user has checked, which libmetashard.so reads (shim/torch_release.c).

    metashard-torch-checks/1
    BUILD-ID RULES VERSION

RULES is the sum of the kernel rules that were checked: with others the check is no longer of any use.
"""
import os
import re
import tempfile

FORMAT = "metashard-torch-checks/1"
MASK = (1 << 64) - 1
MOST_BYTES = 64 << 10  # what libmetashard.so reads of it


def default_path():
    """As runtime/config/config.c has it."""
    given = os.environ.get("METASHARD_TORCH_CHECKS", "auto")
    if given != "auto":
        return given
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(cache if cache.startswith("/") else os.path.expanduser("~/.cache"), "metashard", "torch-checks")


def sum_of(rules):
    """FNV-1a of 64 bits."""
    found = 0xCBF29CE484222325
    for byte in rules:
        found = (found ^ byte) * 0x100000001B3 & MASK
    return f"{found:016x}"


def read(path):
    """The lines of checks in a file; none where it is another file."""
    try:
        with open(path, "rb") as file:
            first, *lines = file.read(MOST_BYTES).decode("utf-8", "surrogateescape").split("\n")
    except FileNotFoundError:
        return []
    return [line for line in lines if line] if first == FORMAT else []


def first_of(lines):
    """As many as there is room for."""
    left = MOST_BYTES - len(FORMAT) - 1
    for line in lines:
        left -= len(line.encode("utf-8", "surrogateescape")) + 1
        if left < 0:
            return
        yield line


def keep(path, build_id, rules, version, is_good):
    """Puts the check of a library before the others, without earlier ones of it, or takes those away."""
    lines = [line for line in read(path) if not line.startswith(build_id + " ")]
    if is_good:
        lines.insert(0, f"{build_id} {sum_of(rules)} {re.sub('[^ -~]| ', '_', version)}")
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8", errors="surrogateescape") as file:  # of mode 600
        file.write("\n".join([FORMAT, *first_of(lines)]) + "\n")
    os.replace(file.name, path)
