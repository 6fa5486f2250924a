# SPDX-License-Identifier: Apache-2.0
"""Where check_wheel.py finds PyTorch's libraries: the installed wheel, the file of one, or a release from PyPI."""
import contextlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "check_torch"))
from torch_check import untrusted  # noqa: E402
from torch_check.library import LIBRARIES, Torch, installed  # noqa: E402

WHEEL_BYTES = 8 << 30


def unpack(path, folder):
    """An entry has as many bytes as the wheel's directory says, or zipfile refuses it."""
    names = [f"torch/{name}" for name in ["version.py"] + [f"lib/{library}" for library in LIBRARIES]]
    try:
        with zipfile.ZipFile(path) as file:
            entries = [file.getinfo(name) for name in names]
            untrusted.require(sum(entry.file_size for entry in entries) <= WHEEL_BYTES, f"at most {WHEEL_BYTES >> 30} GiB in {path}")
            for entry in entries:
                file.extract(entry, folder)
    except (KeyError, ValueError, RuntimeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise untrusted.Malformed(f"{path}: expected a wheel of PyTorch: {error}") from None
    return Torch(os.path.join(folder, "torch"))


def download(release, folder):
    """The wheel of this machine and Python, without what it needs."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder,
                    f"torch=={release}"], check=True)
    return next(entry.path for entry in os.scandir(folder) if entry.name.endswith(".whl"))


@contextlib.contextmanager
def opened(path=None, release=None):
    """The wheel in a file, of a release, or the installed one. Fetched and unpacked files are deleted at the end."""
    if path is None and release is None:
        yield installed()
        return
    with tempfile.TemporaryDirectory(prefix="metashard-wheel-") as folder:
        wheel = unpack(path or download(release, folder), folder)
        if path is None:
            os.remove(next(entry.path for entry in os.scandir(folder) if entry.name.endswith(".whl")))
        yield wheel
