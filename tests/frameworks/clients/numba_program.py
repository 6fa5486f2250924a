# SPDX-License-Identifier: Apache-2.0
"""Device arrays with numba, without kernels: prints a line and a hash for each thing it tries.

Every result is compared with numpy's, so that the driver alone is tested too.
"""
import hashlib

import numpy
from numba import cuda
from numba.cuda.cudadrv import driver

SIZES = [1, 1000, 300_000, 1_500_000]  # of 4 bytes: below and above 2 MiB


def show(name, seen, wanted):
    seen = numpy.ascontiguousarray(seen)
    right = numpy.array_equal(seen, wanted)
    print(name, hashlib.sha256(seen.tobytes()).hexdigest()[:16], "right" if right else "WRONG")


def content(count, seed=1):
    return numpy.random.RandomState(seed).randint(0, 1 << 30, count).astype(numpy.int32)


def copies():
    for size in SIZES:
        host = content(size)
        device = cuda.to_device(host)
        show(f"copy {size}", device.copy_to_host(), host)
        other = cuda.device_array_like(device)
        other.copy_to_device(device)
        show(f"copy on the device {size}", other.copy_to_host(), host)


def slices():
    host = content(SIZES[-1])
    device = cuda.to_device(host)
    show("slice", device[1000:5000].copy_to_host(), host[1000:5000])
    show("last", device[-3:].copy_to_host(), host[-3:])
    show("one element", numpy.array([device[777]]), host[777:778])
    device[100:200].copy_to_device(host[:100])
    wanted = host.copy()
    wanted[100:200] = host[:100]
    show("slice written", device.copy_to_host(), wanted)
    pieces = [piece.copy_to_host() for piece in device.split(400_000)]
    show("split", numpy.concatenate(pieces), wanted)
    square = cuda.to_device(numpy.asfortranarray(host[:1_000_000].reshape(1000, 1000)))
    show("columns", square.copy_to_host(), host[:1_000_000].reshape(1000, 1000))
    show("view", device.view(numpy.uint8)[:64].copy_to_host(), wanted.view(numpy.uint8)[:64])


def streams_and_events():
    host = content(SIZES[-1], 2)
    stream = cuda.stream()
    begin = cuda.event()
    end = cuda.event()
    begin.record(stream)
    device = cuda.to_device(host, stream=stream)
    result = numpy.empty_like(host)
    device.copy_to_host(result, stream=stream)
    end.record(stream)
    end.synchronize()
    stream.synchronize()
    show("stream", result, host)
    print("elapsed", begin.elapsed_time(end) >= 0)
    with stream.auto_synchronize():
        again = cuda.to_device(host[::-1].copy(), stream=stream)
        again.copy_to_host(result, stream=stream)
    show("stream again", result, host[::-1])


def fills():
    for size in SIZES:
        device = cuda.device_array(size, numpy.uint32)
        driver.device_memset(device, 0xAB, device.nbytes)
        show(f"fill {size}", device.copy_to_host(), numpy.full(size, 0xABABABAB, numpy.uint32))
        driver.device_memset(device, 0, device.nbytes // 2)
        wanted = numpy.full(size * 4, 0xAB, numpy.uint8)
        wanted[:size * 2] = 0
        show(f"half filled {size}", device.copy_to_host().view(numpy.uint8), wanted)


def pinned():
    host = content(SIZES[-1], 3)
    staging = cuda.pinned_array(host.shape, host.dtype)
    staging[:] = host
    device = cuda.to_device(staging)
    staging[:] = 0
    device.copy_to_host(staging)
    show("pinned array", staging, host)
    stream = cuda.stream()
    with cuda.pinned(host):
        device = cuda.to_device(host, stream=stream)
        result = device.copy_to_host(stream=stream)
        stream.synchronize()
    show("registered array", result, host)


def main():
    context = cuda.current_context()
    print("driver", driver.driver.get_version(), "devices", len(cuda.gpus))
    free_before, total = context.get_memory_info()
    print("total", total)
    block = cuda.device_array(32 << 20, numpy.uint8)
    free_after = context.get_memory_info().free
    print("taken by 32 MiB", free_before - free_after, block.size)
    copies()
    slices()
    streams_and_events()
    fills()
    pinned()
    cuda.synchronize()
    context.reset()
    print("done")


main()
