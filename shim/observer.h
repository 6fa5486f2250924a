/* SPDX-License-Identifier: Apache-2.0 */
/* The block observer: PyTorch's caching allocator reports its blocks (observer.c). */
#pragma once

#include <stdbool.h>

/* Called for each deferred allocation. Warns, after some of them, if PyTorch reports no blocks.
 * Does not warn about memory pools (is_pooled), where each allocation is a block. */
void ms_observer_prepare(bool is_pooled);
