#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_page.py FOLDER: small state pages for the fuzzer, by the layout of runtime/state/format.h, written down a second
time here. Also the module that the tests make good and bad pages with."""
import os
import struct
import sys

SECTIONS = ["process", "plan", "options", "figures", "names", "devices", "files", "causes", "samples", "blocks",
            "events"]
RECORD_BYTES = [1512, 568, 512, 8, 48, 512, 512, 1024, 64, 376, 256]
HEADER = struct.Struct("<8sIIQQ")
NO_RANK = 0xffffffff


def text(value, size):
    data = value.encode()[:size - 1]
    return data + bytes(size - len(data))


def process(sequence=2, pid=4242, rank=1, world=2, started=1, ended=0, command="python train.py", job="", started_ns=10**18):
    return struct.pack("<QQQQQQQQII", sequence, pid, 77, 4026531836, 0, started_ns, started, ended, rank, world) + text(job, 24) + \
        text("0.1.0", 32) + text("b007", 40) + text("host", 64) + text(command, 1024) + text("/work", 256)


def plan(sequence=2):
    return struct.pack("<QQQQQIIII", sequence, 1, 3, 100, 50, 1, 2, 0, 0) + text("plan.json", 512)


def option(name, value):
    return text(name, 48) + text(value, 464)


def device(name, check=1, steps_aside=0, unmet=""):
    return struct.pack("<Q", 2) + text(name, 120) + struct.pack("<II", check, steps_aside) + text(unmet, 376)


def file(path):
    return struct.pack("<Q", 2) + text(path, 504)


def cause(kind=4, reason=2, call="cuLaunchKernel", what="kernel", sentence="Do this.", size=100, first_ns=1, loaded=(0, 0, 0)):
    count, loaded_bytes, duration = loaded
    return struct.pack("<QQQQQQIIQ", 2, 3, size, 7, first_ns, first_ns + 8, kind, reason, loaded_bytes) + text(call, 64) + \
        text(what, 304) + struct.pack("<QQ", count, duration) + text(sentence, 576)


def sample(time, live, deferred, backed):
    return struct.pack("<QQQQQQQQ", 2, time, live, deferred, backed, 5, 0, 0)


def block(number, size, flags=0, name="", of_file=0, file_offset=0):
    kinds = [0, 0, size, 0, 0, 0, 0, 0, 0]
    return struct.pack("<QQQQQ9QQQQQQQIIII", 2, number, (number << 24) % 2**64, size, 0, *kinds, size, 0, 0, 1, 2, file_offset, of_file, 0,
                       flags, 0) + text("cuMemcpyDtoH_v2", 80) + text(name, 120)


def event(number, kind=4, what="text", size=8192, reason=0):
    return struct.pack("<QQQQQQIIII", 2 * number + 2, number + 1, 0, 1, 4096, size, kind, reason, 11, 0) + \
        text("cuMemcpyDtoH_v2", 64) + text(what, 128)


FIGURES = {"requested_bytes": 3000, "deferred_bytes": 2000, "backed_bytes": 500, "backed_bytes_peak": 800,
           "live_bytes": 2500, "live_bytes_peak": 2600, "h2d_bytes": 400, "recorded_file_bytes": 900}


def records():
    return {
        "process": [process(), process(sequence=4)], "plan": [plan(), bytes(568)],
        "options": [option("METASHARD", "on"), option("METASHARD_LOG", "warn")],
        "figures": [struct.pack("<Q", value) for value in FIGURES.values()],
        "names": [text(name, 48) for name in FIGURES],
        "devices": [device("a device"), bytes(512)], "files": [file("/data/model.safetensors")],
        "causes": [cause(), cause(kind=11, size=200)],
        "samples": [sample(1, 10, 10, 0), sample(5, 20, 5, 15), bytes(64)],
        "blocks": [block(1, 1000, name="layer.weight", of_file=1), block(2, 5000, flags=2), block(2, 100, flags=1),
                   bytes(376)],
        "events": [event(0), event(1, kind=11), event(2, kind=99), bytes(256)],
    }


def page(parts=None, version=3, mark=0x01020304):
    """The bytes of a page."""
    parts = parts or records()
    offset = HEADER.size + 24 * len(SECTIONS)
    spans, body = b"", b""
    for name, size in zip(SECTIONS, RECORD_BYTES):
        assert all(len(record) == size for record in parts[name]), name
        spans += struct.pack("<QQQ", offset, len(parts[name]), size)
        data = b"".join(parts[name])
        body += data
        offset += len(data)
    return HEADER.pack(b"metashrd", version, mark, offset, len(SECTIONS)) + spans + body


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    empty = {name: [] for name in SECTIONS}
    empty.update(process=records()["process"], plan=[bytes(568)] * 2)
    for name, data in {"good": page(), "empty": page(empty), "header": page()[:HEADER.size + 24 * 11]}.items():
        with open(os.path.join(sys.argv[1], name), "wb") as out:
            out.write(data)


if __name__ == "__main__":
    main()
