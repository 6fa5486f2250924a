# SPDX-License-Identifier: Apache-2.0
"""Images are packed with LZ4 or zstd, neither of which Python had before 3.14: each is undone by what is there, a module or
the system's library. A fat binary says how many bytes an image has: no more are unpacked, and what has others is malformed."""
import ctypes
import importlib
import io

from .untrusted import require


class Missing(Exception):
    """Nothing here can unpack an image; the text says what could."""


def module(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    return None


def library(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def zstd_library(found, packed, whole):
    room = ctypes.create_string_buffer(max(whole, 1))
    found.ZSTD_decompress.restype = ctypes.c_size_t
    done = found.ZSTD_decompress(room, ctypes.c_size_t(whole), packed, ctypes.c_size_t(len(packed)))
    return room.raw[:whole] if done == whole else None


def zstd_modules(packed, whole):
    """A byte more would show that there are more."""
    found = module("compression.zstd")
    if found is not None:
        return found.ZstdDecompressor().decompress(packed, whole + 1)
    found = module("zstandard")
    return found.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read(whole + 1) if found is not None else None


def zstd(packed, whole):
    try:
        image = zstd_modules(packed, whole)
    except Exception:  # each module has an error of its own
        image = b""
    if image is None:
        found = library("libzstd.so.1")
        if found is None:
            raise Missing("kernels are packed with zstd: install the package zstandard, or libzstd.so.1")
        image = zstd_library(found, packed, whole)
    require(image is not None and len(image) == whole, f"{whole} bytes packed with zstd")
    return image


def lz4_module(found, packed, whole):
    try:
        return found.decompress(packed, uncompressed_size=whole)
    except Exception:  # the module has an error of its own
        return None


def lz4_library(found, packed, whole):
    room = ctypes.create_string_buffer(max(whole, 1))
    return room.raw[:whole] if found.LZ4_decompress_safe(packed, room, len(packed), whole) == whole else None


def lz4(packed, whole):
    require(len(packed) < 1 << 31, "less than 2 GiB packed with LZ4")
    found = module("lz4.block")
    if found is not None:
        image = lz4_module(found, packed, whole)
    else:
        found = library("liblz4.so.1")
        if found is None:
            raise Missing("kernels are packed with LZ4: install the package lz4, or liblz4.so.1")
        image = lz4_library(found, packed, whole)
    require(image is not None and len(image) == whole, f"{whole} bytes packed with LZ4")
    return image
