/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/collective.h"

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/base/log.h"
#include "runtime/calls/calls.h"
#include "runtime/collective/receive.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/evict.h"
#include "runtime/memory/allocations.h"

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

/* The operations in progress on this thread. */
static _Thread_local struct {
    unsigned groups; /* that are open */
    unsigned reads;  /* that are held */
    unsigned receive_count;
    struct {
        struct ms_receive receive;
        CUstream stream;
        bool is_called;
    } receives[16];
} under_way __attribute__((tls_model("initial-exec")));

bool ms_collective_matters(void)
{
    return ms_defers_any() || (ms_owns_any() && ms_is_capturing());
}

static bool may_be_late(const struct ms_operation *operation)
{
    return operation->is_late || ms_is_capturing();
}

static CUresult prepare_read(const struct ms_operation *operation)
{
    const CUdeviceptr address = address_of(operation->read);
    if (!operation->sends)
        return ms_access(address, operation->read_bytes, MS_NEED_READ_WRITE);
    if (may_be_late(operation))
        return ms_access(address, operation->read_bytes, MS_NEED_SEND_LATER);
    const CUresult result = ms_access(address, operation->read_bytes, MS_NEED_SEND);
    under_way.reads += result == CUDA_SUCCESS;
    return result;
}

static CUresult prepare_write(const struct ms_operation *operation)
{
    const CUdeviceptr address = address_of(operation->written);
    const unsigned room = sizeof(under_way.receives) / sizeof(under_way.receives[0]);
    /* With a partial overlap the rest is replayed too: it costs no more than a read. */
    if (overlaps(operation))
        return ms_access(address, operation->written_bytes, MS_NEED_READ_WRITE);
    if (!operation->receives || may_be_late(operation) || under_way.receive_count == room)
        return ms_access(address, operation->written_bytes, MS_NEED_OVERWRITE);
    struct ms_receive *receive = &under_way.receives[under_way.receive_count].receive;
    const CUresult result =
        ms_access_receive(address, operation->written_bytes, operation->ranks, receive);
    if (receive->address != 0)
        under_way.receives[under_way.receive_count++].is_called = false;
    return result;
}

static bool is_in_one_handle(const void *address)
{
    struct ms_allocation *allocation = ms_space_claim(address_of(address));
    const bool is_one = allocation == NULL || ms_backing_is_one_chunk(&allocation->backing);
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
        ms_read_end();
    for (unsigned i = 0; i < under_way.receive_count; i++)
        ms_receive_queued(&under_way.receives[i].receive, under_way.receives[i].stream);
    under_way.receive_count = 0;
}

void ms_collective_called(CUstream stream)
{
    for (unsigned i = under_way.receive_count; i > 0 && !under_way.receives[i - 1].is_called; i--) {
        under_way.receives[i - 1].stream = stream;
        under_way.receives[i - 1].is_called = true;
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
