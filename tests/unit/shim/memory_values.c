/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait for a value in memory, or write one: at an address that strays the driver gets
 * the null address, and refuses the call. */
#include "shim/memory_values.h"

#include "runtime/base/heap.h"
#include "runtime/calls/move.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/shim/real_side.h"

#define STREAM ((CUstream)0x300)
enum { GOOD = 0x1000, BAD = 0x2000, NOT_A_VALUE = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES };

static CUresult sealing;
static unsigned seals, reals;
static size_t asked_bytes; /* of the last address that was looked at */

WRAPS(ms_move_seal, ms_pointer_strays);

CUresult __wrap_ms_move_seal(void)
{
    seals++;
    return sealing;
}

bool __wrap_ms_pointer_strays(CUdeviceptr address, size_t bytes)
{
    asked_bytes = bytes;
    return address == BAD;
}

static CUstreamBatchMemOpParams operation(unsigned kind, CUdeviceptr address)
{
    CUstreamBatchMemOpParams made = {.operation = (CUstreamBatchMemOpType)kind};
    made.writeValue.address = address;
    made.writeValue.value64 = 77;
    return made;
}

/* --- lists of operations */

static void start(void)
{
    own_something(true);
}

static void end(void)
{
    CHECK_EQ(live, 0);
    CHECK_EQ(ms_calls_inside, 0);
}
#define VALUES_TEST(name) MS_TEST_BETWEEN(start, end, name)

VALUES_TEST(operations_that_stray_are_replaced_in_a_copy)
{
    const CUstreamBatchMemOpParams operations[] = {operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, GOOD),
                                                   operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, BAD),
                                                   operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, BAD),
                                                   operation(NOT_A_VALUE, BAD)};
    static const CUdeviceptr expected[] = {GOOD, 0, 0, BAD};
    CUstreamBatchMemOpParams *bounded;
    CHECK_EQ(ms_memory_values_bound(operations, 4, &bounded), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(bounded[i].operation, operations[i].operation);
        CHECK_EQ(bounded[i].writeValue.address, expected[i]);
        CHECK_EQ(bounded[i].writeValue.value64, 77);
    }
    CHECK_EQ(operations[1].writeValue.address, BAD); /* the program's own are left alone */
    ms_heap_free(bounded);
}

VALUES_TEST(operations_that_do_not_stray_are_not_copied)
{
    CUstreamBatchMemOpParams *bounded = (CUstreamBatchMemOpParams *)&reals;
    CUstreamBatchMemOpParams operations[257];
    for (int i = 0; i < 257; i++)
        operations[i] = operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, i == 2 ? BAD : GOOD);
    CHECK_EQ(ms_memory_values_bound(operations, 2, &bounded), CUDA_SUCCESS);
    CHECK(bounded == NULL);
    CHECK_EQ(ms_memory_values_bound(NULL, 2, &bounded), CUDA_SUCCESS);
    CHECK(bounded == NULL);
    CHECK_EQ(ms_memory_values_bound(operations, 257, &bounded), CUDA_SUCCESS);
    CHECK(bounded == NULL); /* the driver takes no more than 256 */
    CHECK_EQ(ms_memory_values_bound(operations, 256, &bounded), CUDA_SUCCESS);
    CHECK_EQ(bounded[2].writeValue.address, 0);
    CHECK_EQ(bounded[255].writeValue.address, GOOD);
    ms_heap_free(bounded);
}

VALUES_TEST(each_operation_has_the_bytes_of_its_value)
{
    static const struct {
        unsigned kind;
        size_t bytes; /* 0: it is not looked at */
    } kinds[] = {{CU_STREAM_MEM_OP_WAIT_VALUE_32, 4}, {CU_STREAM_MEM_OP_WRITE_VALUE_32, 4},
                 {CU_STREAM_MEM_OP_WAIT_VALUE_64, 8}, {CU_STREAM_MEM_OP_WRITE_VALUE_64, 8},
                 {CU_STREAM_MEM_OP_BARRIER, 0},       {NOT_A_VALUE, 0}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const CUstreamBatchMemOpParams one = operation(kinds[i].kind, GOOD);
        CUstreamBatchMemOpParams *bounded;
        asked_bytes = 0;
        CHECK_EQ(ms_memory_values_bound(&one, 1, &bounded), CUDA_SUCCESS);
        CHECK_EQ(asked_bytes, kinds[i].bytes);
    }
}

VALUES_TEST(a_list_without_memory_for_its_copy_is_refused)
{
    const CUstreamBatchMemOpParams one = operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, BAD);
    CUstreamBatchMemOpParams *bounded;
    may_make = 0;
    CHECK_EQ(ms_memory_values_bound(&one, 1, &bounded), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(bounded == NULL);
}

/* --- calls */

static CUdeviceptr given;
static uint64_t given_value;
static const CUstreamBatchMemOpParams *given_list;

static CUresult take(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    CHECK(stream == STREAM && flags == 5);
    given = address;
    given_value = value;
    reals++;
    return CUDA_ERROR_NOT_READY;
}

static CUresult take_list(CUstream stream, unsigned count, CUstreamBatchMemOpParams *list,
                          unsigned flags)
{
    CHECK(count == 2);
    given_list = list;
    return take(stream, list != NULL ? list[1].writeValue.address : 0, 0, flags);
}

#define LIST(symbol)                                                                   \
    REAL(symbol, (CUstream s, unsigned n, CUstreamBatchMemOpParams *list, unsigned f), \
         return take_list(s, n, list, f))
#define VALUE(symbol, type) \
    REAL(symbol, (CUstream s, CUdeviceptr a, type v, unsigned f), return take(s, a, v, f))
#define CALLS(suffix)                               \
    LIST(cuStreamBatchMemOp##suffix)                \
    VALUE(cuStreamWaitValue32##suffix, cuuint32_t)  \
    VALUE(cuStreamWaitValue64##suffix, cuuint64_t)  \
    VALUE(cuStreamWriteValue32##suffix, cuuint32_t) \
    VALUE(cuStreamWriteValue64##suffix, cuuint64_t)
CALLS()
CALLS(_ptsz)
CALLS(_v2)
CALLS(_v2_ptsz)
#undef CALLS

typedef CUresult list_call(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned);
typedef CUresult value_32(CUstream, CUdeviceptr, cuuint32_t, unsigned);
typedef CUresult value_64(CUstream, CUdeviceptr, cuuint64_t, unsigned);
#define CALLS(call)                                  \
    {                                                \
        call, call##_ptsz, call##_v2, call##_v2_ptsz \
    }
static list_call *const lists[] = CALLS(cuStreamBatchMemOp);
static value_32 *const values_32[2][4] = {CALLS(cuStreamWaitValue32), CALLS(cuStreamWriteValue32)};
static value_64 *const values_64[2][4] = {CALLS(cuStreamWaitValue64), CALLS(cuStreamWriteValue64)};

static void call(int which, CUdeviceptr address)
{
    CHECK_EQ(which < 8 ? values_32[which / 4][which % 4](STREAM, address, 9, 5)
                       : values_64[which / 4 - 2][which % 4](STREAM, address, UINT64_MAX, 5),
             sealing != CUDA_SUCCESS ? sealing : CUDA_ERROR_NOT_READY);
}

VALUES_TEST(a_value_that_strays_is_the_drivers_to_refuse)
{
    for (int i = 0; i < 16; i++) {
        call(i, GOOD);
        CHECK_EQ(given, GOOD);
        CHECK_EQ(given_value, i < 8 ? 9 : UINT64_MAX);
        CHECK_EQ(asked_bytes, i < 8 ? 4 : 8);
        call(i, BAD);
        CHECK_EQ(given, 0);
        CHECK_EQ(seals, 2 * (i + 1));
        CHECK_EQ(reals, 2 * (i + 1));
    }
}

VALUES_TEST(values_go_straight_on_while_nothing_is_owned)
{
    own_something(false);
    for (int i = 0; i < 16; i++) {
        call(i, BAD);
        CHECK_EQ(given, BAD);
    }
    CHECK_EQ(seals, 0);
}

VALUES_TEST(an_operation_whose_memory_cannot_be_made_real_is_not_called)
{
    sealing = CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < 16; i++)
        call(i, GOOD);
    CHECK_EQ(reals, 0);
    CHECK_EQ(seals, 16);
}

VALUES_TEST(a_list_is_handed_on_as_it_is_unless_one_of_it_strays)
{
    CUstreamBatchMemOpParams list[2] = {operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, GOOD),
                                        operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, GOOD)};
    for (int i = 0; i < 4; i++) {
        list[1].writeValue.address = GOOD;
        CHECK_EQ(lists[i](STREAM, 2, list, 5), CUDA_ERROR_NOT_READY);
        CHECK(given_list == list);
        list[1].writeValue.address = BAD;
        CHECK_EQ(lists[i](STREAM, 2, list, 5), CUDA_ERROR_NOT_READY);
        CHECK(given_list != list && given == 0);
        sealing = CUDA_ERROR_OUT_OF_MEMORY;
        const unsigned before = reals;
        CHECK_EQ(lists[i](STREAM, 2, list, 5), CUDA_ERROR_OUT_OF_MEMORY);
        sealing = CUDA_SUCCESS;
        may_make = 0;
        CHECK_EQ(lists[i](STREAM, 2, list, 5), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(reals, before);
        may_make = 1000;
    }
}
