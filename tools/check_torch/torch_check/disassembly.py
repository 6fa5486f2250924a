# SPDX-License-Identifier: Apache-2.0
"""The instructions of kernels in an ELF image, as nvdisasm prints them. nvdisasm comes with CUDA and, for Python, with Triton,
which PyTorch installs, and as the package nvidia-cuda-nvdisasm.
"""
import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from typing import NamedTuple, Optional, Tuple

from . import elf
from .untrusted import Names, require

ZERO = ("RZ", "URZ")
LINE = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;?\s*$")
LABEL = re.compile(r"^(\S+):$")
TARGET = re.compile(r"`\(([^)]+)\)")
BRANCH_TARGETS = re.compile(r'BRANCH_TARGETS ([^"]+)"')
REGISTER = re.compile(r"(?<![\w$])(U?R)(\d+|Z)\b")
CONSTANT = re.compile(r"cx?\[(\w+)\](?:\[(UR\d+|UR\d+)\])?\[([^\]]*)\]")
START = ".text."
FUNCTION = 2  # the kind of a symbol


class Instruction(NamedTuple):
    address: int
    predicate: str  # P0 or !P0; empty: none
    opcode: str  # with its suffixes: LDG.E.64
    operands: Tuple[str, ...]
    text: str

    @property
    def base(self):
        return self.opcode.partition(".")[0]


class Code(NamedTuple):
    instructions: Tuple[Instruction, ...]
    labels: dict  # name: number of the instruction behind it


def find(given=None):
    """The path of nvdisasm, or None."""
    if given is not None:
        return given
    for package, places in (("triton", ["backends/nvidia/bin/nvdisasm"]), ("nvidia", ["*/bin/nvdisasm", "*/*/bin/nvdisasm"])):
        found = importlib.util.find_spec(package)
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            for path in [path for place in places for path in glob.glob(os.path.join(glob.escape(folder), place))]:
                if os.access(path, os.X_OK):
                    return path
    return shutil.which("nvdisasm") or shutil.which("/usr/local/cuda/bin/nvdisasm")


@functools.lru_cache(maxsize=None)
def split(operands):
    """At commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(operands):
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            parts.append(operands[begin:at].strip())
            begin = at + 1
    return tuple(parts + [operands[begin:].strip()] if operands.strip() else ())


@functools.lru_cache(maxsize=1 << 16)
def instruction(line) -> Optional[Instruction]:
    found = LINE.match(line)
    if found is None:
        return None
    address, predicate, opcode, operands = found.groups()
    return Instruction(int(address, 16), "" if predicate in (None, "PT", "UPT") else predicate, opcode, split(operands), operands)


def symbol_numbers(image):
    """{name: number} of the functions in an image"""
    table = elf.section(image, ".strtab")
    names = Names(table, 0, len(table))
    return {names.at(at): number for number, (at, kind, _) in enumerate(elf.rows_of_symbols(image, ".symtab")) if kind == FUNCTION}


def parse(lines):
    """Yields (kernel, Code)."""
    name, found, labels = None, [], {}
    for line in lines:
        read = instruction(line) if line.startswith((" ", "\t")) else None
        if read is not None:
            found.append(read)
            continue
        label = LABEL.match(line)
        if label is None:
            continue
        if label[1].startswith(START):
            if found:
                yield name, Code(tuple(found), labels)
            name, found, labels = label[1][len(START):], [], {}
        labels[label[1]] = len(found)
    if found:
        yield name, Code(tuple(found), labels)


def read(nvdisasm, image, kernels):
    """Yields (kernel, Code) of the kernels of that name in an image."""
    numbers = symbol_numbers(image)
    for name in kernels:
        require(name in numbers, f"a symbol of the kernel {name}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        options = file.name + ".options"
        with open(options, "w", encoding="ascii") as text:
            text.write("--cuda-function-index " + ",".join(str(numbers[name]) for name in kernels))
        try:
            with subprocess.Popen([nvdisasm, "-c", "-optf", options, file.name], stdout=subprocess.PIPE, text=True) as process:
                try:
                    for name, code in parse(process.stdout):
                        if name in kernels:
                            yield name, code
                except BaseException:  # of whoever reads this too
                    process.kill()
                    raise
            if process.returncode != 0:
                raise OSError(f"{nvdisasm} ended with {process.returncode}")
        finally:
            os.remove(options)
