/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory and mappings as programs ask for them: what is the runtime's, and what the
 * driver's. */
#include <stdio.h>
#include <string.h>

#include "runtime/calls/host_memory.h"
#include "runtime/calls/ipc.h"
#include "runtime/calls/vmm.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/space.h"
#include "shim/init.h"
#include "shim/nccl_wrappers.h"
#include "shim/newer.h"
#include "shim/observer.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/called_in_order.h"
#include "tests/unit/shim/real_side.h"

/* Memory from cuMemAlloc, a place where the program maps what it has, and one of nobody. */
enum { BLOCK = 0x10000, PLACE = 0x20000, NOWHERE = 0x30000, BYTES = 0x1000, HANDLE = 7 };

/* --- what is called: a small letter for the runtime, a large one for the driver */

static bool is_ours; /* the runtime answers: */
static CUresult answer, preparing, real_answer;
static unsigned tries; /* of the driver, until it has memory */
static size_t seen_bytes;
static CUdeviceptr pinned = BLOCK;
static bool is_in_nccl, is_opened, has_one_handle = true, is_ready = true;

WRAPS(ms_space_first_behind, ms_addresses_reserve, ms_vmm_reserved, ms_vmm_free_addresses);
WRAPS(ms_vmm_defer, ms_vmm_map, ms_vmm_unmap, ms_vmm_set_access, ms_vmm_get_access, ms_vmm_retain);
WRAPS(ms_vmm_make_real, ms_access_uses, ms_access_export, ms_host_memory_add_alias);
WRAPS(ms_host_memory_cut, ms_evict_try_again);

static bool is_answered(char letter, CUresult *result_out)
{
    note(letter);
    *result_out = answer;
    return is_ours;
}

bool __wrap_ms_space_first_behind(CUdeviceptr address, struct ms_allocation_facts *facts_out)
{
    const bool is_block = address < BLOCK + BYTES;
    *facts_out = (struct ms_allocation_facts){.address = is_block ? BLOCK : PLACE,
                                              .bytes = BYTES,
                                              .is_programs = !is_block,
                                              .is_opened = is_opened};
    return address < PLACE + BYTES;
}

CUresult __wrap_ms_addresses_reserve(CUdeviceptr *out, size_t bytes, size_t alignment,
                                     bool for_program)
{
    CHECK(bytes == BYTES && alignment == 64 && for_program);
    note('r');
    *out = PLACE;
    return answer;
}

void __wrap_ms_vmm_reserved(CUdeviceptr address, size_t bytes)
{
    CHECK(address == PLACE && bytes == BYTES);
    note('k');
}

bool __wrap_ms_vmm_free_addresses(CUdeviceptr address, size_t bytes, CUresult *result_out)
{
    CHECK(address == PLACE && bytes == BYTES);
    return is_answered('f', result_out);
}

bool __wrap_ms_vmm_defer(size_t bytes, const CUmemAllocationProp *prop,
                         CUmemGenericAllocationHandle *handle_out, CUresult *result_out)
{
    CHECK(bytes == BYTES && prop == NULL);
    *handle_out = HANDLE;
    return is_answered('d', result_out);
}

bool __wrap_ms_vmm_map(CUdeviceptr address, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags,
                       CUresult *result_out)
{
    CHECK(address == PLACE && bytes == BYTES && offset == 3 && handle == HANDLE && flags == 0);
    return is_answered('m', result_out);
}

bool __wrap_ms_vmm_unmap(CUdeviceptr address, size_t bytes, CUresult *result_out)
{
    CHECK(address == PLACE && bytes == BYTES);
    return is_answered('u', result_out);
}

bool __wrap_ms_vmm_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                              size_t count, CUresult *result_out)
{
    CHECK(address == PLACE && bytes == BYTES && access != NULL && count > 0);
    return is_answered('s', result_out);
}

bool __wrap_ms_vmm_get_access(CUdeviceptr address, const CUmemLocation *location,
                              unsigned long long *flags_out, CUresult *result_out)
{
    CHECK(address == PLACE && location == NULL && flags_out == NULL);
    return is_answered('g', result_out);
}

bool __wrap_ms_vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle_out,
                          CUresult *result_out)
{
    CHECK(address == PLACE && handle_out == NULL);
    return is_answered('t', result_out);
}

CUresult __wrap_ms_vmm_make_real(CUdeviceptr address, size_t bytes)
{
    seen_bytes = bytes;
    note('l');
    return preparing;
}

CUresult __wrap_ms_access_uses(const struct ms_use *uses, size_t count)
{
    CHECK(count == 1 && uses->begin == pinned && uses->bytes == BYTES && uses->need == MS_NEED_PIN);
    note('p');
    return answer;
}

CUresult __wrap_ms_access_export(CUdeviceptr address, size_t bytes, bool *is_one_handle_out)
{
    CHECK(address == BLOCK && bytes == 1);
    note('e');
    *is_one_handle_out = has_one_handle;
    return answer;
}

void __wrap_ms_host_memory_add_alias(uint64_t address, uint64_t alias, size_t bytes)
{
    CHECK(address == PLACE && alias == PLACE && bytes == BYTES);
    note('h');
}

void __wrap_ms_host_memory_cut(uint64_t address, size_t bytes)
{
    CHECK(bytes == BYTES && (address == PLACE || address == NOWHERE));
    note('c');
}

bool __wrap_ms_evict_try_again(CUresult result, int *attempts)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && ++*attempts < 3;
}

bool ms_ready_to_defer(void)
{
    return is_ready;
}

bool ms_nccl_is_inside(const void *return_address)
{
    CHECK(return_address != NULL);
    return is_in_nccl;
}

void ms_observer_prepare(bool is_pooled)
{
    CHECK(!is_pooled);
    note('o');
}

/* --- the driver */

static CUresult go(char letter)
{
    note(letter);
    tries++;
    return real_answer;
}

static void *retained;
static CUdeviceptr wanted_address;
static unsigned long long wanted_flags;
REAL(cuMemAddressReserve,
     (CUdeviceptr * out, size_t bytes, size_t alignment, CUdeviceptr wanted,
      unsigned long long flags),
     CHECK(bytes == BYTES && alignment == 64 && wanted == wanted_address && flags == wanted_flags);
     if (out != NULL) *out = PLACE; return go('R'))
REAL(cuMemAddressFree, (CUdeviceptr address, size_t bytes), return go('F'))
REAL(cuMemCreate,
     (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,
      unsigned long long flags),
     return go('D'))
REAL(cuMemMap,
     (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
      unsigned long long flags),
     return go('M'))
REAL(cuMemUnmap, (CUdeviceptr address, size_t bytes), CHECK_EQ(bytes, BYTES); return go('U'))
REAL(cuMemSetAccess,
     (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count),
     CHECK(bytes == BYTES && access[0].location.type == CU_MEM_LOCATION_TYPE_DEVICE && count == 2);
     return go('S'))
REAL(cuMemGetAccess,
     (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address),
     return go('G'))
REAL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address),
     retained = address;
     return go('T'))
REAL(cuMemGetHandleForAddressRange,
     (void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
      unsigned long long flags),
     return go('P'))
REAL(cuMulticastBindAddr,
     (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address, size_t bytes,
      unsigned long long flags),
     return go('P'))

static void start(void)
{
    own_something(true);
    is_ours = true;
}

static void end(void)
{
    CHECK_EQ(ms_calls_inside, 0);
    must_have("");
}
#define VMM_TEST(name) MS_TEST_BETWEEN(start, end, name)

static void stop(void)
{
    atomic_store(&ms_hot.started, 0);
    atomic_store(&ms_hot.owned, 0);
}

/* --- addresses */

VMM_TEST(addresses_are_reserved_where_the_runtime_wants_unless_the_program_does)
{
    CUdeviceptr found;
    CHECK_EQ(cuMemAddressReserve(&found, BYTES, 64, 0, 0), CUDA_SUCCESS);
    must_have("rk");
    answer = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(cuMemAddressReserve(&found, BYTES, 64, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    must_have("r");
    wanted_address = PLACE;
    CHECK_EQ(cuMemAddressReserve(&found, BYTES, 64, PLACE, 0), CUDA_SUCCESS);
    must_have("Rk");
    wanted_address = 0;
    wanted_flags = 1;
    CHECK_EQ(cuMemAddressReserve(&found, BYTES, 64, 0, 1), CUDA_SUCCESS);
    must_have("Rk");
    wanted_flags = 0;
    real_answer = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuMemAddressReserve(NULL, BYTES, 64, 0, 0), CUDA_ERROR_INVALID_VALUE);
    must_have("R");
    real_answer = CUDA_SUCCESS;
    stop();
    CHECK_EQ(cuMemAddressReserve(&found, BYTES, 64, 0, 0), CUDA_SUCCESS);
    must_have("R");
}

STORY_BETWEEN(start, end, addresses_that_the_runtime_does_not_know_are_freed_by_the_driver,
              answer = CUDA_ERROR_INVALID_VALUE,
              EQUALS(cuMemAddressFree(PLACE, BYTES), CUDA_ERROR_INVALID_VALUE), must_have("f"),
              is_ours = false, EQUALS(cuMemAddressFree(PLACE, BYTES), CUDA_SUCCESS),
              must_have("fF"), stop(), EQUALS(cuMemAddressFree(PLACE, BYTES), CUDA_SUCCESS),
              must_have("F"))

/* --- what came from cuMemAlloc */

VMM_TEST(memory_of_an_allocation_is_not_taken_apart)
{
    const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    for (CUdeviceptr at = BLOCK - BYTES + 1; at < BLOCK + BYTES; at += BYTES / 2) {
        CHECK_EQ(cuMemAddressFree(at, BYTES), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ(cuMemMap(at, BYTES, 3, HANDLE, 0), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ(cuMemUnmap(at, BYTES), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ(cuMemSetAccess(at, BYTES, &access, 1), CUDA_ERROR_INVALID_VALUE);
    }
    CHECK_EQ(cuMemGetAccess(NULL, NULL, BLOCK), CUDA_ERROR_INVALID_VALUE);
    must_have("");
    is_ours = false; /* right before it, nothing of it is met */
    seen_bytes = 0;
    CHECK_EQ(cuMemGetHandleForAddressRange(NULL, BLOCK - BYTES, BYTES,
                                           CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
             CUDA_SUCCESS);
    must_have("lP");
    CHECK_EQ(seen_bytes, BYTES);
}

STORY_BETWEEN(start, end, calls_look_for_no_block_while_nothing_is_owned,
              atomic_store(&ms_hot.owned, 0),
              EQUALS(cuMemGetAccess(NULL, NULL, BLOCK), CUDA_SUCCESS), must_have("G"),
              EQUALS(cuMemRetainAllocationHandle(NULL, (void *)BLOCK), CUDA_SUCCESS),
              must_have("T"), EQUALS(cuMulticastBindAddr(HANDLE, 0, BLOCK, BYTES, 0), CUDA_SUCCESS),
              must_have("P"), EQUALS(cuMemUnmap(PLACE, BYTES), CUDA_SUCCESS), must_have("Uc"))

/* --- handles */

VMM_TEST(physical_memory_is_deferred_or_the_drivers)
{
    CUmemGenericAllocationHandle handle = 0;
    CHECK_EQ(cuMemCreate(&handle, BYTES, NULL, 0), CUDA_SUCCESS);
    must_have("do");
    CHECK_EQ(handle, HANDLE);
    is_ours = false;
    CHECK_EQ(cuMemCreate(&handle, BYTES, NULL, 0), CUDA_SUCCESS);
    must_have("dD");
    CHECK_EQ(cuMemCreate(&handle, BYTES, NULL, 1), CUDA_SUCCESS);
    must_have("D");
    is_in_nccl = true;
    CHECK_EQ(cuMemCreate(&handle, BYTES, NULL, 0), CUDA_SUCCESS);
    must_have("D");
    is_in_nccl = is_ready = false;
    CHECK_EQ(cuMemCreate(&handle, BYTES, NULL, 0), CUDA_SUCCESS);
    must_have("D");
    real_answer = CUDA_ERROR_OUT_OF_MEMORY; /* asked again while something is evicted */
    CHECK_EQ(cuMemCreate(&handle, BYTES, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY);
    must_have("DDD");
}

VMM_TEST(a_handle_of_an_allocation_is_for_nccl_alone)
{
    void *const block = (void *)BLOCK;
    CHECK_EQ(cuMemRetainAllocationHandle(NULL, block), CUDA_SUCCESS);
    must_have("T");
    CHECK(retained == NULL); /* the driver refuses it */
    is_in_nccl = true;
    CHECK_EQ(cuMemRetainAllocationHandle(NULL, block), CUDA_SUCCESS);
    must_have("eT");
    CHECK(retained == block);
    has_one_handle = false;
    CHECK_EQ(cuMemRetainAllocationHandle(NULL, block), CUDA_ERROR_INVALID_VALUE);
    must_have("e");
    has_one_handle = true;
    answer = CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < 2; i++) {
        has_one_handle = i == 0;
        CHECK_EQ(cuMemRetainAllocationHandle(NULL, block), CUDA_ERROR_OUT_OF_MEMORY);
        must_have("e");
    }
    is_opened = true;
    CHECK_EQ(cuMemRetainAllocationHandle(NULL, block), CUDA_SUCCESS);
    must_have("T");
    CHECK(retained == NULL);
}

STORY_BETWEEN(start, end, a_handle_of_a_mapping_is_the_runtimes_or_the_drivers,
              answer = CUDA_ERROR_NOT_PERMITTED,
              EQUALS(cuMemRetainAllocationHandle(NULL, (void *)PLACE), CUDA_ERROR_NOT_PERMITTED),
              must_have("t"), is_ours = false,
              EQUALS(cuMemRetainAllocationHandle(NULL, (void *)PLACE), CUDA_SUCCESS),
              must_have("tT"), IS(retained == (void *)PLACE))

/* --- mappings */

STORY_BETWEEN(start, end, a_mapping_is_the_runtimes_or_the_drivers,
              answer = CUDA_ERROR_OUT_OF_MEMORY,
              EQUALS(cuMemMap(PLACE, BYTES, 3, HANDLE, 0), CUDA_ERROR_OUT_OF_MEMORY),
              must_have("m"), is_ours = false,
              EQUALS(cuMemMap(PLACE, BYTES, 3, HANDLE, 0), CUDA_SUCCESS), must_have("mM"), stop(),
              EQUALS(cuMemMap(PLACE, BYTES, 3, HANDLE, 0), CUDA_SUCCESS), must_have("M"))

STORY_BETWEEN(start, end, an_unmapped_range_is_no_host_memory_any_more,
              EQUALS(cuMemUnmap(PLACE, BYTES), CUDA_SUCCESS), must_have("uc"),
              answer = CUDA_ERROR_INVALID_VALUE,
              EQUALS(cuMemUnmap(PLACE, BYTES), CUDA_ERROR_INVALID_VALUE), must_have("u"),
              is_ours = false, EQUALS(cuMemUnmap(PLACE, BYTES), CUDA_SUCCESS), must_have("uUc"),
              real_answer = CUDA_ERROR_INVALID_VALUE,
              EQUALS(cuMemUnmap(PLACE, BYTES), CUDA_ERROR_INVALID_VALUE), must_have("uU"))

VMM_TEST(a_range_that_the_host_may_write_is_host_memory)
{
    CUmemAccessDesc access[] = {{.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                                {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}}};
    CHECK_EQ(cuMemSetAccess(PLACE, BYTES, access, 2), CUDA_SUCCESS);
    must_have("s");
    access[1].location.type = CU_MEM_LOCATION_TYPE_HOST;
    CHECK_EQ(cuMemSetAccess(PLACE, BYTES, access, 1), CUDA_SUCCESS);
    must_have("s");
    CHECK_EQ(cuMemSetAccess(PLACE, BYTES, access, 2), CUDA_SUCCESS);
    must_have("sh");
    answer = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuMemSetAccess(PLACE, BYTES, access, 2), CUDA_ERROR_INVALID_VALUE);
    must_have("s");
    is_ours = false;
    CHECK_EQ(cuMemSetAccess(PLACE, BYTES, access, 2), CUDA_SUCCESS);
    must_have("sSh");
    stop();
    CHECK_EQ(cuMemSetAccess(PLACE, BYTES, access, 2), CUDA_SUCCESS);
    must_have("S");
}

STORY_BETWEEN(start, end, the_access_of_a_mapping_is_the_runtimes_or_the_drivers,
              answer = CUDA_ERROR_NOT_PERMITTED,
              EQUALS(cuMemGetAccess(NULL, NULL, PLACE), CUDA_ERROR_NOT_PERMITTED), must_have("g"),
              is_ours = false, EQUALS(cuMemGetAccess(NULL, NULL, PLACE), CUDA_SUCCESS),
              must_have("gG"))

/* --- memory that others will use */

VMM_TEST(memory_that_others_will_use_is_real_and_stays)
{
    CHECK_EQ(cuMulticastBindAddr(HANDLE, 0, BLOCK, BYTES, 0), CUDA_SUCCESS);
    must_have("lpP");
    CHECK_EQ(cuMulticastBindAddr(HANDLE, 0, PLACE, BYTES, 0), CUDA_SUCCESS);
    must_have("lP");            /* the program's own memory is as it is */
    pinned = BLOCK - BYTES + 1; /* a byte of it is met */
    CHECK_EQ(cuMulticastBindAddr(HANDLE, 0, pinned, BYTES, 0), CUDA_SUCCESS);
    must_have("lpP");
    pinned = BLOCK;
    answer = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(cuMulticastBindAddr(HANDLE, 0, BLOCK, BYTES, 0), CUDA_ERROR_OUT_OF_MEMORY);
    must_have("lp");
    preparing = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuMulticastBindAddr(HANDLE, 0, BLOCK, BYTES, 0), CUDA_ERROR_INVALID_VALUE);
    must_have("l");
}
