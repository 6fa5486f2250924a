# SPDX-License-Identifier: Apache-2.0
"""Which libraries stand before MetaShard in LD_PRELOAD, and may keep the program's calls from it."""
from __future__ import annotations

import itertools
import mmap
import os
import re
import struct
from typing import Iterator

# Names that a library of the driver's kind exports: entry points, and dlsym if the library answers lookups.
OF_DRIVER = re.compile(rb"cu[A-Z]\w*|dlsym")
SHT_DYNSYM = 11
MOST_SYMBOLS, NAME_BYTES = 1 << 20, 256


def section_headers(data: mmap.mmap) -> list[tuple[int, ...]]:
    """name, type, flags, address, offset, size, link, info, alignment, entry size: of each section of a 64-bit ELF file."""
    at, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    return [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]


def symbols(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Where the name of each symbol begins, and its section, of a library of 64 bits."""
    headers = section_headers(data) if data[:6] == b"\x7fELF\x02\x01" else []
    for _, kind, _, _, offset, size, link, *_ in headers:
        for at in range(offset, offset + size, 24) if kind == SHT_DYNSYM else ():
            name, section = struct.unpack_from("<IxxH", data, at)
            yield headers[link][4] + name, section


def exports(path: str) -> Iterator[str]:
    """The names of OF_DRIVER that the library defines. Nothing of a file that is none, or beyond limits that no library has."""
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for begin, section in itertools.islice(symbols(data), MOST_SYMBOLS):
            text = data[begin:begin + NAME_BYTES].partition(b"\0")[0] if section != 0 else b""
            if OF_DRIVER.fullmatch(text):
                yield text.decode()
    except (OSError, ValueError, IndexError, OverflowError, struct.error):
        return


def say_before(preloads: list[str], library: str) -> list[str]:
    """A line for each library that stands before this one and has functions of the driver."""
    lines = []
    for path in preloads:
        if os.path.realpath(path) == library:
            break
        name = next(exports(path), None)
        if name is not None:
            lines.append(f"{path} stands before libmetashard.so in LD_PRELOAD and has {name} of its own: it may keep calls from "
                         "MetaShard; put libmetashard.so first, or read \"Two libraries are preloaded\" in docs/troubleshooting.md")
    return lines
