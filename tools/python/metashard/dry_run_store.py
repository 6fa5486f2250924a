# SPDX-License-Identifier: Apache-2.0
"""The store that the ranks of a job share, for a job of which one rank runs: a server that PyTorch's TCPStore talks to. The store
counts each value of this rank as written by all ranks, so nobody waits, and each addition as made by all.

The protocol is that of torch/csrc/distributed/c10d/TCPStore.cpp and TCPStoreBackend.hpp in PyTorch 2.15."""
from __future__ import annotations

import ctypes
import os
import signal
import socketserver
import struct
import threading

# Stands for a value of another rank: programs look only at the length, which is that of an NCCL id.
UNKNOWN = bytes(128)
# More than PyTorch's own server takes. Whoever finds the port can connect.
MOST_BYTES, MOST_KEYS, MOST_STORED = 64 << 20, 128 << 10, 1 << 30  # in a query, in a query, in all
ENTRY_BYTES = 256  # what an entry takes besides its key and its value
WORLD_KEY = "metashard/world"  # written before anything else
PR_SET_PDEATHSIG = 1
QUERIES = ("validate", "set", "compare_set", "get", "add", "check", "wait", "count_keys", "delete", "append", "multi_get",
           "multi_set", "cancel_wait", "ping", "queue_push", "queue_pop", "queue_len", "list_keys", "barrier")


class Values:
    """The stored values, and the answer to each query."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, list[bytes]] = {}
        self.stored = 0

    def world(self) -> int:
        return int(self.values.get(WORLD_KEY, b"1"))

    def count(self, more: int) -> None:
        if self.stored + more > MOST_STORED:
            raise ValueError
        self.stored += more

    def set(self, key: str, value: bytes) -> None:
        before = self.values.get(key)
        self.count(len(value) - len(before) if before is not None else ENTRY_BYTES + len(key) + len(value))
        self.values[key] = value

    def drop(self, key: str) -> bool:
        before = self.values.pop(key, None)
        self.stored -= 0 if before is None else ENTRY_BYTES + len(key) + len(before)
        return before is not None

    def push(self, key: str, value: bytes) -> None:
        self.count(ENTRY_BYTES + len(key) + len(value))
        self.queues.setdefault(key, []).append(value)

    def pop(self, key: str) -> bytes:
        queue = self.queues.get(key)
        if not queue:
            return UNKNOWN
        value = queue.pop(0)
        self.stored -= ENTRY_BYTES + len(key) + len(value)
        if not queue:
            del self.queues[key]
        return value

    def add(self, key: str, amount: int) -> int:
        total = int(self.values.get(key) or b"0") + amount * self.world()
        self.set(key, str(total).encode())
        return total

    def read(self, key: str) -> bytes:
        """The value of a key. A key that ends in the number of another rank has the value that this rank wrote under its own."""
        if key not in self.values and key.rpartition("/")[2].isdigit():
            before = key.rpartition("/")[0] + "/"
            return next((value for name, value in self.values.items() if name.startswith(before) and name[len(before):].isdigit()),
                        UNKNOWN)
        return self.values.get(key, UNKNOWN)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self.values.get(key, b"" if expected == b"" else None) == expected:
            self.set(key, desired)
        return self.values.get(key, expected)


class Connection(socketserver.StreamRequestHandler):
    """One client. Numbers are little-endian, as on the machines that run this; texts have their length of 64 bits before them."""
    server: "Server"
    left: int  # bytes of the query

    def number(self, form: str = "<q") -> int:
        data = self.rfile.read(struct.calcsize(form))
        if len(data) < struct.calcsize(form):
            raise EOFError
        return struct.unpack(form, data)[0]

    def count(self, most: int) -> int:
        number = self.number()
        if not 0 <= number <= most:
            raise ValueError
        return number

    def data(self) -> bytes:
        size = self.count(self.left)
        self.left -= size
        data = self.rfile.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def key(self) -> str:
        # PyTorch puts this before the keys of its own.
        text = self.data().decode(errors="replace")
        return text[1:] if text.startswith("/") else text

    def keys(self) -> list[str]:
        return [self.key() for _ in range(self.count(MOST_KEYS))]

    def give(self, form: str, *values: int) -> None:
        self.wfile.write(struct.pack(form, *values))

    def give_data(self, data: bytes) -> None:
        self.wfile.write(struct.pack("<q", len(data)) + data)

    def handle(self) -> None:
        try:
            while True:
                self.left = MOST_BYTES
                query = QUERIES[self.number("<B")]
                getattr(self, "on_" + query)(self.server.kept)
        except (EOFError, OSError, IndexError, ValueError, struct.error):  # the last ones: a number that is none, or too large
            return

    def on_validate(self, kept: Values) -> None:
        self.number("<I")

    def on_ping(self, kept: Values) -> None:
        self.give("<I", self.number("<I"))

    def on_set(self, kept: Values) -> None:
        key, value = self.key(), self.data()
        with kept.lock:
            kept.set(key, value)

    def on_compare_set(self, kept: Values) -> None:
        key, expected, desired = self.key(), self.data(), self.data()
        with kept.lock:
            now = kept.compare_set(key, expected, desired)
        self.give_data(now)

    def on_get(self, kept: Values) -> None:
        key = self.key()
        with kept.lock:
            value = kept.read(key)
        self.give_data(value)

    def on_add(self, kept: Values) -> None:
        key, amount = self.key(), self.number()
        with kept.lock:
            total = kept.add(key, amount)
        self.give("<q", total)

    def on_check(self, kept: Values) -> None:
        self.give("<B", 0 if all([key in kept.values for key in self.keys()]) else 1)

    def on_wait(self, kept: Values) -> None:
        self.keys()
        self.give("<B", 0)

    def on_cancel_wait(self, kept: Values) -> None:
        self.give("<B", 1)

    def on_count_keys(self, kept: Values) -> None:
        self.give("<q", len(kept.values))

    def on_delete(self, kept: Values) -> None:
        key = self.key()
        with kept.lock:
            found = kept.drop(key)
        self.give("<q", int(found))

    def on_append(self, kept: Values) -> None:
        key, value = self.key(), self.data()
        with kept.lock:
            kept.set(key, kept.values.get(key, b"") + value)

    def on_multi_get(self, kept: Values) -> None:
        keys = self.keys()
        with kept.lock:
            values = [kept.read(key) for key in keys]
        for value in values:
            self.give_data(value)

    def on_multi_set(self, kept: Values) -> None:
        pairs = [(self.key(), self.data()) for _ in range(self.count(MOST_KEYS))]
        with kept.lock:
            for key, value in pairs:
                kept.set(key, value)

    def on_queue_push(self, kept: Values) -> None:
        key, value = self.key(), self.data()
        with kept.lock:
            kept.push(key, value)

    def on_queue_pop(self, kept: Values) -> None:
        key = self.key()
        with kept.lock:
            value = kept.pop(key)
        self.give_data(value)

    def on_queue_len(self, kept: Values) -> None:
        self.give("<q", len(kept.queues.get(self.key(), [])))

    def on_list_keys(self, kept: Values) -> None:
        self.give("<q", len(kept.values))
        for key in list(kept.values):
            self.give_data(key.encode())

    def on_barrier(self, kept: Values) -> None:
        self.key()
        self.number()
        self.give("<B", 0)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.kept = Values()


def start() -> tuple[int, int]:
    """A process that serves, until it or this one is ended: its id, and the port."""
    server = Server()
    port = server.server_address[1]
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.serve_forever()
        finally:
            os._exit(0)
    server.server_close()
    return child, port


def stop(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
