# SPDX-License-Identifier: Apache-2.0
"""A PyTorch that lies in a folder, as a wheel installs it."""
import importlib.util
import os
import re

from . import elf, untrusted

KERNELS, CUDA, BASE = LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libc10.so")


class Missing(Exception):
    """There is no such PyTorch; the text says what was looked for."""


class Torch:
    """The libraries, and what version.py says."""

    def __init__(self, folder):
        self.folder = folder
        for name in LIBRARIES:
            if not os.path.isfile(self.library(name)):
                raise Missing(f"{folder} has no lib/{name}: it is no PyTorch for CUDA")
        path = os.path.join(folder, "version.py")
        if not os.path.isfile(path):
            raise Missing(f"{folder} has no version.py, which tells the release")
        said = dict(re.findall(r"^(\w+)(?:: [\w\[\]]+)? = '([^'\n]*)'$", untrusted.text(path), flags=re.M))
        self.version, self.cuda, self.commit = said.get("__version__", ""), said.get("cuda", "?"), said.get("git_version", "?")
        release = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", self.version)
        untrusted.require(release is not None, f"{path} to have a line such as __version__ = '2.15.0'")
        self.release = tuple(int(number) for number in release.groups())
        self.found = {}

    def library(self, name):
        return os.path.join(self.folder, "lib", name)

    def symbols(self, name):
        """(those that the library defines, those that it takes from others)"""
        if name not in self.found:
            self.found[name] = elf.symbols(self.library(name))
        return self.found[name]

    def defined(self, name):
        return self.symbols(name)[0]

    def undefined(self, name):
        return self.symbols(name)[1]

    def build_id(self):
        return elf.build_id(self.library(KERNELS))


def installed():
    """The one of this Python, which is not loaded."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise Missing("this Python has no PyTorch")
    return Torch(os.path.dirname(found.origin))
