#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""loader.py METHOD [cuda]: a program that has memory on the device and takes its batches from workers, as data
loaders do; METHOD is fork, spawn or forkserver. With "cuda" the workers try to use the device too.

It prints what it and its workers saw: a line each, which a preload must not change.
"""
import ctypes
import hashlib
import multiprocessing
import os
import sys

MIB = 1 << 20
WORKERS = 2


class Driver:
    """Device 0, by the driver's own functions."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()

    def start(self):
        return (self.cuda.cuInit(0) or
                self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) or
                self.cuda.cuCtxSetCurrent(self.context))

    def take(self, count):
        """Error and address."""
        address = ctypes.c_uint64()
        error = self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(count))
        return error, address.value

    def set(self, address, value, count):
        return self.cuda.cuMemsetD8_v2(ctypes.c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(count))

    def read(self, address, count):
        data = ctypes.create_string_buffer(count)
        error = self.cuda.cuMemcpyDtoH_v2(data, ctypes.c_uint64(address), ctypes.c_size_t(count))
        return error, data.raw


def use_device(driver, is_forked):
    """Errors, and a byte of memory, as a worker sees them."""
    if not is_forked:
        error = driver.start()
        if error:
            return f"start: error {error}"
    error, address = driver.take(8 * MIB)
    if error:
        return f"take: error {error}"
    error = driver.set(address, 77, 8 * MIB)
    return f"set: error {error}, read: {driver.read(address + 4 * MIB, 1)}"


def work(number, how, inherited, queue):
    batch = hashlib.sha256(bytes([number]) * MIB).hexdigest()[:16]
    device = "not asked"
    if how == "cuda":
        # A forked worker has its parent's driver; others open their own.
        device = use_device(inherited or Driver(), inherited is not None)
    queue.put((number, batch, device, len(os.listdir("/proc/self/task")), os.getpid()))


def main():
    method, how = sys.argv[1], (sys.argv[2:] or ["plain"])[0]
    context = multiprocessing.get_context(method)
    driver = Driver()
    error = driver.start()
    error_of_take, address = driver.take(16 * MIB)
    print("driver:", error, error_of_take, driver.set(address, 9, 16 * MIB))
    queue = context.SimpleQueue()
    inherited = driver if method == "fork" else None
    workers = [context.Process(target=work, args=(number, how, inherited, queue)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    results = sorted(queue.get() for _ in workers)
    for worker in workers:
        worker.join()
    for number, batch, device, threads, _ in results:
        # The shim has a thread of its own where CUDA is used.
        print(f"worker {number}: batch {batch}, device {device}" + (f", {threads} threads" if how == "plain" else ""))
    print("ends:", [worker.exitcode for worker in workers])
    if method == "fork":
        # A child that leaves through exit(), which runs every library's destructors.
        child = os.fork()
        if child == 0:
            sys.exit(0)
        print("child:", os.waitpid(child, 0)[1])
        # And says nothing in its parent's name.
        print("dumps:", sum(name.startswith("dump") for name in os.listdir()))
    print("memory:", driver.read(address + 7 * MIB, 4))
    # Last, and not for comparison.
    print("processes:", os.getpid(), *[result[4] for result in results])


if __name__ == "__main__":
    main()
