/* SPDX-License-Identifier: Apache-2.0 */
/* Memory operations of streams and of graph nodes. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

/* If an address strays (ms_pointer_strays), *bounded_out is a copy of the operations with
 * MS_NOWHERE for such addresses, which the caller frees with ms_heap_free; otherwise NULL. */
CUresult ms_memory_values_bound(const CUstreamBatchMemOpParams *operations, unsigned count,
                                CUstreamBatchMemOpParams **bounded_out);
