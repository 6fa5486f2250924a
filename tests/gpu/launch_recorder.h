/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launch recorder: a preload library, for measurements only. It sees the kernel launches of a
 * program that resolves the driver the way the CUDA runtime does, one dlsym of cuGetProcAddress_v2
 * and everything else through its answers; a program that links libcuda directly is not seen. It
 * also receives the reports of PyTorch's caching allocator about its blocks.
 *
 * The functions below are for the same process (ctypes.CDLL of the preloaded file). Recording is
 * off until recorder_record(1). A launch is recorded before it is made; the parameter layout is
 * asked for at that moment, so for a kernel that is not loaded yet the answer is that of an
 * unloaded kernel.
 */
#pragma once

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDER_EXPORT __attribute__((visibility("default")))

RECORDER_EXPORT void recorder_record(int on);
RECORDER_EXPORT int recorder_count(void);
RECORDER_EXPORT void recorder_clear(void);

/* One launch, by its number. */
enum { RECORDER_NAME_BYTES = 2048, RECORDER_PARAMETERS_MAX = 128, RECORDER_ATTRIBUTES_MAX = 16 };
struct recorder_launch {
    const char *entry, *name_from, *layout_from;
    char name[RECORDER_NAME_BYTES];
    int32_t packed_by_caller; /* `extra` was used */
    int32_t loaded_before;    /* CUfunctionLoadingState, or -1 */
    int32_t layout_end;       /* the answer after the last parameter */
    int32_t parameter_count;
    int64_t thread, layout_ns;
    size_t packed_bytes, offsets[RECORDER_PARAMETERS_MAX], sizes[RECORDER_PARAMETERS_MAX];
    unsigned char *packed; /* at the offsets that the layout gives */
    CUfunction function;
    CUlaunchConfig config;
    CUlaunchAttribute attributes[RECORDER_ATTRIBUTES_MAX];
};
RECORDER_EXPORT const struct recorder_launch *recorder_launch(int number);

/* Reports of the allocator, from the start of the process. */
struct recorder_block {
    uint64_t address;
    int64_t bytes; /* negative when the block was taken back */
    uint64_t allocated_bytes, reserved_bytes;
    int32_t device_type, device_index;
    int64_t thread;
};
RECORDER_EXPORT const struct recorder_block *recorder_blocks(int *count_out);

/* How many lookups came in by "dlsym" or "resolver": was the recorder in the way at all? */
RECORDER_EXPORT int recorder_lookups(const char *way);
