# SPDX-License-Identifier: Apache-2.0
"""For the parts of probe_torch.py: the recorder's functions, and memory of which a process owns a half."""
import ctypes
import traceback

import probe_driver as driver
from probe_driver import GRANULE


def measure(result, key, function, *arguments):
    """result[key] = function(...), or {"error": ...}: one failure does not end a part."""
    try:
        result[key] = function(*arguments)
    except Exception as error:  # whatever it is, it is the measurement's result
        last = traceback.extract_tb(error.__traceback__)[-1]
        result[key] = {"error": f"{type(error).__name__}: {error}"[:500],
                       "at": f"{last.name}:{last.lineno}"}


class Block(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_int64),
                ("allocated", ctypes.c_uint64), ("reserved", ctypes.c_uint64),
                ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("thread", ctypes.c_int64)]


class Launch(ctypes.Structure):
    """recorder_launch of launch_recorder.h."""
    _fields_ = [("entry", ctypes.c_char_p), ("name_from", ctypes.c_char_p), ("layout_from", ctypes.c_char_p),
                ("name", ctypes.c_char * 2048), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                ("shared_bytes", ctypes.c_uint32), ("attributes", ctypes.c_uint32), ("packed_by_caller", ctypes.c_int32),
                ("loaded_before", ctypes.c_int32), ("layout_end", ctypes.c_int32), ("parameter_count", ctypes.c_int32),
                ("stream", ctypes.c_uint64), ("thread", ctypes.c_int64), ("layout_ns", ctypes.c_int64),
                ("packed_bytes", ctypes.c_size_t), ("offsets", ctypes.c_size_t * 128), ("sizes", ctypes.c_size_t * 128),
                ("packed", ctypes.c_void_p)]


class Recorder:
    """The preloaded launch recorder of this process."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.recorder_launch.restype = ctypes.POINTER(Launch)
        self.library.recorder_relaunch.argtypes = [
            ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_int)]

    def lookups(self):
        return {way: self.library.recorder_lookups(way.encode()) for way in ("dlsym", "resolver")}

    def start(self):
        self.library.recorder_clear()
        self.library.recorder_record(1)

    def stop(self):
        self.library.recorder_record(0)
        return [self.launch(index) for index in range(self.library.recorder_count())]

    def launch(self, index):
        seen = self.library.recorder_launch(index).contents
        told = {name: getattr(seen, name) for name, *_ in Launch._fields_}
        told.update({name: told[name].decode() for name in ("entry", "name", "name_from", "layout_from")},
                    grid=list(seen.grid), block=list(seen.block), packed_by_caller=bool(seen.packed_by_caller),
                    layout_us=round(seen.layout_ns / 1e3, 2),
                    parameters=[[seen.offsets[i], seen.sizes[i]] for i in range(seen.parameter_count)],
                    packed=ctypes.string_at(seen.packed, seen.packed_bytes) if seen.packed else b"")
        return told

    def relaunch(self, index, old_begin=0, old_end=0, new_begin=0):
        """The number of words that were moved; an error of the driver is an exception."""
        moved = ctypes.c_int(0)
        result = self.library.recorder_relaunch(index, old_begin, old_end, new_begin,
                                                ctypes.byref(moved))
        if result != 0:
            raise RuntimeError(f"launching again gave {result}")
        return moved.value

    def blocks(self):
        found = []
        for index in range(self.library.recorder_block_count()):
            block = Block()
            self.library.recorder_block_get(index, ctypes.byref(block))
            found.append(block)
        return found


def half_owned(size):
    """An address range whose even granules have memory and whose odd ones share a sink."""
    address, sink = driver.reserve(size), driver.create(GRANULE)
    driver.map_handles(address, GRANULE, [sink if index % 2 else driver.create(GRANULE) for index in range(size // GRANULE)])
    return address


def owned_bytes(data):
    """The bytes of the even granules."""
    return b"".join(data[begin:begin + GRANULE] for begin in range(0, len(data), 2 * GRANULE))


class DeviceArray:
    """A device address that PyTorch takes as a tensor."""

    def __init__(self, address, elements, typestr):
        self.__cuda_array_interface__ = {"shape": (elements,), "typestr": typestr,
                                         "data": (address, False), "version": 3}
