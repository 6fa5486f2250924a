# SPDX-License-Identifier: Apache-2.0
"""The sockets of a process, as the kernel lists them, of all threads: the shim has a thread with descriptors of its own."""
import glob
import os
import re

LISTENS = "0A"  # TCP_LISTEN
ACCEPTS = 0x10000  # __SO_ACCEPTCON


def descriptors_of(pid):
    """The inodes of its sockets."""
    inodes = set()
    for path in glob.glob(f"/proc/{pid}/task/*/fd/*"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(path))
        except OSError:
            continue  # it was closed meanwhile
        if found:
            inodes.add(found[1])
    return inodes


def rows(pid, table):
    try:
        with open(f"/proc/{pid}/net/{table}") as file:
            return [line.split() for line in file.readlines()[1:]]
    except OSError:
        return []  # no IPv6


def sockets_of(pid):
    """One line for each, sorted: its kind, its place and, if others can reach it there, that it "listens"."""
    inodes, found = descriptors_of(pid), {}
    for table in ("tcp", "tcp6"):
        for row in rows(pid, table):
            found[row[9]] = f"{table} {row[1]}" + (" listens" if row[3] == LISTENS else "")
    for table in ("udp", "udp6", "raw", "raw6"):
        for row in rows(pid, table):
            found[row[9]] = f"{table} {row[1]} listens"
    for row in rows(pid, "unix"):
        found[row[6]] = f"unix {row[7] if len(row) > 7 else '-'}" + (" listens" if int(row[3], 16) & ACCEPTS else "")
    return sorted(found.get(inode, "a socket of another kind") for inode in inodes)


def listeners_of(pid):
    """Without the process's number in the name of the driver's own socket, @cuda-uvmfd-NAMESPACE-PID@."""
    return [line.replace(f"-{pid}@", "-PID@") for line in sockets_of(pid) if line.endswith(" listens")]
