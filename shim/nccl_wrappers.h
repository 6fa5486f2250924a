/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL: the shim exports its functions under their own names. Programs find the wrappers first,
 * which go on to the library that the caller would have found. That loads nothing; without NCCL in
 * the process nothing happens.
 *
 * NCCL calls its own functions through the PLT and so arrives here again. A call made inside one of
 * its calls, or by its code, goes straight on (nccl tag v2.28.9-1, src/include/core.h, NCCL_API).
 */
#pragma once

#include <stdbool.h>

/* True if the thread is inside a call of NCCL, or the address is in NCCL's code. Driver calls from
 * there are not the program's, and launches from there touch only what was prepared. */
bool ms_nccl_is_inside(const void *return_address);

/* True if the thread is inside a prepared call of NCCL. */
bool ms_nccl_is_calling(void);

/* dlsym's answer for a name that begins with "nccl": the wrapper, or `found`, the real function. */
void *ms_nccl_substitute(void *found, const char *name);

/* A program defers memory. Warns if its NCCL cannot be hooked, because PyTorch links it in. */
void ms_nccl_prepare_detection(void);
