/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much more host memory this process may take. Large pieces are asked for here first, because
 * the kernel kills a process if it finds no memory for a page at the first write.
 *
 * The bounds of memory are what the machine has available, and the limits of the process's cgroup
 * and of all groups above it (v1 and v2), less what the groups use. File pages that nobody uses do
 * not count as used: the kernel takes them before it kills. Swap does not count as memory. The
 * bounds of addresses are the limits of the process (setrlimit(2)), beyond which mmap(2) fails.
 * RLIMIT_MEMLOCK bounds nothing: MetaShard locks no memory, and the driver does not ask for that
 * limit when it pins pages (os_lock_user_pages of NVIDIA's open kernel modules).
 */
#pragma once

#include <stdint.h>

struct ms_headroom {
    uint64_t bytes;    /* UINT64_MAX: nothing bounds it */
    const char *bound; /* for messages: what sets the bound */
};

enum ms_headroom_kind {
    MS_HEADROOM_MEMORY,
    MS_HEADROOM_ADDRESSES,
    MS_HEADROOM_PRIVATE, /* addresses of memory that is written and belongs to no file */
};
struct ms_headroom ms_headroom_find(enum ms_headroom_kind kind);

/* An eighth is left for the program. */
static inline uint64_t ms_headroom_share(uint64_t bytes)
{
    return bytes - bytes / 8;
}

/* Finds the headroom of memory by /proc and the cgroups below the folder `root`. */
struct ms_headroom ms_headroom_memory_under(const char *root);
