# SPDX-License-Identifier: Apache-2.0
"""The kernels in the CUDA code of a shared object: mangled names and where their parameters lie.

Reads the fat binaries of `.nv_fatbin` (containers of ELF images, one for each architecture,
compressed with LZ4, by nvcc 13 with zstd) and, in an image, the section `.nv.info.KERNEL`, whose attributes
KPARAM_INFO tell offset and size of each parameter: what cuFuncGetParamInfo answers.
"""
import mmap
import re
import struct

FATBIN_MAGIC = 0xBA55ED50
KIND_ELF = 2
COMPRESSED_ZSTD = 0x8000
COMPRESSED_LZ4 = 0x2000
KPARAM_INFO = 0x17
KPARAM_INFO_V2 = 0x45  # of kernels with more than 4 KiB of parameters
WITH_SIZE = 4  # format of an attribute that is followed by so many bytes


def sections(data):
    """(name, offset, size) of each section of a 64-bit little-endian ELF file."""
    start = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    for row in rows:
        begin = rows[names][4] + row[0]
        yield bytes(data[begin:data.find(b"\0", begin)]).decode(), row[4], row[5]


def unpack(packed, flags, whole):
    """An image as it was before it was compressed to `packed`, with `whole` bytes."""
    if flags & COMPRESSED_ZSTD:
        import zstandard
        return zstandard.ZstdDecompressor().decompress(packed)
    if flags & COMPRESSED_LZ4:
        import lz4.block
        return lz4.block.decompress(packed, uncompressed_size=whole)
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


def parameters(info):
    """[(offset, size)] by ordinal, from the bytes of a .nv.info section."""
    found, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != WITH_SIZE:
            continue
        if attribute == KPARAM_INFO:
            _, ordinal, offset, packed = struct.unpack_from("<IHHI", info, at)
            found[ordinal] = (offset, packed >> 18)
        if attribute == KPARAM_INFO_V2:
            _, ordinal, offset, size = struct.unpack_from("<IHHH", info, at)
            found[ordinal] = (offset, size)
        at += value
    return [found[ordinal] for ordinal in sorted(found)]


def kernels(path, wanted_arch=90, pattern=""):
    """{mangled name: [(offset, size)]} of the kernels compiled for one architecture."""
    found = {}
    wanted = re.compile(pattern)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for name, begin, size in list(sections(data)):
            if name != ".nv_fatbin":
                continue
            for _, arch, image in images(data, begin, size):
                if arch != wanted_arch:
                    continue
                elf = image()
                for section, offset, length in sections(elf):
                    if section.startswith(".nv.info.") and wanted.search(section):
                        found[section[len(".nv.info."):]] = parameters(elf[offset:offset + length])
    return found


def write_layouts(found, path):
    """The file of SIMCUDA_FATBIN_LAYOUTS (tools/simcuda/driver/fatbin.c)."""
    with open(path, "w", encoding="ascii") as file:
        for name in sorted(found):
            file.write(" ".join([name] + [f"{offset}:{size}" for offset, size in found[name]]) + "\n")
