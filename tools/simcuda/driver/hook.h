/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports of the simulated driver for other stand-ins (nccl/), beside the functions of a driver:
 * work of their own kind in streams, and the meaning of addresses while it runs. A program under
 * test uses only the gate. A stand-in finds these names with dlsym in the libcuda.so.1 that the
 * process has.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct simcuda_range {
    CUdeviceptr begin;
    size_t bytes;
};

/*
 * run() is called on the stream's thread, in the stream's order, with no lock held; it calls no
 * driver function. On a capturing stream the work becomes a node of the graph: run() is then called
 * at every replay. destroy() is called once when the work is not needed any more, also without a
 * run() before: after a sticky error, or when simcuda_submit fails.
 */
struct simcuda_work {
    const char *name;
    void (*run)(void *data);
    void (*destroy)(void *data);
    void *data;
    const struct simcuda_range *touches; /* copied; unmapping these meanwhile is a race */
    size_t touches_count;
};
typedef CUresult simcuda_submit_function(CUstream stream, const struct simcuda_work *work);
simcuda_submit_function simcuda_submit;

/* May running work read (write) these bytes, by the mappings and access rights of this moment? */
typedef bool simcuda_can_touch_function(CUdeviceptr address, size_t bytes, bool write);
simcuda_can_touch_function simcuda_can_touch;
/* An illegal access by `what`: counted, reported, and sticky for the process. */
typedef void simcuda_fault_function(CUdeviceptr address, size_t bytes, const char *what);
simcuda_fault_function simcuda_fault;
/* Work that waits for something outside has to give up: sticky error, or the process ends. */
typedef bool simcuda_is_over_function(void);
simcuda_is_over_function simcuda_is_over;

/*
 * The mapping or allocation at an address: where it begins and ends, and a number that stands for
 * the physical memory behind it and is never used for other memory. False: there is none.
 */
struct simcuda_piece {
    CUdeviceptr begin;
    size_t bytes;
    uint64_t identity;
};
typedef bool simcuda_find_piece_function(CUdeviceptr address, struct simcuda_piece *piece_out);
simcuda_find_piece_function simcuda_find_piece;

/*
 * A gate before a driver function: its nth call from now on (from 1), whoever makes it, stops
 * before it does anything, until the gate is open. There is one gate. False: no such function.
 * simcuda_gate_wait tells whether a thread stands there, after waiting for one. A thread that
 * stands there can be cancelled.
 */
typedef bool simcuda_gate_close_function(const char *function, unsigned nth);
simcuda_gate_close_function simcuda_gate_close;
typedef bool simcuda_gate_wait_function(unsigned ms);
simcuda_gate_wait_function simcuda_gate_wait;
typedef void simcuda_gate_open_function(void);
simcuda_gate_open_function simcuda_gate_open;

/* Writes the file of SIMCUDA_STATS now, for a process that ends by _exit. */
typedef void simcuda_write_statistics_function(void);
simcuda_write_statistics_function simcuda_write_statistics;

/* Bytes that the device was sent since the process began, and the most device memory that there
 * was since the last call, of all devices. */
struct simcuda_counts {
    uint64_t h2d_bytes, physical_bytes_peak;
};
typedef void simcuda_take_counts_function(struct simcuda_counts *counts_out);
simcuda_take_counts_function simcuda_take_counts;

/* Stands for a kernel's call of cudaGraphSetConditional. */
typedef void simcuda_set_conditional_function(CUgraphConditionalHandle handle, unsigned value);
simcuda_set_conditional_function simcuda_set_conditional;

/*
 * Stands for a kernel's store through a switch: writes the bytes to the memory that each device of
 * the team has bound at [begin, begin + count) of a multicast object. CUDA_ERROR_ILLEGAL_ADDRESS: a
 * device has bound none there.
 */
typedef CUresult simcuda_multicast_store_function(CUmemGenericAllocationHandle object, size_t begin,
                                                  const void *bytes, size_t count);
simcuda_multicast_store_function simcuda_multicast_store;
