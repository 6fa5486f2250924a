/* SPDX-License-Identifier: Apache-2.0 */
/* Memory operations, of streams and of nodes of graphs. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

/* Copies the operations, with MS_NOWHERE for the addresses that stray (ms_pointer_strays), to be
 * freed by ms_heap_free; NULL if none does. */
CUresult ms_memory_values_bound(const CUstreamBatchMemOpParams *operations, unsigned count,
                                CUstreamBatchMemOpParams **bounded_out);
