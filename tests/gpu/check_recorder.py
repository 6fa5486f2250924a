# SPDX-License-Identifier: Apache-2.0
"""Checks the launch recorder on the simulated driver: what it records, and a launch made again.

    check_recorder.py --build DIR

ctypes looks names up with dlsym, so this process is a program as the recorder expects one: one lookup of cuGetProcAddress_v2, and
everything else through its answers, as the CUDA runtime does.
"""
import ctypes
import os
import struct
import sys

import build_all
import probe_driver as driver
from part_script import BUILD_ROW, options_of
from probe_order import read_rows
from probe_torch_tools import Recorder

ROWS = {row.symbol: row for row in read_rows()}
PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
found = {}


def resolve(resolver, name, version, flags):
    address, status = ctypes.c_void_p(), ctypes.c_int()
    result = PROTOTYPE(resolver.value)(name.encode(), ctypes.addressof(address), version, flags, ctypes.addressof(status))
    assert result == 0 and address.value, f"{name}: {result}"
    return address


def address_of(symbol):
    """In place of the driver's exports."""
    if not found:
        first = ctypes.cast(driver.Process.library.cuGetProcAddress_v2, ctypes.c_void_p)
        found["resolver"] = resolve(first, "cuGetProcAddress", 12000, 0)
    if symbol not in found:
        row = ROWS[symbol]
        found[symbol] = resolve(found["resolver"], row.base, int(row.version), 2 * int(row.per_thread))
    return found[symbol]


def check(recorder):
    driver.start()
    first, second = driver.alloc(4096), driver.alloc(4096)
    driver.fill(second, 4096, 0)
    driver.require("a launch", driver.store(first, 5))
    assert recorder.stop() == [], "nothing is recorded before the start"

    recorder.start()
    per_thread = driver.pointers(ctypes.c_uint64(first + 32), ctypes.c_uint32(8))
    for result in (driver.store(first + 16, 7), driver.launch("probe_store", None, per_thread, entry="cuLaunchKernel_ptsz"),
                   driver.launch("probe_store", None, None, driver.packed(struct.pack("<QI", first + 48, 9), 12))):
        driver.require("a launch", result)
    launches = recorder.stop()
    driver.synchronize()
    assert [one.entry for one in launches] == ["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernel"], launches
    assert [one.packed_by_caller for one in launches] == [False, False, True], launches
    for one in launches:
        assert one.name == "probe_store" and one.parameters == [[0, 8], [8, 4]], vars(one)
    assert launches[0].packed == struct.pack("<QI", first + 16, 7), launches[0].packed
    for one, offset, value in zip(launches, (16, 32, 48), (7, 8, 9)):
        assert driver.read_word(first + offset) == value
        assert one.again(first, first + 4096, second) == 1
        driver.synchronize()
        assert driver.read_word(second + offset) == value
    lookups = recorder.lookups()
    assert lookups["dlsym"] == 1 and lookups["resolver"] > 10, lookups


def main():
    build = options_of(__doc__, 0, BUILD_ROW).build
    recorder = os.path.join(build, build_all.RECORDER)
    if os.environ.get("LD_PRELOAD") != recorder:
        os.environ.update(LD_PRELOAD=recorder, LD_LIBRARY_PATH=os.path.join(build, os.path.dirname(build_all.SIMULATOR)))
        os.execv(sys.executable, [sys.executable] + sys.argv)
    driver.caller, driver.kernels = os.path.join(build, build_all.PROBE), os.path.join(build, build_all.PROBE_KERNELS)
    driver.address_of = address_of
    check(Recorder(recorder))
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
