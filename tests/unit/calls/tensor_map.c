/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that a tensor map reaches, and which of them get memory; with kernels, that is tested
 * in tests/driver/differential/blocks.c. */
#include "runtime/calls/tensor_map.h"

#include "runtime/memory/carve.h"
#include "runtime/memory/space.h"
#include "tests/unit/between.h"
#include "tests/unit/fake_driver.h"

#define EXTENT(type, rank, dims, strides)                                     \
    ms_tensor_map_extent(CU_TENSOR_MAP_DATA_TYPE_##type, rank, dims, strides, \
                         CU_TENSOR_MAP_INTERLEAVE_NONE)

MS_TEST(a_vector_has_its_elements_as_extent)
{
    const cuuint64_t dims[] = {100};
    CHECK_EQ(EXTENT(UINT8, 1, dims, NULL), 100);
    CHECK_EQ(EXTENT(BFLOAT16, 1, dims, NULL), 200);
    CHECK_EQ(EXTENT(TFLOAT32_FTZ, 1, dims, NULL), 400);
    CHECK_EQ(EXTENT(FLOAT64, 1, dims, NULL), 800);
}

MS_TEST(rows_with_gaps_end_with_the_last_row)
{
    const cuuint64_t dims[] = {10, 4, 3};
    const cuuint64_t strides[] = {64, 1024};
    CHECK_EQ(EXTENT(FLOAT32, 1, dims, strides), 40);
    CHECK_EQ(EXTENT(FLOAT32, 2, dims, strides), 3 * 64 + 40);
    CHECK_EQ(EXTENT(FLOAT32, 3, dims, strides), 2 * 1024 + 3 * 64 + 40);
}

MS_TEST(a_dimension_that_repeats)
{
    const cuuint64_t dims[] = {10, 4000};
    const cuuint64_t strides[] = {0};
    CHECK_EQ(EXTENT(FLOAT32, 2, dims, strides), 40);
}

MS_TEST(a_tensor_map_has_up_to_five_dimensions)
{
    const cuuint64_t dims[] = {10, 2, 2, 2, 2, 2};
    const cuuint64_t strides[] = {16, 100, 1000, 10000, 100000};
    CHECK_EQ(EXTENT(UINT8, 5, dims, strides), 11126);
    CHECK_EQ(EXTENT(UINT8, 6, dims, strides), SIZE_MAX);
}

MS_TEST(a_dimension_of_nothing_is_not_known_though_its_rows_have_no_distance)
{
    const cuuint64_t dims[] = {8, 0};
    const cuuint64_t strides[] = {0};
    CHECK_EQ(EXTENT(UINT8, 2, dims, strides), SIZE_MAX);
}

/* Values of 4 and 6 bits, of CUDA 12.8. */
MS_TEST(packed_values_count_as_bytes)
{
    const cuuint64_t dims[] = {128, 2};
    const cuuint64_t strides[] = {96};
    for (int type = 13; type < 16; type++)
        CHECK_EQ(ms_tensor_map_extent((CUtensorMapDataType)type, 2, dims, strides,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE),
                 96 + 128);
}

MS_TEST(a_tensor_map_that_cannot_be_has_no_extent)
{
    const cuuint64_t dims[] = {8, 4, 0};
    const cuuint64_t strides[] = {64, 1024};
    const cuuint64_t large[] = {UINT64_C(1) << 32, UINT64_C(1) << 32};
    const cuuint64_t far[] = {UINT64_C(1) << 39};
    const cuuint64_t sum[] = {UINT64_C(1) << 61, 2}, half[] = {UINT64_C(3) << 62};
    CHECK_EQ(EXTENT(FLOAT32, 0, dims, strides), SIZE_MAX);
    CHECK_EQ(EXTENT(FLOAT32, 6, dims, strides), SIZE_MAX);
    CHECK_EQ(EXTENT(FLOAT32, 2, dims, NULL), SIZE_MAX);
    CHECK_EQ(EXTENT(FLOAT32, 1, NULL, NULL), SIZE_MAX);
    CHECK_EQ(EXTENT(FLOAT32, 3, dims, strides), SIZE_MAX);
    CHECK_EQ(EXTENT(FLOAT32, 2, large, far), SIZE_MAX);
    CHECK_EQ(EXTENT(FLOAT32, 2, sum, half), SIZE_MAX);
    CHECK_EQ(ms_tensor_map_extent((CUtensorMapDataType)16, 2, dims, strides,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE),
             SIZE_MAX);
    CHECK_EQ(ms_tensor_map_extent((CUtensorMapDataType)-1, 2, dims, strides,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE),
             SIZE_MAX);
    CHECK_EQ(ms_tensor_map_extent(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, dims, strides,
                                  CU_TENSOR_MAP_INTERLEAVE_32B),
             SIZE_MAX);
}

/* --- what gets memory */

enum { BYTES = 4 * FAKE_GRANULE };
static struct ms_allocation *allocation;

static void start(void)
{
    fake_start();
    allocation = fake_allocation(BYTES);
    fake_set(allocation, 0, BYTES, &(struct ms_content){.kind = MS_FILL, .pattern = 0x01010101});
}

static void end(void)
{
    fake_check_allocation(allocation);
    fake_allocation_free(allocation);
    fake_check_empty();
}

static void describe(CUdeviceptr address, cuuint64_t bytes)
{
    const cuuint64_t dims[] = {bytes};
    CHECK_EQ(ms_tensor_map_access(address, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, dims, NULL,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE),
             CUDA_SUCCESS);
}

STORY_BETWEEN(start, end, up_to_the_end_of_an_allocation_it_is_what_is_described,
              describe(allocation->address + FAKE_GRANULE, BYTES - FAKE_GRANULE),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, BYTES - FAKE_GRANULE))

STORY_BETWEEN(start, end, a_tensor_map_brings_in_no_more_than_it_describes,
              describe(allocation->address + FAKE_GRANULE, FAKE_GRANULE),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, FAKE_GRANULE))

static CUresult describe_all_behind(CUdeviceptr address)
{
    const cuuint64_t dims[] = {BYTES};
    return ms_tensor_map_access(address, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, dims, NULL,
                                CU_TENSOR_MAP_INTERLEAVE_NONE);
}

/* Starts with a new allocation, which nothing has written. */
static void start_anew(void)
{
    fake_allocation_free(allocation);
    allocation = fake_allocation(BYTES);
}

static void carve(size_t begin, size_t behind)
{
    CHECK(ms_space_claim(allocation->address) == allocation);
    CHECK_EQ(ms_carve_take(allocation, begin, behind), MS_CARVED);
    ms_space_release(allocation);
    fake_set(allocation, begin, behind, &(struct ms_content){.kind = MS_FILL, .pattern = 7});
}

STORY_BETWEEN(start, end, beyond_the_end_it_is_all_of_its_block, start_anew(),
              carve(0, FAKE_GRANULE), carve(FAKE_GRANULE, 3 * FAKE_GRANULE),
              EQUALS(describe_all_behind(allocation->address + 2 * FAKE_GRANULE), CUDA_SUCCESS),
              IS(fake_memory_at(allocation->address + FAKE_GRANULE) != 0),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, 2 * FAKE_GRANULE))

/* The program uses what no block holds: it may be anything from now on. */
STORY_BETWEEN(start, end, beyond_the_end_and_in_no_block_it_is_all_of_the_allocation, start_anew(),
              carve(0, FAKE_GRANULE),
              EQUALS(describe_all_behind(allocation->address + 2 * FAKE_GRANULE), CUDA_SUCCESS),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, BYTES))

MS_TEST_BETWEEN(start, end, a_tensor_map_fails_if_its_memory_cannot_come_in)
{
    CHECK_EQ(describe_all_behind(1), CUDA_SUCCESS); /* of nothing */
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(describe_all_behind(allocation->address + 2 * FAKE_GRANULE), CUDA_ERROR_UNKNOWN);
    start_anew();
    carve(0, FAKE_GRANULE);
    fake_fail(FAKE_mem_create, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(describe_all_behind(allocation->address + 2 * FAKE_GRANULE), CUDA_ERROR_UNKNOWN);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
}

STORY_BETWEEN(start, end, beyond_the_end_it_is_all_of_it,
              describe(allocation->address + 3 * FAKE_GRANULE, FAKE_GRANULE + 1),
              EQUALS(ms_allocation_backing(allocation)->backed_bytes, BYTES))

MS_TEST_BETWEEN(start, end, elsewhere_it_is_nothing)
{
    const CUdeviceptr program = fake_program_memory(FAKE_GRANULE);
    describe(program, FAKE_GRANULE);
    CHECK_EQ(ms_allocation_backing(allocation)->backed_bytes, 0);
    fake_program_memory_free(program);
}
