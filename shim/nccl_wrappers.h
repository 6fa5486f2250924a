/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim exports wrappers under the names of NCCL's functions. Programs find the wrappers first,
 * which go on to the library that the caller would have found. The wrappers load nothing; without
 * NCCL in the process nothing happens.
 *
 * NCCL calls its own functions through the PLT, and so arrives here again. A call from inside an
 * NCCL call, or from NCCL's code, goes straight on (nccl tag v2.28.9-1, src/include/core.h,
 * NCCL_API).
 */
#pragma once

#include <stdbool.h>

/* True if the thread is inside a call of NCCL, or the address is in NCCL's code. Such driver calls
 * are not the program's, and such launches touch only prepared buffers. */
bool ms_nccl_is_inside(const void *return_address);

/* True if the thread is inside a prepared call of NCCL. */
bool ms_nccl_is_calling(void);

/* dlsym's answer for a name that begins with "nccl": the wrapper, or `found`, the real function. */
void *ms_nccl_substitute(void *found, const char *name);

/* Called once the program defers memory. Warns if NCCL is linked into PyTorch, and so not
 * hooked. */
void ms_nccl_prepare_detection(void);
