# SPDX-License-Identifier: Apache-2.0
"""The kernels in the CUDA code of a shared object: mangled names and where their parameters lie.

Reads the fat binaries of `.nv_fatbin` (containers of ELF images, one for each architecture,
compressed with LZ4, by nvcc 13 with zstd) and, in an image, the section `.nv.info.KERNEL`, whose attributes
KPARAM_INFO tell offset and size of each parameter: what cuFuncGetParamInfo answers.
"""
import collections
import struct
from typing import NamedTuple

from . import compression, elf
from .untrusted import ALL_IMAGES_BYTES, IMAGE_BYTES, numbers, place, require

FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
FATBIN_HEAD, ENTRY_HEAD = 16, 64
KIND_ELF = 2
COMPRESSED_ZSTD = 0x8000
COMPRESSED_LZ4 = 0x2000
PARAM_CBANK = 0x0A
KPARAM_INFO = 0x17
KPARAM_INFO_V2 = 0x45  # of kernels with more than 4 KiB of parameters
INFO = ".nv.info."
WITH_SIZE = 4  # format of an attribute that is followed by so many bytes


class Image(NamedTuple):
    """An ELF image in a fat binary: where its bytes are, packed, and how many they become."""
    number: int  # of the fat binary
    architecture: int
    begin: int
    packed: int
    whole: int
    flags: int

    @property
    def name(self):
        return f"the image for sm_{self.architecture} at {self.begin:#x}"

    def unpack(self, data):
        packed = data[self.begin:self.begin + self.packed]
        if self.flags & COMPRESSED_ZSTD:
            return compression.zstd(packed, self.whole)
        if self.flags & COMPRESSED_LZ4:
            return compression.lz4(packed, self.whole)
        return bytes(packed)


def image_at(data, at, end, number):
    """(the image at a place of a fat binary that ends at `end`, or None if the entry is something else; where the next one is)"""
    kind, _, head, stored, packed = numbers("<HHIQI", data, at, "an entry of a fat binary")
    require(head >= ENTRY_HEAD and at + head + stored <= end,
            f"an entry at {at:#x} with a head of at least {ENTRY_HEAD} bytes that ends by {end:#x}, found {head} and {stored:#x} bytes")
    following = at + head + stored
    if kind != KIND_ELF:
        return None, following
    (architecture,), (flags, _, whole) = numbers("<I", data, at + 28, "an entry"), numbers("<QQQ", data, at + 40, "an entry")
    is_packed = flags & (COMPRESSED_ZSTD | COMPRESSED_LZ4)
    packed = packed or stored
    require(packed <= stored, f"an image of {stored} bytes at {at:#x}, found {packed} of them packed")
    found = Image(number, architecture, at + head, packed if is_packed else stored, whole if is_packed else stored, flags)
    require(found.whole <= IMAGE_BYTES, f"an image of at most {IMAGE_BYTES >> 20} MiB at {at:#x}, found {found.whole} bytes")
    return found, following


def images(data, begin, size):
    """Each Image in a section of fat binaries, between which are zeros."""
    last, number = begin + size, 0
    at = data.find(FATBIN_MAGIC, begin, last)
    while at >= 0:
        _, head, length = numbers("<4xHHQ", data, at, "a fat binary")
        end = at + head + length
        require(head >= FATBIN_HEAD and end <= last,
                f"a fat binary at {at:#x} with a head of at least {FATBIN_HEAD} bytes that ends by {last:#x}, found {head} and {length:#x}")
        at += head
        while at < end:
            found, at = image_at(data, at, end, number)
            if found is not None:
                yield found
        at, number = data.find(FATBIN_MAGIC, end, last), number + 1


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
            _, ordinal, offset, packed = numbers("<IHHI", info, at, "a parameter")
            found[ordinal] = (offset, packed >> 18)
        if attribute == KPARAM_INFO_V2:
            _, ordinal, offset, size = numbers("<IHHH", info, at, "a parameter")
            found[ordinal] = (offset, size)
    return [found[ordinal] for ordinal in sorted(found)]


def constants(info):
    """Where the parameters begin in the bank of constants, and their size."""
    return next((numbers("<HH", info, at + 4, "the bank of constants") for attribute, at in attributes(info) if attribute == PARAM_CBANK), (0, 0))


def all_images(data):
    for section in list(elf.sections(data)):
        if section.name == ".nv_fatbin":
            yield from images(data, section.offset, section.size)


def images_of(path, wanted_arch):
    """(name, ELF image) of those for one architecture in a shared object."""
    left = ALL_IMAGES_BYTES
    with elf.File(path) as data:
        for image in all_images(data):
            if image.architecture != wanted_arch:
                continue
            left -= image.whole
            require(left >= 0, f"less than {ALL_IMAGES_BYTES >> 30} GiB of images for sm_{wanted_arch}")
            with place(image.name):
                found = image.unpack(data)
            yield f"{path}: {image.name}", found


def architectures(path):
    """{architecture: number of its images}"""
    with elf.File(path) as data:
        return collections.Counter(image.architecture for image in all_images(data))


def kernels_in(image):
    """(mangled name, the bytes of its .nv.info section) of each kernel in an ELF image."""
    for section in elf.sections(image):
        if section.name.startswith(INFO):
            yield section.name[len(INFO):], image[section.offset:section.offset + section.size]


def kernels(path, wanted_arch=90):
    """{mangled name: [(offset, size)]} of the kernels compiled for one architecture."""
    found = {}
    for name, image in images_of(path, wanted_arch):
        with place(name):
            found.update((kernel, parameters(info)) for kernel, info in kernels_in(image))
    return found


def write_layouts(found, path):
    """The file of SIMCUDA_FATBIN_LAYOUTS (tools/simcuda/driver/fatbin.c)."""
    with open(path, "w", encoding="ascii") as file:
        for name in sorted(found):
            file.write(" ".join([name] + [f"{offset}:{size}" for offset, size in found[name]]) + "\n")
