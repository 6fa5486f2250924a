# SPDX-License-Identifier: Apache-2.0
"""Checks the launch recorder on the simulated driver: what it records, and a launch made again.

    check_recorder.py --recorder liblaunch_recorder.so --kernels libprobe_sim_kernels.so

ctypes looks names up with dlsym, so this process is a program as the recorder expects one.
"""
import argparse
import ctypes
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from probe_torch_tools import Recorder  # noqa: E402 (the path is set above)

PER_THREAD = 2


class Driver:
    """The driver through the answers of cuGetProcAddress alone, as the CUDA runtime sees it."""

    def __init__(self):
        library = ctypes.CDLL("libcuda.so.1")
        first = library.cuGetProcAddress_v2
        self.resolver = ctypes.c_void_p(ctypes.cast(first, ctypes.c_void_p).value)
        self.resolver = ctypes.c_void_p(self.resolve("cuGetProcAddress", 12000))

    def resolve(self, name, version, flags=0):
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int,
                                     ctypes.c_uint64, ctypes.c_void_p)
        address, status = ctypes.c_void_p(), ctypes.c_int()
        result = prototype(self.resolver.value)(name.encode(), ctypes.addressof(address), version,
                                                flags, ctypes.addressof(status))
        assert result == 0 and address.value, f"{name}: {result}"
        return address.value

    def call(self, name, version, *arguments, flags=0):
        function = ctypes.CFUNCTYPE(ctypes.c_int)(self.resolve(name, version, flags))
        function.argtypes = None
        result = function(*arguments)
        assert result == 0, f"{name} gave {result}"


def start(driver, kernels):
    """A context, and the kernel that stores one word."""
    device, context, module, function = (ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(),
                                         ctypes.c_void_p())
    driver.call("cuInit", 2000, ctypes.c_uint(0))
    driver.call("cuDeviceGet", 2000, ctypes.byref(device), ctypes.c_int(0))
    driver.call("cuDevicePrimaryCtxRetain", 7000, ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", 4000, context)
    driver.call("cuModuleLoad", 2000, ctypes.byref(module), kernels.encode())
    driver.call("cuModuleGetFunction", 2000, ctypes.byref(function), module, b"probe_store")
    return function


def allocate(driver):
    address = ctypes.c_uint64()
    driver.call("cuMemAlloc", 3020, ctypes.byref(address), ctypes.c_size_t(4096))
    driver.call("cuMemsetD32", 3020, address, ctypes.c_uint(0), ctypes.c_size_t(1024))
    return address.value


def word_at(driver, address):
    word = ctypes.c_uint32()
    driver.call("cuMemcpyDtoH", 3020, ctypes.byref(word), ctypes.c_uint64(address),
                ctypes.c_size_t(4))
    return word.value


def launch(driver, function, address, value, flags):
    arguments = (ctypes.c_void_p * 2)(
        ctypes.addressof(target := ctypes.c_uint64(address)),
        ctypes.addressof(number := ctypes.c_uint32(value)))
    size = [ctypes.c_uint(1)] * 6
    driver.call("cuLaunchKernel", 7000 if flags else 4000, function, *size, ctypes.c_uint(0), None,
                arguments, None, flags=flags)
    del target, number


def launch_packed(driver, function, address, value):
    packed = address.to_bytes(8, "little") + value.to_bytes(4, "little")
    size = ctypes.c_size_t(len(packed))
    extra = (ctypes.c_void_p * 5)(1, ctypes.cast(packed, ctypes.c_void_p).value, 2,
                                  ctypes.addressof(size), None)
    units = [ctypes.c_uint(1)] * 6
    driver.call("cuLaunchKernel", 4000, function, *units, ctypes.c_uint(0), None, None, extra)


def check(recorder, driver, kernels):
    function = start(driver, kernels)
    first, second = allocate(driver), allocate(driver)
    launch(driver, function, first, 5, 0)
    assert recorder.stop() == [], "nothing is recorded before the start"

    recorder.start()
    launch(driver, function, first + 16, 7, 0)
    launch(driver, function, first + 32, 8, PER_THREAD)
    launch_packed(driver, function, first + 48, 9)
    found = recorder.stop()
    driver.call("cuCtxSynchronize", 2000)
    assert [one["entry"] for one in found] == ["cuLaunchKernel", "cuLaunchKernel_ptsz",
                                               "cuLaunchKernel"], found
    assert [one["packed_by_caller"] for one in found] == [False, False, True], found
    for one in found:
        assert one["name"] == "probe_store", one
        assert one["parameters"] == [[0, 8], [8, 4]], one
    assert found[0]["packed"] == (first + 16).to_bytes(8, "little") + b"\7\0\0\0", found[0]
    assert [word_at(driver, first + offset) for offset in (16, 32, 48)] == [7, 8, 9]

    for index, (offset, value) in enumerate(((16, 7), (32, 8), (48, 9))):
        assert recorder.relaunch(index, first, first + 4096, second) == 1
        driver.call("cuCtxSynchronize", 2000)
        assert word_at(driver, second + offset) == value
    lookups = recorder.lookups()
    assert lookups["dlsym"] == 1 and lookups["resolver"] > 10, lookups


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorder", required=True)
    parser.add_argument("--kernels", required=True)
    arguments = parser.parse_args()
    recorder = os.path.abspath(arguments.recorder)
    if os.environ.get("LD_PRELOAD") != recorder:
        os.environ["LD_PRELOAD"] = recorder
        os.execv(sys.executable, [sys.executable] + sys.argv)
    check(Recorder(recorder), Driver(), os.path.abspath(arguments.kernels))
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
