/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe: measures on a real driver the facts the design stands on, and prints them as JSON.
 * README.md says which question each section answers. No CUDA library is linked, so the same
 * program runs on any driver, on the simulated one too.
 *
 * Every section runs in a child process that is forked before CUDA is initialised: a sticky error,
 * a crash or a hang of one section leaves the others alone. Inside a section, each row of its table
 * does the same for errors that do not poison the process: {"error": "..."} stands in its place.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define TIB ((size_t)1 << 40)
#define GRANULE (2 * MIB)

#define ARRAY_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#if CUDA_VERSION < 12050
CUresult CUDAAPI cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent);
#endif

/* The driver functions in use, by binary name. One that the driver lacks is NULL. */
#define PROBE_DRIVER(X)                                                                           \
    X(cuInit), X(cuDriverGetVersion), X(cuGetErrorName), X(cuGetProcAddress_v2),                  \
        X(cuDeviceGetCount), X(cuDeviceGet), X(cuDeviceGetName), X(cuDeviceTotalMem_v2),          \
        X(cuDeviceGetAttribute), X(cuDevicePrimaryCtxRetain), X(cuCtxSetCurrent),                 \
        X(cuCtxSynchronize), X(cuCtxRecordEvent), X(cuMemGetInfo_v2), X(cuMemAlloc_v2),           \
        X(cuMemFree_v2), X(cuMemAllocAsync), X(cuMemFreeAsync), X(cuMemAllocFromPoolAsync),       \
        X(cuMemPoolCreate), X(cuMemPoolDestroy), X(cuMemPoolTrimTo), X(cuMemPoolGetAttribute),    \
        X(cuMemPoolSetAttribute), X(cuDeviceGetDefaultMemPool), X(cuMemAllocManaged),             \
        X(cuMemHostAlloc), X(cuMemFreeHost), X(cuMemHostRegister_v2), X(cuMemHostUnregister),     \
        X(cuMemGetAddressRange_v2), X(cuMemGetAllocationGranularity), X(cuMemAddressReserve),     \
        X(cuMemAddressFree), X(cuMemCreate), X(cuMemRelease), X(cuMemMap), X(cuMemUnmap),         \
        X(cuMemSetAccess), X(cuMemGetAccess), X(cuMemRetainAllocationHandle),                     \
        X(cuMemExportToShareableHandle), X(cuMemGetHandleForAddressRange), X(cuIpcGetMemHandle),  \
        X(cuPointerGetAttribute), X(cuPointerGetAttributes), X(cuPointerSetAttribute),            \
        X(cuMemcpy), X(cuMemcpyAsync), X(cuMemcpyHtoD_v2), X(cuMemcpyHtoDAsync_v2),               \
        X(cuMemcpyDtoH_v2), X(cuMemcpyDtoHAsync_v2), X(cuMemcpyDtoD_v2), X(cuMemcpyDtoDAsync_v2), \
        X(cuMemcpy2D_v2), X(cuMemcpy2DAsync_v2), X(cuMemsetD8_v2), X(cuMemsetD8Async),            \
        X(cuMemsetD32_v2), X(cuMemsetD2D8_v2), X(cuMemAdvise_v2), X(cuMemPrefetchAsync_v2),       \
        X(cuStreamCreate), X(cuStreamDestroy_v2), X(cuStreamQuery), X(cuStreamSynchronize),       \
        X(cuStreamWaitEvent), X(cuStreamBeginCapture_v2), X(cuStreamEndCapture),                  \
        X(cuStreamIsCapturing), X(cuThreadExchangeStreamCaptureMode), X(cuGraphDestroy),          \
        X(cuEventCreate), X(cuEventRecord), X(cuEventQuery), X(cuEventSynchronize),               \
        X(cuEventDestroy_v2), X(cuLaunchHostFunc), X(cuLaunchKernel), X(cuModuleLoad),            \
        X(cuModuleLoadData), X(cuModuleUnload), X(cuModuleGetFunction), X(cuFuncGetParamInfo),    \
        X(cuFuncGetName), X(cuFuncIsLoaded)

#define PROBE_PLACE(name) PLACE_OF_##name
enum { PROBE_DRIVER(PROBE_PLACE), PLACE_COUNT };
extern void *probe_library, *probe_functions[PLACE_COUNT];

/* Calls one; CUDA_ERROR_NOT_FOUND when the driver lacks it. */
#define CU(name, ...)                           \
    (probe_functions[PROBE_PLACE(name)] == NULL \
         ? CUDA_ERROR_NOT_FOUND                 \
         : ((__typeof__(&name))probe_functions[PROBE_PLACE(name)])(__VA_ARGS__))
/* The same, and anything but success ends the step. */
#define TRY(name, ...) probe_require(#name, CU(name, __VA_ARGS__))

/*
 * JSON output (probe_json.c). One value is open at a time; key is NULL inside a list. Each value is
 * written at once, so nothing is printed while something is timed; where the output stands is
 * shared with children.
 */
void js_begin(int descriptor);
void js_end(void);
int js_depth(void);
void js_close_to(int depth);
void js_open(const char *key);
void js_open_list(const char *key);
void js_close(void);
void js_int(const char *key, long long value);
void js_number(const char *key, double value);
void js_us(const char *key, int64_t ns);
void js_bool(const char *key, bool value);
void js_string(const char *key, const char *value);
void js_format(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
void js_address(const char *key, uint64_t value);
void js_result(const char *key, CUresult result); /* its name, as "CUDA_ERROR_INVALID_VALUE" */

/*
 * A section is a table of questions, up to one without a body. Each is an object under its key, in
 * which a failure ends only that object; without a key it writes into the section itself. Bodies
 * share a type, so many have no use for their argument.
 */
typedef void probe_body(size_t argument);
enum { ALONE_SECONDS = 15 };
struct probe_row {
    const char *key;
    probe_body *body;
    size_t argument;
    /* After cuInit and in a context; before; in a process of its own; or only in a whole run. */
    enum { STARTED, LOADED, ALONE, NOT_QUICK } when;
};
probe_body probe_section; /* of rows, in a process that has not started CUDA */
_Noreturn void probe_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void probe_require(const char *what, CUresult result);

/*
 * Children (probe_child.c). body() writes the fields of one object from a process of its own. When
 * the child crashes or outlives the limit, "error" is one more of them.
 */
enum { PROBE_SAID = 99 }; /* the exit status of a child that came to its end */
void probe_child(const char *key, int limit_seconds, probe_body *body, size_t argument);

/* Driver and device (probe_driver.c). */
bool probe_driver_load(char *error, size_t capacity);
void probe_driver_load_or_fail(void);
void probe_driver_start(void); /* load, cuInit, primary context of device 0; fails the step */
extern CUdevice probe_device;
extern CUcontext probe_context;
extern int64_t probe_start_ns;        /* how long the start took */
extern bool probe_quick;              /* fewer and smaller, for a host that plays a device */
extern const char *probe_kernel_file; /* a module with the probe's kernels; NULL: embedded PTX */

probe_body probe_wait; /* that nothing is wrong at the end */
int64_t probe_clock_ns(void);
int64_t probe_free_bytes(void);

/* In one line each; all fail the step on an error but those that give a result. */
CUmemLocation probe_location(void);
CUmemAllocationProp probe_property(void);
CUdeviceptr probe_reserve(size_t bytes);
CUmemGenericAllocationHandle probe_create(size_t bytes);
void probe_map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle);
CUresult probe_set_access_to(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags);
CUresult probe_set_access(CUdeviceptr address, size_t bytes); /* to read and to write */
void probe_give_access(CUdeviceptr address, size_t bytes);    /* the same, or fails the step */
CUdeviceptr probe_mapped(size_t bytes); /* reserve, create, map, set access, release */
CUdeviceptr probe_alloc(size_t bytes);
CUstream probe_stream(unsigned flags);
void *probe_pinned(size_t bytes);
void *probe_malloc(size_t bytes); /* at a page */

/* Samples of one operation, in nanoseconds; printed in microseconds. */
struct samples {
    int count;
    int64_t ns[4096];
};
void samples_add(struct samples *samples, int64_t ns);
void samples_print(struct samples *samples, const char *key);
/* Makes the call and adds the time that it took; anything but success ends the step. */
#define TIMED(samples, name, ...)                                \
    do {                                                         \
        const int64_t timed_start_ns = probe_clock_ns();         \
        const CUresult timed_result = CU(name, __VA_ARGS__);     \
        samples_add(samples, probe_clock_ns() - timed_start_ns); \
        probe_require(#name, timed_result);                      \
    } while (0)

/*
 * Work that keeps a stream busy for about `milliseconds` (probe_kernel.c): a spinning kernel when
 * the driver can compile the embedded PTX, else a host function. busy_kernel_available says which.
 */
enum busy_kind { BUSY_KERNEL, BUSY_HOST_FUNCTION };
bool busy_kernel_available(void);
enum busy_kind busy_best(void);
probe_body busy_print;
void busy_start(CUstream stream, enum busy_kind kind, int milliseconds);

/* The probe's own kernels, by name; fails the step when they cannot be loaded. */
CUfunction probe_kernel(const char *name);
CUresult probe_kernel_store(CUdeviceptr address, uint32_t value,
                            CUstream stream); /* one thread writes one word */

extern const struct probe_row section_device[], section_shim[], section_accounting[],
    section_reserve[], section_fresh_memory[], section_resolver[], section_cost[],
    section_mappings[], section_pools[], section_busy[], section_alias[], section_attributes[],
    section_unmapped[], section_order[], section_pageable[], section_capture[], section_edges[],
    section_access_flags[], section_past_end[], section_parameters[];
