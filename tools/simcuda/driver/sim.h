/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the simulated driver: what its files promise each other. simcuda.h is what users of the
 * simulator see.
 *
 * Files. base.c: what all the others need. core.c: start, settings, faults, call log;
 * statistics.c. errors.c, device.c. current.c, context.c and context_query.c. stream.c: queues,
 * workers, ordering; stream_calls.c: their entry points. event.c, event_shared.c, callback.c (host
 * functions), memop.c (waiting for values), capture.c and capture_graph.c. table.c: tables by
 * address. space.c: addresses and physical memory. memory.c: cuMemAlloc; pool.c, vmm.c, host.c,
 * managed.c, array.c, texture.c, ipc.c, multicast.c. coredump.c. external.c, semaphore.c, gl.c:
 * other APIs. query.c: what is said of pointers. copy.c: every copy; copy_flat.c, copy_shapes.c,
 * copy_batch.c: their entry points. memset.c. state.h is what these share. lookup.c: exports and
 * cuGetProcAddress; stubs.c: what is not simulated. module.c, image.c, function.c, launch.c,
 * launch_legacy.c: kernels. graph*.c: graphs. hook.c: for other stand-ins.
 *
 * One lock, sim_lock, guards all state; it is never held while a kernel, a host function or a copy
 * runs. Functions named _locked want it held.
 */
#pragma once

/* cuda.h then renames nothing and declares every export, old, new and per-thread, by its name. */
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
/* ... and gives them default visibility, whatever the compiler is told for the rest. */
#ifndef __CUDA_API_PUSH_VISIBILITY_DEFAULT
#define __CUDA_API_PUSH_VISIBILITY_DEFAULT
#endif
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One id for every export, from the list of functions. */
enum sim_entry {
#define SIM_FUNCTION(symbol, base, version, per_thread) SIM_ENTRY_##symbol,
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
    SIM_ENTRY_COUNT
};

extern const char *const sim_entry_names[SIM_ENTRY_COUNT]; /* base.c */

/*
 * The version that cuDriverGetVersion gives: that of SIMCUDA_PROFILE, else 13000, or the version of
 * the library in profile12/, profile12.4/ or profile13.5/. cuGetProcAddress finds no newer entries
 * (lookup.c).
 */
int sim_driver_version(void);

/*
 * First line of every entry point: writes the call log, injects SIMCUDA_FAULTS, refuses calls
 * before cuInit, in a forked child, and after a sticky error. Anything but CUDA_SUCCESS is to be
 * returned at once. sim_enter_early is for the few calls that work before cuInit and after errors.
 */
CUresult sim_enter(enum sim_entry entry);
CUresult sim_enter_early(enum sim_entry entry);
/* The same, with words that the call log shows after the name of the call. */
CUresult sim_enter_early_noted(enum sim_entry entry, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define SIM_ENTER(symbol)                                             \
    do {                                                              \
        const CUresult enter_result_ = sim_enter(SIM_ENTRY_##symbol); \
        if (enter_result_ != CUDA_SUCCESS)                            \
            return enter_result_;                                     \
    } while (0)

/* A function, and its twin with the other default stream (_ptsz, _ptds), for which per_thread is
 * true in what it returns. */
#define SIM_TWINS(symbol, suffix, parameters, ...)   \
    SIM_TWIN(symbol, false, parameters, __VA_ARGS__) \
    SIM_TWIN(symbol##suffix, true, parameters, __VA_ARGS__)
#define SIM_TWIN(symbol, is_per_thread, parameters, ...) \
    CUresult symbol parameters                           \
    {                                                    \
        enum { per_thread = is_per_thread };             \
        SIM_ENTER(symbol);                               \
        return __VA_ARGS__;                              \
    }

/* For queries that still answer after a sticky error. */
CUresult sim_enter_query(enum sim_entry entry);
#define SIM_ENTER_QUERY(symbol)                                             \
    do {                                                                    \
        const CUresult enter_result_ = sim_enter_query(SIM_ENTRY_##symbol); \
        if (enter_result_ != CUDA_SUCCESS)                                  \
            return enter_result_;                                           \
    } while (0)

/* Stops here while the gate before this function is closed (gate.c). */
void sim_gate_pass(enum sim_entry entry);

/* The hash of the settings that make a driver what it is, and of this library's file. A program
 * that keeps facts about a device must not believe them of another device. */
uint64_t sim_settings_hash(void);

extern pthread_mutex_t sim_lock;

/* Zeroed memory, or one line and abort(): running out of host memory is no result of a test. */
void *sim_zalloc(size_t bytes);
/* One line "simcuda: ..." on stderr. */
void sim_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The sticky error of the process, or CUDA_SUCCESS. */
CUresult sim_sticky_error(void);

/* Counters of the statistics file; guarded by sim_lock. */
struct sim_stats {
    uint64_t physical_bytes_now, physical_bytes_peak;
    uint64_t recent_bytes_peak; /* of simcuda_take_counts */
    uint64_t h2d_bytes, d2h_bytes, d2d_bytes, memset_bytes;
    uint64_t launches, allocate_calls, create_calls, map_calls, illegal_accesses, races;
    uint64_t empty_launches; /* of kernels that did nothing */
    uint64_t unknown_reads;  /* in a dry run, copies to the host */
};
extern struct sim_stats sim_stats;

/*
 * True when every byte of [address, address + bytes) may be touched by the device: backed and
 * accessible device memory, or host memory known to the driver. When false, the caller (work that
 * is running on a stream) calls sim_fault: counts an illegal access and makes
 * CUDA_ERROR_ILLEGAL_ADDRESS sticky for the process.
 */
bool sim_device_can_touch(CUdeviceptr address, size_t bytes);
void sim_fault(CUdeviceptr address, size_t bytes, const char *what);

/*
 * Streams. `stream` is the program's handle; per_thread says what 0 means (true in the _ptsz and
 * _ptds twins). A work item runs on the stream's worker, in order, with no lock held; the worker
 * then destroys it. sim_stream_submit owns the work from the call on, also when it fails: run()
 * frees nothing, because a captured item becomes a graph node that runs at every graph launch and
 * is destroyed with the graph (sim_stream_submit does that by itself on a capturing stream).
 * After an illegal access no more work runs, it is only destroyed; runs_after_error is for
 * callbacks, which the program must hear. Driver calls made from run() give
 * CUDA_ERROR_NOT_PERMITTED, as in a host function.
 * touches[] are the ranges the work will use: unmapping one while the work is queued is reported
 * as a program error.
 */
struct sim_range {
    CUdeviceptr begin;
    size_t bytes;
};
struct sim_work {
    void (*run)(struct sim_work *work);
    void (*destroy)(struct sim_work *work); /* NULL: free() */
    const char *name;
    struct sim_range touches[4];
    int touches_count;
    const struct sim_range *more_touches; /* the work's own, when four are too few */
    size_t more_touches_count;
    bool runs_after_error;
    /* for something that is not in a stream: never runs on the thread that queues it */
    bool may_wait;
    struct sim_work *next; /* for the owner; streams do not use it */
};
CUresult sim_stream_submit(CUstream stream, bool per_thread, struct sim_work *work);
/* Memory operations, checked (memop.c); to be freed. */
CUresult sim_memop_make(const CUstreamBatchMemOpParams *ops, unsigned count, unsigned flags,
                        struct sim_work **work_out);
CUresult sim_stream_wait(CUstream stream, bool per_thread); /* host waits for all work so far */

/* Is this stream capturing now? For calls that behave differently in a graph. */
bool sim_stream_is_capturing(CUstream stream, bool per_thread);
/*
 * For calls that are unsafe during stream capture (they may synchronise): CUDA_SUCCESS, or the
 * error to return, in which case the ongoing captures are invalidated.
 */
CUresult sim_capture_refuse_unsafe(void);

/*
 * cuMemAlloc for the simulator itself (module globals): device memory of the current context's
 * device, freed with sim_memory_release or together with the context.
 */
CUresult sim_memory_create(size_t bytes, CUdeviceptr *address_out);
/* Managed memory instead. */
CUresult sim_memory_create_managed(size_t bytes, CUdeviceptr *address_out);
void sim_memory_release(CUdeviceptr address);

/* A dry run; one that leaves large copies and fills out; and what the devices are: 10 * major +
 * minor (dry.c). */
bool sim_is_dry(void);
bool sim_leaves_out(void);
int sim_capability(void);

/* The current context's device ordinal, or an error as the driver gives it. */
CUresult sim_current_device(CUdevice *device_out);
