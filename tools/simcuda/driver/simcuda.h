/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated CUDA driver: a libcuda.so.1 for machines without a GPU, for tests only.
 *
 * It has every export of the CUDA 13.0 driver. Device memory is real memory (a memory file mapped
 * at the device addresses), streams are real threads, and the rules of the driver are kept
 * strictly: what the documentation forbids fails here, also where a real driver may be lenient.
 * Kernels are host functions. Calls that are not simulated return CUDA_ERROR_NOT_SUPPORTED. The
 * CUDA runtime library does not start on it; programs use the driver API.
 *
 * Environment, read at the first call. A bad value gives one line on stderr and the default.
 *
 *   SIMCUDA_DEVICES=<n>        number of devices, 1 to 16; default 1
 *   SIMCUDA_MEMORY_MIB=<n>     memory of each device; default 8192
 *   SIMCUDA_GRANULE_KIB=<n>    allocation granularity, 64 to 32768, rounded up to a power of two; default
 *                              2048, which GPUs of today have. No documentation names a number: a program asks
 *                              cuMemGetAllocationGranularity (CUDA driver API, virtual memory management)
 *   SIMCUDA_OTHERS=<n>         other processes use each device: at any moment they have all but n MiB of it, or nothing, or
 *                              something between; another amount at each call that makes memory or asks how much is free.
 *                              "In a multi-tenant situation, free estimate returned is prone to race condition" (CUDA
 *                              driver API, cuMemGetInfo). A program that has less than n MiB is never refused for them
 *   SIMCUDA_SHARED=<path>      the devices are those of all processes with the same file, which is made: what one of them
 *                              has of a device, the others cannot get. Each device has its memory once
 *   SIMCUDA_LOW=1              reservations begin at 0x302000000, as those of real drivers on Linux do, while cuMemAlloc
 *                              gives 0x7f... (what cuda-gdb prints of llama.cpp's pool; kvcache-ai/Mooncake#2511). What
 *                              lies below, from 0x200000000 on, is mapped without access, as real drivers leave it.
 *                              Without effect where a sanitizer needs those addresses
 *   SIMCUDA_HINTS=<n>          a wanted address of cuMemAddressReserve that is free is 0: declined (another address is
 *                              given), 1: honoured, 2: refused (CUDA_ERROR_INVALID_VALUE). Default 1
 *   SIMCUDA_PAGEABLE=1         kernels can read pageable host memory (else it is an illegal access), as with HMM
 *                              (CUDA programming guide, unified memory; Linux 6.1.24, driver 535, open modules)
 *   SIMCUDA_POISON=1           fresh device memory is filled with 0xCB (else it is not specified);
 *                              2: with another byte each time
 *   SIMCUDA_DELAY_US=<n>       every asynchronous piece of work waits so long before it starts:
 *                              makes missing synchronisation visible; default 0
 *   SIMCUDA_FREE_ANYWHERE=1    cuMemFree and cuMemFreeHost need no current context: "frees it in its owning context, with any
 *                              context or none current" (NVIDIA/cuda-python#2750, of 12.9 and 13, of cuMemFree; numba's reset
 *                              does both, and its tests pass on GPUs). Else they are refused
 *   SIMCUDA_JITTER_US=<n>      half of what streams do, events among it, waits up to so long: what different streams do comes
 *                              in an order of its own, and so do their events. Only what a stream or an event orders is
 *                              ordered (CUDA programming guide, asynchronous concurrent execution). Nothing where
 *                              SIMCUDA_EAGER is 1
 *   SIMCUDA_EAGER=1            a device that is done at once: what nothing in a stream is before runs before the
 *                              call that queues it returns; host functions still run on threads of their own
 *   SIMCUDA_BEHIND=1           a device that is far behind the host: cuEventQuery says that an event is not done, until the
 *                              host has waited for something that was queued after it, or queues nothing for a second, in
 *                              which it asks again and again.
 *                              Only a thread that queues work sees it so: one that looks whether work takes too long does not.
 *                              Whoever waits for an event to be done, as blocks of PyTorch's allocator do, waits as long as
 *                              with a device that has much to do
 *   SIMCUDA_LATE=1             asynchronous copies read pageable memory when the stream gets there, not before they return.
 *                              "If pageable memory must first be staged to pinned memory, the driver may synchronize with
 *                              the stream and stage the copy": may, and "undocumented behavior should not be relied upon"
 *                              (CUDA driver API, API synchronization behavior)
 *   SIMCUDA_BREAK=<name>[,...] a driver that does not do what programs rely on, one name for each:
 *                              memory: exportable memory is made in two granules only, though one is said to do
 *                              granularity: exportable memory takes two granules, and that is said
 *                              alias: what is written at a second mapping of memory stays there
 *                              set, copy, copy2d: they end with the handle in which they begin
 *                              event, context_event: complete at once (of cuEventRecord, cuCtxRecordEvent)
 *                              remap: where memory was unmapped, it is reached still, whatever is mapped next
 *                              resolver: cuGetProcAddress gives addresses outside of the library, which lead there.
 *                              No driver is known for any of these; they are for programs that ask whether it is so
 *   SIMCUDA_MULTICAST=1        the devices have a switch between them: multicast objects (else not supported)
 *   SIMCUDA_PROFILE=12.4|12.9|13.0|13.1|13.2|13.3|13.4|13.5
 *                              the version that the driver says it has, and whose functions cuGetProcAddress finds.
 *                              Which version brought what is in cudaTypedefs.h. 12 is 12.9, 13 is 13.0, the default. The library
 *                              exports those of 13.0; of newer ones, cuGetProcAddress gives addresses that it does not export.
 *                              The libraries in profile12/ (12.9) and profile12.4/ have no newer ones at all; that in
 *                              profile13.5/ exports all of 13.5, which is then the default
 *   SIMCUDA_FAULTS=<function>:<nth>=<number>[,...]
 *                              the nth call (from 1) of this export does nothing and returns the
 *                              CUresult with this number, as in cuMemCreate:3=2; a ! behind
 *                              the number makes the error sticky
 *   SIMCUDA_FAULT_CALLER=<text>
 *                              *:<nth>=<number> then is the nth call, of any export, that comes from a
 *                              library with this text in its name
 *   SIMCUDA_FAULT_REPORT=<path>
 *                              the name of each call that was made to fail, one a line
 *   SIMCUDA_FAULT_TRACE=<path> a line for each call that *:<nth> counts: its number, its name, and a hash of its path, which
 *                              is where in that library it was called from, and where that library was
 *   SIMCUDA_FAULT_PATH=<hash>  *:<nth> counts calls of this path alone
 *   SIMCUDA_LOG=<path>         one line for every driver call; %p in the path is the process id
 *   SIMCUDA_FATBIN_KERNELS=<path>, SIMCUDA_FATBIN_LAYOUTS=<path>
 *                              host versions of the kernels in fat binaries, and their layouts (fatbin.c)
 *   SIMCUDA_DRY=1              nothing is computed: kernels do nothing, and need no host versions; copies between host and
 *                              device are made up to 1 MiB, copies within devices and fills up to 64 KiB (dry.c). 2: all of
 *                              them, and the kernels of SIMCUDA_FATBIN_KERNELS
 *   SIMCUDA_NAME=<text>, SIMCUDA_CAPABILITY=<n>, SIMCUDA_MULTIPROCESSORS=<n>
 *                              what the devices are: default "Simulated CUDA device", 90 (for 9.0) and 4
 *   SIMCUDA_CONTEXT_MIB=<n>    what a primary context takes of its device's memory, as the context, the code and the
 *                              libraries of a real program do; default 0
 *   SIMCUDA_PTX_KERNELS=<path> a kernel library with host versions of the kernels of all PTX, which is recognised by its
 *                              first word, .version, and of all cubins. Without it these are invalid images
 *   SIMCUDA_STATS=<path>       statistics as a JSON object, written when the process ends; %p too
 *
 *   SIM_SETTINGS=<name>=<n> ... what those of the above that are numbers are when the environment does not say: for a
 *                              whole run of tests, most of which begin with an environment without SIMCUDA_
 *
 * Statistics: physical_bytes_peak, physical_bytes_now (device memory that exists, all devices),
 * h2d_bytes, d2h_bytes, d2d_bytes, memset_bytes (moved by copies and fills), launches,
 * empty_launches (of kernels that did nothing), unknown_reads (copies to the host in a dry run, of
 * what nobody computed), allocate_calls, create_calls and map_calls (cuMemAlloc and its kin,
 * cuMemCreate, cuMemMap that succeeded),
 * illegal_accesses, races (memory unmapped or released under work that still used it), live_handles
 * and live_reservations (VMM objects the program has not released), processor_us (of the process,
 * user and system), disk_bytes (that the process waited for, through system calls or mappings).
 *
 * Memory. cuMemAlloc of a granule and more takes whole granules; smaller ones share granules,
 * aligned to 512 bytes. A device address is also a valid address of the process, so host-function
 * kernels dereference it. A wanted address of cuMemAddressReserve, rounded up to 32 MiB, is
 * honoured when it is free (not in builds with ThreadSanitizer), unless the reservation fits into
 * what is left of an area of 32 MiB that the driver has (space.c). Handles are mapped whole, and
 * what is unmapped may have holes, as on the H200 that was measured; that one looks neither whether
 * a handle is one, nor where in an area of 32 MiB a reservation ends, and this one does. A wanted
 * address that is taken is the next one that is free. A copy or fill of device memory that is
 * unmapped or has no access, also between its rows, is refused with CUDA_ERROR_INVALID_VALUE, and
 * nothing of it is done; where the address may be the host's (cuMemcpy), it is taken for that, and
 * the process ends. A kernel that touches such memory, or queued work whose memory went meanwhile,
 * is an illegal access: one line on stderr, and CUDA_ERROR_ILLEGAL_ADDRESS from all later calls.
 * Write-combined host memory has another address for the device. The host reaches all device
 * memory, so giving it access to a mapping changes nothing.
 *
 * Order. The legacy default stream, per-thread default streams and non-blocking streams order
 * themselves as documented. cuMemFree and cuMemFreeHost wait for the device; cuMemUnmap does not
 * (PyTorch, ExpandableSegment::unmapHandles: "MemUnmap and MemRelease do not appear to synchronize
 * in all cases"): unmapping under queued work is a race, reported and counted. Copies from pageable
 * memory read it before the call returns (but SIMCUDA_LATE), copies from pinned memory when the
 * stream gets there.
 * Copies to pageable memory are synchronous. Driver calls from host functions give
 * CUDA_ERROR_NOT_PERMITTED.
 *
 * Capture. All modes, with streams that join through events; calls that may synchronise, and the
 * legacy stream next to a blocking stream, fail and invalidate. The graph is there, and grows,
 * while the capture goes on. A stream-ordered allocation or free in a capture is a memory node.
 * Captured work of several streams is one chain, and so is what cuStreamGetCaptureInfo says of
 * dependencies.
 *
 * Graphs. Memory of memory nodes is there from the first launch to the end of the graph and its
 * executable, so what graphs use is what they reserve, and it can be reached after its free node.
 * The value of a conditional node is set by default or by simcuda_set_conditional (hook.h); nodes
 * inside its graphs cannot be changed once it is executable. Graphs with either cannot be cloned.
 * User objects are held by the program, graphs, executables and launches; a thread of its own runs
 * the function that destroys one.
 *
 * Descriptions. Textures, surfaces, core dumps and advice for managed memory are kept and given
 * back, without an effect.
 * Multiprocessors are split in groups of two, but a green context has all of its device.
 *
 * Across processes. POSIX file descriptors of cuMemExportToShareableHandle and the handles of
 * cuIpcGetMemHandle work between processes of the simulator; the latter while the exporter lives,
 * as what is exported of pools.
 * Memory that was exported is not given back to the system before its process ends. Events of
 * cuIpcGetEventHandle are recorded and waited for by any process that has them.
 *
 * Other APIs. External memory is what a file descriptor that can be mapped stands for. An external
 * semaphore is an eventfd (opaque), or a memory file that begins with the number (timeline).
 * Graphics resources are buffers of the stand-in in gl.h; images are not supported. Memory is bound
 * to multicast objects and unbound; an object is neither mapped nor shared, and stored to by hook.h
 * alone.
 */
#pragma once

#include <cuda.h>
#include <stddef.h>

/* --- kernels: how to write them is told there */
#include "tools/simcuda/driver/kernel.h"
/* --- end of kernels */
