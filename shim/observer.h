/* SPDX-License-Identifier: Apache-2.0 */
/* The block observer: PyTorch's caching allocator reports its blocks (observer.c). */
#pragma once

#include <stdbool.h>

/* An allocation was deferred. Warns, after some of them, if PyTorch reports no blocks; not of what
 * comes from a pool, where an allocation is a block. */
void ms_observer_prepare(bool is_pooled);
