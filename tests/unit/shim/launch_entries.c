/* SPDX-License-Identifier: Apache-2.0 */
/* Launches and tensor maps: what the runtime is told, and when the driver is called. */
#include <string.h>

#include "runtime/calls/launch.h"
#include "runtime/calls/tensor_map.h"
#include "runtime/kernel/call.h"
#include "shim/nccl_wrappers.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/called_in_order.h"
#include "tests/unit/shim/real_side.h"

#define FUNCTION ((CUfunction)0x10)
#define STREAM ((CUstream)0x20)
static void *params[1], *extra[1];

extern __typeof__(cuLaunchKernel) ms_guarded_cuLaunchKernel;
extern __typeof__(cuLaunchKernel_ptsz) ms_guarded_cuLaunchKernel_ptsz;
extern __typeof__(cuLaunchCooperativeKernel) ms_guarded_cuLaunchCooperativeKernel;
extern __typeof__(cuLaunchCooperativeKernel_ptsz) ms_guarded_cuLaunchCooperativeKernel_ptsz;

/* --- what is called: a small letter for the runtime, a large one for the driver */

static struct ms_call seen;
static bool is_answered, is_in_nccl;
static CUresult prepared;

WRAPS(ms_launch, ms_tensor_map_access);
bool __wrap_ms_launch(const struct ms_call *call, CUresult *result_out)
{
    CHECK_EQ(ms_calls_inside, 1);
    note('l');
    seen = *call;
    *result_out = CUDA_ERROR_INVALID_VALUE;
    return is_answered;
}

bool ms_nccl_is_calling(void)
{
    return is_in_nccl;
}

CUresult __wrap_ms_tensor_map_access(CUdeviceptr address, CUtensorMapDataType type, uint32_t rank,
                                     const cuuint64_t *dims, const cuuint64_t *strides,
                                     CUtensorMapInterleave interleave)
{
    CHECK(address == 0x1000 && type == 0 && rank == 0 && dims == NULL && strides == NULL);
    CHECK(interleave == 0);
    note('t');
    return prepared;
}

static CUresult launched(CUfunction function, unsigned x, unsigned shared, CUstream stream)
{
    CHECK(function == FUNCTION && x == 1 && shared == 7);
    CHECK(stream == STREAM || stream == NULL); /* as the program gave it */
    note('L');
    return CUDA_SUCCESS;
}

#define GRID                                                                                    \
    CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
        unsigned shared, CUstream stream, void **p
#define CHECK_GRID CHECK(gy == 2 && gz == 3 && bx == 4 && by == 5 && bz == 6 && p == params)
REAL(cuLaunchKernel, (GRID, void **e), CHECK_GRID; CHECK(e == extra);
     return launched(f, gx, shared, stream))
REAL(cuLaunchKernel_ptsz, (GRID, void **e), CHECK_GRID; CHECK(e == extra);
     return launched(f, gx, shared, stream))
REAL(cuLaunchCooperativeKernel, (GRID), CHECK_GRID; return launched(f, gx, shared, stream))
REAL(cuLaunchCooperativeKernel_ptsz, (GRID), CHECK_GRID; return launched(f, gx, shared, stream))

static CUresult launched_ex(const CUlaunchConfig *config, CUfunction function)
{
    return config != NULL
               ? launched(function, config->gridDimX, config->sharedMemBytes, config->hStream)
               : (note('L'), CUDA_ERROR_INVALID_VALUE);
}
REAL(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction f, void **p, void **e),
     CHECK(p == params && e == extra);
     return launched_ex(config, f))
REAL(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction f, void **p, void **e),
     CHECK(p == params && e == extra);
     return launched_ex(config, f))
REAL(cuTensorMapReplaceAddress, (CUtensorMap * map, void *address),
     CHECK(map != NULL && address == (void *)0x1000);
     note('T'); return CUDA_SUCCESS)

static CUlaunchAttribute attributes[2];

static CUresult launch_by(int i, CUstream stream)
{
    const CUlaunchConfig config = {1, 2, 3, 4, 5, 6, 7, stream, attributes, 2};
    switch (i) {
    case 0:
        return ms_guarded_cuLaunchKernel(FUNCTION, 1, 2, 3, 4, 5, 6, 7, stream, params, extra);
    case 1:
        return ms_guarded_cuLaunchKernel_ptsz(FUNCTION, 1, 2, 3, 4, 5, 6, 7, stream, params, extra);
    case 2:
        return ms_guarded_cuLaunchCooperativeKernel(FUNCTION, 1, 2, 3, 4, 5, 6, 7, stream, params);
    case 3:
        return ms_guarded_cuLaunchCooperativeKernel_ptsz(FUNCTION, 1, 2, 3, 4, 5, 6, 7, stream,
                                                         params);
    case 4:
        return cuLaunchKernelEx(&config, FUNCTION, params, extra);
    default:
        return cuLaunchKernelEx_ptsz(&config, FUNCTION, params, extra);
    }
}

static void must_launch(CUstream stream, const char *calls)
{
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(launch_by(i, stream),
                 strchr(calls, 'L') ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ(ms_calls_inside, 0);
        must_have(calls);
        if (calls[0] != 'l')
            continue;
        CHECK(seen.function == FUNCTION && seen.shared_bytes == 7 && seen.params == params);
        for (unsigned k = 0; k < 3; k++)
            CHECK(seen.grid[k] == 1 + k && seen.block[k] == 4 + k);
        CHECK(seen.cooperative == (i / 2 == 1) && seen.extra == (i / 2 == 1 ? NULL : extra));
        CHECK(seen.attribute_count == (i / 2 == 2 ? 2 : 0));
        CHECK(seen.attributes == (i / 2 == 2 ? attributes : NULL));
        CHECK(seen.is_prepared == is_in_nccl);
        CHECK(seen.stream == (stream != NULL ? stream
                              : i % 2 == 0   ? CU_STREAM_LEGACY
                                             : CU_STREAM_PER_THREAD));
    }
}

static void start(void)
{
    own_something(true);
    atomic_store(&ms_hot.deferred, 1);
}

STORY_AFTER(start, a_launch_is_the_runtimes_to_answer, must_launch(STREAM, "lL"),
            must_launch(NULL, "lL"), is_in_nccl = true, must_launch(STREAM, "lL"),
            is_answered = true, must_launch(NULL, "l"))

STORY_AFTER(start, a_launch_is_the_drivers_where_nothing_is_deferred, is_answered = true,
            atomic_store(&ms_hot.deferred, MS_HOT_COUNTED), must_launch(STREAM, "L"),
            atomic_store(&ms_hot.deferred, 0), must_launch(STREAM, "L"),
            atomic_store(&ms_hot.gated, 0), must_launch(STREAM, "l"))

STORY_AFTER(start, a_launch_without_a_configuration_is_the_drivers_to_refuse,
            EQUALS(cuLaunchKernelEx(NULL, FUNCTION, params, extra), CUDA_ERROR_INVALID_VALUE),
            must_have("L"))

MS_TEST_AFTER(start, memory_of_a_tensor_map_comes_in_first)
{
    CUtensorMap map;
    CHECK_EQ(cuTensorMapReplaceAddress(&map, (void *)0x1000), CUDA_SUCCESS);
    must_have("tT");
    prepared = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(cuTensorMapReplaceAddress(&map, (void *)0x1000), CUDA_ERROR_OUT_OF_MEMORY);
    must_have("t");
    own_something(false);
    CHECK_EQ(cuTensorMapReplaceAddress(&map, (void *)0x1000), CUDA_SUCCESS);
    must_have("T");
}
