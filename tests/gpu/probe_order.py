# SPDX-License-Identifier: Apache-2.0
"""Order, kernels and functions, as a program can learn about them: sections order, pageable, parameters and resolver."""
import ctypes
import mmap
import os
import struct
import sys
import tempfile
import time

import probe_driver as driver
from probe_driver import DEFAULT, KIB, MIB, NON_BLOCKING, NOT_READY, OK, Samples, alloc, call, keep_busy, need, state_of, us
from probe_memory import HEADER_VERSION, busy_with, sized
from probe_rows import INVALID, LOADED, one_of, row

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "static"))
from check_entries import read_rows  # noqa: E402 (the path is set above)

# --- order: queries, and events on the legacy stream


def ask_while_busy(flags):
    """None: the legacy stream itself."""
    idle_blocking, idle_nonblocking, event = driver.stream(DEFAULT), driver.stream(), driver.event()
    busy = None if flags is None else driver.stream(flags)
    keep_busy(busy, sized(30, 40))
    answers = {key: state_of(stream) for key, stream in (
        ("query_itself", busy), ("query_0", None), ("query_legacy", driver.LEGACY), ("query_per_thread", driver.PER_THREAD),
        ("query_idle_blocking_stream", idle_blocking), ("query_idle_nonblocking_stream", idle_nonblocking))}
    # An event recorded on the legacy stream: is it reached only after the other stream's work?
    need("cuEventRecord", event, None)
    time.sleep(0.01)  # even on an idle stream an event takes a moment
    answers.update(event_on_0=call("cuEventQuery", event), query_0_after_the_event=state_of(None))
    need("cuEventDestroy_v2", event)
    driver.synchronize()
    return answers


def implicit_order():
    """Work put on a blocking stream while the legacy stream is busy must wait, and the reverse."""
    word, blocking, seen = alloc(4), driver.stream(DEFAULT), driver.pinned(8)
    need("cuMemsetD32_v2", word, 1, 1)
    driver.synchronize()
    for key, busy, other in (("blocking_after_legacy", None, blocking), ("legacy_after_blocking", blocking, None)):
        keep_busy(busy, sized(30, 40))
        need("cuMemcpyDtoHAsync_v2", seen, word, 4, other)
        yield key, state_of(other)
        driver.synchronize()


ORDER = [
    row(None, busy_with),
    # The legacy stream speaks for the blocking ones.
    row("blocking_stream_busy", ask_while_busy, DEFAULT,
        relies={"query_0": NOT_READY, "query_legacy": NOT_READY, "event_on_0": NOT_READY}),
    row("nonblocking_stream_busy", ask_while_busy, NON_BLOCKING, relies={"query_0": OK, "event_on_0": OK}),
    row("legacy_stream_busy", ask_while_busy, None),
    row("implicit_order", implicit_order, relies={"blocking_after_legacy": NOT_READY, "legacy_after_blocking": NOT_READY}),
]

# --- pageable: when has an asynchronous copy taken its source?

MOST = 16 * MIB
SIZES = {"64_b": 64, "4_kib": 4 * KIB, "64_kib": 64 * KIB, "64_kib_and_4_b": 64 * KIB + 4, "128_kib": 128 * KIB,
         "256_kib": 256 * KIB, "1_mib": MIB, "16_mib": MOST}


def registered():
    memory = driver.host(MOST)
    need("cuMemHostRegister_v2", memory, MOST, 0)
    return memory


def file_mapping():
    with tempfile.TemporaryFile() as file:
        file.truncate(MOST)
        return driver.host(MOST, file.fileno(), mmap.MAP_PRIVATE)


SOURCES = {"pageable": lambda: driver.host(MOST), "pinned": lambda: driver.pinned(MOST), "registered": registered,
           "private_file_mapping": file_mapping}


def copy_behind_work(what, symbol, stream, *arguments):
    keep_busy(stream, sized(30, 40))
    result, nanoseconds = driver.timed(symbol, *arguments, stream)
    return {what + "_result": result, what + "_us": us(nanoseconds),
            what + "_returned_before_the_stream_got_there": state_of(stream) == NOT_READY}


def copy_in_and_out(memory, device, stream, size):
    """The source is overwritten as soon as the call returns; which bytes arrive?"""
    contents = {"old": b"\x11" * size, "new": b"\x22" * size}
    ctypes.memmove(memory, contents["old"], size)
    answers = copy_behind_work("in", "cuMemcpyHtoDAsync_v2", stream, device, memory, size)
    ctypes.memmove(memory, contents["new"], size)
    driver.synchronize()
    seen = driver.read(device, size)
    answers["in_content"] = next((name for name, content in contents.items() if content == seen), "mixed")
    answers |= copy_behind_work("out", "cuMemcpyDtoHAsync_v2", stream, memory, device, size)
    driver.synchronize()
    return answers


def copy_source(source):
    memory, device = SOURCES[source](), alloc(MOST)
    for name, stream in (("nonblocking_stream", driver.stream()), ("legacy_stream", None)):
        yield name, {key: copy_in_and_out(memory, device, stream, size) for key, size in SIZES.items()}


def content(sizes, wanted):
    return {f"{stream}.{size}.in_content": wanted for stream in ("nonblocking_stream", "legacy_stream") for size in sizes}


# The program may use its source anew when the call has returned, also above 64 KiB.
TAKEN = content(("64_kib_and_4_b", "128_kib", "256_kib", "16_mib"), "old")
SOURCES_RELIED_ON = {"pageable": TAKEN | content(("64_b", "64_kib", "1_mib"), "old"), "private_file_mapping": TAKEN,
                     "pinned": content(("64_b", "64_kib", "1_mib"), one_of("new", "old"))}
PAGEABLE = [row(None, busy_with), *(row(source, copy_source, source, relies=SOURCES_RELIED_ON.get(source)) for source in SOURCES)]

# --- parameters: of a kernel, by cuFuncGetParamInfo


def loading_state(when):
    state = ctypes.c_int()
    return {"is_loaded_" + when: call("cuFuncIsLoaded", state, driver.kernel("probe_layout")),
            "loading_state_" + when: state.value}


def before():
    name, runs = ctypes.c_char_p(), driver.runs_kernels()
    return {"kernels_run": runs} | loading_state("before") | {
        "name_result": call("cuFuncGetName", name, driver.kernel("probe_layout")), "name": (name.value or b"").decode()}


def layout():
    function, parameters, result = driver.kernel("probe_layout"), [], OK
    while len(parameters) < 8:
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        result = call("cuFuncGetParamInfo", function, len(parameters), offset, size)
        if result != OK:
            break
        parameters.append(f"{offset.value}+{size.value}")
    return {"parameters": parameters, "past_the_last": result,
            "size_pointer_null": call("cuFuncGetParamInfo", function, 0, ctypes.c_size_t(), None)}


def query_cost():
    samples, function, number = Samples(), driver.kernel("probe_layout"), ctypes.c_size_t()
    for _ in range(200):
        samples.take("cuFuncGetParamInfo", function, 1, number, number)
    return {"first_call_us": us(samples[0]), "all_calls": samples.told()}


def packed_launch():
    """Packed parameters with bytes past the last parameter, and with too few bytes."""
    word, value = alloc(4), 0x600df00d
    for size in (12, 16):
        extra = driver.packed(struct.pack("<QII", word, value, 0), size)
        yield f"buffer_of_{size}", driver.launch("probe_store", None, None, extra)
    yield "stored", driver.read_word(word) == value


def launch_layout():
    words = ctypes.create_string_buffer(24)
    return {"result": driver.launch("probe_layout", None, driver.pointers(words, words, words, words)),
            "synchronize": call("cuCtxSynchronize")}


PARAMETERS = [
    row(None, before),
    row("layout", layout, relies={"parameters": ["0+8", "8+4", "16+24", "40+1"], "past_the_last": INVALID}),
    row("query_cost", query_cost),
    row("packed_launch", packed_launch,
        relies={"stored": True, "buffer_of_12": OK, "buffer_of_16": "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}),
    row("launch", launch_layout),
    row(None, loading_state, "after"),
]

# --- resolver: is the answer of cuGetProcAddress the address of the exported name? Does the entry table name every export?


class Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def symbol_at(address):
    found = Symbol()
    if ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found)) == 0:
        return "outside every library"
    return found.name.decode() if found.name and found.address == address else "unnamed"


def resolve(name, version, flags):
    """(result, address or None, status)"""
    address, status = ctypes.c_uint64(), ctypes.c_int()
    result = call("cuGetProcAddress_v2", name.encode(), address, version, flags, status)
    return result, address.value or None, status.value


def compare_all():
    counts = dict.fromkeys(("same", "other_address", "only_exported", "only_resolved", "neither"), 0)
    differing, rows = [], read_rows()
    for entry in rows:
        function = driver.address_of(entry.symbol)
        exported = function and function.value
        result, resolved, status = resolve(entry.base, int(entry.version), 2 if entry.per_thread == "1" else 1)
        resolved = resolved if result == OK else None
        if exported and resolved:
            counts["same" if exported == resolved else "other_address"] += 1
        else:
            counts["only_exported" if exported else "only_resolved" if resolved else "neither"] += 1
        if exported != resolved:
            differing.append({"symbol": entry.symbol, "version": int(entry.version), "exported": exported is not None,
                              "resolved_to": symbol_at(resolved) if resolved else "", "query_status": status})
    return {"differing": differing, "rows": len(rows)} | counts


def exported_functions(path):
    """The names in an ELF file's table of dynamic symbols."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    offset, (size, count) = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<HH", data, 0x3a)
    sections = [struct.unpack_from("<IIQQQQII", data, offset + number * size) for number in range(count)]
    _, _, _, _, begin, length, link, _ = next(section for section in sections if section[1] == 11)  # SHT_DYNSYM
    names = sections[link][4]
    for name, info, _, index, _, _ in struct.iter_unpack("<IBBHQQ", data[begin:begin + length]):
        if index != 0 and info & 0xf == 2:  # STT_FUNC
            yield data[names + name:data.find(b"\0", names + name)].decode()


def unknown_exports():
    library, known = Symbol(), {entry.symbol for entry in read_rows()}
    ctypes.CDLL(None).dladdr(driver.address_of("cuInit"), ctypes.byref(library))
    path = os.fsdecode(library.file)
    exports = [name for name in exported_functions(path) if name.startswith("cu")]
    return {"not_in_the_table": [name for name in exports if name not in known], "exported_functions": len(exports),
            "file": os.path.basename(path)}


# How a program may ask that is not in the table: no flags, the newest version, odd names.
ODD_QUESTIONS = {
    "empty_name_version_0": ("", 0, 0), "suffix_in_the_name": ("cuMemAlloc_v2", 12000, 0),
    "alloc_version_2000": ("cuMemAlloc", 2000, 0), "alloc_newest": ("cuMemAlloc", HEADER_VERSION, 0),
    "alloc_version_of_the_future": ("cuMemAlloc", 99000, 0),
    "copy_per_thread": ("cuMemcpyHtoD", 7000, 2), "copy_per_thread_version_3020": ("cuMemcpyHtoD", 3020, 2),
    "alloc_per_thread": ("cuMemAlloc", 7000, 2), "resolver_11030": ("cuGetProcAddress", 11030, 0),
    "resolver_12000": ("cuGetProcAddress", 12000, 0), "synchronize_newest": ("cuCtxSynchronize", 13000, 0),
    "unknown": ("cuNoSuchThing", 12000, 0)}


def odd_questions():
    for key, question in ODD_QUESTIONS.items():
        result, address, status = resolve(*question)
        yield key, {"result": result, "query_status": status, "symbol": symbol_at(address) if address else ""}


def have_rows(names):
    """As the table is now. A debugger's functions need no rows: no program calls them, and they take no memory."""
    return set(names) - {entry.symbol for entry in read_rows()} == {name for name in names if name.startswith("cudbg")}


# The answers of cuGetProcAddress are the exported symbols.
AGREE = {"other_address": 0, "only_resolved": 0}
RESOLVER = [
    row("before_init", compare_all, when=LOADED, relies=AGREE),
    row("after_init", compare_all, relies=AGREE),
    row("exports", unknown_exports, relies={"not_in_the_table": have_rows}),
    row("odd_questions", odd_questions, relies={
        "alloc_newest.symbol": "cuMemAlloc_v2", "suffix_in_the_name.symbol": "", "copy_per_thread.symbol": "cuMemcpyHtoD_v2_ptds",
        "resolver_12000.symbol": "cuGetProcAddress_v2", "copy_per_thread_version_3020.symbol": "",
        "copy_per_thread_version_3020.query_status": 2, "unknown.query_status": 1} | {
            name + ".result": OK
            for name in ("empty_name_version_0", "suffix_in_the_name", "copy_per_thread_version_3020", "unknown")}),
]
