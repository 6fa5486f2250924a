# SPDX-License-Identifier: Apache-2.0
"""Where check_wheel.py finds PyTorch's libraries: the installed wheel, the file of one, or a release from PyPI."""
import contextlib
import os
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "check_torch"))
from torch_check.library import LIBRARIES, Torch, installed  # noqa: E402


def unpack(path, folder):
    with zipfile.ZipFile(path) as file:
        for name in ["version.py"] + [f"lib/{library}" for library in LIBRARIES]:
            file.extract(f"torch/{name}", folder)
    return Torch(os.path.join(folder, "torch"))


def download(release, folder):
    """The wheel of this machine and Python, without what it needs."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder,
                    f"torch=={release}"], check=True)
    return next(entry.path for entry in os.scandir(folder) if entry.name.endswith(".whl"))


@contextlib.contextmanager
def opened(path=None, release=None):
    """The wheel in a file, of a release, or the installed one. What is fetched or unpacked is deleted behind."""
    if path is None and release is None:
        yield installed()
        return
    with tempfile.TemporaryDirectory(prefix="metashard-wheel-") as folder:
        wheel = unpack(path or download(release, folder), folder)
        if path is None:
            os.remove(next(entry.path for entry in os.scandir(folder) if entry.name.endswith(".whl")))
        yield wheel
