# SPDX-License-Identifier: Apache-2.0
"""A process of nccl_alias.py: NCCL's broadcast into addresses that share memory. Prints a JSON object for each measurement.

    nccl_rank.py LIBRARY map [quick]                          what mapping one handle at thousands of addresses costs
    nccl_rank.py LIBRARY broadcast RANKS RANK ID-FILE [quick] into buffers with a sink, of many sizes
    nccl_rank.py LIBRARY tensor RANKS RANK ID-FILE BYTES      into plain memory that is named "t" for the shim

May a receiver map all that it does not keep to one throw-away handle (the sink), and does every rank still get its own bytes? It
may as long as a rank forwards what came in, not what stands in its buffer. LIBRARY is that of probe_call.c.
"""
import ctypes
import json
import os
import random
import sys
import time

import probe_driver as driver
from probe_driver import MIB, OK, create, need, reserve, us
from probe_memory import map_aliases

SINKS = (2 * MIB, 32 * MIB, 64 * MIB)
SIZES = (1024, 49160, MIB, 8 * MIB + 12, 64 * MIB + 4, 256 * MIB)
NOISE = random.Random(1).randbytes(1_000_003)  # not a multiple of a granule: what is off by some of them differs
UINT8 = 1  # ncclUint8


class Id(ctypes.Structure):
    """ncclUniqueId"""
    _fields_ = [("bytes", ctypes.c_char * 128)]


def tell(**row):
    print(json.dumps(row), flush=True)


def nccl(name, *arguments):
    """Looked up as a program that links NCCL finds it: what is preloaded comes first."""
    functions = ctypes.CDLL(None)
    result = getattr(functions, name)(*arguments)
    if result != 0:
        functions.ncclGetErrorString.restype = ctypes.c_char_p
        raise driver.Failed(f"{name}: {functions.ncclGetErrorString(result).decode()}")


# --- what mapping costs


def measure_maps(sink_bytes, count):
    address, sink = reserve(sink_bytes * count), create(sink_bytes)
    maps = map_aliases(address, sink, count, sink_bytes)
    access = driver.give_access(address, sink_bytes * count)
    unmap = need("cuMemUnmap", address, sink_bytes * count)
    need("cuMemRelease", sink)
    need("cuMemAddressFree", address, sink_bytes * count)
    maps.sort()
    tell(sink_bytes=sink_bytes, maps=count, map_us_median=us(maps[count // 2]), map_us_p95=us(maps[count * 95 // 100]),
         map_us_most=us(maps[-1]), map_all_us=us(sum(maps)), set_access_all_us=us(access), unmap_all_us=us(unmap))


def run_map(quick):
    for sink_bytes in SINKS:
        for count in (16, 32) if quick else (1024, 4096):
            measure_maps(sink_bytes, count)


# --- ranks


class Rank:
    def __init__(self, ranks, rank, path):
        self.ranks, self.rank, self.granule = int(ranks), int(rank), driver.granularity(driver.MINIMUM)
        ctypes.CDLL("libnccl.so.2", os.RTLD_NOW | os.RTLD_GLOBAL)
        self.comm, self.state, version, began = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(), time.monotonic_ns()
        nccl("ncclCommInitRank", ctypes.byref(self.comm), self.ranks, self.id_of_all(path), self.rank)
        self.stream = driver.stream()
        nccl("ncclGetVersion", ctypes.byref(version))
        tell(nccl_version=version.value, granule=self.granule, init_us=us(time.monotonic_ns() - began))

    def id_of_all(self, path):
        """Made by the first rank, which writes it for the others."""
        found = Id()
        if self.rank == 0:
            nccl("ncclGetUniqueId", ctypes.byref(found))
            with open(path + ".part", "wb") as file:
                file.write(found)
            os.rename(path + ".part", path)
        deadline = time.monotonic() + 60
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.005)
        with open(path, "rb") as file:
            return Id.from_buffer_copy(file.read())

    def broadcast(self, address, size, root):
        """Nanoseconds."""
        began = time.monotonic_ns()
        nccl("ncclBroadcast", ctypes.c_void_p(address), ctypes.c_void_p(address), ctypes.c_size_t(size), UINT8, root, self.comm,
             ctypes.c_void_p(self.stream))
        need("cuStreamSynchronize", self.stream)
        took = time.monotonic_ns() - began
        nccl("ncclCommGetAsyncError", self.comm, ctypes.byref(self.state))
        if self.state.value != 0:
            raise driver.Failed(f"the broadcast: {self.state.value}")
        return took

    def end(self):
        nccl("ncclCommDestroy", self.comm)


def sent(begin, end, number):
    """The bytes that the root sends in this round."""
    first = (begin + 977 * number) % len(NOISE)
    return (NOISE * ((first + end - begin) // len(NOISE) + 1))[first:first + end - begin]


def count_wrong(address, begin, end, number):
    """Bytes of [begin, end) that are not the root's."""
    if begin >= end:
        return 0
    seen, wanted = driver.read(address + begin, end - begin), sent(begin, end, number)
    differing = int.from_bytes(seen, "little") ^ int.from_bytes(wanted, "little")
    return end - begin - differing.to_bytes(end - begin, "little").count(0)


# --- a buffer with a sink


class Buffer:
    """The root has all of it. The others have equal parts, in the order in which they stand behind the root."""

    def __init__(self, rank, size, root, sink_bytes):
        granules, place = -(-size // rank.granule), (rank.rank - root) % rank.ranks
        self.size, self.maps, self.map_ns, self.part_of_sink_maps = granules * rank.granule, 0, 0, True
        self.begin = granules * max(0, place - 1) // (rank.ranks - 1) * rank.granule
        self.end = granules * place // (rank.ranks - 1) * rank.granule if place > 0 else self.size
        self.address, self.sink_bytes, sink = reserve(self.size), sink_bytes, create(sink_bytes)
        self.map_sink(0, self.begin, sink)
        if self.begin < self.end:
            self.map_new(self.begin, self.end)
        self.map_sink(self.end, self.size, sink)
        self.map_ns += driver.give_access(self.address, self.size)
        need("cuMemRelease", sink)

    def map(self, begin, end, handle):
        """The result."""
        result, nanoseconds = driver.timed("cuMemMap", self.address + begin, end - begin, 0, handle, 0)
        self.maps, self.map_ns = self.maps + (result == OK), self.map_ns + nanoseconds
        return result

    def map_new(self, begin, end):
        handle = create(end - begin)
        driver.require("cuMemMap", self.map(begin, end, handle))
        need("cuMemRelease", handle)

    def map_sink(self, begin, end, sink):
        for at in range(begin, end, self.sink_bytes):
            stop = min(end, at + self.sink_bytes)
            result = self.map(at, stop, sink)
            if result != OK and stop - at < self.sink_bytes:
                self.part_of_sink_maps = False
                self.map_new(at, stop)
            else:
                driver.require("cuMemMap of the sink", result)

    def drop(self):
        need("cuMemUnmap", self.address, self.size)
        need("cuMemAddressFree", self.address, self.size)


def measure_broadcast(rank, size, root, sink_bytes, rounds):
    buffer, took, wrong = Buffer(rank, size, root, sink_bytes), [], 0
    begin, end = buffer.begin, max(buffer.begin, min(buffer.end, size))
    for number in rounds:
        if rank.rank == root:
            need("cuMemcpyHtoD_v2", buffer.address, sent(0, size, number), size)
        took.append(rank.broadcast(buffer.address, size, root))
        wrong += count_wrong(buffer.address, begin, end, number)
    tell(bytes=size, root=root, sink_bytes=sink_bytes, own=[begin, end], wrong_bytes=wrong, maps=buffer.maps,
         part_of_sink_maps=buffer.part_of_sink_maps, map_us=us(buffer.map_ns), first_us=us(took[0]), second_us=us(took[1]))
    buffer.drop()


def run_broadcast(ranks, number, path, quick):
    rank, done = Rank(ranks, number, path), 0
    for size in SIZES[:-2] if quick else SIZES:
        for sink_bytes in SINKS:
            if sink_bytes > size and sink_bytes != SINKS[0]:
                continue
            for root in range(rank.ranks):
                measure_broadcast(rank, size, root, sink_bytes, (done, done + 1))  # the first one connects
                done += 2
    rank.end()


# --- memory that the shim may defer


def name_tensor(address, size):
    try:
        name = ctypes.CDLL(None).metashard_name
    except AttributeError:
        return False
    shape = ctypes.c_uint64(size)
    return name(ctypes.c_uint64(address), ctypes.c_size_t(size), b"t", b"U8", ctypes.byref(shape), 1) == 0


def run_tensor(ranks, number, path, size):
    rank, size = Rank(ranks, number, path), int(size)
    chunk = -(-size // rank.ranks)
    begin, end = (min(size, chunk * place) for place in (rank.rank, rank.rank + 1))
    address = driver.alloc(size)
    is_named = name_tensor(address, size)
    if rank.rank == 0:
        need("cuMemcpyHtoD_v2", address, sent(0, size, 1), size)
    took = rank.broadcast(address, size, 0)
    tell(bytes=size, root=0, named=is_named, own=[begin, end], wrong_bytes=count_wrong(address, begin, end, 1), first_us=us(took))
    rank.end()


def main():
    driver.caller, what, *arguments = sys.argv[1:]
    quick = arguments[-1:] == ["quick"]
    try:
        driver.start()
        if what == "map":
            run_map(quick)
        elif what == "broadcast":
            run_broadcast(*arguments[:3], quick)
        else:
            run_tensor(*arguments)
    except driver.Failed as error:
        tell(error=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
