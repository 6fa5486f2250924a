# SPDX-License-Identifier: Apache-2.0
"""A PyTorch of a few kilobytes, as metashard-check-torch reads one: ELF files, fat binaries, images packed with LZ4 and zstd."""
import os
import struct

NULL, BITS, SYMBOLS, STRINGS, NOTE = 0, 1, 2, 3, 7
LZ4, ZSTD = 0x2000, 0x8000
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
FILL_PARAMETERS = [(0, 4), (4, 4), (8, 8)]
VERSION = "__version__ = '2.15.0'\ncuda: Optional[str] = '13.2'\ngit_version = '1f4c5e8'\n"


def strings(names):
    """(a table of names, {name: its place})"""
    table, places = b"\0", {}
    for name in dict.fromkeys(names):
        places[name] = len(table)
        table += name.encode() + b"\0"
    return table, places


def elf(sections):
    """A file of [(name, kind, content)]."""
    rows = [("", NULL, b""), *sections, (".shstrtab", STRINGS, b"")]
    table, places = strings([row[0] for row in rows])
    body, headers = b"", b""
    for name, kind, content in rows:
        content = table if name == ".shstrtab" else content
        headers += struct.pack("<IIQQQQIIQQ", places[name], kind, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0)
        body += content
    return struct.pack("<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, len(rows),
                       len(rows) - 1) + body + headers


def symbols(defined, undefined, kind=2):
    """The contents of a table of symbols and of that of their names."""
    table, places = strings([*defined, *undefined])
    rows = bytes(24) + b"".join(struct.pack("<IBBHQQ", places[name], kind, 0, int(name in defined), 0, 0) for name in [*defined, *undefined])
    return rows, table


def library(defined=(), undefined=(), others=()):
    rows, table = symbols(defined, undefined)
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    return elf([(".note.gnu.build-id", NOTE, note), (".dynsym", SYMBOLS, rows), (".dynstr", STRINGS, table), *others])


def info(parameters):
    """A section .nv.info.KERNEL."""
    text = struct.pack("<BBHIHH", 4, 0x0A, 8, 1, 0x210, 24)
    for ordinal, (offset, size) in enumerate(parameters):
        text += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18)
    return text


def image(kernels):
    """An ELF image of {name: parameters}."""
    rows, table = symbols(kernels, ())
    return elf([(".symtab", SYMBOLS, rows), (".strtab", STRINGS, table)] +
               [row for name, parameters in kernels.items()
                for row in ((".nv.info." + name, BITS, info(parameters)), (".text." + name, BITS, bytes(16)))])


def lz4(content):
    """A block of literals alone."""
    return b"\xf0" + b"\xff" * ((len(content) - 15) // 255) + bytes([(len(content) - 15) % 255]) + content


def lz4_of_zeros(size):
    return b"\x1f\0\1\0" + b"\xff" * (size // 255) + b"\0\x50" + bytes(5)


def frame(size):
    """The head of a frame in zstd: one segment of so many bytes."""
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, size)


def zstd(content):
    """A frame of one block that is not packed."""
    return frame(len(content)) + struct.pack("<I", len(content) << 3 | 1)[:3] + content


def zstd_of_zeros(size, says=None):
    """A frame of blocks of one byte, again and again."""
    blocks = [128 << 10] * (size >> 17)
    return frame(size if says is None else says) + b"".join(
        struct.pack("<I", length << 3 | 2 | (number + 1 == len(blocks)))[:3] + b"\0" for number, length in enumerate(blocks))


def entry(packed, whole, flags, head=64, stored=None, kind=2):
    stored = len(packed) if stored is None else stored
    return struct.pack("<HHIQIIIIIIQQQ", kind, 0x101, head, stored, len(packed), 0, 0, 90, 0, 0, flags, 0, whole) + packed


def fatbin(entries, head=16, length=None):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, head, len(body) if length is None else length) + body


def fatbin_of(content, flags=0):
    pack = {LZ4: lz4, ZSTD: zstd}.get(flags, bytes)
    return fatbin([entry(pack(content), len(content), flags)])


def kernels(fatbins):
    """libtorch_cuda.so with the content of .nv_fatbin."""
    return library((), ("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",), [(".nv_fatbin", BITS, fatbins)])


def cuda():
    return library(("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",),
                   ("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",))


def base():
    return library(("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE"))


GOOD = {"lib/libtorch_cuda.so": kernels(fatbin_of(image({FILL: FILL_PARAMETERS}), ZSTD)), "lib/libc10_cuda.so": cuda(),
        "lib/libc10.so": base(), "version.py": VERSION.encode()}


def write(folder, files):
    os.makedirs(os.path.join(folder, "lib"), exist_ok=True)
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
