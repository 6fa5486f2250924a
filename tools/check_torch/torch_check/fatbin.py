# SPDX-License-Identifier: Apache-2.0
"""The kernels in the CUDA code of a shared object: mangled names and where their parameters lie.

Reads the fat binaries of `.nv_fatbin` (containers of ELF images, one for each architecture,
compressed with LZ4, by nvcc 13 with zstd) and, in an image, the section `.nv.info.KERNEL`, whose attributes
KPARAM_INFO tell offset and size of each parameter: what cuFuncGetParamInfo answers.
"""
import collections
import struct

from . import compression, elf

FATBIN_MAGIC = 0xBA55ED50
KIND_ELF = 2
COMPRESSED_ZSTD = 0x8000
COMPRESSED_LZ4 = 0x2000
PARAM_CBANK = 0x0A
KPARAM_INFO = 0x17
KPARAM_INFO_V2 = 0x45  # of kernels with more than 4 KiB of parameters
INFO = ".nv.info."
WITH_SIZE = 4  # format of an attribute that is followed by so many bytes


def unpack(packed, flags, whole):
    """An image as it was before it was compressed to `packed`, with `whole` bytes."""
    if flags & COMPRESSED_ZSTD:
        return compression.zstd(packed)
    if flags & COMPRESSED_LZ4:
        return compression.lz4(packed, whole)
    return bytes(packed[:whole])


def images(data, begin, size):
    """(fat binary's number, architecture, ELF image) in a section of fat binaries."""
    at, number = begin, 0
    while at + 16 <= begin + size:
        magic, _, head, length = struct.unpack_from("<IHHQ", data, at)
        if magic != FATBIN_MAGIC:
            at += 8
            continue
        entry, end = at + head, at + head + length
        while entry < end:
            kind, _, entry_head, stored, packed = struct.unpack_from("<HHIQI", data, entry)
            arch, flags = struct.unpack_from("<I", data, entry + 28)[0], struct.unpack_from("<Q", data, entry + 40)[0]
            raw = entry + entry_head
            if kind == KIND_ELF:
                whole = struct.unpack_from("<Q", data, entry + 56)[0] if flags & COMPRESSED_LZ4 else stored
                yield number, arch, (lambda raw=raw, packed=packed or stored, whole=whole, flags=flags:
                                     unpack(data[raw:raw + packed], flags, whole))
            entry += entry_head + stored
        at, number = end, number + 1


def attributes(info):
    """(attribute, place of its value) in the bytes of a .nv.info section"""
    at = 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == WITH_SIZE:
            yield attribute, at
            at += value


def parameters(info):
    """[(offset, size)] by ordinal"""
    found = {}
    for attribute, at in attributes(info):
        if attribute == KPARAM_INFO:
            _, ordinal, offset, packed = struct.unpack_from("<IHHI", info, at)
            found[ordinal] = (offset, packed >> 18)
        if attribute == KPARAM_INFO_V2:
            _, ordinal, offset, size = struct.unpack_from("<IHHH", info, at)
            found[ordinal] = (offset, size)
    return [found[ordinal] for ordinal in sorted(found)]


def constants(info):
    """Where the parameters begin in the bank of constants, and their size."""
    return next((struct.unpack_from("<HH", info, at + 4) for attribute, at in attributes(info) if attribute == PARAM_CBANK), (0, 0))


def images_of(path, wanted_arch):
    """The ELF images for one architecture in a shared object."""
    with elf.File(path) as data:
        for section in list(elf.sections(data)):
            if section.name == ".nv_fatbin":
                yield from (image() for _, arch, image in images(data, section.offset, section.size) if arch == wanted_arch)


def architectures(path):
    """{architecture: number of its images}"""
    with elf.File(path) as data:
        return collections.Counter(arch for section in list(elf.sections(data)) if section.name == ".nv_fatbin"
                                   for _, arch, _ in images(data, section.offset, section.size))


def kernels_in(image):
    """(mangled name, the bytes of its .nv.info section) of each kernel in an ELF image."""
    for section in elf.sections(image):
        if section.name.startswith(INFO):
            yield section.name[len(INFO):], image[section.offset:section.offset + section.size]


def kernels(path, wanted_arch=90):
    """{mangled name: [(offset, size)]} of the kernels compiled for one architecture."""
    return {name: parameters(info) for image in images_of(path, wanted_arch) for name, info in kernels_in(image)}


def write_layouts(found, path):
    """The file of SIMCUDA_FATBIN_LAYOUTS (tools/simcuda/driver/fatbin.c)."""
    with open(path, "w", encoding="ascii") as file:
        for name in sorted(found):
            file.write(" ".join([name] + [f"{offset}:{size}" for offset, size in found[name]]) + "\n")
