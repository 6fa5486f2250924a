/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/collective.h"

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/collective/receive.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/examining.h"
#include "runtime/memory/allocation.h"
#include "runtime/state/counters.h"

static CUdeviceptr address_of(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* Bytes that are both read and written keep their value. */
static bool overlaps(const struct ms_operation *operation)
{
    const CUdeviceptr read = address_of(operation->read), written = address_of(operation->written);
    return operation->read_bytes > 0 && operation->written_bytes > 0 &&
           read < written + operation->written_bytes && written < read + operation->read_bytes;
}

enum { RECEIVES = 16 };
struct under_way_receive {
    struct ms_receive receive;
    CUstream stream;
    bool is_called;
};

/* The operations in progress on this thread. */
static _Thread_local struct {
    unsigned groups;        /* that are open */
    unsigned reads;         /* that are held */
    unsigned receive_count; /* of receives() */
} under_way __attribute__((tls_model("initial-exec")));

bool ms_collective_matters(void)
{
    return ms_defers_any() || (ms_owns_any() && ms_is_capturing());
}

/* NULL: out of memory. */
static struct under_way_receive *receives(void)
{
    return ms_thread_memory(MS_THREAD_RECEIVES, RECEIVES * sizeof(struct under_way_receive));
}

static bool may_be_late(const struct ms_operation *operation)
{
    return operation->is_late || ms_is_capturing();
}

/* What is sent is often copied back over the tensors that it was made of: then it is known that no
 * kernel is queued (materialise.c), although NCCL still waits for other ranks. */
static void look_at_kernels(void)
{
    CUcontext context;
    if (ms_driver.ctx_get_current(&context) == CUDA_SUCCESS && context != NULL)
        ms_examining_no_kernel(context);
}

static CUresult prepare_read(const struct ms_operation *operation)
{
    const CUdeviceptr address = address_of(operation->read);
    if (!operation->sends)
        return ms_access(address, operation->read_bytes, MS_NEED_READ_WRITE);
    if (may_be_late(operation))
        return ms_access(address, operation->read_bytes, MS_NEED_SEND_LATER);
    const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    const CUresult result = ms_access(address, operation->read_bytes, MS_NEED_SEND);
    under_way.reads += result == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && ms_counter_get(MS_COUNT_MATERIALISED_BYTES) != before)
        look_at_kernels();
    return result;
}

static CUresult prepare_write(const struct ms_operation *operation)
{
    const CUdeviceptr address = address_of(operation->written);
    /* With a partial overlap the rest is replayed too: it costs no more than a read. */
    if (overlaps(operation))
        return ms_access(address, operation->written_bytes, MS_NEED_READ_WRITE);
    if (!operation->receives || may_be_late(operation) || under_way.receive_count == RECEIVES ||
        receives() == NULL)
        return ms_access(address, operation->written_bytes, MS_NEED_OVERWRITE);
    struct under_way_receive *added = receives() + under_way.receive_count;
    const CUresult result =
        ms_access_receive(address, operation->written_bytes, operation->ranks, &added->receive);
    if (added->receive.address != 0) {
        added->is_called = false;
        under_way.receive_count++;
    }
    return result;
}

static bool is_in_one_handle(const void *address)
{
    struct ms_allocation *allocation = ms_space_claim(address_of(address));
    const bool is_one = allocation == NULL ||
                        ms_backing_is_one_chunk(&allocation->backing, 0, allocation->granule_bytes);
    ms_space_release(allocation);
    return is_one;
}

/* NCCL registers the buffers of a captured operation if each lies in one handle, which must be the
 * same on all ranks (NCCL 2.28.9, NCCL_GRAPH_REGISTER). */
static void look_at_captured(const struct ms_operation *operation)
{
    static _Atomic bool is_given;
    if ((operation->read_bytes == 0 || is_in_one_handle(operation->read)) &&
        (operation->written_bytes == 0 || is_in_one_handle(operation->written)))
        return;
    if (!atomic_exchange(&is_given, true))
        ms_log(MS_WARN,
               "a captured collective uses memory that was materialised in pieces, which NCCL does "
               "not register: if ranks differ in that, NCCL needs NCCL_GRAPH_REGISTER=0");
}

CUresult ms_collective_prepare(const struct ms_operation *operation)
{
    CUresult result = CUDA_SUCCESS;
    if (ms_defers_any() && operation->read_bytes > 0)
        result = prepare_read(operation);
    if (ms_defers_any() && operation->written_bytes > 0 && result == CUDA_SUCCESS)
        result = prepare_write(operation);
    if (ms_is_capturing())
        look_at_captured(operation);
    return result;
}

static void finish(void)
{
    for (; under_way.reads > 0; under_way.reads--)
        ms_evict_let_go();
    for (unsigned i = 0; i < under_way.receive_count; i++)
        ms_receive_queued(&receives()[i].receive, receives()[i].stream);
    under_way.receive_count = 0;
}

void ms_collective_called(CUstream stream)
{
    for (unsigned i = under_way.receive_count; i > 0 && !receives()[i - 1].is_called; i--) {
        receives()[i - 1].stream = stream;
        receives()[i - 1].is_called = true;
    }
    if (under_way.groups == 0)
        finish();
}

void ms_collective_group(bool begins)
{
    if (begins)
        under_way.groups++;
    else if (under_way.groups > 0 && --under_way.groups == 0)
        finish();
}

CUresult ms_collective_pin(const void *address, size_t bytes, bool *one_handle_out)
{
    const CUdeviceptr end = address_of(address) + bytes;
    struct ms_allocation_facts facts;
    CUresult result = CUDA_SUCCESS;
    *one_handle_out = true;
    for (CUdeviceptr at = address_of(address);
         result == CUDA_SUCCESS && at < end && ms_space_first_behind(at, &facts) &&
         facts.address < end;
         at = facts.address + facts.bytes) {
        bool is_one;
        result = ms_access_export(facts.address, &is_one);
        *one_handle_out &= is_one;
    }
    return result;
}
