#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""two_wheels.py [--cuda DIR] [-jN]: builds the wheel twice, as pip does, from two copies of the sources, and the simulator's: with
another folder, user mask, time zone, language and number of compilers, and files of another age. Both must be the same, bit
for bit. TAP; exit status 77: meson-python is not there.

It takes as long as four builds, so ./check --long runs it, and no other check.
"""
import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_wheel  # noqa: E402  (it knows where tap is)
from tap import check, end, equal  # noqa: E402

# A version that is released has the time of its commit.
EPOCH = "1700000000"
WAYS = (("one", 0o022, "-j1", 0, {"TZ": "UTC", "LC_ALL": "C"}),
        ("another/and/deeper", 0o077, "-j2", 86400 * 400, {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}))


def copy_sources(place, mask, age):
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=check_wheel.SOURCE,
                            capture_output=True, check=True).stdout.decode().split("\0")
    for name in sorted(filter(None, listed)):
        source, target = os.path.join(check_wheel.SOURCE, name), os.path.join(place, name)
        if not os.path.isfile(source):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(source, "rb") as file:
            data = file.read()
        with open(target, "wb") as file:
            file.write(data)
        status = os.stat(source)
        os.chmod(target, status.st_mode & ~mask)
        os.utime(target, (status.st_mtime - age,) * 2)


def build(options, folder, way):
    name, mask, jobs, age, settings = way
    place, output = os.path.join(folder, name), tempfile.mkdtemp(dir=folder)
    copy_sources(place, mask, age)
    os.umask(mask)
    headers = [f"-Dcuda-headers={options.cuda}"] if options.cuda else []
    how = {"compile-args": [options.jobs or jobs], "setup-args": headers}
    wheel = check_wheel.build_wheel(place, output, how, SOURCE_DATE_EPOCH=EPOCH, **settings)
    path = os.path.join(output, "programs") + ":" + os.environ["PATH"]
    for command in (["meson", "setup", "build", *headers], ["ninja", "-C", "build", options.jobs or jobs, "simulated-driver"],
                    ["tools/python/build_simulator", "build", "--output", output]):
        done = check_wheel.run(["sh", "-c", 'cd "$0" && exec "$@"', place, *command], timeout=1800, PATH=path, **settings)
    equal("the simulator's wheel is built", (done.returncode, done.stderr), (0, ""))
    os.umask(0o022)
    return wheel, done.stdout.strip()


def digests(path):
    with zipfile.ZipFile(path) as wheel:
        return {entry.filename: (hashlib.sha256(wheel.read(entry)).hexdigest(), oct(entry.external_attr >> 16), entry.date_time)
                for entry in wheel.infolist()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--cuda", help="where cuda.h is, if in none of the usual places")
    parser.add_argument("-j", dest="jobs", type=lambda number: "-j" + number, help="compilers at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for first, second in zip(*(build(options, folder, way) for way in WAYS)):
            before, after = digests(first), digests(second)
            equal("both have the same name", os.path.basename(first), os.path.basename(second))
            equal("each file is the same, with its mode and its time",
                  {name: (before.get(name), after.get(name)) for name in {**before, **after} if before.get(name) != after.get(name)}, {})
            with open(first, "rb") as one, open(second, "rb") as other:
                check("and so are the wheels, bit for bit", one.read() == other.read())
    return end()


if __name__ == "__main__":
    sys.exit(main())
