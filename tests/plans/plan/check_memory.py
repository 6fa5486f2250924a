#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_memory.py MEASURE HEAP: what plans and headers take of memory, as counts of bytes. TAP.

A tensor of a plan takes less than 60 bytes and its name, the layout and the placement of the rank included; reading takes
less than three times the file, and nothing of the program's malloc. HEAP is that of the build: in libc's are a few records.
"""
import os
import struct
import subprocess
import sys
import tempfile

from large_files import write_header, write_plan
from torch_writer import TYPES, Storage, View, records_of, torch_zip

# Pages of the process that reading touches, and what tables of a fixed size take.
SLACK = 512 << 10
RECORDS = {"jemalloc": 0, "libc": 64 << 10}
A_TENSOR = 60
HEADER_TENSORS = 720000  # 90 MB
MIB = 1 << 20
MOST = 99 * 10**6  # bytes; headers of more than 100 MB are refused unread
WORST = 640 * MIB


def measure(program, kind, path):
    done = subprocess.run([program, kind, path], stdout=subprocess.PIPE, text=True, check=True)
    return {word: int(number) for word, number in (line.split() for line in done.stdout.splitlines())}


class Checks:
    def __init__(self):
        self.count = self.failed = 0

    def check(self, holds, name, detail):
        self.count += 1
        self.failed += not holds
        print(f"{'ok' if holds else 'not ok'} {self.count} {name}\n# {detail}", flush=True)

    def check_figures(self, name, seen, text_bytes, heap):
        for key in ("after", "bound"):
            if key in seen:
                one = (seen[key] - seen["names"] - SLACK) / seen["tensors"]
                self.check(one < A_TENSOR, f"{name}: memory of a tensor, {key}",
                           f"{one:.1f} bytes and {seen['names'] / seen['tensors']:.1f} of its name")
        self.check(seen["peak"] < 3 * text_bytes, f"{name}: the most while it was read",
                   f"{seen['peak']} bytes, {seen['peak'] / text_bytes:.2f} of the text")
        self.check(abs(seen["heap"]) <= RECORDS[heap], f"{name}: the program's malloc", f"{seen['heap']} bytes")


def pickle_of(body):
    """A file of torch.save with this pickle."""
    return torch_zip([("archive/data.pkl", b"\x80\2" + body + b"."), ("archive/version", b"3\n")])


def header_of(text):
    return struct.pack("<Q", len(text)) + text


def worst_files():
    """Files of which each byte takes as much memory as possible: (kind, what, content)."""
    tensor = {"k" * (40 * MIB): View(Storage(TYPES[0], bytes(48)), 0, (3, 4))}
    bodies = {"lists": b"]" * MOST, "tuples in tuples": b")" + b"\x85" * MOST, "marks": b"(" * MOST, "nothing": b"N" * MOST,
              "a great memo": b"]r" + struct.pack("<I", MOST) + b"B" + struct.pack("<I", MOST) + bytes(MOST)}
    for name, body in bodies.items():
        yield "checkpoint", f"a pickle of {name}", pickle_of(body)
    yield "checkpoint", "a tensor with many long names", torch_zip(records_of([tensor] * 100))
    yield "checkpoint", "a header of nested lists", header_of(b"[" * MOST)
    keys = ",".join(f'"{number:x}":0' for number in range(MOST // 11))
    yield "checkpoint", "a header of many keys", header_of(('{"__metadata__":{' + keys + "}}").encode())
    plan = '{"format":"metashard-plan/1","mesh":{"dp":2},"tensors":['
    yield "plan", "a plan of many entries", (plan + ",".join(f'{{"size":{number}}}' for number in range(8 * 10**6))
                                             + "]}").encode()
    yield "plan", "a plan of nested lists", b"[" * MOST


def check_worst(checks, program, path):
    for kind, name, content in worst_files():
        with open(path, "wb") as file:
            file.write(content)
        seen = measure(program, kind, path)
        checks.check(seen["peak"] < WORST, f"{name}: the most while it was read, or refused",
                     f"{seen['peak'] / MIB:.0f} MiB for {len(content) / MIB:.0f} MiB")
    for kind, name, begin, size in (
            ("checkpoint", "a header of more than 100 MB", struct.pack("<Q", MOST + 2 * 10**6), 8 + MOST + 2 * 10**6),
            ("plan", "a plan of more than 256 MiB", b"{}", 257 * MIB)):
        with open(path, "wb") as file:
            file.write(begin)
            file.truncate(size)
        seen = measure(program, kind, path)
        checks.check("refused" in seen and seen["peak"] < 16 * MIB, f"{name} is refused unread", f"{seen['peak']} bytes")


def main():
    program, heap = sys.argv[1:]
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="metashard-memory-", dir=os.environ.get("TMPDIR")) as folder:
        path = os.path.join(folder, "file")
        for count in (100000, 1000000):
            text_bytes = write_plan(path, count)
            checks.check_figures(f"a plan of {count} tensors", measure(program, "plan", path), text_bytes, heap)
        text_bytes = write_header(path, HEADER_TENSORS)
        seen = measure(program, "checkpoint", path)
        checks.check(text_bytes > 90e6 and seen["tensors"] == HEADER_TENSORS, "the header has 90 MB", f"{text_bytes} bytes")
        checks.check_figures("a header of 90 MB", seen, text_bytes, heap)
        check_worst(checks, program, path)
    print(f"1..{checks.count}")
    return checks.failed > 0


if __name__ == "__main__":
    sys.exit(main())
