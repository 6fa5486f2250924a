/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in the order of a stream, and its pools: what is the runtime's, and what the driver's. */
#include <string.h>

#include "runtime/calls/alloc.h"
#include "runtime/calls/host_memory.h"
#include "runtime/calls/pointer.h"
#include "runtime/calls/recurring.h"
#include "runtime/driver/pool.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/delayed_free.h"
#include "shim/init.h"
#include "shim/nccl_wrappers.h"
#include "shim/observer.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/called_in_order.h"
#include "tests/unit/shim/real_side.h"

enum { OURS = 0x1000, THEIRS = 0x3000, BYTES = 0x400 };
#define STREAM ((CUstream)0x10)
#define POOL ((CUmemoryPool)0x20)

/* --- what is called: a small letter for the runtime, a large one for the driver */

static bool is_ours, is_in_nccl, is_ready = true, wants_pooled = true, is_host, has_context = true;
static CUresult answer, real_answer, flags_answer, null_answer;
static CUmemoryPool pool; /* and stream: those that are expected */
static CUstream stream, served_stream;
static unsigned refusals; /* times that the driver is out of memory */

bool ms_ready_to_defer(void)
{
    note('y');
    return is_ready;
}

bool ms_nccl_is_inside(const void *return_address)
{
    CHECK(return_address != NULL);
    note('n');
    return is_in_nccl;
}

void ms_observer_prepare(bool is_pooled)
{
    CHECK(is_pooled);
    note('o');
}

WRAPS(ms_alloc_wants_pooled, ms_pool_use_kept, ms_alloc_in_stream, ms_alloc_free_in_stream);
WRAPS(ms_alloc_set_pool_access, ms_pointer_is, ms_pointer_is_owned, ms_host_memory_add_alias);
WRAPS(ms_host_memory_forget, ms_evict_try_again, ms_delayed_free_pass, ms_pool_add);
WRAPS(ms_pool_destroy, ms_pool_add_figures, ms_pool_reset_high, ms_pool_trim);
bool __wrap_ms_alloc_wants_pooled(void)
{
    return wants_pooled;
}

void __wrap_ms_pool_use_kept(CUmemoryPool handle, size_t bytes)
{
    CHECK(handle == pool && bytes == BYTES);
    note('k');
}

bool __wrap_ms_alloc_in_stream(size_t bytes, CUmemoryPool handle, CUstream in,
                               CUdeviceptr *address_out, CUresult *result_out)
{
    CHECK(bytes == BYTES && handle == pool && in == stream);
    note('a');
    *address_out = OURS;
    *result_out = answer;
    return is_ours;
}

bool __wrap_ms_alloc_free_in_stream(CUdeviceptr address, CUstream in, CUresult *result_out)
{
    CHECK(address == OURS && in == stream);
    note('f');
    *result_out = answer;
    return is_ours;
}

CUresult
__wrap_ms_alloc_set_pool_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count,
                                CUresult (*set)(CUmemoryPool, const CUmemAccessDesc *, size_t))
{
    note('a');
    return set(handle, map, count);
}

bool __wrap_ms_pointer_is(CUdeviceptr address, unsigned kinds)
{
    CHECK(address == THEIRS && kinds == (MS_PINNED | MS_MANAGED));
    return is_host;
}

bool __wrap_ms_pointer_is_owned(CUdeviceptr address)
{
    return address == OURS;
}

void __wrap_ms_host_memory_add_alias(uint64_t address, uint64_t host, size_t bytes)
{
    CHECK(address == THEIRS && host == THEIRS && bytes == BYTES);
    note('h');
}

void __wrap_ms_host_memory_forget(uint64_t address)
{
    CHECK(address == OURS || address == THEIRS);
    note('h');
}

bool __wrap_ms_evict_try_again(CUresult result, int *attempts)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && ++*attempts < 3;
}

void __wrap_ms_delayed_free_pass(bool is_patient)
{
    CHECK(!is_patient && ms_calls_inside == 1);
    note('d');
}

void __wrap_ms_pool_add(CUmemoryPool handle, CUdevice device)
{
    CHECK(handle == POOL && device == 3);
    note('p');
}

CUresult __wrap_ms_pool_destroy(CUmemoryPool handle, CUresult (*destroy)(CUmemoryPool))
{
    note('x');
    return destroy(handle);
}

void __wrap_ms_pool_add_figures(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t *value)
{
    CHECK(handle == POOL && attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    note('p');
    *value += 5;
}

void __wrap_ms_pool_reset_high(CUmemoryPool handle, CUmemPool_attribute attribute)
{
    CHECK(handle == POOL && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    note('p');
}

size_t __wrap_ms_pool_trim(CUmemoryPool handle, size_t keep)
{
    CHECK(handle == POOL && keep == 100);
    note('p');
    return 70;
}

/* --- the driver */

static CUresult serve(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream in)
{
    CHECK(bytes == BYTES && handle == pool && in == served_stream);
    note('A');
    if (refusals > 0 && refusals-- > 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (real_answer == CUDA_SUCCESS)
        *address = THEIRS;
    return real_answer;
}

static CUresult give_back(CUdeviceptr address, CUstream in)
{
    CHECK(in == served_stream);
    note(address != 0 ? 'F' : 'N');
    return address != 0 ? real_answer : null_answer;
}

static CUresult tell_flags(CUstream in, unsigned *flags_out)
{
    CHECK(in == served_stream);
    note('S');
    *flags_out = 0;
    return flags_answer;
}

REAL(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream in),
     return serve(address, bytes, NULL, in))
REAL(cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUstream in),
     return serve(address, bytes, NULL, in))
REAL(cuMemAllocFromPoolAsync,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool handle, CUstream in),
     return serve(address, bytes, handle, in))
REAL(cuMemAllocFromPoolAsync_ptsz,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool handle, CUstream in),
     return serve(address, bytes, handle, in))
REAL(cuMemFreeAsync, (CUdeviceptr address, CUstream in), return give_back(address, in))
REAL(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream in), return give_back(address, in))
REAL(cuStreamGetFlags, (CUstream in, unsigned *flags), return tell_flags(in, flags))
REAL(cuStreamGetFlags_ptsz, (CUstream in, unsigned *flags), return tell_flags(in, flags))
REAL(cuCtxGetDevice, (CUdevice * device), note('C'); *device = 0;
     return has_context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT)
REAL(cuMemPoolCreate, (CUmemoryPool * handle, const CUmemPoolProps *props), (void)props; note('P');
     *handle = POOL; return real_answer)
REAL(cuMemPoolDestroy, (CUmemoryPool handle), CHECK(handle == POOL); note('X'); return real_answer)
REAL(cuMemPoolGetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
     CHECK(handle == POOL && attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
     note('P'); *(uint64_t *)value = 30; return real_answer)
REAL(cuMemPoolSetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
     CHECK(handle == POOL && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH);
     note('P'); CHECK_EQ(*(uint64_t *)value, 0); return real_answer)
REAL(cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep), CHECK(handle == POOL && keep == 70);
     note('P'); return real_answer)
REAL(cuMemPoolSetAccess, (CUmemoryPool handle, const CUmemAccessDesc *map, size_t count),
     CHECK(handle == POOL && (map == NULL) == (count == 0));
     note('P'); return real_answer)

static void start(void)
{
    own_something(true);
    stream = served_stream = STREAM;
}

/* --- allocating */

static const CUstream defaults[] = {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
static const CUdeviceptr nobody = 0x9000; /* an address that nobody has set */

/* Each of the four entries: of the current pool, of one that is named, and their twins. */
static void must_allocate(CUresult expected, CUdeviceptr expected_address, const char *calls)
{
    for (int i = 0; i < 4; i++) {
        CUdeviceptr address = nobody;
        const unsigned refusals_before = refusals;
        pool = i < 2 ? NULL : POOL;
        if (served_stream == NULL)
            stream = defaults[i % 2];
        const CUresult result =
            i == 0   ? cuMemAllocAsync(&address, BYTES, served_stream)
            : i == 1 ? cuMemAllocAsync_ptsz(&address, BYTES, served_stream)
            : i == 2 ? cuMemAllocFromPoolAsync(&address, BYTES, POOL, served_stream)
                     : cuMemAllocFromPoolAsync_ptsz(&address, BYTES, POOL, served_stream);
        refusals = refusals_before;
        CHECK_EQ(result, expected);
        CHECK_EQ(address, expected_address);
        CHECK_EQ(ms_calls_inside, 0);
        must_have(calls);
    }
}

STORY_AFTER(start, an_allocation_is_deferred_and_observed, is_ours = true,
            must_allocate(CUDA_SUCCESS, OURS, "ynao"), answer = CUDA_ERROR_OUT_OF_MEMORY,
            must_allocate(CUDA_ERROR_OUT_OF_MEMORY, OURS, "ynao"))

STORY_AFTER(start, the_default_stream_is_that_of_the_entry, is_ours = true, served_stream = NULL,
            must_allocate(CUDA_SUCCESS, OURS, "ynao"), is_ours = false,
            must_allocate(CUDA_SUCCESS, THEIRS, "ynaA"))

MS_TEST_AFTER(start, an_allocation_that_is_not_deferred_is_the_drivers)
{
    must_allocate(CUDA_SUCCESS, THEIRS, "ynaA");
    is_in_nccl = true;
    must_allocate(CUDA_SUCCESS, THEIRS, "ynA");
    wants_pooled = false; /* what the pool keeps is used first */
    must_allocate(CUDA_SUCCESS, THEIRS, "ykA");
    is_ready = false;
    must_allocate(CUDA_SUCCESS, THEIRS, "yA");
    CHECK(strcmp(ms_caller, "cuMemAllocFromPoolAsync_ptsz") == 0);
}

MS_TEST_AFTER(start, no_pool_is_the_drivers_to_refuse)
{
    CUdeviceptr address = nobody;
    is_ours = true;
    real_answer = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuMemAllocFromPoolAsync(&address, BYTES, NULL, STREAM), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemAllocFromPoolAsync_ptsz(&address, BYTES, NULL, STREAM), CUDA_ERROR_INVALID_VALUE);
    must_have("AA");
}

STORY_AFTER(start, a_pool_of_host_memory_gives_host_memory, is_ready = false, is_host = true,
            must_allocate(CUDA_SUCCESS, THEIRS, "yAh"), real_answer = CUDA_ERROR_INVALID_VALUE,
            must_allocate(CUDA_ERROR_INVALID_VALUE, nobody, "yA"), real_answer = CUDA_SUCCESS,
            atomic_store(&ms_hot.started, 0), must_allocate(CUDA_SUCCESS, THEIRS, "yA"))

STORY_AFTER(start, a_driver_without_memory_is_asked_again, is_ready = false, is_host = true,
            refusals = 2, must_allocate(CUDA_SUCCESS, THEIRS, "yAAAh"), refusals = 3,
            must_allocate(CUDA_ERROR_OUT_OF_MEMORY, nobody, "yAAA"))

/* --- freeing */

static void must_free(CUdeviceptr address, CUresult expected, const char *calls)
{
    for (int i = 0; i < 2; i++) {
        if (served_stream == NULL)
            stream = defaults[i];
        CHECK_EQ((i == 0 ? cuMemFreeAsync : cuMemFreeAsync_ptsz)(address, served_stream), expected);
        CHECK_EQ(ms_calls_inside, 0);
        must_have(calls);
    }
}

STORY_AFTER(start, an_allocation_of_ours_is_freed_in_its_stream, is_ours = true,
            must_free(OURS, CUDA_SUCCESS, "SCf"), served_stream = NULL,
            must_free(OURS, CUDA_SUCCESS, "SCf"), answer = CUDA_ERROR_INVALID_VALUE,
            must_free(OURS, CUDA_ERROR_INVALID_VALUE, "SCf"))

STORY_AFTER(start, the_driver_says_whether_a_free_needs_a_context, is_ours = true,
            has_context = false, null_answer = CUDA_ERROR_INVALID_CONTEXT,
            real_answer = CUDA_ERROR_INVALID_CONTEXT,
            must_free(OURS, CUDA_ERROR_INVALID_CONTEXT, "SCNF"),
            null_answer = CUDA_ERROR_INVALID_VALUE, must_free(OURS, CUDA_SUCCESS, "SCNf"))

STORY_AFTER(start, a_stream_that_is_not_valid_is_the_drivers_to_refuse, is_ours = true,
            flags_answer = real_answer = CUDA_ERROR_INVALID_HANDLE,
            must_free(OURS, CUDA_ERROR_INVALID_HANDLE, "SF"))

STORY_AFTER(start, the_driver_frees_memory_that_is_not_ours, must_free(OURS, CUDA_SUCCESS, "SCfFh"),
            is_ours = true, must_free(THEIRS, CUDA_SUCCESS, "Fh"), own_something(false),
            must_free(OURS, CUDA_SUCCESS, "Fh"), real_answer = CUDA_ERROR_INVALID_VALUE,
            must_free(THEIRS, CUDA_ERROR_INVALID_VALUE, "F"))

/* Whether the address is free for a recurring allocation of the driver. */
static bool serve_recurring(struct ms_recurring_size *size, CUdeviceptr address)
{
    ms_recurring_serve(size, address);
    return atomic_load(&size->room) == 0;
}

MS_TEST_AFTER(start, a_recurring_allocation_is_counted_and_not_host_memory)
{
    struct ms_recurring_size size = {0};
    CHECK(serve_recurring(&size, THEIRS));
    must_have("");
    CHECK_EQ(cuMemFreeAsync(THEIRS, STREAM), CUDA_SUCCESS);
    must_have("F");
    CHECK_EQ(atomic_load(&size.room), 1);
    atomic_store(&size.room, 0);
    CHECK(serve_recurring(&size, THEIRS));
    atomic_store(&ms_hot.started, 0); /* a forked child */
    CHECK_EQ(cuMemFreeAsync(THEIRS, STREAM), CUDA_SUCCESS);
    must_have("Fh");
    CHECK_EQ(atomic_load(&size.room), 0);
    atomic_store(&ms_hot.started, 1);
    real_answer = CUDA_ERROR_INVALID_VALUE; /* it is still there */
    CHECK_EQ(cuMemFreeAsync(THEIRS, STREAM), CUDA_ERROR_INVALID_VALUE);
    must_have("F");
    CHECK_EQ(atomic_load(&size.room), 0);
}

/* --- pools */

static const CUmemPoolProps plain = {
    .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 3},
};

static void must_create(const CUmemPoolProps *props, const char *calls)
{
    CUmemoryPool made;
    CHECK_EQ(cuMemPoolCreate(&made, props), real_answer);
    must_have(calls);
}

STORY_AFTER(start, a_plain_pool_is_known, must_create(&plain, "Pp"),
            real_answer = CUDA_ERROR_OUT_OF_MEMORY, must_create(&plain, "P"),
            real_answer = CUDA_SUCCESS, atomic_store(&ms_hot.started, 0), must_create(&plain, "P"))

MS_TEST_AFTER(start, a_pool_with_any_property_is_not_known)
{
    CUmemPoolProps props[6];
    for (int i = 0; i < 6; i++)
        props[i] = plain;
    props[0].allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
    props[1].location.type = CU_MEM_LOCATION_TYPE_HOST;
    props[2].handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props[3].maxSize = 1;
    props[4].usage = 1;
    props[5].reserved[sizeof(props[5].reserved) - 1] = 1;
    for (int i = 0; i < 6; i++)
        must_create(&props[i], "P");
}

/* Each is the driver's, between what the runtime does before and, if it succeeds, after. */
MS_TEST_AFTER(start, calls_that_name_a_pool_are_the_drivers_with_the_runtimes_part)
{
    for (int fails = 0; fails < 2; fails++) {
        uint64_t value = 0;
        real_answer = fails ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        CHECK_EQ(cuMemPoolGetAttribute(POOL, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value),
                 real_answer);
        must_have(fails ? "dP" : "dPp");
        CHECK_EQ(value, fails ? 30 : 35);
        value = 0;
        CHECK_EQ(cuMemPoolSetAttribute(POOL, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value), real_answer);
        must_have(fails ? "dP" : "dPp");
        CHECK_EQ(cuMemPoolTrimTo(POOL, 100), real_answer);
        must_have("dpP");
        CHECK_EQ(cuMemPoolDestroy(POOL), real_answer);
        must_have("xX");
        CHECK_EQ(ms_calls_inside, 0);
    }
}

MS_TEST_AFTER(start, the_runtime_sets_the_access_to_a_pool)
{
    const CUmemAccessDesc map = {0};
    for (int fails = 0; fails < 2; fails++) {
        real_answer = fails ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        CHECK_EQ(cuMemPoolSetAccess(POOL, &map, 1), real_answer);
        must_have("aP");
        CHECK_EQ(cuMemPoolSetAccess(POOL, NULL, 0), real_answer);
        must_have("P");
        CHECK(strcmp(ms_caller, "cuMemPoolSetAccess") == 0);
    }
    atomic_store(&ms_hot.started, 0);
    CHECK_EQ(cuMemPoolSetAccess(POOL, &map, 1), real_answer);
    must_have("P");
}
