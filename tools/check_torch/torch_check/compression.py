# SPDX-License-Identifier: Apache-2.0
"""Images are packed with LZ4 or zstd, neither of which Python had before 3.14: each is undone by what is there, a module or
the system's library."""
import ctypes
import importlib


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


def zstd_library(packed):
    found = library("libzstd.so.1")
    if found is None:
        return None
    found.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    whole = found.ZSTD_getFrameContentSize(packed, ctypes.c_size_t(len(packed)))
    room = ctypes.create_string_buffer(whole)
    found.ZSTD_decompress.restype = ctypes.c_size_t
    done = found.ZSTD_decompress(room, ctypes.c_size_t(whole), packed, ctypes.c_size_t(len(packed)))
    return room.raw if done == whole else None


def zstd(packed):
    found = module("compression.zstd")
    if found is not None:
        return found.decompress(packed)
    found = module("zstandard")
    image = found.ZstdDecompressor().decompress(packed) if found is not None else zstd_library(packed)
    if image is None:
        raise Missing("kernels are packed with zstd: install the package zstandard, or libzstd.so.1")
    return image


def lz4(packed, whole):
    found = module("lz4.block")
    if found is not None:
        return found.decompress(packed, uncompressed_size=whole)
    found = library("liblz4.so.1")
    room = ctypes.create_string_buffer(whole)
    if found is None or found.LZ4_decompress_safe(packed, room, len(packed), whole) != whole:
        raise Missing("kernels are packed with LZ4: install the package lz4, or liblz4.so.1")
    return room.raw
