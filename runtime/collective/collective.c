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
#include "runtime/memory/allocation.h"
#include "runtime/order/examining.h"
#include "runtime/order/order.h"
#include "runtime/state/counters.h"

static CUdeviceptr address_of(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* True if the operation reads bytes that it also writes: they must keep their value. */
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
    unsigned groups;        /* open groups */
    unsigned reads;         /* reads that are held */
    unsigned receive_count; /* entries of receives() in use */
} under_way __attribute__((tls_model("initial-exec")));

static _Atomic uint32_t open_groups; /* threads with an open group */

/* Returns NULL if out of memory. */
static struct under_way_receive *receives(void)
{
    return ms_thread_memory(MS_THREAD_RECEIVES, RECEIVES * sizeof(struct under_way_receive));
}

static bool may_be_late(const struct ms_operation *operation)
{
    return operation->is_late || ms_is_capturing();
}

/* Finds out whether a kernel is queued, before NCCL queues work that waits for other ranks:
 * materialise.c asks that when the bytes sent are copied back over the tensors that they were made
 * of. */
static void look_at_kernels(void)
{
    CUcontext context;
    if (ms_driver.ctx_get_current(&context) == CUDA_SUCCESS && context != NULL)
        ms_examining_no_kernel(context);
}

/* True if NCCL puts other ranks' parts beside the bytes that this rank sends, which the program has
 * copied there. */
static bool is_between_parts(const struct ms_operation *operation)
{
    return operation->read_bytes < operation->written_bytes && overlaps(operation);
}

static enum ms_need need_of_read(const struct ms_operation *operation)
{
    if (is_between_parts(operation))
        return MS_NEED_CONTRIBUTE;
    if (!operation->sends)
        return MS_NEED_READ_WRITE;
    return may_be_late(operation) ? MS_NEED_SEND_LATER : MS_NEED_SEND;
}

/* True if it may be enough to receive the bytes that this rank keeps. */
static bool receives_parts(const struct ms_operation *operation)
{
    return operation->written_bytes > 0 && (operation->receives || operation->gathers) &&
           !overlaps(operation) && !may_be_late(operation) && under_way.receive_count < RECEIVES &&
           receives() != NULL;
}

/* True if the bytes read go to all ranks, from their own place, and can be sent from parked memory
 * instead. Not for a gather in a group: another call of the group may send the same bytes. */
static bool may_park_sent(const struct ms_operation *operation)
{
    const bool is_sent = operation->written_bytes == 0
                             ? operation->receives
                             : operation->gathers && !overlaps(operation) && under_way.groups == 0;
    return operation->read_bytes > 0 && is_sent && !may_be_late(operation) &&
           under_way.receive_count < RECEIVES && receives() != NULL;
}

static bool park_sent(const struct ms_operation *operation)
{
    if (!may_park_sent(operation))
        return false;
    struct under_way_receive *added = receives() + under_way.receive_count;
    const struct ms_receive_role role = {.sends = true,
                                         .gathers = operation->gathers,
                                         .ranks = operation->ranks};
    const CUresult result = ms_receive_prepare(address_of(operation->read), operation->read_bytes,
                                               &role, &added->receive);
    if (result != CUDA_SUCCESS || added->receive.address == 0)
        return false;
    added->is_called = false;
    under_way.receive_count++;
    look_at_kernels();
    return true;
}

static CUresult prepare_uses(const struct ms_operation *operation)
{
    struct ms_use uses[2];
    size_t count = 0;
    if (operation->read_bytes > 0 && !park_sent(operation))
        uses[count++] = (struct ms_use){need_of_read(operation), address_of(operation->read),
                                        operation->read_bytes};
    /* With a partial overlap the bytes that are only written are replayed, too: that costs no more
     * than a read. */
    if (operation->written_bytes > 0 && !receives_parts(operation))
        uses[count++] =
            (struct ms_use){overlaps(operation) ? MS_NEED_READ_WRITE : MS_NEED_OVERWRITE,
                            address_of(operation->written), operation->written_bytes};
    const uint64_t before = ms_counter_get(MS_COUNT_MATERIALISED_BYTES);
    const CUresult result = count > 0 ? ms_access_uses(uses, count) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS || count == 0 || uses[0].need != MS_NEED_SEND)
        return result;
    under_way.reads++;
    if (ms_counter_get(MS_COUNT_MATERIALISED_BYTES) != before)
        look_at_kernels();
    return result;
}

static struct ms_allocation *claim_at(const void *address)
{
    return ms_space_claim(address_of(address));
}

static bool has_all_read(const struct ms_allocation *allocation,
                         const struct ms_operation *operation)
{
    return allocation != NULL &&
           ms_fits(allocation, address_of(operation->read), operation->read_bytes);
}

/* Copies the extents of the bytes that are read; none if they lie in no allocation. */
static bool find_own(const struct ms_operation *operation, struct ms_receive_own *own)
{
    MS_CLAIMED struct ms_allocation *allocation = claim_at(operation->read);
    if (!has_all_read(allocation, operation))
        return true;
    const size_t begin = ms_offset(allocation, address_of(operation->read));
    own->extents = ms_lineage_copy(ms_allocation_lineage(allocation), begin,
                                   begin + operation->read_bytes, &own->count);
    return own->extents != NULL;
}

static CUresult prepare_gathered(const struct ms_operation *operation, struct ms_receive *receive)
{
    struct ms_receive_own own = {.begin = (size_t)operation->rank * operation->read_bytes};
    if (!find_own(operation, &own))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct ms_receive_role role = {.gathers = true, .own = &own};
    const CUresult result = ms_receive_prepare(address_of(operation->written),
                                               operation->written_bytes, &role, receive);
    ms_lineage_free_copy(own.extents, own.count);
    return result;
}

static CUresult prepare_receive(const struct ms_operation *operation)
{
    if (!receives_parts(operation))
        return CUDA_SUCCESS;
    struct under_way_receive *added = receives() + under_way.receive_count;
    added->receive = (struct ms_receive){0};
    const CUresult result =
        operation->gathers
            ? prepare_gathered(operation, &added->receive)
            : ms_receive_prepare(address_of(operation->written), operation->written_bytes,
                                 &(struct ms_receive_role){.ranks = operation->ranks},
                                 &added->receive);
    if (added->receive.address != 0) {
        added->is_called = false;
        under_way.receive_count++;
    }
    return result;
}

static bool is_in_one_handle(const void *address)
{
    MS_CLAIMED struct ms_allocation *allocation = claim_at(address);
    return allocation == NULL ||
           ms_backing_is_one_chunk(ms_allocation_backing(allocation), 0, allocation->granule_bytes);
}

/* Warns if NCCL does not register the buffers of a captured operation: each must lie in one handle,
 * on all ranks alike (NCCL 2.28.9, NCCL_GRAPH_REGISTER). */
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

/* True for a gather whose result is copied on. While a model is loaded, ranks gather bytes that
 * nothing has used yet. A program that computes gathers bytes in memory, and uses the result in its
 * place. */
static bool passes_on(const struct ms_operation *operation)
{
    MS_CLAIMED struct ms_allocation *allocation =
        operation->gathers ? claim_at(operation->read) : NULL;
    if (!has_all_read(allocation, operation))
        return false;
    const size_t begin = ms_offset(allocation, address_of(operation->read));
    return ms_lineage_any(ms_allocation_lineage(allocation), begin, begin + operation->read_bytes,
                          MS_NOT_RESIDENT);
}

static CUresult prepare_deferred(const struct ms_operation *operation)
{
    struct ms_operation now = *operation;
    now.gathers = passes_on(operation); /* before the bytes come into memory */
    const CUresult result = prepare_uses(&now);
    return ms_defers_any() && result == CUDA_SUCCESS ? prepare_receive(&now) : result;
}

CUresult ms_collective_prepare(const struct ms_operation *operation)
{
    const CUresult result = ms_defers_any() ? prepare_deferred(operation) : CUDA_SUCCESS;
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
    if (begins && under_way.groups++ == 0)
        atomic_fetch_add(&open_groups, 1);
    if (begins || under_way.groups == 0 || --under_way.groups > 0)
        return;
    atomic_fetch_sub(&open_groups, 1);
    finish();
}

bool ms_collective_is_in_group(void)
{
    return atomic_load(&open_groups) > 0;
}
