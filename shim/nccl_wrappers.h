/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL: its functions are exported under their own names, so that programs find ours first, and go on to the
 * library that the caller would have found. Nothing is loaded for that, and without NCCL in the process
 * nothing happens.
 *
 * NCCL calls its own functions through the PLT and so comes back here; a call made inside of one of
 * its calls, or by its code, goes straight on (nccl tag v2.28.9-1, src/include/core.h, NCCL_API).
 */
#ifndef METASHARD_SHIM_NCCL_WRAPPERS_H
#define METASHARD_SHIM_NCCL_WRAPPERS_H

#include <stdbool.h>

/* The thread is inside a call of NCCL, or the address is of NCCL's code: what it does with the driver there is
 * none of the program's, and its launches touch only what was prepared. */
bool ms_nccl_is_inside(const void *return_address);

/* The thread is inside a call of NCCL that was prepared. */
bool ms_nccl_is_calling(void);

/* What dlsym answers for a name that begins with "nccl": our wrapper, or `found`, the real one. */
void *ms_nccl_substitute(void *found, const char *name);

/* A program defers memory: says so when its NCCL cannot be hooked, because it is linked into PyTorch. */
void ms_nccl_prepare_detection(void);

#endif
