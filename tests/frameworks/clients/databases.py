# SPDX-License-Identifier: Apache-2.0
"""Databases in a process that copies from plain memory, without and with the shim: SQLite and LMDB lock their files by
POSIX locks, which end when the process closes any descriptor of such a file.

    databases.py                 the test
    databases.py PROGRAM FOLDER  one of its programs, each of which starts a second process that wants the same file
"""
import ctypes
import fcntl
import mmap
import os
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time

from client import Run, Tap, is_clean, skip_under_sanitizers

COPY_BYTES = 4 << 20
LMDB = "liblmdb.so.0"
MDB_NOSUBDIR, MDB_RDONLY = 0x4000, 0x20000


class Value(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_void_p)]


def check(result):
    if result != 0:
        sys.exit(f"a call failed: {result}")


def copy_to_device(data=None):
    """From plain memory, so that the shim looks for a checkpoint with these bytes."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    data = data or os.urandom(COPY_BYTES)
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(len(data))))
    check(cuda.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(len(data))))
    back = ctypes.create_string_buffer(len(data))
    check(cuda.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(len(data))))
    check(cuda.cuMemFree_v2(address))
    if back.raw != data:
        sys.exit("other bytes came back")


def other_process(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([sys.executable, os.path.abspath(__file__), *arguments], env=environment,
                          capture_output=True, text=True, check=True).stdout.strip()


# --- SQLite: the one writer of a database in WAL mode holds a lock on a file that is mapped from its start

def open_sqlite(folder):
    return sqlite3.connect(os.path.join(folder, "rows.db"), timeout=0, isolation_level=None)


def sqlite(folder):
    rows = open_sqlite(folder)
    rows.execute("pragma journal_mode=wal")
    rows.execute("create table rows (name)")
    rows.execute("begin immediate")
    rows.execute("insert into rows values ('first')")
    copy_to_device()
    print("a second writer:", other_process("sqlite_writer", folder))
    rows.execute("commit")
    print("rows:", open_sqlite(folder).execute("select name from rows").fetchall())


def sqlite_writer(folder):
    try:
        open_sqlite(folder).execute("insert into rows values ('second')")
        print("got in")
    except sqlite3.OperationalError as error:
        print(error)


# --- LMDB: a reader's lock says that it is alive; what a dead one was reading is overwritten

def open_lmdb(library, folder):
    environment = ctypes.c_void_p()
    check(library.mdb_env_create(ctypes.byref(environment)))
    check(library.mdb_env_open(environment, os.path.join(folder, "values.mdb").encode(), MDB_NOSUBDIR,
                               0o600))
    return environment


def begin(library, environment, flags=0):
    transaction, table = ctypes.c_void_p(), ctypes.c_uint()
    check(library.mdb_txn_begin(environment, None, flags, ctypes.byref(transaction)))
    check(library.mdb_dbi_open(transaction, None, 0, ctypes.byref(table)))
    return transaction, table


def put(library, environment, text):
    key, value = Value(3, ctypes.cast(b"key", ctypes.c_void_p)), Value(len(text), ctypes.cast(text, ctypes.c_void_p))
    transaction, table = begin(library, environment)
    check(library.mdb_put(transaction, table, ctypes.byref(key), ctypes.byref(value), 0))
    check(library.mdb_txn_commit(transaction))


def lmdb(folder):
    library = ctypes.CDLL(LMDB)
    environment = open_lmdb(library, folder)
    put(library, environment, b"first" * 1000)
    transaction, table = begin(library, environment, MDB_RDONLY)
    key, value = Value(3, ctypes.cast(b"key", ctypes.c_void_p)), Value()
    check(library.mdb_get(transaction, table, ctypes.byref(key), ctypes.byref(value)))
    copy_to_device()
    print("dead readers:", other_process("lmdb_writer", folder))
    print("the reader's snapshot stays:", ctypes.string_at(value.data, value.size) == b"first" * 1000)


def lmdb_writer(folder):
    library = ctypes.CDLL(LMDB)
    environment = open_lmdb(library, folder)
    dead = ctypes.c_int()
    check(library.mdb_reader_check(environment, ctypes.byref(dead)))
    for i in range(20):
        put(library, environment, f"next{i % 10}".encode() * 1000)
    print(dead.value)


# --- the checkpoint itself

def checkpoint(folder):
    path = os.path.join(folder, "model.safetensors")
    tensor = os.urandom(COPY_BYTES)
    header = f'{{"w":{{"dtype":"U8","shape":[{COPY_BYTES}],"data_offsets":[0,{COPY_BYTES}]}}}}'.encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + tensor)
    time.sleep(0.1)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        fcntl.lockf(file, fcntl.LOCK_SH)
        copy_to_device(tensor)
        print("the lock:", other_process("locker", path))
        fcntl.lockf(file, fcntl.LOCK_UN)
        copy_to_device(tensor)
        fcntl.lockf(file, fcntl.LOCK_SH)
        copy_to_device(tensor)
        print("the lock:", other_process("locker", path))
        mapped.close()


def locker(path):
    with open(path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("is gone")
        except OSError:
            print("is held")


# --- the test

def run(tap, program, wanted):
    seen = {}
    for shim in (False, True):
        with tempfile.TemporaryDirectory(prefix="metashard-databases-") as folder:
            one = Run([sys.executable, os.path.abspath(__file__), program, folder], shim=shim)
        seen[shim] = one
        how = "with the shim" if shim else "without the shim"
        tap.check(f"{program}, {how}", one.status == 0 and one.output.splitlines() == wanted and is_clean(one),
                  one.tell())
    return seen[True]


def has_lmdb():
    try:
        ctypes.CDLL(LMDB)
        return True
    except OSError:
        return False


def main():
    skip_under_sanitizers()
    tap = Tap()
    run(tap, "sqlite", ["a second writer: database is locked", "rows: [('first',)]"])
    if has_lmdb():
        run(tap, "lmdb", ["dead readers: 0", "the reader's snapshot stays: True"])
    else:
        print(f"# skipped: lmdb, for want of {LMDB}")
    run(tap, "checkpoint", ["the lock: is held"] * 2)
    tap.end()


if len(sys.argv) > 1:
    globals()[sys.argv[1]](*sys.argv[2:])
else:
    main()
