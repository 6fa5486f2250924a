# SPDX-License-Identifier: Apache-2.0
"""Libraries of others: how what they say is read. It is compared with the file before it is believed, each number has a limit,
and what is wrong is one line with its place."""
import contextlib
import os
import struct

NAME_BYTES = 1 << 16  # of a symbol, a section or a kernel; PyTorch's longest has 2 KB
ALL_NAMES_BYTES = 256 << 20  # of all that are read of a file or an image
SYMBOLS = 1 << 22
IMAGE_BYTES = 256 << 20  # PyTorch's largest has 43 MB
ALL_IMAGES_BYTES = 32 << 30  # PyTorch's of one architecture have 1.3 GB
VERSION_BYTES = 1 << 16


class Malformed(Exception):
    """A file is not what it should be; the text says where, and what is expected there."""


@contextlib.contextmanager
def place(name):
    """Whatever is found malformed within lies there."""
    try:
        yield
    except Malformed as error:
        raise Malformed(f"{name}: {error}") from None


def require(holds, expected):
    if not holds:
        raise Malformed(f"expected {expected}")


def numbers(form, data, at, what):
    """Those that lie at a place of the data."""
    size = struct.calcsize(form)
    require(at + size <= len(data), f"{size} bytes of {what} at {at:#x}, found the end at {len(data):#x}")
    return struct.unpack_from(form, data, at)


class Names:
    """Texts that end with a zero, in a table that lies in the data from `begin` to `end`."""

    def __init__(self, data, begin, end):
        self.data, self.begin, self.end, self.left = data, begin, end, ALL_NAMES_BYTES

    def at(self, offset):
        begin = self.begin + offset
        end = self.data.find(b"\0", begin, min(self.end, begin + NAME_BYTES)) if begin < self.end else -1
        require(end >= 0, f"a name of less than {NAME_BYTES} bytes at {begin:#x}, in a table that ends at {self.end:#x}")
        self.left -= end - begin
        require(self.left >= 0, f"less than {ALL_NAMES_BYTES >> 20} MiB of names")
        try:
            return bytes(self.data[begin:end]).decode()
        except UnicodeDecodeError:
            raise Malformed(f"expected a name in UTF-8 at {begin:#x}") from None


def text(path):
    """A small text file."""
    require(os.path.isfile(path), f"{path} to be a file")
    with open(path, "rb") as file:
        found = file.read(VERSION_BYTES + 1)
    require(len(found) <= VERSION_BYTES, f"{path} to have at most {VERSION_BYTES} bytes")
    return found.decode(errors="replace")


def printable(words):
    """For a terminal, which obeys what names may hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in words)
