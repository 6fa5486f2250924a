/* SPDX-License-Identifier: Apache-2.0 */
/* The block observer: PyTorch's caching allocator reports its blocks (observer.c). */
#pragma once

#include <stdbool.h>

/* Called for each deferred allocation. Warns, after some, if PyTorch reports no blocks; not for
 * memory of a pool (is_pooled), where an allocation is a block. */
void ms_observer_prepare(bool is_pooled);
