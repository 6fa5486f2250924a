# SPDX-License-Identifier: Apache-2.0
"""Reads 64-bit little-endian ELF files: sections, dynamic symbols, the build-id."""
import mmap
import os
import struct
from typing import NamedTuple

from .untrusted import SYMBOLS, Malformed, Names, numbers, require

MAGIC = b"\x7fELF\2\1"
ROW_BYTES, SYMBOL_BYTES = 64, 24
WITHOUT_BYTES = 8  # the kind of a section of zeros
UNDEFINED = 0
PREFIX = 16  # of a note of GNU: sizes, kind, and a name of four bytes
BUILD_ID_BYTES = 64  # shim/torch_release.c knows shorter ones


class Section(NamedTuple):
    name: str
    offset: int
    size: int
    link: int


def rows_of(data):
    """The table of sections, and the number of its row of names. The file has to be 64-bit and little-endian, and to hold all headers."""
    require(bytes(data[:6]) == MAGIC, "a 64-bit little-endian ELF file")
    start, = numbers("<Q", data, 0x28, "an ELF header")
    size, count, names = numbers("<HHH", data, 0x3A, "an ELF header")
    require(count == 0 or size == ROW_BYTES, f"headers of sections of {ROW_BYTES} bytes, found {size}")
    end = start + ROW_BYTES * count
    require(end <= len(data), f"{count} headers of sections at {start:#x}, found the end at {len(data):#x}")
    require(count == 0 or names < count, f"the names of sections in one of {count}, found {names}")
    return list(struct.iter_unpack("<IIQQQQIIQQ", data[start:end])), names


def sections(data):
    rows, names = rows_of(data)
    total = 0
    for number, (_, kind, _, _, offset, size, *_) in enumerate(rows):
        if kind == WITHOUT_BYTES:
            continue
        total += size
        require(offset + size <= len(data), f"section {number} within the file's {len(data):#x} bytes, found {offset:#x} and {size:#x} bytes")
    require(total <= len(data), f"sections that do not overlap, found {total:#x} bytes in a file of {len(data):#x}")
    table = Names(data, rows[names][4], rows[names][4] + rows[names][5]) if rows else None
    for name, kind, _, _, offset, size, link, _, _, _ in rows:
        yield Section(table.at(name), offset, size if kind != WITHOUT_BYTES else 0, link)


def section(data, name):
    """Its bytes; none if there is no such section."""
    return next((data[found.offset:found.offset + found.size] for found in sections(data) if found.name == name), b"")


class File:
    """A file that is open in a with statement, as bytes."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        if not os.path.isfile(self.path) or os.path.getsize(self.path) == 0:
            raise Malformed(f"{self.path}: expected a file that is not empty")
        with open(self.path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.data

    def __exit__(self, _, error, __):
        self.data.close()
        if isinstance(error, Malformed):
            raise Malformed(f"{self.path}: {error}") from None


def rows_of_symbols(data, name):
    """(place of the name, kind, section) of each symbol in a section"""
    table = section(data, name)
    require(len(table) % SYMBOL_BYTES == 0 and len(table) <= SYMBOL_BYTES * SYMBOLS,
            f"{name} of at most {SYMBOLS} symbols of {SYMBOL_BYTES} bytes, found {len(table)} bytes")
    return ((at, kind & 15, place) for at, kind, _, place, _, _ in struct.iter_unpack("<IBBHQQ", table))


def symbols(path):
    """(names that a shared object defines for others, names that it expects of others)"""
    found = (set(), set())
    with File(path) as data:
        table = section(data, ".dynstr")
        names = Names(table, 0, len(table))
        for at, _, place in rows_of_symbols(data, ".dynsym"):
            found[place == UNDEFINED].add(names.at(at))
    return found


def build_id(path):
    """In hexadecimal digits; empty: the file has none."""
    with File(path) as data:
        return bytes(section(data, ".note.gnu.build-id")[PREFIX:PREFIX + BUILD_ID_BYTES]).hex()
