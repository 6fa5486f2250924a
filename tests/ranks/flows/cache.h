/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory as PyTorch's caching allocator takes it from the driver
 * (c10/cuda/CUDACachingAllocator.cpp): tensors lie in segments, small ones together, and what is
 * freed is given out again, the best fit first, but never back to the driver. Each that is handed
 * out or taken back is reported as that does, if somebody listens. All sizes are multiples of the
 * driver's granule, 2 MiB there: a segment of one granule for tensors of half of it, one of ten for
 * those of less than five, and of whole granules for all others. The program has one stream.
 *
 * Not thread-safe.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* granule: the driver's, or less for smaller models; reports: as PyTorch's allocator, or like
 * another's. */
void cache_start(size_t granule, bool reports);
/* False: the driver's memory is out, or the program's. */
bool cache_allocate(size_t bytes, CUdeviceptr *address_out);
/* An address from cache_allocate; returns how many bytes it has. */
size_t cache_free(CUdeviceptr address);
/* All segments go back to the driver, also those in use. */
void cache_release(void);
