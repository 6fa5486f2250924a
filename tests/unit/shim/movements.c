/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets as programs call them: what is said of them, and what the driver gets. */
#include "runtime/calls/move.h"
#include "shim/newer.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/shim/real_side.h"

#define STREAM ((CUstream)0x300)
enum { GOOD = 0x1000, FROM = 0x1800, BAD = 0x2000, REFUSED = 0x3000, MOST = 8 };

/* --- the runtime: it holds what is copied, unless it strays or is answered */

static struct ms_movement said[MOST]; /* the calls, in order */
static unsigned begun, passed, let_go, seals;
static CUresult sealing;

WRAPS(ms_move_begin, ms_move_seal, ms_move_strays, ms_pointer_strays, ms_evict_let_go);
WRAPS(ms_order_add_gate);

enum ms_verdict __wrap_ms_move_begin(const struct ms_movement *movement, bool *held_out,
                                     CUresult *result_out)
{
    CHECK(begun < MOST);
    said[begun++] = *movement;
    *held_out = movement->to.begin == GOOD;
    *result_out = movement->to.begin == REFUSED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    return movement->to.begin == REFUSED                              ? MS_ANSWERED
           : movement->to.begin == BAD || movement->from.begin == BAD ? MS_STRAYS
                                                                      : MS_FORWARD;
}

CUresult __wrap_ms_move_seal(void)
{
    seals++;
    return sealing;
}

bool __wrap_ms_move_strays(const struct ms_movement *movement)
{
    return movement->to.begin == BAD || movement->from.begin == BAD;
}

bool __wrap_ms_pointer_strays(CUdeviceptr address, size_t bytes)
{
    return address == BAD;
}

void __wrap_ms_evict_let_go(void)
{
    let_go++;
}

void __wrap_ms_order_add_gate(void)
{
    passed++;
}

static void start(void)
{
    own_something(true);
    atomic_store(&ms_hot.deferred, 1);
}

static void end(void)
{
    CHECK_EQ(live, 0);
    CHECK_EQ(ms_calls_inside, 0);
}
#define MOVE_TEST(name) MS_TEST_BETWEEN(start, end, name)

static void forget(void)
{
    begun = passed = let_go = seals = 0;
}

/* --- the driver */

static unsigned reals;
static CUdeviceptr got_to, got_from;

static CUresult take(CUdeviceptr to, CUdeviceptr from)
{
    reals++;
    got_to = to;
    got_from = from;
    return CUDA_ERROR_NOT_READY;
}

REAL(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), return take(to, from))
REAL(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     return take(to, from))
REAL(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     return take(to, from))
REAL(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), return take((uintptr_t)to, from))
REAL(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t bytes),
     return take(to, (uintptr_t)from))
REAL(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
     return take(to, value))
REAL(cuMemsetD2D32_v2, (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height),
     return take(to, value))
REAL(cuMemcpyWithAttributesAsync,
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
      CUstream stream),
     return take(to, from))
REAL(cuMemcpyWithAttributesAsync_ptsz,
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
      CUstream stream),
     return take(to, from))

/* --- one row */

MOVE_TEST(a_copy_is_held_until_the_driver_has_it)
{
    CHECK_EQ(cuMemcpyDtoD_v2(GOOD, FROM, 100), CUDA_ERROR_NOT_READY);
    CHECK(begun == 1 && reals == 1 && let_go == 1);
    CHECK(said[0].kind == MS_COPY_ON_DEVICE && said[0].waits);
    CHECK(said[0].width == 100 && said[0].height == 1 && said[0].depth == 1);
    CHECK(said[0].to.type == CU_MEMORYTYPE_DEVICE && said[0].to.begin == GOOD);
    CHECK(said[0].from.type == CU_MEMORYTYPE_DEVICE && said[0].from.begin == FROM);
    CHECK(said[0].stream == CU_STREAM_LEGACY && said[0].element == 0);
    CHECK(got_to == GOOD && got_from == FROM);
    cuMemcpyDtoD_v2(FROM, GOOD, 100); /* nothing is held */
    CHECK_EQ(let_go, 1);
}

MOVE_TEST(the_default_stream_is_that_of_the_entry)
{
    cuMemcpyDtoDAsync_v2(GOOD, FROM, 100, NULL);
    cuMemcpyDtoDAsync_v2_ptsz(GOOD, FROM, 100, NULL);
    cuMemcpyDtoDAsync_v2_ptsz(GOOD, FROM, 100, STREAM);
    cuMemcpyHtoD_v2_ptds(GOOD, said, 100);
    CHECK(said[0].stream == CU_STREAM_LEGACY && !said[0].waits);
    CHECK(said[1].stream == CU_STREAM_PER_THREAD && said[2].stream == STREAM);
    CHECK(said[3].stream == CU_STREAM_PER_THREAD && said[3].waits);
    CHECK(said[3].kind == MS_COPY_FROM_HOST && said[3].from.type == CU_MEMORYTYPE_HOST);
    CHECK(said[3].from.begin == (uintptr_t)said);
}

MOVE_TEST(the_driver_refuses_a_copy_that_strays)
{
    CHECK_EQ(cuMemcpyDtoD_v2(BAD, FROM, 100), CUDA_ERROR_NOT_READY);
    CHECK(got_to == 0 && got_from == FROM);
    CHECK_EQ(cuMemcpyDtoD_v2(FROM, BAD, 100), CUDA_ERROR_NOT_READY);
    CHECK(got_to == 0 && got_from == BAD); /* the driver looks at the destination first */
    CHECK_EQ(cuMemcpyDtoH_v2(said, BAD, 100), CUDA_ERROR_NOT_READY);
    CHECK(got_to == (uintptr_t)said && got_from == 0);
    CHECK_EQ(let_go, 0);
}

MOVE_TEST(a_copy_that_is_answered_does_not_reach_the_driver)
{
    CHECK_EQ(cuMemcpyDtoD_v2(REFUSED, FROM, 100), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(reals, 0);
}

MOVE_TEST(a_copy_is_checked_for_bounds_while_nothing_is_deferred)
{
    atomic_store(&ms_hot.deferred, 0);
    CHECK_EQ(cuMemcpyDtoD_v2(REFUSED, FROM, 100), CUDA_ERROR_NOT_READY);
    CHECK(got_to == REFUSED && passed == 1);
    CHECK_EQ(cuMemcpyDtoD_v2(BAD, FROM, 100), CUDA_ERROR_NOT_READY);
    CHECK(got_to == 0 && passed == 1);
    CHECK_EQ(begun, 0);
    own_something(false);
    CHECK_EQ(cuMemcpyDtoD_v2(BAD, FROM, 100), CUDA_ERROR_NOT_READY);
    CHECK(got_to == BAD && passed == 1);
}

MOVE_TEST(a_set_says_its_value_and_its_bytes)
{
    cuMemsetD16Async(GOOD, 0x1234, 50, STREAM);
    CHECK(said[0].kind == MS_SET && said[0].value == 0x1234 && said[0].element == 2);
    CHECK(said[0].width == 100 && said[0].height == 1 && said[0].from.type == 0);
    CHECK(got_to == GOOD && got_from == 0x1234);
    cuMemsetD2D32_v2(GOOD, 64, 7, 5, 3);
    CHECK(said[1].kind == MS_SET_ROWS && said[1].value == 7 && said[1].element == 4);
    CHECK(said[1].width == 20 && said[1].height == 3 && said[1].to.pitch == 64);
    cuMemsetD2D32_v2(GOOD, 64, 7, SIZE_MAX / 2, 3);
    CHECK_EQ(said[2].width, SIZE_MAX); /* and not what is left of it */
}

/* --- with attributes */

static CUmemcpyAttributes attributes_of(unsigned order)
{
    return (CUmemcpyAttributes){.srcAccessOrder = (CUmemcpySrcAccessOrder)order};
}

MOVE_TEST(attributes_that_ask_for_an_order_alone_are_a_plain_copy)
{
    CUmemcpyAttributes orders[] = {attributes_of(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                   attributes_of(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                                   attributes_of(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)};
    CUmemcpyAttributes others[] = {attributes_of(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID),
                                   attributes_of(CU_MEMCPY_SRC_ACCESS_ORDER_ANY + 1), orders[0],
                                   orders[0], orders[0]};
    others[2].flags = 1;
    others[3].srcLocHint.type = CU_MEM_LOCATION_TYPE_DEVICE;
    others[4].dstLocHint.type = CU_MEM_LOCATION_TYPE_DEVICE;
    for (int i = 0; i < 3; i++) {
        cuMemcpyWithAttributesAsync(GOOD, FROM, 100, &orders[i], STREAM);
        CHECK(said[0].kind == MS_COPY_ANY && said[0].width == 100 && said[0].stream == STREAM);
        forget();
    }
    for (int i = 0; i < 5; i++) {
        cuMemcpyWithAttributesAsync(GOOD, FROM, 100, &others[i], STREAM);
        CHECK_EQ(said[0].kind, MS_COPY_UNKNOWN);
        forget();
    }
    cuMemcpyWithAttributesAsync(GOOD, FROM, 100, NULL, STREAM);
    CHECK_EQ(said[0].kind, MS_COPY_UNKNOWN);
    cuMemcpyWithAttributesAsync(GOOD, FROM, 100, &orders[0], NULL); /* the legacy stream waits */
    CHECK_EQ(said[1].kind, MS_COPY_UNKNOWN);
    cuMemcpyWithAttributesAsync_ptsz(GOOD, FROM, 100, &orders[0], NULL);
    CHECK_EQ(said[2].kind, MS_COPY_ANY);
    CHECK(got_to == GOOD && got_from == FROM);
}

/* --- rows in planes */

static const void *got;
static CUDA_MEMCPY2D got_plane;
static CUDA_MEMCPY3D got_box;
static CUDA_MEMCPY3D_PEER got_peer;
#define KEEP(copy) (got = pCopy, got_##copy = *pCopy, take(pCopy->dstDevice, pCopy->srcDevice))
REAL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy), return KEEP(plane))
REAL(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *pCopy), return KEEP(box))
REAL(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *pCopy), return KEEP(peer))

/* The same for each of the three. */
#define CHECK_SHAPED(type, call, seen, expected_kind)                          \
    do {                                                                       \
        type copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,                    \
                     .srcDevice = FROM,                                        \
                     .srcPitch = 64,                                           \
                     .dstMemoryType = CU_MEMORYTYPE_UNIFIED,                   \
                     .dstDevice = BAD - 3 - 2 * 64,                            \
                     .dstXInBytes = 3,                                         \
                     .dstY = 2,                                                \
                     .dstPitch = 64,                                           \
                     .WidthInBytes = 60,                                       \
                     .Height = 5};                                             \
        CHECK_EQ(call(&copy), CUDA_ERROR_NOT_READY);                           \
        CHECK(got != &copy && seen.dstMemoryType == CU_MEMORYTYPE_DEVICE);     \
        CHECK(seen.dstDevice == 0 && seen.dstXInBytes == 0 && seen.dstY == 0); \
        CHECK(seen.srcDevice == FROM && seen.WidthInBytes == 60);              \
        CHECK(copy.dstXInBytes == 3 && copy.dstY == 2);                        \
        copy.dstXInBytes = copy.dstY = 0;                                      \
        copy.dstDevice = GOOD;                                                 \
        forget();                                                              \
        CHECK_EQ(call(&copy), CUDA_ERROR_NOT_READY);                           \
        CHECK(got == &copy && said[0].width == 60 && said[0].height == 5);     \
        CHECK_EQ(said[0].kind, expected_kind);                                 \
        forget();                                                              \
    } while (0)

MOVE_TEST(rows_that_stray_are_the_drivers_to_refuse)
{
    CHECK_SHAPED(CUDA_MEMCPY2D, cuMemcpy2D_v2, got_plane, MS_COPY_PLANE);
    CHECK_SHAPED(CUDA_MEMCPY3D, cuMemcpy3D_v2, got_box, MS_COPY_BOX);
    CHECK_SHAPED(CUDA_MEMCPY3D_PEER, cuMemcpy3DPeer, got_peer, MS_COPY_UNKNOWN);
}

/* --- batches */

enum { COPIES = 4 };
static CUdeviceptr to[COPIES], from[COPIES], got_destinations[COPIES];
static size_t sizes[COPIES];
static const CUdeviceptr *got_list;

static CUresult take_batch(CUdeviceptr *destinations, size_t count)
{
    got_list = destinations;
    if (destinations != NULL)
        memcpy(got_destinations, destinations, count * sizeof(*destinations));
    reals++;
    return CUDA_ERROR_NOT_READY;
}

#define LISTS                                                                     \
    CUdeviceptr *destinations, CUdeviceptr *sources, size_t *bytes, size_t count, \
        CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count
REAL(cuMemcpyBatchAsync, (LISTS, size_t *failed, CUstream stream),
     return take_batch(destinations, count))
REAL(cuMemcpyBatchAsync_v2_ptsz, (LISTS, CUstream stream), return take_batch(destinations, count))

static CUmemcpyAttributes attributes[2];
static size_t indices[2];

static void make_batch(void)
{
    for (int i = 0; i < COPIES; i++) {
        to[i] = GOOD;
        from[i] = FROM + (CUdeviceptr)i;
        sizes[i] = 100 + (size_t)i;
    }
    attributes[0] = attributes[1] = attributes_of(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    indices[1] = 2;
    forget();
}

static CUresult call_batch(size_t attribute_count)
{
    size_t failed;
    return cuMemcpyBatchAsync(to, from, sizes, COPIES, attributes, indices, attribute_count,
                              &failed, STREAM);
}

MOVE_TEST(each_copy_of_a_batch_is_made_real)
{
    make_batch();
    CHECK_EQ(call_batch(1), CUDA_ERROR_NOT_READY);
    CHECK_EQ(begun, COPIES);
    for (unsigned i = 0; i < COPIES; i++) {
        CHECK(said[i].kind == MS_COPY_BOX && said[i].width == 100 + i && said[i].stream == STREAM);
        CHECK(said[i].height == 1 && said[i].depth == 1);
        CHECK(said[i].to.type == CU_MEMORYTYPE_UNIFIED && said[i].to.begin == GOOD);
        CHECK(said[i].from.type == CU_MEMORYTYPE_UNIFIED && said[i].from.begin == FROM + i);
    }
    CHECK(got_list == to);
    forget();
    cuMemcpyBatchAsync_v2_ptsz(to, from, sizes, COPIES, attributes, indices, 1, NULL);
    CHECK(said[0].stream == CU_STREAM_PER_THREAD && got_list == to);
}

/* From its first copy on, until that of the next. */
MOVE_TEST(the_attributes_of_a_batch_are_those_before_a_copy)
{
    static const struct {
        size_t first, second; /* of each that has them */
        size_t count;
        const char *kinds; /* b: a box, u: not modelled */
    } cases[] = {{0, 2, 2, "bbuu"}, {0, 4, 2, "bbbb"}, {0, 2, 1, "bbbb"}, {1, 2, 2, "ubuu"},
                 {0, 3, 2, "bbbu"}, {0, 0, 0, "uuuu"}, {1, 1, 1, "ubbb"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_batch();
        attributes[1].flags = 1;
        indices[0] = cases[i].first;
        indices[1] = cases[i].second;
        call_batch(cases[i].count);
        for (int k = 0; k < COPIES; k++)
            CHECK_EQ(said[k].kind, cases[i].kinds[k] == 'b' ? MS_COPY_BOX : MS_COPY_UNKNOWN);
    }
    make_batch();
    indices[0] = 0;
    cuMemcpyBatchAsync(to, from, sizes, 1, NULL, indices, 1, NULL, STREAM);
    cuMemcpyBatchAsync(to, from, sizes, 1, attributes, NULL, 1, NULL, STREAM);
    indices[1] = 0;
    cuMemcpyBatchAsync(to, from, sizes, 1, NULL, indices, 2, NULL, STREAM);
    CHECK(said[2].kind == MS_COPY_UNKNOWN);
    CHECK(said[0].kind == MS_COPY_UNKNOWN && said[1].kind == MS_COPY_UNKNOWN);
}

MOVE_TEST(a_batch_has_only_copies_that_stray_replaced)
{
    static const CUdeviceptr expected[] = {GOOD, 0, GOOD, 0};
    make_batch();
    to[1] = from[3] = BAD;
    CHECK_EQ(call_batch(1), CUDA_ERROR_NOT_READY);
    CHECK_EQ(begun, COPIES);
    CHECK(got_list != to && to[1] == BAD && to[3] == GOOD);
    for (int i = 0; i < COPIES; i++)
        CHECK_EQ(got_destinations[i], expected[i]);
}

STORY_BETWEEN(start, end, a_batch_that_is_refused_or_has_no_memory_does_not_reach_the_driver,
              make_batch(), to[0] = BAD, to[2] = REFUSED,
              EQUALS(call_batch(1), CUDA_ERROR_OUT_OF_MEMORY), EQUALS(begun, 3), make_batch(),
              to[0] = BAD, may_make = 0, EQUALS(call_batch(1), CUDA_ERROR_OUT_OF_MEMORY),
              EQUALS(begun, 1), EQUALS(reals, 0))

MOVE_TEST(a_batch_without_lists_is_the_drivers_to_judge)
{
    CUdeviceptr *const lists[2][3] = {{NULL, from, (CUdeviceptr *)sizes}, {to, NULL, NULL}};
    make_batch();
    for (int i = 0; i < 2; i++)
        CHECK_EQ(cuMemcpyBatchAsync(lists[i][0], lists[i][1], i == 0 ? sizes : NULL, COPIES,
                                    attributes, indices, 1, NULL, STREAM),
                 CUDA_ERROR_NOT_READY);
    CHECK_EQ(cuMemcpyBatchAsync(to, from, NULL, COPIES, attributes, indices, 1, NULL, STREAM),
             CUDA_ERROR_NOT_READY);
    CHECK(begun == 0 && seals == 3 && reals == 3);
    sealing = CUDA_ERROR_ILLEGAL_ADDRESS;
    CHECK_EQ(cuMemcpyBatchAsync(to, NULL, sizes, COPIES, attributes, indices, 1, NULL, STREAM),
             CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(reals, 3);
}

/* --- boxes */

static CUDA_MEMCPY3D_BATCH_OP boxes[3], got_boxes[3];
static const CUDA_MEMCPY3D_BATCH_OP *got_box_list;
static CUarray_format format;
static unsigned channels;
static CUresult describing;

static CUresult take_boxes(CUDA_MEMCPY3D_BATCH_OP *list, size_t count)
{
    got_box_list = list;
    if (list != NULL)
        memcpy(got_boxes, list, count * sizeof(*list));
    reals++;
    return CUDA_ERROR_NOT_READY;
}

static CUresult describe(CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    *descriptor = (CUDA_ARRAY3D_DESCRIPTOR){.Format = format, .NumChannels = channels};
    return describing;
}

REAL(cuMemcpy3DBatchAsync,
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
      CUstream stream),
     return take_boxes(list, count))
REAL(cuMemcpy3DBatchAsync_v2_ptsz,
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream),
     return take_boxes(list, count))
REAL(cuMemcpy3DWithAttributesAsync,
     (CUDA_MEMCPY3D_BATCH_OP * list, unsigned long long flags, CUstream stream),
     return take_boxes(list, 1))
REAL(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * descriptor, CUarray array),
     return describe(descriptor))

static CUmemcpy3DOperand pointer_to(CUdeviceptr address, size_t length, size_t lines)
{
    CUmemcpy3DOperand operand = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER};
    operand.op.ptr.ptr = address;
    operand.op.ptr.rowLength = length;
    operand.op.ptr.layerHeight = lines;
    return operand;
}

static void make_boxes(void)
{
    for (int i = 0; i < 3; i++) {
        boxes[i] = (CUDA_MEMCPY3D_BATCH_OP){.extent = {.width = 10, .height = 4, .depth = 2}};
        boxes[i].src = pointer_to(FROM, 32, 6);
        boxes[i].dst = pointer_to(GOOD, 0, 0);
    }
    forget();
}

static CUresult call_boxes(void)
{
    return cuMemcpy3DBatchAsync(3, boxes, NULL, 0, STREAM);
}

MOVE_TEST(a_box_without_lengths_is_dense)
{
    make_boxes();
    format = CU_AD_FORMAT_FLOAT; /* of arrays, of which there is none */
    channels = 4;
    CHECK_EQ(call_boxes(), CUDA_ERROR_NOT_READY);
    CHECK(begun == 3 && got_box_list == boxes);
    CHECK(said[2].kind == MS_COPY_BOX && said[2].stream == STREAM);
    CHECK(said[2].width == 10 && said[2].height == 4 && said[2].depth == 2);
    CHECK(said[2].to.begin == GOOD && said[2].to.pitch == 10 && said[2].to.slice == 40);
    CHECK(said[2].from.begin == FROM && said[2].from.pitch == 32 && said[2].from.slice == 192);
    CHECK(said[2].to.type == CU_MEMORYTYPE_UNIFIED && said[2].from.type == CU_MEMORYTYPE_UNIFIED);
    forget();
    cuMemcpy3DBatchAsync_v2_ptsz(1, boxes, 0, NULL);
    CHECK(begun == 1 && said[0].stream == CU_STREAM_PER_THREAD);
    cuMemcpy3DWithAttributesAsync(boxes, 0, NULL);
    CHECK(begun == 2 && said[1].stream == CU_STREAM_LEGACY);
}

/* Lengths then count its elements. */
MOVE_TEST(a_box_with_an_array_is_not_modelled)
{
    static const struct {
        unsigned format, channels;
        size_t bytes;
    } formats[] = {{CU_AD_FORMAT_UNSIGNED_INT8, 4, 4},  {CU_AD_FORMAT_SIGNED_INT8, 1, 1},
                   {CU_AD_FORMAT_UNSIGNED_INT16, 2, 4}, {CU_AD_FORMAT_SIGNED_INT16, 1, 2},
                   {CU_AD_FORMAT_HALF, 4, 8},           {CU_AD_FORMAT_UNSIGNED_INT32, 1, 4},
                   {CU_AD_FORMAT_SIGNED_INT32, 2, 8},   {CU_AD_FORMAT_FLOAT, 4, 16},
                   {CU_AD_FORMAT_UNORM_INT8X1, 2, 2},   {CU_AD_FORMAT_SNORM_INT16X4 + 1, 3, 1},
                   {CU_AD_FORMAT_UNORM_INT16X4, 4, 8},  {CU_AD_FORMAT_SNORM_INT16X4, 4, 8},
                   {CU_AD_FORMAT_SNORM_INT16X1, 1, 2},  {CU_AD_FORMAT_NV12, 3, 1},
                   {CU_AD_FORMAT_BC1_UNORM, 4, 1}};
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        for (int side = 0; side < 2; side++) {
            make_boxes();
            CUmemcpy3DOperand *operand = side == 0 ? &boxes[0].src : &boxes[0].dst;
            *operand = (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_ARRAY};
            format = (CUarray_format)formats[i].format;
            channels = formats[i].channels;
            call_boxes();
            CHECK_EQ(said[0].kind, MS_COPY_UNKNOWN);
            CHECK_EQ(said[0].width, 10 * formats[i].bytes);
            const struct ms_side seen = side == 0 ? said[0].to : said[0].from;
            CHECK_EQ(seen.pitch, (side == 0 ? 10 : 32) * formats[i].bytes);
            CHECK_EQ((side == 0 ? said[0].from : said[0].to).type, CU_MEMORYTYPE_ARRAY);
        }
    }
    describing = CUDA_ERROR_INVALID_HANDLE;
    forget();
    call_boxes();
    CHECK_EQ(said[0].width, 10);
}

MOVE_TEST(a_length_that_overflows_is_the_longest)
{
    make_boxes();
    format = CU_AD_FORMAT_FLOAT;
    channels = 1;
    boxes[0].src = (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_ARRAY};
    boxes[0].extent.width = SIZE_MAX / 2;
    call_boxes();
    CHECK_EQ(said[0].width, SIZE_MAX);
}

MOVE_TEST(a_list_of_boxes_has_only_boxes_that_stray_replaced)
{
    make_boxes();
    boxes[1].dst.op.ptr.ptr = BAD;
    boxes[2].src.op.ptr.ptr = BAD;
    boxes[2].dst = (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_ARRAY};
    format = CU_AD_FORMAT_UNSIGNED_INT8;
    channels = 1;
    CHECK_EQ(call_boxes(), CUDA_ERROR_NOT_READY);
    CHECK(got_box_list != boxes && boxes[1].dst.op.ptr.ptr == BAD);
    CHECK_EQ(got_boxes[0].dst.op.ptr.ptr, GOOD);
    for (int i = 1; i < 3; i++) {
        CHECK_EQ(got_boxes[i].dst.type, CU_MEMCPY_OPERAND_TYPE_POINTER);
        CHECK_EQ(got_boxes[i].dst.op.ptr.ptr, 0);
        CHECK_EQ(got_boxes[i].extent.width, 10);
    }
}

MOVE_TEST(boxes_that_are_refused_or_have_no_memory_do_not_reach_the_driver)
{
    make_boxes();
    boxes[0].dst.op.ptr.ptr = BAD;
    boxes[1].dst.op.ptr.ptr = REFUSED;
    CHECK_EQ(call_boxes(), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(begun, 2);
    may_make = 0;
    CHECK_EQ(call_boxes(), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(begun, 3);
    CHECK_EQ(reals, 0);
    CHECK_EQ(cuMemcpy3DBatchAsync(3, NULL, NULL, 0, STREAM), CUDA_ERROR_NOT_READY);
    CHECK(got_box_list == NULL && begun == 3);
}
