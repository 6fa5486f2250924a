# SPDX-License-Identifier: Apache-2.0
"""Where check_wheel.py finds PyTorch's libraries: the installed wheel, the file of one, or a release from PyPI."""
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile

LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libc10.so")


class Wheel:
    """The libraries of a wheel that lies unpacked in a folder, and what its version.py says."""

    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            said = dict(re.findall(r"^(\w+)(?:: [\w\[\]]+)? = '([^']*)'$", file.read(), flags=re.M))
        self.version, self.cuda, self.commit = said["__version__"].split("+")[0], said["cuda"], said["git_version"]
        self.release = tuple(int(number) for number in re.findall(r"\d+", self.version)[:2])

    def library(self, name):
        return os.path.join(self.folder, "lib", name)

    def symbols(self, name, kind):
        listed = subprocess.run(["nm", "-D", kind, self.library(name)], check=True, capture_output=True, text=True)
        return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}

    def build_id(self):
        notes = subprocess.run(["readelf", "-n", self.library(LIBRARIES[0])], check=True, capture_output=True, text=True)
        return re.search(r"Build ID: (\w+)", notes.stdout)[1]


def installed():
    return Wheel(os.path.dirname(importlib.util.find_spec("torch").origin))


def unpack(path, folder):
    with zipfile.ZipFile(path) as file:
        for name in ["version.py"] + [f"lib/{library}" for library in LIBRARIES]:
            file.extract(f"torch/{name}", folder)
    return Wheel(os.path.join(folder, "torch"))


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
