# SPDX-License-Identifier: Apache-2.0
"""One archive of all results, never larger than what comes back from a machine that is lent."""
import io
import os
import tarfile
import zlib

LIMIT_BYTES = 15 << 20  # of the archive
HEAD_BYTES, TAIL_BYTES = 1 << 20, 3 << 20  # of a log
LEFT_OUT = "left-out.txt"


def content_of(path):
    """A log may be of any length; its beginning and its end tell most."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if path.endswith((".log", ".txt")) and size > HEAD_BYTES + TAIL_BYTES:
            head = file.read(HEAD_BYTES)
            file.seek(size - TAIL_BYTES)
            return head + f"\n... {size - HEAD_BYTES - TAIL_BYTES} bytes are left out ...\n".encode() + file.read()
        return file.read()


def write_archive(path, folder, names, limit=LIMIT_BYTES):
    """A .tar.gz with these files of a folder, the most important first; what does not fit is named
    in it."""
    taken, left_out = 0, []
    with tarfile.open(path + ".new", "w:gz") as archive:
        def add(name, content):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))

        for name in names:
            try:
                content = content_of(os.path.join(folder, name))
            except OSError as error:
                left_out.append(f"{name}: {error.strerror}")
                continue
            packed = len(zlib.compress(content)) + 1024  # its header
            if taken + packed > limit:
                left_out.append(f"{name}: {packed} bytes when packed")
                continue
            taken += packed
            add(name, content)
        if left_out:
            add(LEFT_OUT, ("\n".join(left_out) + "\n").encode())
    os.replace(path + ".new", path)
