#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plan_ctypes.py [--rank R] [--world N]: a plan for tensors that are in no file, given to MetaShard through its C API.

    LD_PRELOAD=$PWD/build/shim/libmetashard.so python3 docs/examples/plan_ctypes.py --rank 1 --world 4

The program makes two weights on the host and copies both whole to the device, on every rank. It gives MetaShard the
name, dtype and shape of each, and a plan; from then on only this rank's rows are in device memory. Without MetaShard
it does the same without a plan: the last line, a digest of the rank's rows as read from the device, is the same.
"""
import argparse
import ctypes
import hashlib
import json
import random

ROWS, COLUMNS = 1024, 2048  # of float32: 8 MiB
NAMES = ["up.weight", "down.weight"]


class MetaShard:
    """The functions of metashard.h, if the preloaded object is there."""

    def __init__(self):
        self.library = ctypes.CDLL(None)  # what is preloaded belongs to the program itself
        self.is_there = hasattr(self.library, "metashard_plan_text")
        if self.is_there:
            self.library.metashard_plan_text.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            self.library.metashard_name.argtypes = [
                ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p,
                ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint]
            self.library.metashard_unname.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
            self.library.metashard_error.restype = ctypes.c_char_p

    def must(self, status):
        if status != 0:
            raise SystemExit(f"metashard: {self.library.metashard_error().decode()}")

    def plan(self, plan):
        text = json.dumps(plan).encode()
        self.must(self.library.metashard_plan_text(text, len(text)))

    def name(self, address, size, name, dtype, shape):
        dims = (ctypes.c_uint64 * len(shape))(*shape)
        self.must(self.library.metashard_name(address, size, name.encode(), dtype.encode(), dims, len(shape)))

    def unname(self, address, size):
        """Needed where memory is used again and is not freed."""
        self.must(self.library.metashard_unname(address, size))

    def materialise(self):
        self.must(self.library.metashard_materialise())


class Cuda:
    """The few driver functions that this program needs, on device 0."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.must(self.library.cuInit(0), "cuInit")
        self.must(self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
        self.must(self.library.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def must(self, result, what):
        if result != 0:
            raise SystemExit(f"{what}: CUDA error {result}")

    def to_device(self, data):
        address = ctypes.c_uint64()
        self.must(self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(len(data))), "cuMemAlloc")
        self.must(self.library.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(len(data))), "cuMemcpyHtoD")
        return address.value

    def to_host(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.must(self.library.cuMemcpyDtoH_v2(data, ctypes.c_uint64(address), ctypes.c_size_t(size)), "cuMemcpyDtoH")
        return data.raw


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    options = parser.parse_args()
    rows = -(-ROWS // options.world)
    begin = min(options.rank * rows, ROWS)
    end = min(begin + rows, ROWS)

    cuda, metashard = Cuda(), MetaShard()
    if metashard.is_there:
        metashard.plan({"format": "metashard-plan/1", "mesh": {"dp": options.world}, "rank": options.rank,
                        "tensors": [{"name": "*.weight", "placements": [{"shard": 0}]}]})
    addresses = {}
    for number, name in enumerate(NAMES):
        data = random.Random(number).randbytes(ROWS * COLUMNS * 4)
        addresses[name] = cuda.to_device(data)
        if metashard.is_there:
            metashard.name(addresses[name], len(data), name, "F32", [ROWS, COLUMNS])
    if metashard.is_there:
        metashard.materialise()

    digest = hashlib.sha256()
    for address in addresses.values():
        if begin < end:
            digest.update(cuda.to_host(address + begin * COLUMNS * 4, (end - begin) * COLUMNS * 4))
    print("with MetaShard" if metashard.is_there else "without MetaShard")
    print(f"rank {options.rank} of {options.world}, rows {begin} to {end}: {digest.hexdigest()}")


if __name__ == "__main__":
    main()
