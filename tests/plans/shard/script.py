#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""script.py: a CUDA program that does what a JSON object on its standard input says, step by step:

    "file"   a checkpoint's file, which it maps
    "plan"   a plan, for the step "plan"
    "steps"  a list of
        ["load", begin, end]                       a block of its own for these bytes of the file, copied from the mapping
        ["file", path]                             the file of the loads that follow
        ["device", number]                         the device of what follows
        ["new", bytes, value]                      a block whose bytes are all set to value, by a copy from the host
        ["reserve", bytes]                         a block that is not written
        ["fill", block, at, bytes, value]          a part of it, by a copy from the host
        ["plan"]                                   hands the plan to metashard_plan_text
        ["copy", to, at, from, begin, end]         cuMemcpyDtoD between blocks
        ["columns", to, from, begin, width, pitch, height]   cuMemcpy2D between blocks, to the first's beginning
        ["read", block, begin, end]                cuMemcpyDtoH
        ["rows", block, begin, width, pitch, height]   cuMemcpy2D to the host
        ["multiply", to, from, at, count]          PyTorch's kernel that multiplies floats by two (TORCH_KERNELS), from
                                                   there in one block to there in another, or the same
        ["free", block]
        ["open", path]                             a library, by its soname
        ["communicator", ranks, rank, path]        one of NCCL (NCCL_LIBRARY); rank 0 leaves its id at path
        ["split", color, key]                      of that one, which is kept, too
        ["gather", block, rank, bytes]             an all-gather in place: so many bytes of each rank
        ["broadcast", block, at, bytes, root], ["synchronise"], ["register", block, bytes], ["deregister"]
        ["report", block, at, size]                tells of a part of the block as PyTorch's allocator does; size < 0:
                                                   it is taken back
        ["name", block, at, bytes, name, dtype, shape], ["materialise"]   of metashard.h

Blocks count from 0. Prints a list with [CUresult, hash of what was read, or null] for each step.
"""
import ctypes
import hashlib
import json
import mmap
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "examples"))
from plan_ctypes import Cuda, MetaShard  # noqa: E402

HOST, DEVICE = 1, 2
# {out, in}, float: vectorized_elementwise_kernel with AUnaryFunctor of MulFunctor
MULTIPLY = (b"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIf"
            b"EEEESt5arrayIPcLm2EEEEviT0_T1_")


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D"""
    _fields_ = [(side + name, kind) for side in ("src", "dst") for name, kind in
                (("XInBytes", ctypes.c_size_t), ("Y", ctypes.c_size_t), ("MemoryType", ctypes.c_int),
                 ("Host", ctypes.c_void_p), ("Device", ctypes.c_uint64), ("Array", ctypes.c_void_p),
                 ("Pitch", ctypes.c_size_t))] + [("WidthInBytes", ctypes.c_size_t), ("Height", ctypes.c_size_t)]


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Program:
    def __init__(self, wanted):
        self.plan, self.blocks = wanted.get("plan"), []
        self.maps = []
        self.do_file(wanted["file"])
        self.cuda, self.metashard = Cuda(), MetaShard()
        self.driver = self.cuda.library

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.cuda.must(self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), "cuMemAlloc")
        self.blocks.append(address.value)
        return address

    def at(self, block, offset):
        return ctypes.c_uint64(self.blocks[block] + offset)

    def do_file(self, path):
        with open(path, "rb") as file:
            self.maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))  # private, and never written
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.maps[-1]))
        return 0, None

    def do_device(self, number):
        context = ctypes.c_void_p()
        self.cuda.must(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "cuDevicePrimaryCtxRetain")
        return self.driver.cuCtxSetCurrent(context), None

    def do_load(self, begin, end):
        address = self.allocate(end - begin)
        return self.driver.cuMemcpyHtoD_v2(address, ctypes.c_void_p(self.base + begin), ctypes.c_size_t(end - begin)), None

    def do_new(self, size, value):
        address = self.allocate(size)
        return self.driver.cuMemcpyHtoD_v2(address, bytes([value]) * size, ctypes.c_size_t(size)), None

    def do_plan(self):
        if self.metashard.is_there:
            self.metashard.plan(self.plan)
        return 0, None

    def do_copy(self, to, at, source, begin, end):
        return self.driver.cuMemcpyDtoD_v2(self.at(to, at), self.at(source, begin), ctypes.c_size_t(end - begin)), None

    def do_columns(self, to, source, begin, width, pitch, height):
        copy = Copy2D(srcMemoryType=DEVICE, srcDevice=self.blocks[source] + begin, srcPitch=pitch, dstMemoryType=DEVICE,
                      dstDevice=self.blocks[to], dstPitch=width, WidthInBytes=width, Height=height)
        return self.driver.cuMemcpy2D_v2(ctypes.byref(copy)), None

    def do_read(self, block, begin, end):
        data = ctypes.create_string_buffer(end - begin)
        result = self.driver.cuMemcpyDtoH_v2(data, self.at(block, begin), ctypes.c_size_t(end - begin))
        return result, hashlib.sha256(data.raw).hexdigest() if result == 0 else None

    def do_rows(self, block, begin, width, pitch, height):
        data = ctypes.create_string_buffer(width * height)
        copy = Copy2D(srcMemoryType=DEVICE, srcDevice=self.blocks[block] + begin, srcPitch=pitch, dstMemoryType=HOST,
                      dstHost=ctypes.addressof(data), dstPitch=width, WidthInBytes=width, Height=height)
        result = self.driver.cuMemcpy2D_v2(ctypes.byref(copy))
        return result, hashlib.sha256(data.raw).hexdigest() if result == 0 else None

    def do_multiply(self, to, source, at, count):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.cuModuleLoad(ctypes.byref(module), os.environ["TORCH_KERNELS"].encode())
        self.driver.cuModuleGetFunction(ctypes.byref(function), module, MULTIPLY)
        numbers = [ctypes.c_int(count), ctypes.c_float(2),
                   (ctypes.c_uint64 * 2)(self.blocks[to] + at, self.blocks[source] + at)]
        params = (ctypes.c_void_p * 3)(*[ctypes.addressof(number) for number in numbers])
        return self.driver.cuLaunchKernel(function, *map(ctypes.c_uint, (-(-count // 512), 1, 1, 128, 1, 1, 0)), None,
                                          params, None), None

    def do_report(self, block, at, size):
        if self.metashard.is_there:
            report = self.metashard.library._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
            report(ctypes.c_void_p(self.blocks[block] + at), ctypes.c_int64(size), ctypes.c_size_t(0),
                   ctypes.c_size_t(0), ctypes.c_uint16(1))
        return 0, None

    def do_name(self, block, at, size, name, dtype, shape):
        if self.metashard.is_there:
            self.metashard.name(self.blocks[block] + at, size, name, dtype, shape)
        return 0, None

    def do_materialise(self):
        if self.metashard.is_there:
            self.metashard.materialise()
        return 0, None

    def do_fill(self, block, at, size, value):
        return self.driver.cuMemcpyHtoD_v2(self.at(block, at), bytes([value]) * size, ctypes.c_size_t(size)), None

    def do_reserve(self, size):
        self.allocate(size)
        return 0, None

    def do_communicator(self, ranks, rank, path):
        self.nccl, identity = ctypes.CDLL(os.environ["NCCL_LIBRARY"]), UniqueId()
        if rank == 0:
            self.nccl.ncclGetUniqueId(ctypes.byref(identity))
            with open(path + ".new", "wb") as file:
                file.write(bytes(identity))
            os.rename(path + ".new", path)
        while not os.path.exists(path):
            time.sleep(0.01)
        with open(path, "rb") as file:
            identity = UniqueId.from_buffer_copy(file.read())
        self.communicator = ctypes.c_void_p()
        return self.nccl.ncclCommInitRank(ctypes.byref(self.communicator), ranks, identity, rank), None

    def do_split(self, color, key):
        self.parts = [*getattr(self, "parts", []), ctypes.c_void_p()]
        return self.nccl.ncclCommSplit(self.communicator, color, key, ctypes.byref(self.parts[-1]), None), None

    def do_broadcast(self, block, at, size, root):
        return self.nccl.ncclBcast(ctypes.c_void_p(self.blocks[block] + at), ctypes.c_size_t(size), 1, root,
                                   self.communicator, None), None

    def do_gather(self, block, rank, size):
        return self.nccl.ncclAllGather(self.at(block, rank * size), self.at(block, 0), ctypes.c_size_t(size), 1,
                                       self.communicator, None), None

    def do_register(self, block, size):
        self.registered = ctypes.c_void_p()
        return self.nccl.ncclCommRegister(self.communicator, self.at(block, 0), ctypes.c_size_t(size),
                                          ctypes.byref(self.registered)), None

    def do_deregister(self):
        return self.nccl.ncclCommDeregister(self.communicator, self.registered), None

    def do_synchronise(self):
        return self.driver.cuCtxSynchronize(), None

    def do_open(self, path):
        ctypes.CDLL(path)
        return 0, None

    def do_free(self, block):
        return self.driver.cuMemFree_v2(self.at(block, 0)), None


def main():
    wanted = json.load(sys.stdin)
    program = Program(wanted)
    print(json.dumps([getattr(program, "do_" + step[0])(*step[1:]) for step in wanted["steps"]]))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
