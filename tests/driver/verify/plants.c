/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim for tests, with the fault that PLANT names. Linked with --wrap for each function here,
 * and with tests/driver/groups/unhook.c, by which calls of the program are missed.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/files/file.h"
#include "runtime/files/trust.h"
#include "runtime/finding/mapped_tensors.h"
#include "runtime/memory/backing.h"
#include "runtime/order/order.h"
#include "tools/simcuda/harness/wraps.h"

static bool is_planted(const char *fault)
{
    const char *planted = getenv("PLANT");
    return planted != NULL && strcmp(planted, fault) == 0;
}

WRAPS(ms_trust_check, ms_order_may_record, ms_mapped_tensors_find, ms_backing_cover);

/* A file that has changed is read all the same. */
bool __wrap_ms_trust_check(const struct ms_file *file, struct ms_file_failure *failure_out)
{
    return is_planted("file") || __real_ms_trust_check(file, failure_out);
}

/* A write is recorded although queued work is before it. */
bool __wrap_ms_order_may_record(CUstream stream)
{
    return is_planted("order") || __real_ms_order_may_record(stream);
}

/* Staged bytes are taken for the next tensor of their size. */
void __wrap_ms_mapped_tensors_find(struct ms_wanted_source *wanted)
{
    __real_ms_mapped_tensors_find(wanted);
    if (wanted->found != NULL && is_planted("staged"))
        wanted->offset += wanted->bytes;
}

/* The sink stays under what gets memory: under the second that does, which is no shadow. */
CUresult __wrap_ms_backing_cover(struct ms_backing *backing, size_t begin, size_t end)
{
    static const struct ms_backing *shadow, *leaking;
    const CUresult result = __real_ms_backing_cover(backing, begin, end);
    if (!is_planted("sink") || result != CUDA_SUCCESS)
        return result;
    if (shadow == NULL)
        shadow = backing;
    if (backing == shadow || leaking != NULL)
        return result;
    leaking = backing;
    struct ms_backing bare = *backing;
    const struct ms_chunk *chunk;
    for (struct ms_position at = {0, 0}; (chunk = ms_sorted_item(&backing->chunks, at)) != NULL;
         at = ms_sorted_next(&backing->chunks, at))
        ms_driver.mem_unmap(backing->address + chunk->begin, chunk->end - chunk->begin);
    bare.chunks = (struct ms_sorted){0};
    return ms_backing_sink_map(&bare, begin, end);
}
