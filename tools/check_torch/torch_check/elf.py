# SPDX-License-Identifier: Apache-2.0
"""What is read of 64-bit little-endian ELF files: sections, dynamic symbols, the build-id."""
import mmap
import struct
from typing import NamedTuple

SYMBOL_BYTES = 24
UNDEFINED = 0
PREFIX = 16  # of a note of GNU: sizes, kind, and a name of four bytes


class Section(NamedTuple):
    name: str
    offset: int
    size: int
    link: int


def sections(data):
    start = struct.unpack_from("<Q", data, 0x28)[0]
    _, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = list(struct.iter_unpack("<IIQQQQIIQQ", data[start:start + 64 * count]))
    for name, _, _, _, offset, size, link, _, _, _ in rows:
        begin = rows[names][4] + name
        yield Section(bytes(data[begin:data.find(b"\0", begin)]).decode(), offset, size, link)


def section(data, name):
    """Its bytes; none if there is no such section."""
    return next((data[found.offset:found.offset + found.size] for found in sections(data) if found.name == name), b"")


class File:
    """A file that is open in a with statement, as bytes."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        with open(self.path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.data

    def __exit__(self, *_):
        self.data.close()


def symbols(path):
    """(names that a shared object defines for others, names that it expects of others)"""
    found = (set(), set())
    with File(path) as data:
        names = section(data, ".dynstr")
        for at, _, _, place, _, _ in struct.iter_unpack("<IBBHQQ", section(data, ".dynsym")):
            found[place == UNDEFINED].add(names[at:names.index(b"\0", at)].decode())
    return found


def build_id(path):
    """In hexadecimal digits; empty: the file has none."""
    with File(path) as data:
        return bytes(section(data, ".note.gnu.build-id")[PREFIX:]).hex()
