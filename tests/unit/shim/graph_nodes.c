/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of graphs: of one that strays the driver gets a copy that it refuses. */
#include "runtime/calls/move.h"
#include "shim/newer.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/shim/real_side.h"

enum { GOOD = 0x1000, BAD = 0x2000 };

static CUresult sealing;
static unsigned seals, reals;
static struct ms_movement asked; /* what was looked at last */

WRAPS(ms_move_seal, ms_move_strays, ms_pointer_strays);

CUresult __wrap_ms_move_seal(void)
{
    seals++;
    return sealing;
}

bool __wrap_ms_move_strays(const struct ms_movement *movement)
{
    asked = *movement;
    return movement->to.begin == BAD;
}

bool __wrap_ms_pointer_strays(CUdeviceptr address, size_t bytes)
{
    return address == BAD;
}

/* --- the driver: what it got, and a copy of that */

static const void *given;
static union {
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_BATCH_MEM_OP_NODE_PARAMS values;
    CUgraphNodeParams any;
} got;
static CUdeviceptr got_address; /* of the first operation */

static CUresult take(const void *parameters, size_t bytes)
{
    reals++;
    given = parameters;
    memset(&got, 0, sizeof(got));
    if (parameters != NULL)
        memcpy(&got, parameters, bytes);
    return CUDA_ERROR_NOT_READY;
}

static CUresult take_values(const CUDA_BATCH_MEM_OP_NODE_PARAMS *values)
{
    got_address = values != NULL ? values->paramArray[0].writeValue.address : 0;
    return take(values, sizeof(*values));
}

static CUresult take_any(const CUgraphNodeParams *any)
{
    if (any != NULL && any->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
        got_address = any->memOp.paramArray[0].writeValue.address;
    return take(any, sizeof(*any));
}

#define ADDED CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count
#define ADDED_2                                                                               \
    CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges, \
        size_t count
REAL(cuGraphAddMemcpyNode, (ADDED, const CUDA_MEMCPY3D *copy, CUcontext context),
     return take(copy, sizeof(*copy)))
REAL(cuGraphMemcpyNodeSetParams, (CUgraphNode node, const CUDA_MEMCPY3D *copy),
     return take(copy, sizeof(*copy)))
REAL(cuGraphExecMemcpyNodeSetParams,
     (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context),
     return take(copy, sizeof(*copy)))
REAL(cuGraphAddMemsetNode, (ADDED, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context),
     return take(set, sizeof(*set)))
REAL(cuGraphMemsetNodeSetParams, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *set),
     return take(set, sizeof(*set)))
REAL(cuGraphExecMemsetNodeSetParams,
     (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context),
     return take(set, sizeof(*set)))
REAL(cuGraphAddBatchMemOpNode, (ADDED, const CUDA_BATCH_MEM_OP_NODE_PARAMS *values),
     return take_values(values))
REAL(cuGraphBatchMemOpNodeSetParams,
     (CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *values), return take_values(values))
REAL(cuGraphExecBatchMemOpNodeSetParams,
     (CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *values),
     return take_values(values))
REAL(cuGraphAddNode, (ADDED, CUgraphNodeParams *any), return take_any(any))
REAL(cuGraphAddNode_v2, (ADDED_2, CUgraphNodeParams *any), return take_any(any))
REAL(cuGraphAddNode_v3, (ADDED_2, CUgraphNodeParams *any), return take_any(any))
REAL(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *any), return take_any(any))
REAL(cuGraphNodeSetParams_v2, (CUgraphNode node, CUgraphNodeParams *any), return take_any(any))
REAL(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *any),
     return take_any(any))

static CUresult call_copy(int which, const CUDA_MEMCPY3D *copy)
{
    return which == 0   ? cuGraphAddMemcpyNode(NULL, NULL, NULL, 0, copy, NULL)
           : which == 1 ? cuGraphMemcpyNodeSetParams(NULL, copy)
                        : cuGraphExecMemcpyNodeSetParams(NULL, NULL, copy, NULL);
}

static CUresult call_set(int which, const CUDA_MEMSET_NODE_PARAMS *set)
{
    return which == 0   ? cuGraphAddMemsetNode(NULL, NULL, NULL, 0, set, NULL)
           : which == 1 ? cuGraphMemsetNodeSetParams(NULL, set)
                        : cuGraphExecMemsetNodeSetParams(NULL, NULL, set, NULL);
}

static CUresult call_values(int which, const CUDA_BATCH_MEM_OP_NODE_PARAMS *values)
{
    return which == 0   ? cuGraphAddBatchMemOpNode(NULL, NULL, NULL, 0, values)
           : which == 1 ? cuGraphBatchMemOpNodeSetParams(NULL, values)
                        : cuGraphExecBatchMemOpNodeSetParams(NULL, NULL, values);
}

enum { ANY_CALLS = 6 };
static CUresult call_any(int which, CUgraphNodeParams *any)
{
    switch (which) {
    case 0:
        return cuGraphAddNode(NULL, NULL, NULL, 0, any);
    case 1:
        return cuGraphAddNode_v2(NULL, NULL, NULL, NULL, 0, any);
    case 2:
        return cuGraphAddNode_v3(NULL, NULL, NULL, NULL, 0, any);
    case 3:
        return cuGraphNodeSetParams(NULL, any);
    case 4:
        return cuGraphNodeSetParams_v2(NULL, any);
    default:
        return cuGraphExecNodeSetParams(NULL, NULL, any);
    }
}

static void start(void)
{
    own_something(true);
}

static void end(void)
{
    CHECK_EQ(live, 0);
    CHECK_EQ(ms_calls_inside, 0);
}
#define NODE_TEST(name) MS_TEST_BETWEEN(start, end, name)

/* --- copies and sets */

static CUDA_MEMCPY3D copy_to(CUdeviceptr address)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = GOOD,
                           .srcXInBytes = 3,
                           .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .dstDevice = address,
                           .WidthInBytes = 100,
                           .Height = 1,
                           .Depth = 1};
}

static void must_be_refused_copy(const CUDA_MEMCPY3D *copy, const CUDA_MEMCPY3D *seen)
{
    CHECK_EQ(seen->dstDevice, 0);
    CHECK_EQ(seen->dstMemoryType, CU_MEMORYTYPE_DEVICE);
    CHECK_EQ(seen->dstXInBytes + seen->dstY + seen->dstZ, 0);
    CHECK_EQ(seen->srcDevice, copy->srcDevice);
    CHECK_EQ(seen->srcXInBytes, 3);
    CHECK_EQ(seen->WidthInBytes, 100);
}

NODE_TEST(a_copy_that_strays_is_the_drivers_to_refuse)
{
    for (int i = 0; i < 3; i++) {
        CUDA_MEMCPY3D copy = copy_to(GOOD);
        CHECK_EQ(call_copy(i, &copy), CUDA_ERROR_NOT_READY);
        CHECK(given == &copy);
        CHECK_EQ(asked.width, 100);
        copy = copy_to(BAD);
        CHECK_EQ(call_copy(i, &copy), CUDA_ERROR_NOT_READY);
        CHECK(given != &copy);
        must_be_refused_copy(&copy, &got.copy);
        CHECK_EQ(copy.dstDevice, BAD);
        CHECK_EQ(call_copy(i, NULL), CUDA_ERROR_NOT_READY);
        CHECK(given == NULL);
        CHECK_EQ(seals, 3 * (i + 1));
    }
}

/* Where the copy begins in the destination does not matter then. */
NODE_TEST(the_place_in_a_destination_that_strays_is_gone)
{
    CUDA_MEMCPY3D copy = copy_to(BAD - 7);
    copy.dstXInBytes = 7;
    call_copy(0, &copy);
    must_be_refused_copy(&copy, &got.copy);
    copy = copy_to(BAD - 7 * 64);
    copy.dstY = 7;
    copy.dstPitch = 64;
    call_copy(0, &copy);
    must_be_refused_copy(&copy, &got.copy);
    copy = copy_to(BAD - 7 * 64 * 2);
    copy.dstZ = 7;
    copy.dstPitch = 64;
    copy.dstHeight = 2;
    call_copy(0, &copy);
    must_be_refused_copy(&copy, &got.copy);
}

static CUDA_MEMSET_NODE_PARAMS set_to(CUdeviceptr address)
{
    return (CUDA_MEMSET_NODE_PARAMS){
        .dst = address, .pitch = 64, .value = 9, .elementSize = 2, .width = 30, .height = 3};
}

NODE_TEST(a_set_that_strays_is_the_drivers_to_refuse)
{
    for (int i = 0; i < 3; i++) {
        CUDA_MEMSET_NODE_PARAMS set = set_to(GOOD);
        CHECK_EQ(call_set(i, &set), CUDA_ERROR_NOT_READY);
        CHECK(given == &set);
        CHECK(asked.width == 60 && asked.height == 3 && asked.depth == 1);
        CHECK(asked.to.begin == GOOD && asked.to.pitch == 64);
        CHECK(asked.to.type == CU_MEMORYTYPE_DEVICE && asked.from.type == 0);
        set = set_to(BAD);
        CHECK_EQ(call_set(i, &set), CUDA_ERROR_NOT_READY);
        CHECK(given != &set && got.set.dst == 0 && set.dst == BAD);
        CHECK(got.set.value == 9 && got.set.width == 30 && got.set.elementSize == 2);
        CHECK_EQ(call_set(i, NULL), CUDA_ERROR_NOT_READY);
        CHECK(given == NULL);
    }
}

/* --- values in memory */

/* The second one is not the node's. */
static CUstreamBatchMemOpParams operations[2], *const operation = operations;

static void point_to(CUdeviceptr address)
{
    operations[0].operation = operations[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[0].writeValue.address = address;
    operations[1].writeValue.address = BAD;
}

NODE_TEST(a_value_that_strays_is_the_drivers_to_refuse)
{
    const CUDA_BATCH_MEM_OP_NODE_PARAMS values = {.count = 1, .paramArray = operation, .flags = 5};
    for (int i = 0; i < 3; i++) {
        point_to(GOOD);
        CHECK_EQ(call_values(i, &values), CUDA_ERROR_NOT_READY);
        CHECK(given == &values && got_address == GOOD);
        point_to(BAD);
        CHECK_EQ(call_values(i, &values), CUDA_ERROR_NOT_READY);
        CHECK(given != &values && got_address == 0);
        CHECK(got.values.count == 1 && got.values.flags == 5);
        CHECK_EQ(operation->writeValue.address, BAD);
        CHECK_EQ(call_values(i, NULL), CUDA_ERROR_NOT_READY);
        CHECK(given == NULL);
    }
}

/* --- nodes of any type */

NODE_TEST(a_node_of_any_type_that_strays_is_the_drivers_to_refuse)
{
    for (int i = 0; i < ANY_CALLS; i++) {
        for (int strays = 0; strays < 2; strays++) {
            const CUdeviceptr address = strays ? BAD : GOOD;
            CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
            any.memcpy.copyParams = copy_to(address);
            CHECK_EQ(call_any(i, &any), CUDA_ERROR_NOT_READY);
            CHECK_EQ(given != &any, strays);
            if (strays)
                must_be_refused_copy(&any.memcpy.copyParams, &got.any.memcpy.copyParams);

            any = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET};
            any.memset.dst = address;
            any.memset.pitch = 64;
            any.memset.elementSize = 4;
            any.memset.width = 2;
            any.memset.height = 3;
            CHECK_EQ(call_any(i, &any), CUDA_ERROR_NOT_READY);
            CHECK(asked.width == 8 && asked.height == 3 && asked.to.pitch == 64);
            CHECK_EQ(given != &any, strays);
            CHECK_EQ(got.any.memset.dst, strays ? 0 : GOOD);
            CHECK_EQ(got.any.memset.width, 2);

            any = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
            any.memOp.count = 1;
            any.memOp.paramArray = operation;
            point_to(address);
            CHECK_EQ(call_any(i, &any), CUDA_ERROR_NOT_READY);
            CHECK_EQ(given != &any, strays);
            CHECK_EQ(got_address, strays ? 0 : GOOD);
            CHECK(any.memOp.paramArray == operation);
        }
    }
}

NODE_TEST(a_node_of_another_type_is_handed_on_as_it_is)
{
    for (int i = 0; i < ANY_CALLS; i++) {
        CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
        any.memset.dst = BAD; /* if it were a set */
        CHECK_EQ(call_any(i, &any), CUDA_ERROR_NOT_READY);
        CHECK(given == &any);
        CHECK_EQ(call_any(i, NULL), CUDA_ERROR_NOT_READY);
        CHECK(given == NULL);
    }
    CHECK_EQ(seals, 2 * ANY_CALLS);
}

/* --- failures, and calls that are not looked at */

NODE_TEST(a_node_whose_memory_cannot_be_made_real_is_not_called)
{
    const CUDA_MEMCPY3D copy = copy_to(BAD);
    const CUDA_MEMSET_NODE_PARAMS set = set_to(BAD);
    const CUDA_BATCH_MEM_OP_NODE_PARAMS values = {.count = 1, .paramArray = operation};
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    any.memOp.count = 1;
    any.memOp.paramArray = operation;
    sealing = CUDA_ERROR_ILLEGAL_ADDRESS;
    point_to(BAD);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(call_copy(i, &copy), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(call_set(i, &set), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(call_values(i, &values), CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    for (int i = 0; i < ANY_CALLS; i++)
        CHECK_EQ(call_any(i, &any), CUDA_ERROR_ILLEGAL_ADDRESS);
    sealing = CUDA_SUCCESS;
    for (int i = 0; i < ANY_CALLS; i++) {
        may_make = 0;
        CHECK_EQ(call_any(i, &any), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(call_values(i % 3, &values), CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHECK_EQ(reals, 0);
}

NODE_TEST(nodes_go_straight_on_while_nothing_is_owned)
{
    const CUDA_MEMCPY3D copy = copy_to(BAD);
    const CUDA_MEMSET_NODE_PARAMS set = set_to(BAD);
    const CUDA_BATCH_MEM_OP_NODE_PARAMS values = {.count = 1, .paramArray = operation};
    own_something(false);
    for (int i = 0; i < 3; i++) {
        call_copy(i, &copy);
        CHECK(given == &copy);
        call_set(i, &set);
        CHECK(given == &set);
        call_values(i, &values);
        CHECK(given == &values);
    }
    CHECK_EQ(seals, 0);
}
