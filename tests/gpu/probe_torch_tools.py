# SPDX-License-Identifier: Apache-2.0
"""For the parts of probe_torch.py: the recorder's functions, and memory of which a process owns a half."""
import ctypes
import traceback

import probe_driver as driver
from probe_driver import GRANULE, OK


def measure(result, key, function, *arguments):
    """result[key] = function(...), or {"error": ...}: one failure does not end a part."""
    try:
        result[key] = function(*arguments)
    except Exception as error:  # whatever it is, it is the measurement's result
        last = traceback.extract_tb(error.__traceback__)[-1]
        result[key] = {"error": f"{type(error).__name__}: {error}"[:500], "at": f"{last.name}:{last.lineno}"}


class Block(ctypes.Structure):
    """block of launch_recorder.c."""
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_int64), ("allocated", ctypes.c_uint64),
                ("reserved", ctypes.c_uint64), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("thread", ctypes.c_int64)]


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""
    _fields_ = [("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_uint32),
                ("stream", ctypes.c_uint64), ("attrs", ctypes.c_void_p), ("attributes", ctypes.c_uint32)]


POINTERS = ctypes.POINTER(ctypes.c_uint64)
ON_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(Config), ctypes.c_uint64, POINTERS, POINTERS)
ATTRIBUTE_BYTES = 72  # of CUlaunchAttribute
BUFFER_POINTER, BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_...
PARAMETERS_MOST = 128


class Launch:
    """A launch: the answers of the driver about its kernel before the launch, and a copy of the parameters."""

    def __init__(self, entry, config, function, parameters, extra):
        self.entry, self.config, self.function = entry.decode(), Config.from_buffer_copy(config.contents), function
        self.grid, self.block, self.attributes = list(self.config.grid), list(self.config.block), self.config.attributes
        self.attribute_values = ctypes.create_string_buffer(ctypes.string_at(self.config.attrs, ATTRIBUTE_BYTES * self.attributes)
                                                            if self.attributes else b"")
        self.config.attrs = ctypes.addressof(self.attribute_values)
        state = ctypes.c_int()
        self.loaded_before = state.value if driver.call("cuFuncIsLoaded", state, function) == OK else -1
        self.name, self.name_from, self.layout_from, layout_ns = "", "nowhere", "cuFuncGetParamInfo", 0
        for kind in ("Func", "Kernel"):
            name = ctypes.c_char_p()
            if self.name_from == "nowhere" and driver.call(f"cu{kind}GetName", name, function) == OK:
                self.name, self.name_from = (name.value or b"").decode(), f"cu{kind}GetName"
        for kind in ("Func", "Kernel"):
            self.parameters, self.layout_end, took = self.ask_layout(f"cu{kind}GetParamInfo")
            layout_ns += took
            if self.parameters:
                self.layout_from = f"cu{kind}GetParamInfo"
                break
        self.layout_us, self.packed_by_caller = driver.us(layout_ns), bool(extra)
        self.packed = self.pack_extra(extra) if extra else self.pack(parameters) if parameters else b""

    def ask_layout(self, symbol):
        """([[offset, size] of each parameter], the answer after the last one, nanoseconds)"""
        offset, size, found, all_ns = ctypes.c_size_t(), ctypes.c_size_t(), [], 0
        while True:
            result, nanoseconds = driver.numbered(symbol, (self.function, len(found), offset, size))
            all_ns += nanoseconds
            if result != 0 or len(found) == PARAMETERS_MOST:
                return found, result, all_ns
            found.append([offset.value, size.value])

    def pack(self, parameters):
        """At the offsets that the layout gives."""
        packed = bytearray(max((offset + size for offset, size in self.parameters), default=0))
        for number, (offset, size) in enumerate(self.parameters):
            packed[offset:offset + size] = ctypes.string_at(parameters[number], size)
        return bytes(packed)

    def pack_extra(self, extra):
        words = {}
        while extra[2 * len(words)]:
            words[extra[2 * len(words)]] = extra[2 * len(words) + 1]
        return ctypes.string_at(words[BUFFER_POINTER], ctypes.c_size_t.from_address(words[BUFFER_SIZE]).value)

    def words_in(self, begin, end):
        """{offset in the packed parameters: word of 8 bytes} that point there."""
        words = {offset: int.from_bytes(self.packed[offset:offset + 8], "little") for offset in range(0, len(self.packed) - 7, 8)}
        return {offset: word for offset, word in words.items() if begin <= word < end}

    def again(self, old_begin=0, old_end=0, new_begin=0):
        """Once more with a copy of the parameters, on the stream it had. Every word of 8 bytes in [old_begin, old_end) is moved
        by new_begin - old_begin: how many were."""
        packed, moved = bytearray(self.packed), self.words_in(old_begin, old_end)
        for offset, word in moved.items():
            packed[offset:offset + 8] = (word + new_begin - old_begin).to_bytes(8, "little")
        data = ctypes.create_string_buffer(bytes(packed), len(packed) + 8)
        begin, extra = ctypes.addressof(data), driver.packed(bytes(packed), len(packed)) if self.packed_by_caller else None
        parameters = (ctypes.c_uint64 * PARAMETERS_MOST)(*(begin + offset for offset, _ in self.parameters))
        config = self.config
        how = [config, self.function] if self.entry.startswith("cuLaunchKernelEx") else \
            [self.function, *config.grid, *config.block, config.shared_bytes, config.stream]
        driver.need(self.entry, *how, None if extra else parameters, extra)
        return len(moved)


class Recorder:
    """The preloaded launch recorder of this process."""

    def __init__(self, path):
        driver.load()
        self.library, self.launches = ctypes.CDLL(path), []
        self.library.recorder_blocks.restype = ctypes.POINTER(Block)
        self.listener = ON_LAUNCH(lambda *launch: self.launches.append(Launch(*launch)))

    def lookups(self):
        return {way: self.library.recorder_lookups(way.encode()) for way in ("dlsym", "resolver")}

    def start(self):
        self.launches = []
        self.library.recorder_tell(self.listener)

    def stop(self):
        """The launches since the start."""
        self.library.recorder_tell(None)
        return self.launches

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
