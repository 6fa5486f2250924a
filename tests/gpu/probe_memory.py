# SPDX-License-Identifier: Apache-2.0
"""The cost, size and content of memory: sections device, accounting, reserve, fresh_memory, cost, mappings, alias and pools."""
import ctypes
import os
import struct
import time
from operator import ne

import probe_driver as driver
from probe_driver import (GIB, GRANULE, KIB, LOCATION, MIB, NOT_READY, OK, TIB, Process, Samples, alloc, call, create,
                          free_bytes, made, mapped, need, reserve, us)
from probe_rows import ALONE, INVALID, NOT_QUICK, NOT_SUPPORTED, at_least, one_of, row


def sized(small, large):
    return small if driver.quick else large


# --- device

HEADER_VERSION = 13000  # of CUDA, whose functions are called here
DEVICE_ATTRIBUTES = {
    "compute_major": 75, "compute_minor": 76, "unified_addressing": 41, "pageable_memory_access": 88,
    "pageable_memory_access_uses_host_page_tables": 100, "direct_managed_access_from_host": 101, "concurrent_managed_access": 89,
    "async_engine_count": 40, "virtual_memory_management": 102, "handle_posix_fd": 103, "handle_fabric": 128,
    "gpu_direct_rdma": 116, "gpu_direct_rdma_with_vmm": 110, "dma_buf": 124, "generic_compression": 107, "memory_pools": 115,
    "multicast": 132, "host_numa_id": 134}


def device():
    name = ctypes.create_string_buffer(256)
    version, count, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    need("cuDeviceGetName", name, len(name), Process.device)
    need("cuDriverGetVersion", version)
    need("cuDeviceGetCount", count)
    need("cuDeviceTotalMem_v2", total, Process.device)
    return {"start_of_a_second_process_ms": us(Process.start_ns / 1e3), "name": name.value.decode(),
            "driver_version": version.value, "header_version": HEADER_VERSION, "count": count.value, "total_bytes": total.value,
            "free_bytes": free_bytes()}


def granularity():
    return {"minimum": driver.granularity(driver.MINIMUM), "recommended": driver.granularity(driver.RECOMMENDED),
            "minimum_posix_fd_rdma": driver.granularity(driver.MINIMUM, driver.prop(driver.POSIX_FD, 1))}


DEVICE = [
    row(None, device),
    # With pageable access a kernel reads memory of the host at its own address: told, and the design is ready for both.
    row("attributes", lambda: {name: driver.attribute(number) for name, number in DEVICE_ATTRIBUTES.items()},
        relies={"virtual_memory_management": 1, "pageable_memory_access": one_of(0, 1)}),
    row("granularity", granularity, relies={"minimum": GRANULE, "minimum_posix_fd_rdma": GRANULE}),
]

# --- accounting


def account_size(size):
    """The memory that one size of cuMemAlloc takes: the first block, then a row of them."""
    before = free_bytes()
    blocks = [alloc(size)]
    first = before - free_bytes()
    blocks += [alloc(size) for _ in range(31)]
    base, length = ctypes.c_uint64(), ctypes.c_size_t()
    yield from {"bytes": size, "physical_first": first, "physical_row_of_32": before - free_bytes(),
                "alignment": blocks[0] & -blocks[0], "distance_to_next": blocks[1] - blocks[0],
                "distance_last_two": blocks[-1] - blocks[-2]}.items()
    need("cuMemGetAddressRange_v2", base, length, blocks[1] + size - 1)
    yield "range_base_minus_address", base.value - blocks[1]
    yield "range_bytes", length.value
    for block in blocks:
        need("cuMemFree_v2", block)
    yield "kept_after_free", before - free_bytes()


def account_vmm():
    """Does a handle cost its size, or page tables and bookkeeping too?"""
    before = free_bytes()
    address = reserve(GIB)
    yield "reserve_of_1_gib", before - free_bytes()
    handles = [create(GRANULE) for _ in range(64)]
    yield "create_64_granules", before - free_bytes()
    driver.map_handles(address, GRANULE, handles)
    yield "map_64_granules", before - free_bytes()
    need("cuMemUnmap", address, 64 * GRANULE)
    yield "after_unmap", before - free_bytes()
    for handle in handles:
        need("cuMemRelease", handle)
    need("cuMemAddressFree", address, GIB)
    yield "kept_after_release", before - free_bytes()


ACCOUNTING = [
    row("1_b", account_size, 1),
    row("512_kib", account_size, 512 * KIB),
    row("1_mib", account_size, MIB),
    row("1536_kib", account_size, 1536 * KIB),
    row("2_mib_and_1_b", account_size, 2 * MIB + 1),
    row("5632_kib", account_size, 5632 * KIB),
    # Large blocks have granules of their own; a freed block gives its memory back.
    row("20_mib", account_size, 20 * MIB,
        relies={"physical_first": 20 * MIB, "kept_after_free": 0, "range_base_minus_address": 0, "range_bytes": 20 * MIB}),
    row("64_mib", account_size, 64 * MIB),
    row("vmm", account_vmm, relies={"reserve_of_1_gib": 0, "create_64_granules": 128 * MIB, "kept_after_release": 0}),
    row(None, lambda: {"alloc_of_zero_bytes": call("cuMemAlloc_v2", ctypes.c_uint64(), 0),
                       "free_of_null": call("cuMemFree_v2", 0)},
        relies={"alloc_of_zero_bytes": INVALID, "free_of_null": OK}),
]

# --- reserve


def reserve_size(size):
    address, before = ctypes.c_uint64(), free_bytes()
    result, nanoseconds = driver.timed("cuMemAddressReserve", address, size, 0, 0, 0)
    yield "result", result
    yield "reserve_us", us(nanoseconds)
    if result != OK:
        return
    yield "address", hex(address.value)
    yield "alignment", address.value & -address.value
    yield "physical", before - free_bytes()
    result, nanoseconds = driver.timed("cuMemAddressFree", address.value, size)
    yield "free_result", result
    yield "free_us", us(nanoseconds)


def reserve_hints():
    """May the runtime choose an address, and is the alignment argument honoured?"""
    first = reserve(64 * GIB)
    need("cuMemAddressFree", first, 64 * GIB)
    again = reserve(64 * GIB, first)
    yield "free_hint_honoured", again == first
    yield "taken_hint_moved_elsewhere", reserve(64 * MIB, again + GIB) != again + GIB
    aligned = ctypes.c_uint64()
    result = call("cuMemAddressReserve", aligned, 4 * MIB, GIB, 0, 0)
    yield "alignment_of_1_gib", result
    if result == OK:
        yield "alignment_honoured", aligned.value % GIB == 0
    yield "size_not_of_granules", call("cuMemAddressReserve", aligned, GRANULE + 4 * KIB, 0, 0, 0)
    yield "free_of_a_part", call("cuMemAddressFree", again, GIB)


RESERVE = [row(f"{tib}_tib", reserve_size, tib * TIB, relies={"result": OK, "free_result": OK} if tib == 16 else None)
           for tib in (1, 2, 4, 8, 16, 32, 64)]
RESERVE += [row("hints", reserve_hints, relies={"free_hint_honoured": True, "taken_hint_moved_elsewhere": True})]

# --- fresh memory


def dirty_and_exit():
    """Ends without freeing: the next process may be given the same pages."""
    size = sized(8 * MIB, 256 * MIB)
    driver.fill(mapped(size), size, 0xa5)
    driver.fill(alloc(size), size, 0xa5)


def count_nonzero(address, size):
    """Bytes, as words of 8."""
    seen = driver.read(address, size)
    return 0 if seen == bytes(size) else 8 * sum(map(bool, memoryview(seen).cast("Q")))


def look_at_fresh():
    size = sized(8 * MIB, 256 * MIB)
    yield "bytes", size
    for name, take, give, many in (("create", mapped, lambda address: need("cuMemUnmap", address, size), size),
                                   ("alloc", alloc, lambda address: need("cuMemFree_v2", address), size),
                                   ("small_alloc", alloc, lambda address: need("cuMemFree_v2", address), 256 * KIB)):
        address = take(many)
        yield name + "_nonzero", count_nonzero(address, many)
        driver.fill(address, many, 0xa5)
        give(address)
        yield name + "_again_nonzero", count_nonzero(take(many), many)


FRESH_MEMORY = [row("first_process", dirty_and_exit, when=ALONE), row("second_process", look_at_fresh, when=ALONE)]

# --- cost, on an idle device


class Costs(dict):
    """Samples by the names of the calls."""

    def __missing__(self, key):
        self[key] = Samples()
        return self[key]

    def sum(self, *keys):
        """Nanoseconds of these calls."""
        return sum(sum(self[key]) for key in keys)

    def told(self):
        return {key: samples.told() for key, samples in self.items()}

    def back(self, address, piece, numbers, spanning=True):
        """Handles side by side, which are made in this order; one call of cuMemSetAccess when `spanning`."""
        handle, properties, handles = ctypes.c_uint64(), driver.prop(), {}
        for number in numbers:
            self["create"].take("cuMemCreate", handle, piece, properties, 0)
            handles[number] = handle.value
        for number in range(len(handles)):
            self["map"].take("cuMemMap", address + number * piece, piece, 0, handles[number], 0)
        for at, size in parts_of(address, piece, len(handles), spanning):
            self["set_access"].take("cuMemSetAccess", at, size, driver.ACCESS, 1)
        return handles.values()

    def drop(self, address, piece, handles, spanning=True):
        for at, size in parts_of(address, piece, len(handles), spanning):
            self["unmap"].take("cuMemUnmap", at, size)
        self.release(handles)

    def release(self, handles):
        for handle in handles:
            self["release"].take("cuMemRelease", handle)


def parts_of(address, piece, count, spanning):
    """[(address, bytes)] of calls for so many pieces."""
    return [(address, piece * count)] if spanning else [(address + number * piece, piece) for number in range(count)]


def cost_of_handle(size):
    costs, address = Costs(), reserve(size)
    for _ in range(sized(5, 20 if size > 64 * MIB else 100)):
        costs.drop(address, size, costs.back(address, size, [0]))
    need("cuMemAddressFree", address, size)
    return costs.told()


def cost_of_batch(spanning):
    """256 granules side by side; calls that can span them do so when `spanning`."""
    costs, count = Costs(), sized(32, 256)
    address = reserve(count * GRANULE)
    costs.drop(address, GRANULE, costs.back(address, GRANULE, range(count), spanning), spanning)
    need("cuMemAddressFree", address, count * GRANULE)
    return {"handles": count, "back_all_us": us(costs.sum("create", "map", "set_access")),
            "drop_all_us": us(costs.sum("unmap", "release"))} | costs.told()


def take_and_free(costs, size):
    """By the calls that the shim replaces."""
    address = ctypes.c_uint64()
    costs["alloc"].take("cuMemAlloc_v2", address, size)
    costs["free"].take("cuMemFree_v2", address.value)


def cost_of_alloc(size):
    costs = Costs()
    for _ in range(sized(5, 50)):
        take_and_free(costs, size)
    return costs.told()


def cost_of_properties():
    """Does it cost anything to ask for the properties that the runtime asks for?"""
    costs, handle = Costs(), ctypes.c_uint64()
    for _ in range(sized(5, 50)):
        for key, properties in (("plain", driver.prop()), ("posix_fd_and_rdma", driver.prop(driver.POSIX_FD, 1))):
            costs[key].take("cuMemCreate", handle, GRANULE, properties, 0)
            need("cuMemRelease", handle.value)
    return costs.told()


SIZES = (2, 20, 64, 512)
COST = [
    *(row(f"handle_{mib}_mib", cost_of_handle, mib * MIB) for mib in SIZES),
    row("granules_one_call_each", cost_of_batch, False),
    row("granules_spanning_calls", cost_of_batch, True),
    *(row(f"alloc_{mib}_mib", cost_of_alloc, mib * MIB) for mib in SIZES),
    row("handle_properties", cost_of_properties),
]

# --- mappings: memory that a program maps itself

HANDLE = 20 * MIB  # as PyTorch's expandable segments have them
# The order in which so many handles are created. Any odd number is one step through a power of two, which the counts are.
ORDERS = {"ascending": range, "descending": lambda count: range(count - 1, -1, -1),
          "shuffled": lambda count: [step * 27 % count for step in range(count)]}


def map_range(address, size, piece, order="ascending"):
    """Handles side by side: nanoseconds."""
    costs = Costs()
    costs.release(costs.back(address, piece, ORDERS[order](size // piece)))
    return costs.sum(*costs)


def cost_of_handles(count):
    """As the shim does it when the first byte is needed, and as the program does it at once."""
    costs, size = Costs(), count * HANDLE
    address = reserve(size)
    for _ in range(sized(3, 20)):
        costs["create_map_set_access"].append(map_range(address, size, HANDLE))
        costs["unmap"].take("cuMemUnmap", address, size)
        take_and_free(costs, size)
    need("cuMemAddressFree", address, size)
    return {"handles": count} | costs.told()


def cost_of_a_late_one(is_busy):
    """A program's mapping that was put off is made when the first byte is needed: late, between others, and perhaps while the
    device works."""
    costs, count, runs, stream = Costs(), sized(4, 64), sized(3, 20), driver.stream()
    size = count * HANDLE
    address = reserve(size)
    late, waited = address + count // 2 * HANDLE, 0
    map_range(address, size, HANDLE)
    for _ in range(runs):
        need("cuMemUnmap", late, HANDLE)
        if is_busy:
            driver.keep_busy(stream, 40)
        [handle] = costs.back(late, HANDLE, [0])
        waited += is_busy and driver.state_of(stream) == OK
        need("cuMemRelease", handle)
        driver.synchronize()
    need("cuMemUnmap", address, size)
    need("cuMemAddressFree", address, size)
    return {"handles": count, "waited_for_the_device": 2 * waited > runs} | costs.told()


def until_done(symbol, *arguments):
    """Nanoseconds, until the device has done it."""
    began = time.monotonic_ns()
    need(symbol, *arguments)
    driver.synchronize()
    return time.monotonic_ns() - began


def time_range(address, size):
    costs = Costs()
    driver.fill(address, size, 1)
    for number in range(sized(3, 20)):
        costs["set"].append(until_done("cuMemsetD8_v2", address, number, size))
        costs["copy_of_half"].append(until_done("cuMemcpyDtoD_v2", address, address + size // 2, size // 2))
    return costs.told()


def speed_of_orders(piece):
    size = sized(4, 64) * piece
    address, whole = reserve(size), alloc(size)
    yield "bytes", size
    yield "alloc", time_range(whole, size)
    need("cuMemFree_v2", whole)
    for order in ORDERS:
        before = free_bytes()
        map_range(address, size, piece, order)
        yield order, {"taken_bytes": before - free_bytes(), "speed": time_range(address, size)}
        need("cuMemUnmap", address, size)
    need("cuMemAddressFree", address, size)


def create_while_there_is_room(size, most):
    handles, handle, properties = [], ctypes.c_uint64(), driver.prop()
    while len(handles) < most and call("cuMemCreate", handle, size, properties, 0) == OK:
        handles.append(handle.value)
    return handles


def room_between_granules():
    """How many handles of 20 MiB there is room for, of those that the free memory has room for, when every other granule of it is
    taken."""
    left = 256 * GRANULE
    others = free_bytes() - left
    if others < left:
        raise driver.Failed("there is too little memory")
    rest = create(others // GRANULE * GRANULE)
    small = create_while_there_is_room(GRANULE, 256)
    for handle in small[::2]:
        need("cuMemRelease", handle)
    yield "granules", len(small)
    yield "free_bytes", free_bytes()
    fitting = create_while_there_is_room(HANDLE, 40)
    yield "handles_of_20_mib_that_fit", len(fitting)
    for handle in fitting + small[1::2] + [rest]:
        need("cuMemRelease", handle)


MAPPINGS = [
    row("cost_of_1", cost_of_handles, 1),
    row("cost_of_4", cost_of_handles, 4, relies={"handles": 4}),
    row("cost_of_32", cost_of_handles, 32, when=NOT_QUICK),
    row("late_on_an_idle_device", cost_of_a_late_one, False),
    row("late_on_a_busy_device", cost_of_a_late_one, True, relies={"waited_for_the_device": False}),
    row("order_of_granules", speed_of_orders, GRANULE),
    row("order_of_handles_of_20_mib", speed_of_orders, HANDLE),
    row("room_between_granules", room_between_granules, relies={"granules": 256}),
]

# --- alias: one handle mapped at many addresses, the sink under what a rank does not own


def map_aliases(address, handle, count, size):
    maps = Samples()
    for at in range(address, address + count * size, size):
        maps.take("cuMemMap", at, size, 0, handle, 0)
    return maps


def set_words(address, value, size):
    need("cuMemsetD32_v2", address, value, size // 4)


def check_coherence(address, last, size):
    """Every alias must show what was written through any other."""
    set_words(address, 0x11111111, size)
    yield "memset_seen_through_last", driver.read_word(last) == 0x11111111
    set_words(last, 0x22222222, size)
    yield "memset_seen_through_first", driver.read_word(address + size - 4) == 0x22222222
    need("cuMemcpyHtoD_v2", address + size, b"3333", 4)
    yield "copy_seen_through_all", driver.read(address, 4) == driver.read(last, 4) == b"3333"
    if driver.runs_kernels():
        driver.require("cuLaunchKernel", driver.store(last, 0x44444444))
        yield "kernel_store_seen", driver.read_word(address) == 0x44444444


def memset_gib_per_second(address, size):
    driver.fill(address, size, 1)
    return round(size / GIB / (until_done("cuMemsetD8_v2", address, 2, size) / 1e9), 3)


def many_aliases(size):
    count = sized(64, 4096) * GRANULE // size
    total = count * size
    address, before = reserve(total), free_bytes()
    handle = create(size)
    yield "mappings", count
    yield "map", map_aliases(address, handle, count, size).told()
    yield "set_access_over_all_us", us(driver.give_access(address, total))
    yield "physical", before - free_bytes()
    yield from check_coherence(address, address + total - size, size)
    yield "memset_gib_per_second", memset_gib_per_second(address, total)
    yield "unmap_all_in_one_us", us(need("cuMemUnmap", address, total))
    need("cuMemRelease", handle)
    need("cuMemAddressFree", address, total)


def access_one_by_one():
    count, accesses, handle = sized(16, 256), Samples(), create(GRANULE)
    address = reserve(count * GRANULE)
    map_aliases(address, handle, count, GRANULE)
    for number in range(count):
        accesses.take("cuMemSetAccess", address + number * GRANULE, GRANULE, driver.ACCESS, 1)
    need("cuMemUnmap", address, count * GRANULE)
    need("cuMemRelease", handle)
    return {"set_access_each": accesses.told()}


PARTIAL = {"first_2_of_64_mib": (2, 0), "first_62_of_64_mib": (62, 0), "whole": (64, 0), "more_than_the_handle": (66, 0),
           "offset_2_mib": (2, 2), "half_a_granule": (1, 0), "offset_of_half": (32, 32)}


def partial():
    """Which sizes and offsets of a handle can be mapped."""
    address, handle = reserve(256 * MIB), create(64 * MIB)
    for key, (mib, offset) in PARTIAL.items():
        result = call("cuMemMap", address, mib * MIB, offset * MIB, handle, 0)
        yield key, result
        if result == OK:
            need("cuMemUnmap", address, mib * MIB)
    if call("cuMemMap", address, 2 * MIB, 0, handle, 0) != OK:
        return
    driver.map_handle(address + 2 * MIB, 64 * MIB, handle)
    yield "set_access_over_all_us", us(driver.give_access(address, 66 * MIB))
    set_words(address, 0x55555555, 2 * MIB)
    yield "part_and_whole_share_bytes", driver.read_word(address + 2 * MIB) == 0x55555555
    need("cuMemUnmap", address, 66 * MIB)
    need("cuMemRelease", handle)


def interleaved():
    """Owned and sink granules in turn, as under a tensor of which a rank keeps every second granule."""
    count = sized(16, 512)
    total = count * GRANULE
    address, sink = reserve(total), create(GRANULE)
    for number in range(count):
        driver.map_handle(address + number * GRANULE, GRANULE, sink if number % 2 else create(GRANULE))
    yield "set_access_over_all_us", us(driver.give_access(address, total))
    yield "memset_gib_per_second", memset_gib_per_second(address, total)
    noise = os.urandom(GRANULE + 64 * count)
    pattern = [noise[64 * number:64 * number + GRANULE] for number in range(count)]
    need("cuMemcpyHtoD_v2", address, b"".join(pattern), total)
    wrong = 0
    for number in range(0, count, 2):
        seen = driver.read(address + number * GRANULE, GRANULE)
        if seen != pattern[number]:
            wrong += sum(map(ne, memoryview(seen).cast("I"), memoryview(pattern[number]).cast("I")))
    yield "owned_words_wrong", wrong
    yield "memset_gib_per_second_one_handle", memset_gib_per_second(mapped(total), total)


ALIAS = [
    row("sink_of_2_mib", many_aliases, GRANULE,
        relies={"physical": GRANULE, "memset_seen_through_last": True, "memset_seen_through_first": True,
                "copy_seen_through_all": True, "kernel_store_seen": True}),
    row("sink_of_64_mib", many_aliases, 64 * MIB),
    row("access_one_by_one", access_one_by_one),
    # Handles are mapped whole.
    row("partial", partial, relies={key: OK if key == "whole" else NOT_SUPPORTED for key in PARTIAL}),
    row("interleaved", interleaved, relies={"owned_words_wrong": 0}),
]

# --- pools: stream-ordered memory

BLOCK = 32 * MIB
RELEASE_THRESHOLD, RANGE_START, RANGE_SIZE = 4, 11, 12
FIGURES = {"used": 7, "used_high": 8, "reserved": 5, "reserved_high": 6}


def make_pool(threshold):
    pool = made("cuMemPoolCreate", struct.pack("<2i8s72x", 1, 0, LOCATION))
    need("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.c_uint64(threshold))
    return pool


def take(pool, size, stream):
    return made("cuMemAllocFromPoolAsync", size, pool, stream)


def give(block, stream):
    need("cuMemFreeAsync", block, stream)


def reuse(order, busy):
    """Does memory that was freed on one stream come back on another?"""
    pool, event, first = make_pool(2 ** 64 - 1), driver.event(), driver.stream()
    second = first if order == "same_stream" else driver.stream()
    before = take(pool, BLOCK, first)
    need("cuMemsetD8Async", before, 1, BLOCK, first)
    need("cuStreamSynchronize", first)
    if busy:
        driver.keep_busy(first, 40)
    give(before, first)
    need("cuEventRecord", event, first)
    if order == "event_between":
        need("cuStreamWaitEvent", second, event, 0)
    if order == "synchronized_between":
        need("cuStreamSynchronize", first)
    after = ctypes.c_uint64()
    nanoseconds = need("cuMemAllocFromPoolAsync", after, BLOCK, pool, second)
    states = driver.state_of(first), driver.state_of(second)
    give(after.value, second)
    driver.synchronize()
    need("cuMemPoolDestroy", pool)
    return {"alloc_us": us(nanoseconds), "same_address": after.value == before, "first_stream_still_busy": states[0] == NOT_READY,
            "second_stream_waits": states[1] == NOT_READY}


def reuse_of(busy):
    for order in ("nothing_between", "event_between", "synchronized_between", "same_stream"):
        yield order, reuse(order, busy)


def figures_of(threshold):
    """Three blocks; the one in the middle, and then all of them, are freed."""
    pool, stream, before = make_pool(threshold), driver.stream(), free_bytes()

    def figures():
        value, found = ctypes.c_uint64(), {}
        for key, number in FIGURES.items():
            need("cuMemPoolGetAttribute", pool, number, value)
            found[key] = value.value
        return found | {"taken_of_the_device": before - free_bytes()}

    yield "empty", figures()
    small = take(pool, 3 * MIB, stream)
    yield "with_3_mib", figures()
    give(small, stream)
    need("cuStreamSynchronize", stream)
    blocks = [take(pool, BLOCK, stream) for _ in range(3)]
    yield "with_3_blocks", figures()
    driver.keep_busy(stream, 40)
    give(blocks[1], stream)
    yield "freed_behind_work", figures()
    yield "trim_behind_work", call("cuMemPoolTrimTo", pool, 0)
    yield "trimmed_behind_work", figures()
    need("cuStreamSynchronize", stream)
    yield "synchronized", figures()
    yield "trim_to_80_mib", call("cuMemPoolTrimTo", pool, 80 * MIB)
    yield "trimmed_to_80_mib", figures()
    yield "trim_to_0", call("cuMemPoolTrimTo", pool, 0)
    yield "trimmed_to_0", figures()
    give(blocks[0], stream)
    give(blocks[2], stream)
    need("cuStreamSynchronize", stream)
    yield "all_freed", figures()
    need("cuMemPoolTrimTo", pool, 0)
    yield "all_trimmed", figures()
    need("cuMemPoolDestroy", pool)


def addresses_of(pool, size, stream):
    blocks = [take(pool, size, stream) for _ in range(16)]
    steps = [after - before for before, after in zip(blocks, blocks[1:])]
    start, length = ctypes.c_uint64(), ctypes.c_uint64()
    found = {"least": hex(min(blocks)), "most": hex(max(blocks)), "span": max(blocks) + size - min(blocks),
             "ascending": sum(step > 0 for step in steps), "adjacent": steps.count(size), "alignment": blocks[0] & -blocks[0]}
    if OK == call("cuPointerGetAttribute", start, RANGE_START, blocks[1]) == \
            call("cuPointerGetAttribute", length, RANGE_SIZE, blocks[1]):
        found.update(range_start_minus_address=start.value - blocks[1], range_bytes=length.value)
    for block in blocks:
        give(block, stream)
    need("cuStreamSynchronize", stream)
    return found


def addresses():
    stream, pool, other = driver.stream(), made("cuDeviceGetDefaultMemPool", Process.device), make_pool(0)
    yield "default_pool_1_mib", addresses_of(pool, MIB, stream)
    yield "default_pool_20_mib", addresses_of(pool, 20 * MIB, stream)
    need("cuMemPoolTrimTo", pool, 0)
    yield "default_pool_20_mib_after_trim", addresses_of(pool, 20 * MIB, stream)
    yield "another_pool_20_mib", addresses_of(other, 20 * MIB, stream)
    need("cuMemPoolDestroy", other)
    yield "cuMemAlloc_20_mib", hex(alloc(20 * MIB))
    yield "cuMemAddressReserve", hex(reserve(20 * MIB))


def busy_with():
    return {"busy_with": "kernel" if driver.runs_kernels() else "host_function"}


POOLS = [
    row(None, busy_with),
    row("reuse_on_an_idle_device", reuse_of, False),
    row("reuse_behind_work", reuse_of, True),
    # A pool's figures, to which the shim adds its own.
    row("figures_with_threshold_0", figures_of, 0, relies={"all_freed.reserved": 0}),
    row("figures_with_threshold_of_everything", figures_of, 2 ** 64 - 1,
        relies={"with_3_blocks.used": 96 * MIB, "synchronized.used": 64 * MIB, "synchronized.reserved": at_least(96 * MIB),
                "trimmed_to_80_mib.reserved": at_least(80 * MIB), "trimmed_to_0.used": 64 * MIB, "all_trimmed.reserved": 0}),
    row("addresses", addresses, relies={"default_pool_20_mib.range_bytes": 20 * MIB}),
]
