/* SPDX-License-Identifier: Apache-2.0 */
/* Memory operations of streams and of graph nodes. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

/* *bounded_out: a copy, for ms_heap_free, of the operations, with MS_NOWHERE for addresses that
 * stray (ms_pointer_strays); NULL if none does. */
CUresult ms_memory_values_bound(const CUstreamBatchMemOpParams *operations, unsigned count,
                                CUstreamBatchMemOpParams **bounded_out);
