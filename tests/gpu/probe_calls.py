# SPDX-License-Identifier: Apache-2.0
"""Calls where programs make them: sections shim, attributes, busy, capture, edges, unmapped, access_flags and past_end."""
import ctypes
import os
import struct
import threading
import time
from array import array
from operator import ne

import probe_driver as driver
from probe_driver import (GIB, GRANULE, KIB, LOCATION, LOCATION_BY_VALUE, MIB, NON_BLOCKING, OK, TIB, Process, alloc, call,
                          create, map_handle, mapped, need, reserve, set_access, us)
from probe_rows import ALONE, ILLEGAL, INVALID, is_not, row

MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
DMA_BUF = 1


def out():
    """Where a call stores what nobody looks at."""
    return ctypes.create_string_buffer(64)


def synchronize_at_the_end():
    return {"synchronize_at_the_end": call("cuCtxSynchronize")}


# --- calls while a thread has no context, while the device works, during a capture


class Scene:
    """The objects of the calls, made before; a call may use one up. big and small: sizes of memory."""

    def __init__(self, big, small, spare):
        self.big, self.small, self.spare_size = big, small, spare
        self.reserved, self.without_access, self.spare = map(reserve, (GRANULE, GRANULE, spare))
        self.mapped = mapped(GRANULE)
        map_handle(self.without_access, GRANULE, create(GRANULE))
        self.handle, self.spare_handle = create(GRANULE), create(max(big, GRANULE))
        self.big_block, self.small_block, self.device, self.other_device = alloc(big), alloc(small), alloc(small), alloc(small)
        self.pinned, self.pageable = driver.pinned(small), driver.host(small)
        self.registered, self.to_register = driver.host(small), driver.host(small)
        need("cuMemHostRegister_v2", self.registered, small, 0)
        self.stream, self.other, self.event = driver.stream(), driver.stream(), driver.event()
        need("cuEventRecord", self.event, self.other)
        driver.synchronize()


def event_of_context(on):
    """As the shim waits for a context: no capture is ended by the wait."""
    result = call("cuCtxRecordEvent", Process.context, on.event)
    return call("cuEventSynchronize", on.event) if result == OK else result


# The name of an answer, less what a section adds to it: the call.
CALLS = {
    "nothing": lambda on: OK,
    "cuMemGetAllocationGranularity": lambda on: call("cuMemGetAllocationGranularity", out(), driver.prop(), driver.RECOMMENDED),
    "cuMemAddressReserve": lambda on: call("cuMemAddressReserve", out(), on.spare_size, 0, 0, 0),
    "cuMemAddressFree": lambda on: call("cuMemAddressFree", on.spare, on.spare_size),
    "cuMemCreate": lambda on: call("cuMemCreate", out(), max(on.big, GRANULE), driver.prop(), 0),
    "cuMemRelease": lambda on: call("cuMemRelease", on.spare_handle),
    "cuMemMap": lambda on: call("cuMemMap", on.reserved, GRANULE, 0, on.handle, 0),
    "cuMemSetAccess": lambda on: set_access(on.without_access, GRANULE),
    "cuMemSetAccess_again": lambda on: set_access(on.mapped, GRANULE),
    "cuMemUnmap": lambda on: call("cuMemUnmap", on.mapped, GRANULE),
    "cuMemAlloc": lambda on: call("cuMemAlloc_v2", out(), on.big),
    "cuMemAlloc_small": lambda on: call("cuMemAlloc_v2", out(), on.small),
    "cuMemFree": lambda on: call("cuMemFree_v2", on.big_block),
    "cuMemFree_small": lambda on: call("cuMemFree_v2", on.small_block),
    "cuMemAllocAsync_other_stream": lambda on: call("cuMemAllocAsync", out(), on.big, on.other),
    "cuMemHostAlloc": lambda on: call("cuMemHostAlloc", out(), on.small, 0),
    "cuMemFreeHost": lambda on: call("cuMemFreeHost", on.pinned),
    "cuMemHostRegister": lambda on: call("cuMemHostRegister_v2", on.to_register, on.small, 0),
    "cuMemHostUnregister": lambda on: call("cuMemHostUnregister", on.registered),
    "cuMemGetInfo": lambda on: call("cuMemGetInfo_v2", out(), out()),
    "cuPointerGetAttribute": lambda on: call("cuPointerGetAttribute", out(), MEMORY_TYPE, on.device),
    "cuMemcpyHtoD": lambda on: call("cuMemcpyHtoD_v2", on.device, on.pageable, on.small),
    "cuMemcpyDtoH": lambda on: call("cuMemcpyDtoH_v2", on.pageable, on.device, on.small),
    "cuMemcpyDtoD": lambda on: call("cuMemcpyDtoD_v2", on.device, on.other_device, on.small),
    "cuMemsetD8": lambda on: call("cuMemsetD8_v2", on.device, 1, on.small),
    "cuMemsetD8Async_other_stream": lambda on: call("cuMemsetD8Async", on.device, 1, on.small, on.other),
    "cuMemsetD8Async_captured_stream": lambda on: call("cuMemsetD8Async", on.device, 1, on.small, on.stream),
    "cuMemcpyHtoDAsync_other_stream": lambda on: call("cuMemcpyHtoDAsync_v2", on.device, on.pageable, on.small, on.other),
    "cuMemcpyDtoHAsync_other_stream": lambda on: call("cuMemcpyDtoHAsync_v2", on.pageable, on.device, on.small, on.other),
    "cuMemcpyHtoDAsync_captured_stream": lambda on: call("cuMemcpyHtoDAsync_v2", on.device, on.pageable, on.small, on.stream),
    "cuStreamCreate": lambda on: call("cuStreamCreate", out(), NON_BLOCKING),
    "cuLaunchKernel_other_stream": lambda on: driver.store(on.device, 1, on.other),
    "cuStreamQuery_other_stream": lambda on: driver.state_of(on.other),
    "cuStreamQuery_captured_stream": lambda on: driver.state_of(on.stream),
    "cuStreamQuery_legacy": lambda on: driver.state_of(None),
    "cuStreamSynchronize_other_stream": lambda on: call("cuStreamSynchronize", on.other),
    "cuStreamSynchronize_legacy": lambda on: call("cuStreamSynchronize", None),
    "cuEventRecord": lambda on: call("cuEventRecord", on.event, on.other),
    "cuEventQuery": lambda on: call("cuEventQuery", on.event),
    "cuEventSynchronize": lambda on: call("cuEventSynchronize", on.event),
    "cuCtxSynchronize": lambda on: call("cuCtxSynchronize"),
    "cuCtxRecordEvent": lambda on: call("cuCtxRecordEvent", Process.context, on.event),
    "cuEventSynchronize_of_context": event_of_context,
    "cuEventCreate": lambda on: call("cuEventCreate", out(), driver.DISABLE_TIMING),
    "cuEventDestroy": lambda on: call("cuEventDestroy_v2", on.event),
    "cuFuncGetParamInfo": lambda on: call("cuFuncGetParamInfo", driver.kernel("probe_store"), 0, out(), out()),
}
NEEDS_KERNELS = ("cuLaunchKernel_other_stream", "cuFuncGetParamInfo")


def calls_of(names):
    """[(name of the answer, call)] of lines of names; NAME=CALL where they differ."""
    pairs = [(word.split("=") * 2)[:2] for word in names.split()]
    return [(name, CALLS[called]) for name, called in pairs if driver.runs_kernels() or called not in NEEDS_KERNELS]


# --- shim: its own calls, with the properties and at the addresses that it uses


def granularity():
    """As memory_properties() of runtime/memory/backing.c."""
    posix_fd, rdma = (int(driver.attribute(number) == 1) for number in (103, 110))
    properties, handle = driver.prop(posix_fd, rdma), ctypes.c_uint64()
    size = driver.granularity(driver.RECOMMENDED, properties)
    yield from {"posix_fd": bool(posix_fd), "rdma": bool(rdma), "minimum": driver.granularity(driver.MINIMUM, properties),
                "recommended": size, "create_of_one": call("cuMemCreate", handle, size, properties, 0)}.items()
    if handle.value:
        need("cuMemRelease", handle.value)


HINTS = {"low_1_gib": GIB, "low_64_gib": 64 * GIB, "low_1_tib": TIB, "middle_32_tib": 32 * TIB,
         "shim": 0x5a5b00000000, "shim_for_programs": 0x5e5b00000000,  # runtime/memory/addresses.c
         "far_126_tib": 126 * TIB}


def hints():
    for key, wanted in HINTS.items():
        address = ctypes.c_uint64()
        result = call("cuMemAddressReserve", address, GIB, GRANULE, wanted, 0)
        yield key, {"result": result, "address": hex(address.value), "honoured": result == OK and address.value == wanted}
        if result == OK:
            need("cuMemAddressFree", address.value, GIB)


GRANULES, ROWS, ROW_BYTES, PITCH, BEGIN = 8, 5, 5 << 19, (3 << 20) + 512, 4096
SIZE = GRANULES * GRANULE


def map_granules():
    """A handle for each granule."""
    address = reserve(SIZE)
    driver.map_handles(address, GRANULE, [create(GRANULE) for _ in range(GRANULES)])
    driver.fill(address, SIZE, 0)
    return address


def count_wrong(seen, wanted):
    return 0 if seen == wanted else sum(map(ne, seen, wanted))


def copy_2d(source, target, width=ROW_BYTES, height=ROWS):
    """CUDA_MEMCPY2D between rows at (is it on the device, address, pitch)."""
    def end(on_device, address, pitch):
        return 0, 0, 2 if on_device else 1, 0 if on_device else address, address if on_device else 0, 0, pitch
    return struct.pack("<16Q", *end(*source), *end(*target), width, height)


def copies_over_handles():
    noise = os.urandom(ROWS * ROW_BYTES).replace(b"\0", b"\1")
    wanted, rows = bytearray(SIZE), driver.host(len(noise))
    for number in range(ROWS):
        at = BEGIN + number * PITCH
        wanted[at:at + ROW_BYTES] = noise[number * ROW_BYTES:(number + 1) * ROW_BYTES]
    first, second = map_granules(), map_granules()
    on_host = False, ctypes.addressof(rows), ROW_BYTES
    in_first, in_second = (True, first + BEGIN, PITCH), (True, second + BEGIN, PITCH)

    def wrong_bytes(address):
        """Read back granule by granule, so that no copy of the comparison meets two handles."""
        driver.synchronize()
        return count_wrong(b"".join(driver.read(address + at, GRANULE) for at in range(0, SIZE, GRANULE)), bytes(wanted))

    rows.raw = noise
    yield "in", call("cuMemcpy2D_v2", copy_2d(on_host, in_first))
    yield "in_wrong_bytes", wrong_bytes(first)
    yield "on_the_device", call("cuMemcpy2DAsync_v2", copy_2d(in_first, in_second), None)
    yield "on_the_device_wrong_bytes", wrong_bytes(second)
    rows.raw = bytes(len(noise))
    yield "out", call("cuMemcpy2D_v2", copy_2d(in_second, on_host))
    yield "out_wrong_bytes", count_wrong(rows.raw, noise)
    yield "one_dimension", call("cuMemcpyDtoD_v2", second, first, SIZE)
    yield "one_dimension_wrong_bytes", wrong_bytes(second)
    yield "set", call("cuMemsetD2D8_v2", second + BEGIN, PITCH, 0, ROW_BYTES, ROWS)
    yield "set_of_all", call("cuMemsetD8_v2", second, 0, SIZE)
    yield "synchronize", call("cuCtxSynchronize")


WITHOUT_CONTEXT = """
    cuMemGetAllocationGranularity cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemSetAccess cuMemUnmap
    cuMemAlloc cuMemFree cuMemGetInfo cuPointerGetAttribute cuMemcpyHtoD cuMemcpyHtoDAsync=cuMemcpyHtoDAsync_other_stream
    cuMemsetD8Async=cuMemsetD8Async_other_stream cuStreamQuery=cuStreamQuery_other_stream
    cuStreamSynchronize=cuStreamSynchronize_other_stream cuStreamQuery_legacy cuEventRecord cuEventQuery cuEventSynchronize
    cuCtxRecordEvent cuEventDestroy
"""
NEEDS_NO_CONTEXT = ("cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemMap",
                    "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuPointerGetAttribute")


def no_current_context():
    """A new thread has none; the device's primary one is retained, and used by others."""
    on, calls, answers = Scene(4 * MIB, 4 * KIB, GRANULE), calls_of(WITHOUT_CONTEXT), {}
    thread = threading.Thread(target=lambda: answers.update((name, ask(on)) for name, ask in calls))
    thread.start()
    thread.join()
    return answers | synchronize_at_the_end()


SHIM = [
    row("granularity", granularity, relies={"minimum": GRANULE, "recommended": GRANULE, "create_of_one": OK}),
    row("hints", hints, relies={"shim.honoured": True, "shim_for_programs.honoured": True, "low_1_tib.result": OK,
                                "far_126_tib.result": OK}),
    row("copies_over_handles", copies_over_handles,
        relies={what + ending: value for what in ("in", "on_the_device", "out", "one_dimension")
                for ending, value in (("", OK), ("_wrong_bytes", 0))}),
    row("no_current_context", no_current_context,
        relies={"cuMemAlloc": "CUDA_ERROR_INVALID_CONTEXT", "synchronize_at_the_end": OK} | dict.fromkeys(NEEDS_NO_CONTEXT, OK)),
]

# --- attributes: the driver's answers about an address, for every kind of memory side by side

POINTER_ATTRIBUTES = """
    CONTEXT MEMORY_TYPE DEVICE_POINTER HOST_POINTER P2P_TOKENS SYNC_MEMOPS BUFFER_ID IS_MANAGED DEVICE_ORDINAL
    IS_LEGACY_CUDA_IPC_CAPABLE RANGE_START_ADDR RANGE_SIZE MAPPED ALLOWED_HANDLE_TYPES IS_GPU_DIRECT_RDMA_CAPABLE ACCESS_FLAGS
    MEMPOOL_HANDLE MAPPING_SIZE MAPPING_BASE_ADDR MEMORY_BLOCK_ID IS_HW_DECOMPRESS_CAPABLE
""".split()  # from 1
SYNC_MEMOPS = 6
KINDS = {}  # of memory: (where it begins, the address that is asked about)


def make_kinds():
    """Two handles mapped side by side, then a hole, in one reservation of 8 granules; and other memory."""
    base, pool, managed = reserve(8 * GRANULE), ctypes.c_uint64(), ctypes.c_uint64()
    for at, granules in ((0, 1), (1, 2), (6, 1)):
        map_handle(base + at * GRANULE, granules * GRANULE, create(granules * GRANULE))
    driver.give_access(base, 3 * GRANULE)
    never, emptied = reserve(4 * GRANULE), mapped(GRANULE)
    need("cuMemUnmap", emptied, GRANULE)
    KINDS.update(reserved_never_mapped=(never, never + GRANULE + 100), mapped_first_handle=(base, base + 100),
                 mapped_second_handle=(base, base + 2 * GRANULE + 100), hole_beside_mapped=(base, base + 4 * GRANULE + 100),
                 mapped_without_access=(base, base + 6 * GRANULE), unmapped_again=(emptied, emptied + 100))
    if call("cuMemAllocAsync", pool, 4 * MIB, None) == OK:
        KINDS["alloc_async"] = pool.value, pool.value + 100
    if call("cuMemAllocManaged", managed, 4 * MIB, 1) == OK:
        KINDS["managed"] = managed.value, managed.value + 100
    large, small, freed = alloc(20 * MIB), alloc(1000), alloc(64 * MIB)
    need("cuMemFree_v2", freed)
    KINDS.update(alloc_large=(large, large + 3 * MIB + 100), alloc_small=(small, small + 100), freed=(freed, freed + 100))
    for name, memory in (("pinned_host", driver.pinned(MIB)), ("pageable_host", driver.host(MIB))):
        KINDS[name] = ctypes.addressof(memory), ctypes.addressof(memory) + 100
    KINDS["wild"] = 0x123456789000, 0x123456789000
    return ()


def ask_each(asked, *arguments):
    return {name: asked(base, address, *arguments) for name, (base, address) in KINDS.items()}


def attribute(base, address, number):
    """The answer's bytes are told from what was there before by a pattern."""
    data = ctypes.create_string_buffer(b"\x5a" * 64, 64)
    answer = {"result": call("cuPointerGetAttribute", data, number, address)}
    if answer["result"] == OK:
        told = data.raw.rstrip(b"\x5a")
        value = int.from_bytes(told[:8], "little")
        answer.update(bytes=len(told), value=f"base+{value - base}" if base <= value < base + GIB else hex(value))
    return answer


def address_range(base, address):
    start, size = ctypes.c_uint64(), ctypes.c_size_t()
    answer = {"result": call("cuMemGetAddressRange_v2", start, size, address)}
    return answer | ({"base_minus_start": start.value - base, "bytes": size.value} if answer["result"] == OK else {})


def several_attributes(base, address):
    """The plural form answers zeros where the singular one fails."""
    numbers, pointer = (ctypes.c_int * 5)(2, 3, 8, 9, 13), ctypes.c_uint64()
    kind, ordinal, managed, is_mapped = ctypes.c_int32(0x5a5a5a5a), ctypes.c_int32(-7), ctypes.c_uint32(), ctypes.c_uint32()
    result = call("cuPointerGetAttributes", 5, numbers, driver.pointers(kind, pointer, managed, ordinal, is_mapped), address)
    return {"result": result, "memory_type": kind.value, "device_pointer_is_address": pointer.value == address,
            "device_ordinal": ordinal.value, "mapped_first_byte": is_mapped.value & 0xff}


def access(base, address):
    flags = ctypes.c_uint64()
    return {"get_access": call("cuMemGetAccess", flags, LOCATION, address), "flags": flags.value,
            "retain_handle": call("cuMemRetainAllocationHandle", out(), address)}


def ipc_handle(base, address):
    return call("cuIpcGetMemHandle", out(), address)


def set_sync_memops(base, address):
    return call("cuPointerSetAttribute", ctypes.c_uint(1), SYNC_MEMOPS, address)


# Attributes that tell memory that is not there, mapped memory and cuMemAlloc memory apart.
TELLING = {"MAPPED": {"mapped_first_handle.value": "0x1", "alloc_large.value": "0x1"},
           "IS_LEGACY_CUDA_IPC_CAPABLE": {"mapped_first_handle.value": "0x0", "alloc_large.value": "0x1"}}
ATTRIBUTES = [
    row(None, make_kinds),
    *(row(name, ask_each, attribute, number, relies=TELLING.get(name)) for number, name in enumerate(POINTER_ATTRIBUTES, 1)),
    row("cuMemGetAddressRange", ask_each, address_range,
        relies={"alloc_large.bytes": 20 * MIB, "reserved_never_mapped.result": is_not(OK)}),
    row("cuPointerGetAttributes", ask_each, several_attributes),
    row("access", ask_each, access),
    row("cuIpcGetMemHandle", ask_each, ipc_handle, relies={"mapped_first_handle": is_not(OK), "alloc_large": OK}),
    row("set_sync_memops", ask_each, set_sync_memops),
    row(None, synchronize_at_the_end, relies={"synchronize_at_the_end": OK}),
]

# --- busy: each call is made while a stream is busy; when the stream is still busy afterwards, the call did not wait

WHILE_BUSY = """
    cuMemAddressReserve cuMemCreate_64_mib=cuMemCreate cuMemMap cuMemSetAccess cuMemUnmap cuMemRelease
    cuMemAddressFree cuMemAlloc_64_mib=cuMemAlloc cuMemAlloc_256_kib=cuMemAlloc_small cuMemFree_64_mib=cuMemFree
    cuMemFree_256_kib=cuMemFree_small cuMemAllocAsync_other_stream cuMemHostAlloc cuMemFreeHost cuMemHostRegister
    cuMemHostUnregister cuMemGetInfo cuPointerGetAttribute cuMemcpyHtoD_pageable=cuMemcpyHtoD cuMemcpyDtoH_pageable=cuMemcpyDtoH
    cuMemcpyDtoD cuMemsetD8 cuMemsetD8Async_other_stream cuMemcpyHtoDAsync_pageable_other_stream=cuMemcpyHtoDAsync_other_stream
    cuMemcpyDtoHAsync_pageable_other_stream=cuMemcpyDtoHAsync_other_stream cuStreamCreate cuLaunchKernel_other_stream
    cuStreamSynchronize_other_stream cuStreamSynchronize_legacy cuCtxSynchronize cuEventSynchronize_of_context
"""
WAITING = ("cuMemFree_64_mib", "cuMemFreeHost", "cuCtxSynchronize", "cuEventSynchronize_of_context")
NOT_WAITING = ("cuMemAddressReserve", "cuMemCreate_64_mib", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
               "cuMemAddressFree", "cuMemGetInfo", "cuPointerGetAttribute", "cuMemsetD8Async_other_stream",
               "cuMemcpyHtoDAsync_pageable_other_stream")


def ask_behind(with_kernel, flags):
    if with_kernel and not driver.runs_kernels():
        raise driver.Failed("no kernel could be loaded and run")
    on, busy, block = Scene(64 * MIB, 256 * KIB, GIB), driver.stream(flags), ctypes.c_uint64()
    # Warm what is set up lazily, the pool and the first launch, so that only waiting is seen.
    need("cuMemsetD8_v2", on.device, 0, on.small)
    need("cuMemcpyHtoD_v2", on.device, on.pageable, on.small)
    if call("cuMemAllocAsync", block, on.big, on.other) == OK:
        call("cuMemFreeAsync", block.value, on.other)
    if driver.runs_kernels():
        driver.store(on.device, 1, on.other)
    driver.synchronize()
    for name, ask_one in calls_of(WHILE_BUSY):
        driver.keep_busy(busy, 50 if driver.quick else 60, with_kernel)
        began = time.monotonic_ns()
        result = ask_one(on)
        took, state = time.monotonic_ns() - began, driver.state_of(busy)
        driver.synchronize()
        yield name, {"result": result, "us": us(took), "waited": state == OK}


WAITS = {f"{name}.waited": name in WAITING for name in NOT_WAITING + WAITING}
BUSY = [row(f"{what}_on_{kind}_stream", ask_behind, what == "kernel", flags, relies=WAITS if what == "kernel" else None)
        for what in ("kernel", "host_function") for kind, flags in (("nonblocking", NON_BLOCKING), ("blocking", driver.DEFAULT))]

# --- capture: each call is made during a capture of its own; afterwards: its result, and is the capture still valid?

DURING_CAPTURE = """
    nothing cuMemAddressReserve cuMemCreate cuMemMap cuMemSetAccess=cuMemSetAccess_again cuMemUnmap cuMemRelease cuMemAlloc
    cuMemFree cuMemHostAlloc cuMemGetInfo cuPointerGetAttribute cuMemcpyHtoD cuMemsetD8 cuMemcpyHtoDAsync_other_stream
    cuMemsetD8Async_other_stream cuMemsetD8Async_captured_stream
    cuMemcpyHtoDAsync_pageable_captured_stream=cuMemcpyHtoDAsync_captured_stream
    cuStreamSynchronize_other_stream cuStreamQuery_other_stream cuStreamQuery_legacy cuStreamQuery_captured_stream
    cuEventQuery_other_stream=cuEventQuery cuEventSynchronize_other_stream=cuEventSynchronize cuCtxSynchronize cuCtxRecordEvent
    cuStreamCreate cuEventCreate cuFuncGetParamInfo
"""
GLOBAL, LOCAL, RELAXED = 0, 1, 2  # CUstreamCaptureMode


class Capture:
    def __init__(self, mode, on):
        self.stream = on.stream
        self.begun = call("cuStreamBeginCapture_v2", self.stream, mode)
        self.captured_call = call("cuMemsetD8Async", on.device, 0, on.small, self.stream)

    def end(self):
        status, graph = ctypes.c_int(), ctypes.c_uint64()
        asked = call("cuStreamIsCapturing", self.stream, status)
        self.status = ("none", "active", "invalidated")[status.value] if asked == OK else "not known"
        self.ended = call("cuStreamEndCapture", self.stream, graph)
        if graph.value:
            call("cuGraphDestroy", graph.value)


class CaptureElsewhere(Capture):
    """On a thread that does nothing else meanwhile."""

    def __init__(self, mode, on):
        self.has_begun, self.was_asked = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, args=(mode, on))
        self.thread.start()
        self.has_begun.wait()

    def run(self, mode, on):
        call("cuCtxSetCurrent", Process.context)
        super().__init__(mode, on)
        self.has_begun.set()
        self.was_asked.wait()
        super().end()

    def end(self):
        self.was_asked.set()
        self.thread.join()


def ask_during(mode, relaxed_around, kind):
    """relaxed_around: calls are made inside cuThreadExchangeStreamCaptureMode(RELAXED)."""
    for name, ask_one in calls_of(DURING_CAPTURE):
        on, outer_mode = Scene(MIB, 4 * KIB, GRANULE), ctypes.c_int(RELAXED)
        capture = kind(mode, on)
        if relaxed_around:
            call("cuThreadExchangeStreamCaptureMode", outer_mode)
        result = ask_one(on)
        if relaxed_around:
            call("cuThreadExchangeStreamCaptureMode", outer_mode)
        capture.end()
        driver.require("cuStreamBeginCapture_v2", capture.begun)
        driver.require("cuMemsetD8Async", capture.captured_call)
        yield name, {"result": result, "capture": capture.status, "end_capture": capture.ended}


def capture_during_a_free(mode):
    """A capture that begins while another thread waits in cuMemFree."""
    on, freed = Scene(MIB, 4 * KIB, GRANULE), []

    def free_behind_work():
        call("cuCtxSetCurrent", Process.context)
        freed.append(call("cuMemFree_v2", on.big_block))

    thread, began = threading.Thread(target=free_behind_work), time.monotonic_ns()
    driver.keep_busy(on.other, 60)
    thread.start()
    time.sleep(0.01)
    capture = Capture(mode, on)
    # A query of a stream would end the capture.
    took = time.monotonic_ns() - began
    thread.join()
    capture.end()
    return {"began_after_ms": us(took / 1e3), "free": freed[0], "begin": capture.begun, "captured_call": capture.captured_call,
            "capture": capture.status, "end_capture": capture.ended} | synchronize_at_the_end()


# Nothing of the shim's own may end a capture.
OWN = ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")
ENDING = ("cuStreamQuery_other_stream", "cuStreamSynchronize_other_stream", "cuEventQuery_other_stream")
HARMLESS = {f"{name}.capture": "active" for name in (*OWN, "cuMemcpyHtoD", "cuMemsetD8")} | {
    f"{name}.capture": "invalidated" for name in ENDING}
RELAXED_AROUND = {f"{name}.{what}": value for what, value in (("result", OK), ("capture", "active")) for name in (
    "cuMemAlloc", *OWN, "cuMemcpyHtoDAsync_other_stream", "cuStreamSynchronize_other_stream")}


CAPTURE = [row(key, ask_during, *arguments, when=ALONE, relies=relies) for key, relies, *arguments in (
    ("global", {"nothing.capture": "active", "cuMemAlloc.result": is_not(OK), "cuMemAlloc.capture": "invalidated"} | HARMLESS,
     GLOBAL, False, Capture),
    ("global_relaxed_around", RELAXED_AROUND, GLOBAL, True, Capture),
    ("global_other_thread", {"cuMemAlloc.result": is_not(OK)} | HARMLESS, GLOBAL, False, CaptureElsewhere),
    ("global_other_thread_relaxed_around", None, GLOBAL, True, CaptureElsewhere),
    ("thread_local", HARMLESS, LOCAL, False, Capture),
    ("thread_local_relaxed_around", None, LOCAL, True, Capture),
    ("thread_local_other_thread", {
        "cuMemAlloc.result": OK, "cuMemFree.result": OK, "cuMemFree.capture": "active", "cuCtxSynchronize.capture": "invalidated",
        "cuCtxRecordEvent.capture": "invalidated"}, LOCAL, False, CaptureElsewhere),
    ("relaxed", {"cuMemAlloc.result": OK}, RELAXED, False, Capture))]
CAPTURE += [row(key, capture_during_a_free, mode, when=ALONE, relies=relies) for key, relies, mode in (
    ("global_during_a_free", None, GLOBAL),
    ("thread_local_during_a_free", {"free": OK, "capture": "active"}, LOCAL),
    ("relaxed_during_a_free", {"free": OK, "capture": "active"}, RELAXED))]

# --- edges: the corners of calls that the shim takes over; none of these is expected to be sticky


def dma_buf(address, size):
    descriptor = ctypes.c_int(-1)
    result = call("cuMemGetHandleForAddressRange", descriptor, address, size, DMA_BUF, 0)
    if result == OK:
        os.close(descriptor.value)
    return result


def create_exportable(size):
    return create(size, driver.prop(driver.POSIX_FD, 1))


def dma_buf_ranges():
    address = reserve(4 * GRANULE)
    driver.map_handles(address, GRANULE, [create_exportable(GRANULE) for _ in range(2)])
    return {"one_handle": dma_buf(address, GRANULE), "part_of_a_handle": dma_buf(address + 4096, 8192),
            "two_handles": dma_buf(address, 2 * GRANULE), "across_two_handles": dma_buf(address + GRANULE // 2, GRANULE),
            "mapped_and_hole": dma_buf(address + GRANULE, 2 * GRANULE),
            "plain_vmm_without_rdma": dma_buf(mapped(GRANULE), GRANULE), "cuMemAlloc": dma_buf(alloc(4 * MIB), 4 * MIB)}


def handle_exports():
    return {key: call("cuMemExportToShareableHandle", out(), make(GRANULE), driver.POSIX_FD, 0)
            for key, make in (("not_requested", create), ("requested", create_exportable))}


def map_corners():
    """Sizes and neighbours in map, unmap and set access."""
    address, handle, size = reserve(16 * GRANULE), create(2 * GRANULE), 2 * GRANULE
    map_handle(address, size, handle)
    yield "map_over_a_mapping", call("cuMemMap", address + GRANULE, size, 0, handle, 0)
    yield "map_outside_a_reservation", call("cuMemMap", address + 64 * TIB, size, 0, handle, 0)
    yield "set_access_on_a_part", set_access(address, GRANULE)
    yield "set_access_not_of_granules", set_access(address, GRANULE // 2)
    yield "unmap_a_part", call("cuMemUnmap", address, GRANULE)
    yield "unmap_with_a_hole_behind", call("cuMemUnmap", address, 2 * size)
    map_handle(address, size, handle)
    yield "address_free_while_mapped", call("cuMemAddressFree", address, 16 * GRANULE)
    yield "release_while_mapped", call("cuMemRelease", handle)
    yield "use_after_release", set_access(address, size)
    yield "memset_after_release", call("cuMemsetD8_v2", address, 1, size)
    driver.synchronize()
    yield "unmap_at_last", call("cuMemUnmap", address, size)
    yield "create_not_of_granules", call("cuMemCreate", out(), MIB, driver.prop(), 0)


def neighbours():
    """Memory of one reservation that two reservations' neighbourhood makes contiguous."""
    whole, half = reserve(8 * GRANULE), 4 * GRANULE
    need("cuMemAddressFree", whole, 2 * half)
    left, right = reserve(half, whole), reserve(half, whole + half)
    yield "side_by_side", right == left + half
    if right != left + half:
        return
    for address in (left + half // 2, right):
        map_handle(address, half // 2, create(half // 2))
    yield "set_access_across", set_access(left + half // 2, half)
    yield "memset_across", call("cuMemsetD8_v2", left + half // 2, 1, half)
    driver.synchronize()
    yield "map_across", call("cuMemMap", left, half // 2, 0, create(half // 2), 0)
    yield "unmap_across", call("cuMemUnmap", left, half + half // 2)


def overlap(source, target):
    """Is an overlapping device copy like memmove, like memcpy forwards, or neither?"""
    size, copied = 16 * MIB, 12 * MIB
    words = array("I", range(size // 4)).tobytes()
    device = alloc(size)
    need("cuMemcpyHtoD_v2", device, words, size)
    yield "result", call("cuMemcpyDtoD_v2", device + target, device + source, copied)
    yield "synchronize", call("cuCtxSynchronize")
    seen = driver.read(device + target, copied)
    yield "words_unlike_memmove", count_wrong(memoryview(seen).cast("I"), memoryview(words[source:source + copied]).cast("I"))
    yield "words", copied // 4
    need("cuMemFree_v2", device)


def free_corners():
    block, pool = alloc(4 * MIB), ctypes.c_uint64()
    yield "free_inside", call("cuMemFree_v2", block + 512)
    yield "free", call("cuMemFree_v2", block)
    yield "free_twice", call("cuMemFree_v2", block)
    yield "memset_of_freed_0_bytes", call("cuMemsetD8_v2", block, 0, 0)
    need("cuMemAllocAsync", pool, 4 * MIB, None)
    yield "cuMemFree_of_alloc_async", call("cuMemFree_v2", pool.value)


EDGES = [
    row("dma_buf", dma_buf_ranges),
    row("handle_exports", handle_exports, relies={"not_requested": is_not(OK), "requested": OK}),
    row("map_corners", map_corners, relies={"unmap_a_part": is_not(OK), "map_over_a_mapping": is_not(OK),
                                            "release_while_mapped": OK, "unmap_with_a_hole_behind": OK}),
    row("neighbour_reservations", neighbours),
    row("overlap_up_4_kib", overlap, 0, 4096),
    row("overlap_up_4_b", overlap, 0, 4),
    row("overlap_down_4_kib", overlap, 4096, 0),
    row("overlap_same", overlap, 0, 0),
    row("free_corners", free_corners, relies={"free_inside": INVALID, "free_twice": is_not(OK)}),
    row(None, synchronize_at_the_end, relies={"synchronize_at_the_end": OK}),
]

# --- calls that touch memory which is not there, each in a process of its own: an illegal address can end all use of CUDA in it


class Ground:
    """The objects of the calls."""

    def __init__(self):
        self.reserved, self.mixed, self.no_access, self.read_only = map(reserve, (16 * GRANULE, 2 * GRANULE, GRANULE, GRANULE))
        for address, flags in ((self.mixed, driver.READ_WRITE), (self.no_access, None), (self.read_only, driver.READ)):
            map_handle(address, GRANULE, create(GRANULE))
            if flags is not None:
                driver.require("cuMemSetAccess", set_access(address, GRANULE, flags))
        self.device, self.first, self.second = alloc(8 * MIB), alloc(MIB), alloc(MIB)
        self.host, self.stream = driver.host(8 * MIB), driver.stream()


# (what there is, an address, bytes)
FAULTY = {
    "cuMemcpyHtoD": lambda on, at, size: call("cuMemcpyHtoD_v2", at, on.host, size),
    "cuMemcpyHtoDAsync": lambda on, at, size: call("cuMemcpyHtoDAsync_v2", at, on.host, size, on.stream),
    "cuMemcpyDtoH": lambda on, at, size: call("cuMemcpyDtoH_v2", on.host, at, size),
    "cuMemcpyDtoHAsync": lambda on, at, size: call("cuMemcpyDtoHAsync_v2", on.host, at, size, on.stream),
    "cuMemcpyDtoD_to": lambda on, at, size: call("cuMemcpyDtoD_v2", at, on.device, size),
    "cuMemcpyDtoD_from": lambda on, at, size: call("cuMemcpyDtoD_v2", on.device, at, size),
    "cuMemcpyDtoDAsync_to": lambda on, at, size: call("cuMemcpyDtoDAsync_v2", at, on.device, size, on.stream),
    "cuMemcpyDtoDAsync_from": lambda on, at, size: call("cuMemcpyDtoDAsync_v2", on.device, at, size, on.stream),
    "cuMemcpy_to": lambda on, at, size: call("cuMemcpy", at, on.host, size),
    "cuMemcpy_from": lambda on, at, size: call("cuMemcpy", on.host, at, size),
    "cuMemcpyAsync_to": lambda on, at, size: call("cuMemcpyAsync", at, on.device, size, on.stream),
    "cuMemcpy2D_to": lambda on, at, size: call("cuMemcpy2D_v2", copy_2d(
        (False, ctypes.addressof(on.host), size // 4), (True, at, size // 4), size // 4, 4)),
    "cuMemsetD8": lambda on, at, size: call("cuMemsetD8_v2", at, 1, size),
    "cuMemsetD8Async": lambda on, at, size: call("cuMemsetD8Async", at, 1, size, on.stream),
    "cuMemsetD2D8": lambda on, at, size: call("cuMemsetD2D8_v2", at, size // 4, 1, size // 4, 4),
    "kernel_store": lambda on, at, size: driver.store(at, 1),
    "cuIpcGetMemHandle": lambda on, at, size: call("cuIpcGetMemHandle", out(), at),
    "cuMemGetHandleForAddressRange": lambda on, at, size: call("cuMemGetHandleForAddressRange", out(), at, size, DMA_BUF, 0),
    "cuMemFree": lambda on, at, size: call("cuMemFree_v2", at),
    "cuMemFreeAsync": lambda on, at, size: call("cuMemFreeAsync", at, on.stream),
    "cuMemUnmap": lambda on, at, size: call("cuMemUnmap", at, size),
    "cuMemSetAccess": lambda on, at, size: set_access(at, size),
    "cuMemAdvise": lambda on, at, size: call("cuMemAdvise_v2", at, size, 1, LOCATION_BY_VALUE),
    "cuMemPrefetchAsync": lambda on, at, size: call("cuMemPrefetchAsync_v2", at, size, LOCATION_BY_VALUE, 0, on.stream),
}


def try_fault(name, target, offset, size):
    """The call, then what is left of the process: is the error sticky?"""
    on = Ground()
    yield "result", FAULTY[name](on, getattr(on, target) + offset, size)
    yield "synchronize", call("cuCtxSynchronize")
    yield "synchronize_again", call("cuCtxSynchronize")
    later_alloc, later_copy = call("cuMemAlloc_v2", out(), MIB), call("cuMemcpyHtoD_v2", on.device, on.host, 4)
    yield from {"later_alloc": later_alloc, "later_copy": later_copy, "sticky": not later_alloc == later_copy == OK}.items()


def fault(key, name, target="reserved", offset=0, size=4096, relies=None):
    return row(key, try_fault, name, target, offset, size, when=ALONE, relies=relies)


REFUSED = {"result": INVALID, "sticky": False}  # what is not there, and ends nothing
COPIES = ("cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuMemcpyDtoD_to", "cuMemcpyDtoD_from",
          "cuMemcpyDtoDAsync_to", "cuMemcpyDtoDAsync_from", "cuMemcpy2D_to", "cuMemsetD8", "cuMemsetD8Async", "cuMemsetD2D8")
UNMAPPED = [
    *(fault(name, name, relies=REFUSED) for name in COPIES),
    fault("cuMemcpyHtoD_8_mib", "cuMemcpyHtoD", size=8 * MIB),
    *(fault(name, name) for name in ("cuMemcpy_to", "cuMemcpy_from", "cuMemcpyAsync_to")),
    fault("kernel_store", "kernel_store", size=4,
          relies={"result": OK, "synchronize": ILLEGAL, "synchronize_again": ILLEGAL, "sticky": True}),
    *(fault(name + "_of_0_bytes", name, size=0) for name in ("cuMemcpyHtoD", "cuMemsetD8")),
    *(fault(name, name, size=GRANULE, relies={"result": is_not(OK)} if name in ("cuMemFree", "cuMemSetAccess") else None)
      for name in ("cuIpcGetMemHandle", "cuMemGetHandleForAddressRange", "cuMemFree", "cuMemFreeAsync", "cuMemSetAccess",
                   "cuMemAdvise", "cuMemPrefetchAsync")),
    fault("cuMemUnmap", "cuMemUnmap", size=GRANULE, relies={"result": OK}),
    *(fault(name + "_mapped_then_not", name, "mixed", MIB, 2 * MIB, REFUSED)
      for name in ("cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8")),
    *(fault(name + "_mapped_then_not", name, "mixed", 0, 2 * GRANULE) for name in ("cuMemSetAccess", "cuMemUnmap")),
]
ACCESS_FLAGS = [fault(f"{target}_{name}", name, target, 0, 4 if name == "kernel_store" else 4096, relies)
                for target, stored in (("read_only", None), ("no_access", {"sticky": True}))
                for name, relies in (("cuMemcpyDtoH", {"result": OK if target == "read_only" else INVALID}),
                                     ("cuMemcpyHtoD", {"result": INVALID}), ("cuMemsetD8", {"result": INVALID}),
                                     ("kernel_store", stored))]
# Blocks of 1 MiB share a granule with the next block, so their end is not the end of memory.
PAST_END = [
    *(fault(f"alloc_{name}_by_512_b", name, "first", 0, MIB + 512)
      for name in ("cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoD_to", "cuMemsetD8")),
    *(fault(f"alloc_{name}_by_4_mib", name, "first", 0, 5 * MIB) for name in ("cuMemcpyHtoD", "cuMemsetD8")),
    *(fault(f"vmm_{name}_by_512_b", name, "mixed", 0, GRANULE + 512) for name in ("cuMemcpyHtoD", "cuMemsetD8")),
    fault("alloc_cuMemFree_inside", "cuMemFree", "first", 512, relies={"result": INVALID}),
    fault("alloc_cuMemFreeAsync", "cuMemFreeAsync", "first"),
    fault("alloc_cuMemFreeAsync_inside", "cuMemFreeAsync", "first", 512),
    fault("vmm_cuMemFree", "cuMemFree", "mixed", relies={"result": is_not(OK)}),
    fault("vmm_cuMemFreeAsync", "cuMemFreeAsync", "mixed"),
    *(fault(f"alloc_{name}", name, "first", size=GRANULE) for name in ("cuMemUnmap", "cuMemSetAccess")),
]
