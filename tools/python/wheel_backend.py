# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: meson-python's. It puts the bill of materials (sbom.py) where PEP 770 wants it, which
meson cannot install into, and makes the same wheel of the same sources: the modes of files do not depend on the umask. With
SOURCE_DATE_EPOCH the times do not depend on the day either. The page of the package gets addresses (package_page.py)."""
import base64
import csv
import hashlib
import io
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile

import mesonpy
import package_page
from mesonpy import build_editable, build_sdist, get_requires_for_build_editable, get_requires_for_build_sdist

__all__ = ["build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
           "get_requires_for_build_wheel"]
SBOM = "/metashard/metashard.cdx.json"  # where tools/python/meson.build installs it


def get_requires_for_build_wheel(config_settings=None):
    """pip asks this first, before it has fetched what it asks for."""
    check_compiler()
    return mesonpy.get_requires_for_build_wheel(config_settings)


def check_compiler():
    """Without a compiler, or without libc's headers, one line in place of meson's log."""
    words = shlex.split(os.environ.get("CC", "")) or [next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")]
    if shutil.which(words[0]) is None:
        sys.exit(f"metashard: {words[0]}: no such compiler: install a C compiler (apt-get install gcc libc6-dev), or set CC")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "first.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write("#include <stdio.h>\nint main(void) { return 0; }\n")
        done = subprocess.run([*words, "-c", source, "-o", source + ".o"], capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"metashard: {words[0]} cannot compile a program with <stdio.h>: "
                 "install libc's headers (apt-get install libc6-dev)")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory)
    finish(os.path.join(wheel_directory, name))
    return name


def record_row(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return (name, f"sha256={digest}", len(data))


def finish(path):
    with zipfile.ZipFile(path) as wheel:
        files = [(entry, wheel.read(entry)) for entry in wheel.infolist()]
    place, = (entry.filename.rpartition("/")[0] for entry, _ in files if entry.filename.endswith(".dist-info/RECORD"))
    rows = []
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as wheel:
        for entry, data in files:
            name = entry.filename
            if ("/" + name).endswith(SBOM):
                name = f"{place}/sboms/{os.path.basename(SBOM)}"
            elif name == f"{place}/METADATA":
                data = package_page.with_addresses(data.decode()).encode()
            elif name == f"{place}/RECORD":  # the last one
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows([*rows, (name, "", "")])
                data = text.getvalue().encode()
            rows.append(record_row(name, data))
            written = zipfile.ZipInfo(name, entry.date_time)
            is_program = (entry.external_attr >> 16) & stat.S_IXUSR
            written.external_attr = (stat.S_IFREG | (0o755 if is_program else 0o644)) << 16
            wheel.writestr(written, data, zipfile.ZIP_DEFLATED)
    os.replace(path + ".new", path)
