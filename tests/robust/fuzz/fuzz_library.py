#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fuzz_library.py [MUTATIONS [SECONDS [SEED]]]: what metashard-check-torch makes of libraries that are not what they should
be: ELF, fat binaries, LZ4, zstd, version.py and the text of nvdisasm. TAP.

For libraries made by hand it says in one line where and what it expected, in time, and with little memory.
Then its modules read MUTATIONS changes of each format, the same in every run, and others for SECONDS: nothing but a fault that
is meant to be one comes out, each within ten seconds.
"""
import io
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

import torch_folder as made

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
MODULES = os.path.join(SOURCE, "tools", "check_torch")
sys.path[:0] = [os.path.join(SOURCE, "tests", "harness"), os.path.join(SOURCE, "tools"), MODULES, os.path.join(SOURCE, "tests", "frameworks", "torch")]
import check_machine_code as code  # noqa: E402
import wheels  # noqa: E402
from tap import check, end, expect, run  # noqa: E402
from torch_check import compression, disassembly, fatbin, library, machine_code, promises, untrusted  # noqa: E402

COMMAND = "import sys; from torch_check import command; sys.exit(command.main(sys.argv[1:], ''))"
SECONDS, MEMORY_MIB = 60, 400  # that a library may take
ONE_S = 10  # of processor time, that a change of one may take
KERNELS = "lib/libtorch_cuda.so"
MEANT = (untrusted.Malformed, library.Missing, compression.Missing)


class Tool:
    """metashard-check-torch, of a PyTorch that differs from the good one in some files."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def run(self, files):
        """(exit status, stdout, stderr, the folder)"""
        self.count += 1
        place = os.path.join(self.folder, str(self.count))
        made.write(place, {**made.GOOD, **files})
        settings = {**os.environ, "METASHARD_TORCH_CHECKS": os.path.join(self.folder, "checks"), "PYTHONPATH": os.path.join(SOURCE, "tools") + ":" + MODULES}
        with subprocess.Popen([sys.executable, "-c", COMMAND, "--without-code", place], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=settings) as process:
            try:
                out, error = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                expect(False, f"it hangs for {SECONDS} s")
        return process.returncode, out.decode(errors="replace"), error.decode(errors="replace"), place

    def refuses(self, files, words):
        status, _, error, place = self.run(files)
        expect(status == 2 and error.startswith("metashard-check-torch: ") and error.count("\n") == 1 and words in error,
               f"{status} {error[-800:]}\nexpected one line with: {words}")
        expect(place in error, f"no place: {error}")


def fatbins(*arguments, **named):
    return {KERNELS: made.kernels(made.fatbin(*arguments, **named))}


def wheel(files):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr("torch/" + name, content)
    return memory.getvalue()


def edited(content, form, at, value):
    return content[:at] + struct.pack(form, value) + content[at + struct.calcsize(form):]


def with_image(content, flags=0, whole=None):
    return fatbins([made.entry(content, len(content) if whole is None else whole, flags)])


def bombs():
    """(name, files, words)"""
    gib = 1 << 30
    yield "zstd that says 1 GiB", with_image(made.zstd_of_zeros(gib), made.ZSTD, gib), "at most 256 MiB"
    yield "zstd of 1 GiB that says 64 bytes", with_image(made.zstd_of_zeros(gib), made.ZSTD, 64), "expected 64 bytes packed with zstd"
    yield "zstd of 1 GiB whose frame says 64 bytes", with_image(made.zstd_of_zeros(gib, 64), made.ZSTD, 64), "64 bytes packed with zstd"
    yield "LZ4 that says 1 GiB", with_image(made.lz4_of_zeros(gib), made.LZ4, gib), "at most 256 MiB"
    yield "LZ4 of 1 GiB that says 64 bytes", with_image(made.lz4_of_zeros(gib), made.LZ4, 64), "expected 64 bytes packed with LZ4"
    names = made.image({made.FILL: made.FILL_PARAMETERS})
    yield "zstd that ends early", with_image(made.zstd(names)[:-9], made.ZSTD, len(names)), "packed with zstd"
    yield "LZ4 that ends early", with_image(made.lz4(names)[:-9], made.LZ4, len(names)), "packed with LZ4"
    yield "an image that says one byte more", with_image(made.zstd(names), made.ZSTD, len(names) + 1), "packed with zstd"


def containers():
    good = made.image({made.FILL: made.FILL_PARAMETERS})
    one = made.entry(good, len(good), 0)
    yield "a fat binary of no bytes", fatbins([one], head=0, length=0), "a head of at least 16 bytes"
    yield "an entry of no bytes", fatbins([made.entry(b"", 0, 0, head=0, stored=0, kind=1), one]), "a head of at least 64 bytes"
    yield "an entry behind its fat binary", fatbins([made.entry(good, 0, 0, stored=1 << 62)]), "expected an entry at"
    yield "a fat binary behind its section", fatbins([one], length=1 << 40), "a fat binary at"
    yield "half an entry", fatbins([one, b"\2\0\1"]), "expected an entry at"
    yield "an image that has more packed than stored", fatbins([made.entry(good, 0, 0, stored=64) + bytes(64)]), "of them packed"
    yield "no kernels", {KERNELS: made.library()}, "has no kernels"


def images():
    good = made.image({made.FILL: made.FILL_PARAMETERS})
    start, = struct.unpack_from("<Q", good, 0x28)
    yield "an image that is no ELF", with_image(b"no image at all" * 9), "64-bit little-endian ELF"
    yield "an image of no bytes", with_image(b""), "64-bit little-endian ELF"
    yield "an image cut within its header", with_image(good[:50]), "of an ELF header"
    yield "headers of sections behind the end", with_image(edited(good, "<Q", 0x28, 1 << 63)), "headers of sections at"
    yield "headers of another size", with_image(edited(good, "<H", 0x3A, 40)), "found 40"
    yield "names in no section", with_image(edited(good, "<H", 0x3E, 999)), "found 999"
    yield "a section behind the end", with_image(edited(good, "<Q", start + 64 + 24, 1 << 60)), "section 1 within"
    yield "a name behind its table", with_image(edited(good, "<I", start + 64, 1 << 31)), "expected a name of less than"
    yield "a name that is no text", with_image(good.replace(b".strtab", b".\xff\xfertab")), "a name in UTF-8"
    short = made.elf([(".nv.info." + made.FILL, made.BITS, made.info(made.FILL_PARAMETERS)[:-6])])
    yield "a parameter behind its section", with_image(short), "of a parameter at"
    yield "sections that overlap", with_image(overlapping(2000)), "sections that do not overlap"
    many = made.elf([("n" * 60000, made.BITS, b"")] * 30000)
    yield "a name of 60 KB in 30,000 sections", with_image(many), "MiB of names"


def overlapping(count):
    """An image whose sections are all the first one."""
    found = made.elf([(".nv.info.a", made.BITS, b"\4\x17\0\0" * (1 << 16))] + [(".nv.info.b", made.BITS, b"")] * count)
    start, = struct.unpack_from("<Q", found, 0x28)
    first = found[start + 64 + 24:start + 64 + 40]
    for number in range(2, count + 2):
        at = start + 64 * number + 24
        found = found[:at] + first + found[at + 16:]
    return found


def libraries():
    good = made.GOOD["lib/libc10.so"]
    start, = struct.unpack_from("<Q", good, 0x28)
    yield "an empty library", {"lib/libc10.so": b""}, "not empty"
    yield "a library that is text", {"lib/libc10.so": b"text\n" * 99}, "64-bit little-endian ELF"
    yield "half a table of symbols", {"lib/libc10.so": edited(good, "<Q", start + 2 * 64 + 32, 71)}, ".dynsym of at most"
    yield "names of symbols that do not end", {"lib/libc10.so": edited(good, "<Q", start + 3 * 64 + 32, 9)}, "expected a name of less"
    yield "no version", {"version.py": b"cuda = '1'\n"}, "__version__ = "
    yield "a version of 5,000 digits", {"version.py": b"__version__ = '" + b"9" * 5000 + b".1'\n"}, "__version__ = "
    yield "a version that is no text", {"version.py": b"__version__ = '\xff\xfe'\n"}, "__version__ = "
    yield "a great version.py", {"version.py": b"#" * (1 << 20)}, "at most 65536 bytes"


def check_good(tool):
    status, out, error, _ = tool.run({})
    expect(error == "" and "1 kernels for sm_90, of which rules name 1: 1 write-only" in out, f"{status} {out[-900:]} {error}")


def check_unlike(tool):
    """A kernel of a rule's name with other parameters is wrong, and what its name holds does not reach the terminal."""
    name = made.FILL.replace("T1_", "T1_\x1b[2J")
    status, out, error, _ = tool.run(with_image(made.image({name: [(0, 4)]})))
    expect(status == 1 and error == "" and "parameters are as expected" in out and "\x1b" not in out, f"{status} {out[-900:]} {error}")


def check_by_hand(tool):
    run("a good one", check_good, tool)
    run("a kernel with other parameters", check_unlike, tool)
    for cases in (bombs, containers, images, libraries):
        for name, files, words in cases():
            run(name, tool.refuses, files, words)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    check(f"none of them takes {MEMORY_MIB} MiB", peak < MEMORY_MIB, f"{peak} MiB")


# --- changes

EDGES = (0, 1, 2, 7, 8, 15, 16, 63, 64, 0x7FFF, 0x8000, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1,
         1 << 63, (1 << 64) - 1)


def changed(dice, content):
    content = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        kind, at = dice.randrange(5), dice.randrange(len(content) + 1)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            form = dice.choice("HIQ")
            size = struct.calcsize(form)
            at &= -size
            value = dice.choice(EDGES + (len(content),)) & (1 << 8 * size) - 1
            content[at:at + size] = struct.pack("<" + form, value)[:max(0, len(content) - at)]
        elif kind == 2:
            del content[at:at + dice.randint(1, 64)]
        elif kind == 3:
            other = dice.randrange(len(content) + 1)
            content[at:at] = content[other:other + dice.randint(1, 64)]
        elif dice.randrange(8) == 0:
            del content[at:]
    return bytes(content)


class Findings:
    def __init__(self):
        self.wrong = []

    def check(self, name, good, *_, **__):
        self.wrong += [] if good else [name]


class Reader:
    """Reads one format as the command does, in this process."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "changed")
        made.write(self.folder, made.GOOD)
        self.rules = promises.read_rules(promises.rules_path())

    def read(self, files):
        made.write(self.folder, files)
        torch = library.Torch(self.folder)
        torch.build_id()
        path = torch.library(library.KERNELS)
        fatbin.architectures(path)
        promises.check(Findings(), torch, self.rules, fatbin.kernels(path))
        for place, image in fatbin.images_of(path, 90):
            with untrusted.place(place):
                disassembly.symbol_numbers(image)
                infos = dict(fatbin.kernels_in(image))
                machine_code.sections_of(image, infos)
                for info in infos.values():
                    fatbin.constants(info)

    def packed(self, flags, content):
        good = made.image({made.FILL: made.FILL_PARAMETERS})
        self.read(with_image(content, flags, len(good)))

    def formats(self):
        """{name: (content, what reads a change of it)}"""
        good = made.image({made.FILL: made.FILL_PARAMETERS})
        return {"an ELF file": (made.GOOD["lib/libc10.so"], lambda content: self.read({"lib/libc10.so": content})),
                "a fat binary": (made.fatbin([made.entry(good, len(good), 0)] * 2),
                                 lambda content: self.read({KERNELS: made.kernels(content)})),
                "an image": (good, lambda content: self.read(with_image(content))),
                "an image in LZ4": (made.lz4(good), lambda content: self.packed(made.LZ4, content)),
                "an image in zstd": (made.zstd(good), lambda content: self.packed(made.ZSTD, content)),
                "a wheel": (wheel(made.GOOD), self.wheel),
                "version.py": (made.VERSION.encode(), lambda content: self.read({"version.py": content})),
                "the text of nvdisasm": ("".join(code.CLASSES.values()).encode(), self.code)}

    def wheel(self, content):
        path = os.path.join(self.folder, "wheel")
        with open(path, "wb") as file:
            file.write(content)
        wheels.unpack(path, self.folder + "-wheel")

    @staticmethod
    def code(content):
        """With the parameters of the class, and with others."""
        kernels = [row for row in disassembly.parse(content.decode(errors="replace").splitlines()) if row[0] is not None]
        for class_, parameters in (("write-only", code.PARAMETERS), ("each", code.LISTS), ("write-only", []), ("each", [(0, 8)])):
            for name, read in kernels:
                seen = machine_code.see(read, machine_code.Reader(code.BASE, 0x1000, class_ == "each"))
                machine_code.fault_of(name, class_, parameters, seen)


def check_great_wheel(reader):
    """Each entry of the directory says 4 GiB."""
    content = re.sub(b"(PK\1\2.{20}).{4}", lambda found: found[1] + b"\xfe\xff\xff\xff", wheel(made.GOOD), flags=re.S)
    try:
        reader.wheel(content)
    except untrusted.Malformed as error:
        expect("at most 8 GiB in" in str(error), error)
    else:
        expect(False, "it is unpacked")


def too_long(*_):
    raise TimeoutError(f"it takes more than {ONE_S} s")


def read_changed(read, content):
    signal.setitimer(signal.ITIMER_VIRTUAL, ONE_S)
    try:
        read(content)
    except MEANT:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def check_changed(reader, name, seed, count, seconds):
    good, read = reader.formats()[name]
    dice, until, done = random.Random(seed), time.monotonic() + seconds, 0
    signal.signal(signal.SIGVTALRM, too_long)
    while done < count or time.monotonic() < until:
        content = changed(dice, good)
        done += 1
        try:
            read_changed(read, content)
        except Exception:
            with open("crash-input", "wb") as file:
                file.write(content)
            print(f"# {name}, change {done} of seed {seed}: the input is in crash-input", flush=True)
            raise
    made.write(reader.folder, made.GOOD)
    print(f"# {done} changes of {name}", flush=True)


def main():
    count, seconds, *seed = sys.argv[1:] + ["0", "0"][len(sys.argv) - 1:]
    seed = int(seed[0]) if seed else time.time_ns() % 10**9
    with tempfile.TemporaryDirectory(prefix="metashard-library-") as folder:
        check_by_hand(Tool(folder))
        reader = Reader(folder)
        run("a wheel that says 16 GiB", check_great_wheel, reader)
        print(f"# seed {seed}", flush=True)
        for name in reader.formats():
            run(f"changes of {name}", check_changed, reader, name, 1, int(count), 0)
            run(f"other changes of {name}", check_changed, reader, name, seed, 0, float(seconds))
    return end()


if __name__ == "__main__":
    sys.exit(main())
