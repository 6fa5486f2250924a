/* SPDX-License-Identifier: Apache-2.0 */
/* A program under the library of saver.h, without the shim, before it and behind it. */
#include "tests/driver/differential/saver.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "tests/driver/differential/mappings.h"

static saver_keep_function *keep;
static saver_pause_function *pause_all;
static saver_resume_function *resume_all;
static saver_count_function *count_calls;

static void start_saved(void)
{
    start();
    keep = (saver_keep_function *)dlsym(RTLD_DEFAULT, "saver_keep");
    pause_all = (saver_pause_function *)dlsym(RTLD_DEFAULT, "saver_pause");
    resume_all = (saver_resume_function *)dlsym(RTLD_DEFAULT, "saver_resume");
    count_calls = (saver_count_function *)dlsym(RTLD_DEFAULT, "saver_count");
    CHECK(keep != NULL && pause_all != NULL && resume_all != NULL && count_calls != NULL);
}

static CUdeviceptr allocate(size_t bytes, int keeps)
{
    void *pointer;
    keep(keeps);
    CHECK_EQ(cudaMalloc(&pointer, bytes), cudaSuccess);
    return (CUdeviceptr)(uintptr_t)pointer;
}

static void free_all(CUdeviceptr first, CUdeviceptr second)
{
    CHECK_EQ(cudaFree((void *)(uintptr_t)first), cudaSuccess);
    CHECK_EQ(cudaFree((void *)(uintptr_t)second), cudaSuccess);
}

MS_TEST(memory_of_the_runtime_is_paused_and_resumed)
{
    start_saved();
    const CUfunction add = kernel("add_in_place32");
    const size_t before = free_bytes();
    const CUdeviceptr kept = allocate(16 * MIB, 1), lost = allocate(16 * MIB, 0);
    check_deferred(kept);
    put_words(kept, 16 * MIB, 1);
    OK(cuMemsetD32(lost, 2, 4 * MIB));
    check_deferred(kept + 8 * MIB);
    for (uint32_t i = 0; i < 3; i++) {
        OK(try_add(add, kept, 16 * MIB, 1, NULL));
        OK(cuCtxSynchronize());
        CHECK_EQ(before - free_bytes(), 32 * MIB);
        pause_all();
        CHECK_EQ(free_bytes(), before);
        CHECK(!is_in_memory(kept) && !is_in_memory(lost));
        resume_all();
        check_words(kept, 16 * MIB, 2 + i);
        check_deferred(lost + 8 * MIB);
        OK(cuMemsetD32(lost, 3 + i, 4 * MIB));
        check_same(lost, MIB, 3 + i);
    }
    free_all(kept, lost);
    CHECK_EQ(free_bytes(), before);
}

/* A library before the shim sees the calls; a library behind the shim does not. */
MS_TEST(calls_go_through_both_in_their_order)
{
    start_saved();
    const char *preload = getenv("LD_PRELOAD");
    const char *saver = strstr(preload, "saver"), *shim = strstr(preload, "libmetashard");
    free_all(allocate(4 * MIB, 0), allocate(4 * MIB, 0));
    CHECK_EQ(count_calls(), shim != NULL && shim < saver ? 0 : 8);
}
