/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/hashes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/base/launcher.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/base/quiet.h"
#include "runtime/base/utf8.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/access.h"
#include "runtime/fill/evict.h"
#include "runtime/fill/replay.h"
#include "runtime/hashes/reference.h"
#include "runtime/hashes/xxh64.h"
#include "runtime/memory/allocations.h"
#include "runtime/memory/order.h"
#include "runtime/shard/active_plan.h"
#include "runtime/state/caller.h"

enum { BUFFER_BYTES = 8 << 20, PATIENCE_MS = 5000 };

bool ms_hashes_is_reference;
static _Atomic uint64_t unfilled; /* parts */

static struct {
    struct ms_lock lock; /* one report at a time */
    char path[MS_PATH_BYTES + 64];
    pid_t pid; /* a forked child writes nothing */
} file = {.lock = MS_LOCK_INIT(hashes)};

/* --- the bytes */

static CUresult read_bytes(CUdeviceptr address, size_t bytes, void *buffer)
{
    CUresult result =
        ms_hashes_is_reference ? CUDA_SUCCESS : ms_access(address, bytes, MS_NEED_READ);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_driver.memcpy_dtoh(buffer, address, bytes);
    if (!ms_hashes_is_reference)
        ms_read_end();
    return result;
}

/* Other ranks have these bytes, and a read of them would fail. */
static bool is_elsewhere(const struct ms_content *content)
{
    return content->kind == MS_ABSENT || (content->locality == MS_REMOTE && ms_shard_enforces());
}

/* Lists what of a block cannot be read, and finds its name in the plan. */
static void look_at(const struct ms_live_block *block, struct ms_ranges *elsewhere_out, char *name,
                    size_t name_bytes)
{
    struct ms_allocation *allocation = ms_owns_any() ? ms_space_claim(block->address) : NULL;
    if (allocation == NULL)
        return;
    size_t at = (size_t)(block->address - allocation->address);
    const size_t begin = at;
    const size_t end =
        block->bytes < allocation->bytes - at ? at + block->bytes : allocation->bytes;
    struct ms_extent extent;
    ms_shard_query_placement(allocation, begin, end);
    ms_shard_name_of(allocation, begin, end, name, name_bytes);
    while (ms_lineage_next(&allocation->lineage, &at, end, &extent)) {
        if (is_elsewhere(&extent.content))
            ms_ranges_add(elsewhere_out, extent.begin - begin, extent.end - begin);
    }
    ms_space_release(allocation);
}

/* Of all bytes that are not in `skipped`. */
static CUresult hash_block(const struct ms_live_block *block, const struct ms_ranges *skipped,
                           unsigned char *buffer, uint64_t *hash_out)
{
    struct ms_xxh64 hash;
    CUresult result = CUDA_SUCCESS;
    size_t at = 0;
    ms_xxh64_begin(&hash);
    for (size_t next = 0; next <= skipped->count && result == CUDA_SUCCESS; next++) {
        const struct ms_range *skip = next < skipped->count ? &skipped->list[next] : NULL;
        const size_t end = skip != NULL && skip->begin < block->bytes ? skip->begin : block->bytes;
        while (at < end && result == CUDA_SUCCESS) {
            const size_t now = end - at < BUFFER_BYTES ? end - at : BUFFER_BYTES;
            result = read_bytes(block->address + at, now, buffer);
            if (result == CUDA_SUCCESS)
                ms_xxh64_add(&hash, buffer, now);
            at += now;
        }
        at = skip != NULL ? skip->end : at;
    }
    *hash_out = ms_xxh64_end(&hash);
    return result;
}

/* --- the file */

static void write_ranges(FILE *out, const struct ms_ranges *ranges)
{
    if (ranges->count == 0)
        fputc('-', out);
    for (size_t i = 0; i < ranges->count; i++)
        fprintf(out, "%s%" PRIu64 "-%" PRIu64, i > 0 ? "," : "", ranges->list[i].begin,
                ranges->list[i].end);
}

static void write_block(FILE *out, const struct ms_live_block *block,
                        struct ms_reference *reference, unsigned char *buffer)
{
    struct ms_ranges skipped = {0};
    struct ms_driver_scope scope;
    char name[256];
    uint64_t hash = 0;
    snprintf(name, sizeof(name), "%s", block->label);
    if (ms_hashes_is_reference)
        ms_reference_find(reference, block, &skipped);
    else
        look_at(block, &skipped, name, sizeof(name));
    CUresult result = ms_driver_enter(block->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = hash_block(block, &skipped, buffer, &hash);
        ms_driver_leave(&scope);
    }
    ms_utf8_make_printable(name);
    fprintf(out, "block\t%s\t%" PRIu32 "\t%zu\t%" PRIu32 "\t0x%llx\t%d\t%016" PRIx64 "\t",
            block->kind == MS_LIVE_PART ? "part" : "whole", block->thread, block->bytes,
            block->number, block->address, (int)result, hash);
    write_ranges(out, &skipped);
    fprintf(out, "\t%s\n", name);
    ms_ranges_cleanup(&skipped);
}

static void wait_for_contexts(const struct ms_live_block *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || blocks[i].context != blocks[i - 1].context)
            ms_context_wait(blocks[i].context);
    }
}

static void write_mark(FILE *out, const char *name, const struct ms_live_block *blocks,
                       size_t count, unsigned char *buffer)
{
    struct ms_reference reference;
    struct ms_live_thread thread;
    if (ms_hashes_is_reference)
        ms_reference_begin(&reference, name);
    fprintf(out, "mark\t%s\n", name);
    for (uint32_t i = 0; ms_live_thread(i, &thread); i++)
        fprintf(out, "thread\t%" PRIu32 "\t%" PRIu64 "\t%016" PRIx64 "\n", i, thread.count,
                thread.sequence);
    for (size_t i = 0; i < count; i++)
        write_block(out, &blocks[i], &reference, buffer);
    fprintf(out, "done\t%zu\n", count);
}

/* Adds to the file. Returns NULL, or what is wrong. */
static const char *append(const char *name, bool is_end)
{
    struct ms_live_block *blocks;
    size_t count;
    struct ms_quiet quiet;
    unsigned char *buffer = ms_heap_alloc(BUFFER_BYTES);
    if (buffer == NULL || !ms_live_copy(&blocks, &count)) {
        ms_heap_free(buffer);
        return "out of memory";
    }
    wait_for_contexts(blocks, count);
    const int descriptor = open(file.path, O_WRONLY | O_APPEND | O_CLOEXEC);
    FILE *out = descriptor < 0 ? NULL : fdopen(descriptor, "a");
    bool is_good = out != NULL;
    ms_quiet_begin(&quiet);
    if (is_good) {
        write_mark(out, name, blocks, count, buffer);
        if (is_end)
            fprintf(out, "end\t%" PRIu64 "\n", atomic_load(&unfilled));
        is_good = !ferror(out);
        is_good = fclose(out) == 0 && is_good;
    } else if (descriptor >= 0) {
        close(descriptor);
    }
    ms_quiet_end(&quiet, !is_good);
    ms_heap_free(buffer);
    ms_heap_free(blocks);
    return is_good ? NULL : "its file cannot be written";
}

static const char *report(const char *name, bool is_end)
{
    if (!ms_is_hashed() || getpid() != file.pid)
        return NULL;
    const char *call = ms_caller;
    ms_caller = "METASHARD_HASHES";
    ms_lock_take(&file.lock);
    const char *wrong = append(name, is_end);
    ms_lock_drop(&file.lock);
    ms_caller = call;
    return wrong;
}

const char *ms_hashes_mark(const char *name)
{
    return report(name, false);
}

/* Of several calls the first one counts: it comes before the driver ends. */
static void end(void)
{
    static atomic_bool has_ended;
    if (atomic_exchange(&has_ended, true))
        return;
    const char *wrong = report("end of the process", true);
    if (wrong != NULL)
        ms_log(MS_ERROR, "METASHARD_HASHES: %s: %s", file.path, wrong);
}

/* The name is taken when the file is made, so that the processes of a rank get numbers in order. */
static bool make_file(void)
{
    char rank[32] = "process";
    uint32_t number, world;
    struct ms_quiet quiet;
    if (ms_launcher_rank(&number, &world))
        snprintf(rank, sizeof(rank), "rank-%" PRIu32, number);
    int descriptor = -1;
    for (unsigned i = 0; i < 10000 && descriptor < 0; i++) {
        snprintf(file.path, sizeof(file.path), "%s/%s.%u", ms_config.hashes, rank, i);
        descriptor = open(file.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (descriptor < 0 && errno != EEXIST)
            break;
    }
    if (descriptor < 0)
        return false;
    char first[64];
    const int length = snprintf(first, sizeof(first), "metashard-hashes\t1\t%d\n", (int)getpid());
    ms_quiet_begin(&quiet);
    const bool is_good = ms_quiet_write(descriptor, first, (size_t)length) == length;
    ms_quiet_end(&quiet, !is_good);
    close(descriptor);
    return is_good;
}

void ms_hashes_start(void)
{
    ms_hashes_is_reference = ms_config.hashes_like[0] != '\0';
    if (ms_config.hashes[0] == '\0')
        return;
    if (!make_file()) {
        ms_log(MS_ERROR, "METASHARD_HASHES: no file can be made in %s: %s", ms_config.hashes,
               strerror(errno));
        return;
    }
    file.pid = getpid();
    atomic_store(&ms_hot.hashed, 1);
    if (!ms_hashes_is_reference)
        ms_unwritten_pattern = UINT32_C(0x01010101) * MS_UNWRITTEN_BYTE;
    ms_reference_open(strrchr(file.path, '/') + 1);
    atexit(end);
}

/* --- what the program does */

/* The bytes in memory of [*address, end): all that is no allocation of the shim's, or the next part
 * of the allocation that is present. Moves *address behind them. False: there are none left. */
static bool next_present(CUdeviceptr *address, CUdeviceptr end, struct ms_range *range_out)
{
    bool found = false;
    struct ms_allocation *allocation = ms_owns_any() ? ms_space_claim(*address) : NULL;
    if (allocation == NULL && *address < end) {
        *range_out = (struct ms_range){*address, end};
        *address = end;
        return true;
    }
    if (allocation == NULL)
        return false;
    if (end > allocation->address + allocation->bytes)
        end = allocation->address + allocation->bytes;
    while (!found && *address < end) {
        const struct ms_extent extent =
            ms_lineage_at(&allocation->lineage, (size_t)(*address - allocation->address));
        const CUdeviceptr extent_end = allocation->address + extent.end;
        *range_out = (struct ms_range){*address, extent_end < end ? extent_end : end};
        *address = range_out->end;
        found = ms_content_is_present(&extent.content);
    }
    ms_space_release(allocation);
    return found;
}

/* Memory that nobody uses now. In the order of the stream; NULL: at once. */
static void fill(CUcontext context, CUdeviceptr address, size_t bytes, CUstream stream)
{
    CUstream own = stream;
    struct ms_driver_scope scope;
    struct ms_range range;
    if (ms_driver_enter(context, &scope) != CUDA_SUCCESS)
        return;
    if (stream != NULL || ms_fill_stream(context, &own) == CUDA_SUCCESS) {
        for (CUdeviceptr at = address; next_present(&at, address + bytes, &range);)
            ms_driver.memset_d8_async(range.begin, MS_UNWRITTEN_BYTE, range.end - range.begin, own);
    }
    if (stream == NULL && own != NULL)
        ms_driver_wait(own);
    ms_driver_leave(&scope);
}

void ms_hashes_allocated(CUdeviceptr address, size_t bytes, CUstream stream)
{
    static atomic_bool is_registered;
    CUcontext context;
    if (!ms_is_hashed())
        return;
    ms_live_add(MS_LIVE_WHOLE, address, bytes);
    if (!ms_is_capturing() && ms_driver.ctx_get_current(&context) == CUDA_SUCCESS)
        fill(context, address, bytes, stream);
    else
        atomic_fetch_add(&unfilled, 1);
    /* Once more: what was registered last runs first, and the driver may have done so meanwhile. */
    if (!atomic_exchange(&is_registered, true))
        atexit(end);
}

void ms_hashes_part(CUdeviceptr address, int64_t size)
{
    CUcontext context;
    if (size <= 0) {
        ms_live_remove(MS_LIVE_PART, address);
        return;
    }
    ms_live_add(MS_LIVE_PART, address, (size_t)size);
    if (!ms_is_capturing() && ms_driver.ctx_get_current(&context) == CUDA_SUCCESS &&
        ms_context_ends_within(context, PATIENCE_MS))
        fill(context, address, (size_t)size, NULL);
    else
        atomic_fetch_add(&unfilled, 1);
}

void ms_hashes_context_ends(CUcontext context)
{
    if (ms_is_hashed() && ms_live_has(context))
        report("end of a context", false);
}
