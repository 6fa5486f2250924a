# SPDX-License-Identifier: Apache-2.0
"""The driver for the questions of probe.py: calls by the names of its functions; device, memory, streams, work of a process.

No CUDA library is linked or needed before load(). A result is its name, as "CUDA_SUCCESS". An argument is a number, None, bytes,
or an object of ctypes, of which the driver gets the address: whatever a function of the driver takes is one of these.
"""
import ctypes
import mmap
import os
import struct
import time

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
GRANULE = 2 * MIB
OK, NOT_READY = "CUDA_SUCCESS", "CUDA_ERROR_NOT_READY"
NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND, also of functions that the driver lacks
WORDS, WORD = 11, 2 ** 64 - 1
# Numbers of cuda.h, by their names there, less the beginnings.
DEFAULT, NON_BLOCKING = 0, 1
LEGACY, PER_THREAD = 1, 2
READ, READ_WRITE = 1, 3
POSIX_FD = 1
MINIMUM, RECOMMENDED = 0, 1
DISABLE_TIMING = 2
LOCATION = struct.pack("<2i", 1, 0)  # device 0
LOCATION_BY_VALUE = int.from_bytes(LOCATION, "little")
ACCESS = struct.pack("<8si", LOCATION, READ_WRITE)

quick = False  # fewer and smaller, for a host that plays a device
kernels = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe_kernels.ptx")  # or a file of the simulated driver
caller = None  # the file of probe_call.c


class Failed(Exception):
    """Ends a question; its answer is this error."""


class Process:
    """A process has one library, one context, of device 0, and one module."""
    library = call = device = context = start_ns = module = runs_kernels = None
    functions, names, memory = {}, {0: OK}, []


def load():
    if Process.library is None:
        try:
            Process.library = ctypes.CDLL("libcuda.so.1", os.RTLD_NOW | os.RTLD_GLOBAL)
        except OSError as error:
            raise Failed(str(error)) from error
        Process.call = ctypes.CDLL(caller).probe_call


def start():
    if Process.context is not None:
        return
    began, device, context = time.monotonic_ns(), ctypes.c_int(), ctypes.c_uint64()
    load()
    need("cuInit", 0)
    need("cuDeviceGet", device, 0)
    need("cuDevicePrimaryCtxRetain", context, device.value)
    need("cuCtxSetCurrent", context.value)
    Process.device, Process.context = device.value, context.value
    Process.start_ns = time.monotonic_ns() - began


# --- calls


def address_of(symbol):
    """None, if the driver does not export it."""
    if symbol not in Process.functions:
        try:
            Process.functions[symbol] = ctypes.cast(getattr(Process.library, symbol), ctypes.c_void_p)
        except AttributeError:
            Process.functions[symbol] = None
    return Process.functions[symbol]


def word_of(argument):
    if argument is None:
        return 0
    if isinstance(argument, int):
        return argument & WORD
    return ctypes.cast(argument, ctypes.c_void_p).value if isinstance(argument, bytes) else ctypes.addressof(argument)


def numbered(symbol, arguments):
    """(result, nanoseconds), the result as a number."""
    function, nanoseconds = address_of(symbol), ctypes.c_int64()
    if function is None:
        return NOT_FOUND, 0
    words = (ctypes.c_uint64 * WORDS)(*map(word_of, arguments))
    return Process.call(function, words, ctypes.byref(nanoseconds)), nanoseconds.value


def name_of(number):
    if number not in Process.names:
        name = ctypes.c_char_p()
        result, _ = numbered("cuGetErrorName", (number, name))
        Process.names[number] = name.value.decode() if result == 0 and name.value else "unnamed result"
    return Process.names[number]


def timed(symbol, *arguments):
    """(result, nanoseconds)"""
    number, nanoseconds = numbered(symbol, arguments)
    return name_of(number), nanoseconds


def call(symbol, *arguments):
    return timed(symbol, *arguments)[0]


def require(what, result):
    if result != OK:
        raise Failed(f"{what}: {result}")


def need(symbol, *arguments):
    """Nanoseconds of a call whose failure ends the question."""
    result, nanoseconds = timed(symbol, *arguments)
    require(symbol, result)
    return nanoseconds


def made(symbol, *arguments):
    """A handle or an address that a call stores by its first argument."""
    out = ctypes.c_uint64()
    need(symbol, out, *arguments)
    return out.value


def us(nanoseconds):
    return round(nanoseconds / 1e3, 3)


class Samples(list):
    """Nanoseconds of one operation, many times."""

    def take(self, symbol, *arguments):
        self.append(need(symbol, *arguments))

    def told(self):
        values, count = sorted(self), len(self)
        return {"count": count} | ({"median_us": us(values[count // 2]), "p90_us": us(values[count * 9 // 10]),
                                    "least_us": us(values[0]), "most_us": us(values[-1])} if count else {})


# --- memory


def free_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    need("cuMemGetInfo_v2", free, total)
    return free.value


def attribute(number):
    """An attribute of the device, or the name of the error."""
    value = ctypes.c_int()
    result = call("cuDeviceGetAttribute", value, number, Process.device)
    return value.value if result == OK else result


def prop(handle_types=0, rdma=0):
    """CUmemAllocationProp"""
    return struct.pack("<2i8sQ2B6x", 1, handle_types, LOCATION, 0, 0, rdma)


def granularity(which, properties=None):
    return made("cuMemGetAllocationGranularity", properties or prop(), which)


def reserve(size, address=0):
    return made("cuMemAddressReserve", size, 0, address, 0)


def create(size, properties=None):
    return made("cuMemCreate", size, properties or prop(), 0)


def map_handle(address, size, handle):
    need("cuMemMap", address, size, 0, handle, 0)


def set_access(address, size, flags=READ_WRITE):
    return call("cuMemSetAccess", address, size, struct.pack("<8si", LOCATION, flags), 1)


def give_access(address, size):
    return need("cuMemSetAccess", address, size, ACCESS, 1)


def map_handles(address, size, handles):
    """Side by side, and gives access to all of them."""
    for number, handle in enumerate(handles):
        map_handle(address + number * size, size, handle)
    give_access(address, size * len(handles))


def mapped(size):
    address, handle = reserve(size), create(size)
    map_handles(address, size, [handle])
    need("cuMemRelease", handle)
    return address


def alloc(size):
    return made("cuMemAlloc_v2", size)


def host(size, file=-1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
    """Memory of the process, at a page, of zeros or of a file; the process keeps it, as the driver may know of it."""
    Process.memory.append((ctypes.c_char * size).from_buffer(mmap.mmap(file, size, flags=flags)))
    return Process.memory[-1]


def pinned(size):
    return (ctypes.c_char * size).from_address(made("cuMemHostAlloc", size, 0))


def read(address, size):
    data = ctypes.create_string_buffer(size)
    need("cuMemcpyDtoH_v2", data, address, size)
    return data.raw


def read_word(address):
    return int.from_bytes(read(address, 4), "little")


def synchronize():
    need("cuCtxSynchronize")


def fill(address, size, byte):
    """Waits until it is done."""
    need("cuMemsetD8_v2", address, byte, size)
    synchronize()


# --- streams, and kernels of probe_kernels.ptx


def stream(flags=NON_BLOCKING):
    return made("cuStreamCreate", flags)


def event():
    return made("cuEventCreate", DISABLE_TIMING)


def state_of(stream_):
    return call("cuStreamQuery", stream_)


def kernel(name):
    if Process.module is None:
        Process.module = made("cuModuleLoad", os.fsencode(kernels))
    return made("cuModuleGetFunction", Process.module, name.encode())


def pointers(*values):
    """An array of pointers to what is at values, which it keeps."""
    array = (ctypes.c_uint64 * len(values))(*map(ctypes.addressof, values))
    array.values = values
    return array


def packed(data, size):
    """Parameters one behind the other, as `extra` of a launch, which takes so many bytes."""
    buffer, count = ctypes.create_string_buffer(data, len(data)), ctypes.c_size_t(size)
    extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(count), 0)
    extra.values = buffer, count
    return extra


def launch(name, stream_, parameters=None, extra=None, entry="cuLaunchKernel"):
    """On one thread."""
    return call(entry, kernel(name), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, extra)


def store(address, value, stream_=None):
    """One thread writes one word."""
    return launch("probe_store", stream_, pointers(ctypes.c_uint64(address), ctypes.c_uint32(value)))


def spin(stream_, nanoseconds):
    return launch("probe_spin", stream_, pointers(ctypes.c_uint64(nanoseconds)))


def runs_kernels():
    """A driver may take a launch and do nothing."""
    if Process.runs_kernels is None:
        began = time.monotonic_ns()
        try:
            Process.runs_kernels = spin(None, 4_000_000) == OK and call("cuStreamSynchronize", None) == OK and \
                time.monotonic_ns() - began > 3_000_000
        except Failed:
            Process.runs_kernels = False
    return Process.runs_kernels


def keep_busy(stream_, milliseconds, with_kernel=None):
    """Work on the stream: a kernel, where there is one, or a function of the host, which sleeps."""
    if runs_kernels() if with_kernel is None else with_kernel:
        require("cuLaunchKernel", spin(stream_, milliseconds * 1_000_000))
    else:
        need("cuLaunchHostFunc", stream_, ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value, milliseconds * 1000)
