#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs without PyTorch's allocator. --what numba: device arrays of numba, copied there, on the device, sliced, and back;
bindings: the same with cuda.bindings, from a mapped file; cupy, jax: what they need to begin with; triton: a
kernel that it compiles, over a slice of a tensor of PyTorch's. The program leaves the arrays that came back."""
import mmap
import tempfile

import numpy

from hub import arguments, choice

ROWS, COLUMNS = 4096, 1024
options = arguments(choice("what", "numba", "bindings", "cupy", "jax", "triton"))
host = numpy.random.RandomState(7).randint(0, 1 << 30, (ROWS, COLUMNS)).astype(numpy.int32)
values = {}


def with_numba():
    from numba import cuda
    whole = cuda.to_device(host)
    part = cuda.device_array((ROWS // 4, COLUMNS), numpy.int32)
    part.copy_to_device(whole[ROWS // 4 : ROWS // 2])
    del whole
    values["part"] = part.copy_to_host()
    values["row"] = part[17].copy_to_host()
    stream = cuda.stream()
    other = cuda.to_device(host[::-1].copy(), stream=stream)
    values["other"] = other.copy_to_host(stream=stream)
    stream.synchronize()


def with_bindings():
    from cuda.bindings import driver

    def must(answer):
        error, *values = answer
        if error != driver.CUresult.CUDA_SUCCESS:
            raise SystemExit(f"cuda.bindings: {error}")
        return values[0] if values else None

    must(driver.cuInit(0))
    must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(must(driver.cuDeviceGet(0))))))
    with tempfile.NamedTemporaryFile() as file:
        host.tofile(file)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        data = numpy.frombuffer(mapped, numpy.int32)
        whole = must(driver.cuMemAlloc(data.nbytes))
        must(driver.cuMemcpyHtoD(whole, data.ctypes.data, data.nbytes))
        part = must(driver.cuMemAlloc(data.nbytes // 4))
        must(driver.cuMemcpyDtoD(part, int(whole) + data.nbytes // 2, data.nbytes // 4))
        must(driver.cuMemFree(whole))
        back = numpy.empty((ROWS // 4, COLUMNS), numpy.int32)
        must(driver.cuMemcpyDtoH(back.ctypes.data, part, back.nbytes))
        values["part"] = back
        must(driver.cuMemsetD32(part, 0x01020304, back.size))
        again = numpy.empty_like(back)
        must(driver.cuMemcpyDtoH(again.ctypes.data, part, again.nbytes))
        values["set"] = again


def with_cupy():
    import cupy
    whole = cupy.asarray(host)
    values["part"] = cupy.asnumpy(whole[ROWS // 4 : ROWS // 2])
    values["sum"] = cupy.asnumpy(whole.sum(axis=1))


def with_jax():
    import jax
    whole = jax.device_put(host, jax.devices("cuda")[0])
    values["part"] = numpy.asarray(whole[ROWS // 4 : ROWS // 2])
    values["sum"] = numpy.asarray(whole.sum(axis=1))


def with_triton():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add_row(out, whole, begin, columns, BLOCK: tl.constexpr):
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        found = tl.load(whole + (begin + row) * columns + at, mask=at < columns)
        tl.store(out + row * columns + at, found + row, mask=at < columns)

    whole = torch.from_numpy(host).cuda()
    part = torch.empty(ROWS // 4, COLUMNS, dtype=torch.int32, device="cuda")
    add_row[(ROWS // 4,)](part, whole, ROWS // 4, COLUMNS, BLOCK=triton.next_power_of_2(COLUMNS))
    values["part"] = part.cpu().numpy()
    del whole
    values["row"] = part[17].cpu().numpy()


{"numba": with_numba, "bindings": with_bindings, "cupy": with_cupy, "jax": with_jax, "triton": with_triton}[options.what]()
