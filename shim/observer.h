/* SPDX-License-Identifier: Apache-2.0 */
/* The block observer: PyTorch's caching allocator reports its blocks (observer.c). */
#pragma once

/* An allocation was deferred. Warns, after some of them, if PyTorch reports no blocks. */
void ms_observer_prepare(void);
