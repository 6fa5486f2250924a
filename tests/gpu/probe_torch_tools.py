# SPDX-License-Identifier: Apache-2.0
"""For the parts of probe_torch.py: the recorder's functions, and memory of which a process owns a half."""
import ctypes
import traceback

import probe_driver as driver
from probe_driver import GRANULE

ATTRIBUTES_MOST = 16  # are recorded


def measure(result, key, function, *arguments):
    """result[key] = function(...), or {"error": ...}: one failure does not end a part."""
    try:
        result[key] = function(*arguments)
    except Exception as error:  # whatever it is, it is the measurement's result
        last = traceback.extract_tb(error.__traceback__)[-1]
        result[key] = {"error": f"{type(error).__name__}: {error}"[:500],
                       "at": f"{last.name}:{last.lineno}"}


class Block(ctypes.Structure):
    """recorder_block of launch_recorder.h."""
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_int64), ("allocated", ctypes.c_uint64),
                ("reserved", ctypes.c_uint64), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("thread", ctypes.c_int64)]


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""
    _fields_ = [("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_uint32),
                ("stream", ctypes.c_uint64), ("attrs", ctypes.c_void_p), ("attributes", ctypes.c_uint32)]


class Launch(ctypes.Structure):
    """recorder_launch of launch_recorder.h, but for the attributes."""
    _fields_ = [("entry", ctypes.c_char_p), ("name_from", ctypes.c_char_p), ("layout_from", ctypes.c_char_p),
                ("name", ctypes.c_char * 2048), ("packed_by_caller", ctypes.c_int32), ("loaded_before", ctypes.c_int32),
                ("layout_end", ctypes.c_int32), ("parameter_count", ctypes.c_int32), ("thread", ctypes.c_int64),
                ("layout_ns", ctypes.c_int64), ("packed_bytes", ctypes.c_size_t), ("offsets", ctypes.c_size_t * 128),
                ("sizes", ctypes.c_size_t * 128), ("packed", ctypes.c_void_p), ("function", ctypes.c_uint64), ("config", Config)]


class Recorder:
    """The preloaded launch recorder of this process."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.recorder_launch.restype = ctypes.POINTER(Launch)
        self.library.recorder_blocks.restype = ctypes.POINTER(Block)

    def lookups(self):
        return {way: self.library.recorder_lookups(way.encode()) for way in ("dlsym", "resolver")}

    def start(self):
        self.library.recorder_clear()
        self.library.recorder_record(1)

    def stop(self):
        self.library.recorder_record(0)
        return [self.launch(number) for number in range(self.library.recorder_count())]

    def launch(self, number):
        seen = self.library.recorder_launch(number).contents
        told = {name: getattr(seen, name) for name in ("loaded_before", "layout_end", "packed_bytes", "function", "config")}
        return told | {name: getattr(seen, name).decode() for name in ("entry", "name", "name_from", "layout_from")} | {
            "grid": list(seen.config.grid), "block": list(seen.config.block), "attributes": seen.config.attributes,
            "packed_by_caller": bool(seen.packed_by_caller), "layout_us": round(seen.layout_ns / 1e3, 2),
            "parameters": [[seen.offsets[i], seen.sizes[i]] for i in range(seen.parameter_count)],
            "packed": ctypes.string_at(seen.packed, seen.packed_bytes) if seen.packed else b""}

    def relaunch(self, number, old_begin=0, old_end=0, new_begin=0):
        """A launch once more with a copy of its parameters, on the stream it had. Every word of 8 bytes in [old_begin, old_end)
        is moved by new_begin - old_begin: how many were."""
        launch, moved = self.launch(number), 0
        if launch["attributes"] > ATTRIBUTES_MOST:
            raise driver.Failed(f"{launch['attributes']} attributes")
        packed, config = bytearray(launch["packed"]), launch["config"]
        for offset in range(0, len(packed) - 7, 8):
            word = int.from_bytes(packed[offset:offset + 8], "little")
            if old_begin <= word < old_end:
                packed[offset:offset + 8] = (word + new_begin - old_begin).to_bytes(8, "little")
                moved += 1
        if launch["packed_by_caller"]:
            parameters, extra = None, driver.packed(bytes(packed), len(packed))
        else:
            data = ctypes.create_string_buffer(bytes(packed), len(packed) + 8)
            begin = ctypes.addressof(data)
            parameters, extra = (ctypes.c_uint64 * 128)(*(begin + offset for offset, _ in launch["parameters"])), None
        if launch["entry"].startswith("cuLaunchKernelEx"):
            how = config, launch["function"]
        else:
            how = launch["function"], *config.grid, *config.block, config.shared_bytes, config.stream
        driver.need(launch["entry"], *how, parameters, extra)
        return moved

    def blocks(self):
        count = ctypes.c_int()
        blocks = self.library.recorder_blocks(ctypes.byref(count))
        return blocks[:count.value]


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
