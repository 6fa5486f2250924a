# SPDX-License-Identifier: Apache-2.0
"""A PyTorch that lies in a folder, as a wheel installs it."""
import importlib.util
import os
import re

from . import elf

KERNELS, CUDA, BASE = LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libc10.so")


class Missing(Exception):
    """There is no such PyTorch; the text says what was looked for."""


class Torch:
    """The libraries, and what version.py says."""

    def __init__(self, folder):
        self.folder = folder
        for name in LIBRARIES:
            if not os.path.exists(self.library(name)):
                raise Missing(f"{folder} has no lib/{name}: it is no PyTorch for CUDA")
        path = os.path.join(folder, "version.py")
        if not os.path.exists(path):
            raise Missing(f"{folder} has no version.py, which tells the release")
        with open(path, encoding="utf-8") as file:
            said = dict(re.findall(r"^(\w+)(?:: [\w\[\]]+)? = '([^']*)'$", file.read(), flags=re.M))
        self.version, self.cuda, self.commit = said["__version__"], said.get("cuda", "?"), said.get("git_version", "?")
        self.release = tuple(int(number) for number in re.findall(r"\d+", self.version)[:2])
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
