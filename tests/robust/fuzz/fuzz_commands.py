#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fuzz_commands.py [MUTATIONS [SECONDS [SEED]]]: what the command `metashard` makes of programs and preloaded libraries that are not
what they should be, of what a client says to the store of a dry run, and of the file of checks of PyTorch. TAP.

It reads those made by hand in time and with little memory, then changes as fuzz_library.py does.
"""
import io
import os
import resource
import struct
import sys
import tempfile
import time

import fuzz_library
import torch_folder as made

sys.path.insert(0, os.path.join(fuzz_library.SOURCE, "tools", "python"))
from metashard import dry_run_store, preload_order, programs  # noqa: E402
from tap import check, end, expect, run  # noqa: E402
from torch_check import kept  # noqa: E402

MEMORY_MIB = 512  # of this process, for all of them
SPARSE_BYTES = 8 << 30


def preloaded(content):
    """As the linker makes one: tables of symbols are those of the dynamic linker, and name the section behind them."""
    start, = struct.unpack_from("<Q", content, 0x28)
    count, = struct.unpack_from("<H", content, 0x3C)
    content = bytearray(content)
    for number in range(count):
        at = start + 64 * number
        if struct.unpack_from("<I", content, at + 4)[0] == made.SYMBOLS:
            struct.pack_into("<I", content, at + 4, preload_order.SHT_DYNSYM)
            struct.pack_into("<I", content, at + 40, number + 1)
    return bytes(content)


LIBRARY = preloaded(made.library(("cuMemAlloc_v2", "dlsym", "another"), ("free",)))


def program(rows=1, size=56, at=64, text=b"/lib64/ld-linux-x86-64.so.2\0"):
    """An ELF file whose first program header names what is behind the headers."""
    head = struct.pack("<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 3, 62, 1, 0, at, 0, 0, 64, size, rows, 64, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 3, 4, 64 + 56, 0, 0, len(text), len(text), 1) + text


def text(data):
    return struct.pack("<q", len(data)) + data


QUERIES = (b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + struct.pack("<I", 77) + b"\1" + text(b"/metashard/world") + text(b"8") +
           b"\4" + text(b"/count") + struct.pack("<q", 1) + b"\3" + text(b"/a/1") + b"\2" + text(b"/a/1") + text(b"") + text(b"x") +
           b"\5" + struct.pack("<q", 2) + text(b"/a/1") + text(b"/b") + b"\6" + struct.pack("<q", 1) + text(b"/b") + b"\7" +
           b"\x09" + text(b"/a/1") + text(b"y") + b"\x0a" + struct.pack("<q", 1) + text(b"/a/2") +
           b"\x0b" + struct.pack("<q", 1) + text(b"/c") + text(b"z") + b"\x0e" + text(b"/q") + text(b"1") + b"\x0f" + text(b"/q") +
           b"\x10" + text(b"/q") + b"\x11" + b"\x12" + text(b"/b") + struct.pack("<q", 8) + b"\x08" + text(b"/c") + b"\x0c")


class Commands:
    """Reads one format as the command does, in this process, and checks the result."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "changed")
        os.makedirs(self.folder)
        self.path = os.path.join(self.folder, "file")

    def put(self, content):
        with open(self.path, "wb") as file:
            file.write(content)
        return self.path

    def program(self, content):
        found = programs.elf_of(self.put(content))
        expect(found is None or found.bits in (32, 64) and len(found.interpreter or "") <= 4096, found)

    def library(self, content):
        for name in preload_order.exports(self.put(content)):
            expect(preload_order.OF_DRIVER.fullmatch(name.encode()) and name.encode() in content, name)

    def store(self, content):
        """A client, without a socket."""
        connection = dry_run_store.Connection.__new__(dry_run_store.Connection)
        connection.rfile, connection.wfile = io.BytesIO(content), io.BytesIO()
        connection.server = type("Server", (), {"kept": dry_run_store.Values()})
        connection.handle()
        values = connection.server.kept
        entries = [*values.values.items(), *((key, value) for key, queue in values.queues.items() for value in queue)]
        stored = sum(dry_run_store.ENTRY_BYTES + len(key) + len(value) for key, value in entries)
        expect(stored == values.stored and all(values.queues.values()), f"{stored} of {len(content)}, counted {values.stored}")
        expect(stored <= len(content) * (64 + dry_run_store.ENTRY_BYTES), f"{stored} of {len(content)}")

    def checks(self, content):
        """Each line that is kept is one of the file, or the new one."""
        lines = kept.read(self.put(content))
        kept.keep(self.path, "abc", b"rules", "2.15.0", True)
        with open(self.path, "rb") as file:
            first, *now = file.read().decode(errors="surrogateescape").split("\n")
        expect(first == kept.FORMAT and any(line.startswith("abc ") for line in now), now[:9])
        expect({line for line in now if line and not line.startswith("abc ")} <= set(lines), now[:9])

    def formats(self):
        checks = f"{kept.FORMAT}\nabc {kept.sum_of(b'rules')} 2.14.0\n00ff {kept.sum_of(b'others')} 2.9.1\n".encode()
        return {"a program": (program(), self.program), "a preloaded library": (LIBRARY, self.library),
                "queries of a store": (QUERIES, self.store), "a file of checks": (checks, self.checks)}


def check_good(commands):
    expect(programs.elf_of(commands.put(program())) == programs.Elf(64, "x86_64", "/lib64/ld-linux-x86-64.so.2"), "a program")
    expect(list(preload_order.exports(commands.put(LIBRARY))) == ["cuMemAlloc_v2", "dlsym"], "a library")


def check_many(commands):
    """If there are more checks than libmetashard.so reads, the newest is kept, and the oldest goes."""
    commands.put("\n".join([kept.FORMAT, *(f"{number:040x} {kept.sum_of(b'rules')} 2.15.0" for number in range(1100))]).encode())
    kept.keep(commands.path, "abc", b"rules", "2.15.0", True)
    lines = kept.read(commands.path)
    expect(lines[0].startswith("abc ") and os.path.getsize(commands.path) <= kept.MOST_BYTES, f"{len(lines)} lines")


def check_sparse(commands, content, read):
    """A file that takes no room on the disk."""
    path = commands.put(content)
    os.truncate(path, SPARSE_BYTES)
    read(path)
    os.unlink(path)


def one_name(count):
    """All symbols have one name, which is as long as the file."""
    rows = struct.pack("<IBBHQQ", 0, 2, 0, 1, 0, 0) * count
    return preloaded(made.elf([(".dynsym", made.SYMBOLS, rows), (".dynstr", made.STRINGS, b"c" * (1 << 20))]))


def overlapping(count):
    """All sections are the first table of symbols."""
    content = preloaded(made.elf([(".dynsym", made.SYMBOLS, bytes(24 * 4096))] + [("x", made.SYMBOLS, b"")] * count))
    start, = struct.unpack_from("<Q", content, 0x28)
    rows = content[start + 64:start + 128] * (count + 1)
    return content[:start + 64] + rows + content[start + 64 + len(rows):]


def check_by_hand(commands):
    run("good ones", check_good, commands)
    for name, content in (("headers behind any file", program(at=1 << 63)), ("headers at the greatest offset", program(at=(1 << 63) - 1)),
                          ("headers of another size", program(rows=65535, size=65535)), ("half a header", program()[:100]),
                          ("a name behind any file", program()[:72] + struct.pack("<Q", 1 << 63) + program()[80:])):
        run(f"a program: {name}", commands.program, content)
    run("more checks than are read", check_many, commands)
    run("a program of 8 GiB", check_sparse, commands, program(rows=65535, size=65535), programs.elf_of)
    run("a library of 8 GiB", check_sparse, commands, LIBRARY, lambda path: list(preload_order.exports(path)))
    for name, content in (("100,000 symbols of one name without end", one_name(100000)), ("20,000 sections of 4,096 symbols", overlapping(20000))):
        begin = time.process_time()
        run(f"a library: {name}", commands.library, content)
        spent = time.process_time() - begin
        check("it takes less than a minute", spent < 60, f"{spent:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    check(f"none of them takes {MEMORY_MIB} MiB", peak < MEMORY_MIB, f"{peak} MiB")


def main():
    count, seconds, *seed = sys.argv[1:] + ["0", "0"][len(sys.argv) - 1:]
    seed = int(seed[0]) if seed else time.time_ns() % 10**9
    with tempfile.TemporaryDirectory(prefix="metashard-commands-") as folder:
        commands = Commands(folder)
        check_by_hand(commands)
        print(f"# seed {seed}", flush=True)
        for name in commands.formats():
            run(f"changes of {name}", fuzz_library.check_changed, commands, name, 1, int(count), 0)
            run(f"other changes of {name}", fuzz_library.check_changed, commands, name, seed, 0, float(seconds))
    return end()


if __name__ == "__main__":
    sys.exit(main())
