/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/backing.h"

#include <stdatomic.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/driver/device_memory.h"
#include "runtime/driver/peers.h"
#include "runtime/state/counters.h"

/* Device memory that the shim holds: for allocations, parked bytes and sinks. */
static _Atomic int64_t backed[MS_MAX_DEVICES];

uint64_t ms_backing_device_bytes(CUdevice device)
{
    const int64_t bytes = atomic_load(&backed[device]);
    return bytes > 0 ? (uint64_t)bytes : 0;
}

static void count_backed(CUdevice device, int64_t change)
{
    atomic_fetch_add(&backed[device], change);
    ms_counter_move(MS_GAUGE_BACKED, change);
}

CUresult ms_backing_adopt(struct ms_backing *backing, CUdevice device, CUdeviceptr address,
                          size_t bytes)
{
    const CUmemAllocationProp prop = ms_device_memory_properties(device);
    size_t granule;
    CUresult result =
        ms_driver.mem_get_granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result == CUDA_SUCCESS && (address % granule != 0 || bytes % granule != 0))
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        *backing = (struct ms_backing){.address = address,
                                       .bytes = bytes,
                                       .granule = granule,
                                       .device = device,
                                       .is_programs = true};
    return result;
}

/* The callers repeat a failed free once, because nothing frees the memory later. A driver that has
 * shut down before this thread has freed everything: that is no failure. */
static bool is_failure(CUresult result)
{
    return result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED;
}

static void unmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = ms_driver.mem_unmap(address, bytes);
    if (is_failure(result))
        result = ms_driver.mem_unmap(address, bytes);
    if (is_failure(result))
        ms_log(MS_WARN, "cannot unmap %zu bytes at 0x%llx: CUDA error %d", bytes, address, result);
}

static void release(CUmemGenericAllocationHandle handle)
{
    CUresult result = ms_driver.mem_release(handle);
    if (is_failure(result))
        result = ms_driver.mem_release(handle);
    if (is_failure(result))
        ms_log(MS_WARN, "cannot give device memory back: CUDA error %d", result);
}

static void free_addresses(CUdeviceptr address, size_t bytes)
{
    CUresult result = ms_driver.mem_address_free(address, bytes);
    if (is_failure(result))
        result = ms_driver.mem_address_free(address, bytes);
    if (is_failure(result))
        ms_log(MS_WARN, "cannot free the addresses at 0x%llx: CUDA error %d", address, result);
}

/* For the sink, which is mapped granule by granule. */
static void unmap_granules(const struct ms_backing *backing, struct ms_range range)
{
    for (uint64_t at = range.begin; at < range.end; at += backing->granule)
        unmap(backing->address + at, backing->granule);
}

/* --- sink mappings for queued work */

static bool touches(const struct ms_sink_mapping *mapping, size_t begin, size_t end)
{
    for (size_t i = 0; i < mapping->count; i++) {
        if (mapping->ranges[i].begin < end && begin < mapping->ranges[i].end)
            return true;
    }
    return false;
}

static CUresult wait_for_work(const struct ms_sink_mapping *mapping)
{
    if (mapping->event != NULL)
        return ms_driver_wait_for(mapping->context, mapping->event);
    ms_log(MS_ERROR, "memory is used that a collective of an open group is to write");
    return CUDA_ERROR_NOT_PERMITTED;
}

/* Unmaps and frees the mapping that *at, a link of the list, points to. */
static void end_mapping(struct ms_backing *backing, struct ms_sink_mapping **at)
{
    struct ms_sink_mapping *mapping = *at;
    *at = mapping->next;
    for (size_t i = 0; i < mapping->count; i++) {
        const struct ms_range range = mapping->ranges[i];
        if (mapping->is_lent)
            unmap(backing->address + range.begin, range.end - range.begin);
        else
            unmap_granules(backing, range);
    }
    if (mapping->event != NULL)
        ms_driver.event_destroy(mapping->event);
    ms_heap_free(mapping);
}

CUresult ms_backing_sink_wait(struct ms_backing *backing, size_t begin, size_t end)
{
    for (struct ms_sink_mapping **at = &backing->sinks; *at != NULL;) {
        if (!touches(*at, begin, end)) {
            at = &(*at)->next;
            continue;
        }
        const CUresult result = wait_for_work(*at);
        if (result != CUDA_SUCCESS)
            return result;
        end_mapping(backing, at);
    }
    return CUDA_SUCCESS;
}

void ms_backing_lent(struct ms_backing *backing, const struct ms_sink_mapping *lent, CUevent event)
{
    struct ms_sink_mapping **at = &backing->sinks;
    while (*at != NULL && *at != lent)
        at = &(*at)->next;
    if (*at != NULL && event != NULL)
        (*at)->event = event;
    else if (*at != NULL)
        end_mapping(backing, at);
    else if (event != NULL)
        ms_driver.event_destroy(event); /* the allocation was freed meanwhile */
}

/* --- */

void ms_backing_release(struct ms_backing *backing)
{
    const struct ms_chunk *chunk;
    while (backing->sinks != NULL)
        end_mapping(backing, &backing->sinks);
    for (struct ms_position at = {0, 0}; (chunk = ms_sorted_step(&backing->chunks, &at)) != NULL;)
        unmap(backing->address + chunk->begin, chunk->end - chunk->begin);
    if (!backing->is_programs)
        free_addresses(backing->address - backing->granule,
                       ms_backing_reserved(backing->bytes, backing->granule));
    count_backed(backing->device, -(int64_t)backing->backed_bytes);
    ms_sorted_cleanup(&backing->chunks);
    ms_sorted_cleanup(&backing->mappings);
    *backing = (struct ms_backing){0};
}

static CUresult set_access(const struct ms_backing *backing, CUdeviceptr address, size_t bytes)
{
    CUmemAccessDesc access[1 + MS_MAX_DEVICES];
    size_t count = 0;
    access[count++] = (CUmemAccessDesc){
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = backing->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    /* The program sets the access of its own mappings. */
    uint64_t left = backing->is_programs || backing->is_pooled ? 0 : ms_peers_of(backing->device);
    for (; left != 0; left &= left - 1) {
        access[count] = access[0];
        access[count++].location.id = __builtin_ctzll(left);
    }
    return ms_driver.mem_set_access(address, bytes, access, count);
}

/* Maps a handle and gives access to the mapping. A failure undoes both. */
static CUresult map_handle(const struct ms_backing *backing, CUmemGenericAllocationHandle handle,
                           CUdeviceptr address, size_t bytes)
{
    CUresult result = ms_driver.mem_map(address, bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = set_access(backing, address, bytes);
    if (result != CUDA_SUCCESS)
        unmap(address, bytes);
    return result;
}

/* Nothing is backed in the chunk's range yet. False: out of memory for the record. */
static bool record_chunk(struct ms_backing *backing, struct ms_chunk chunk)
{
    const struct ms_position at = ms_sorted_behind(&backing->chunks, chunk.begin);
    backing->chunks.item_bytes = sizeof(chunk);
    return ms_sorted_insert(&backing->chunks, at, &chunk, 1);
}

static void forget_chunk(struct ms_backing *backing, struct ms_chunk chunk)
{
    ms_sorted_remove(&backing->chunks, ms_sorted_behind(&backing->chunks, chunk.begin), 1);
}

static void count_chunk(struct ms_backing *backing, struct ms_chunk chunk, int64_t sign)
{
    const int64_t bytes = sign * (int64_t)(chunk.end - chunk.begin);
    backing->backed_bytes += (size_t)bytes;
    count_backed(backing->device, bytes);
}

/* Counts a recorded chunk if the driver has mapped it, else forgets the chunk. */
static CUresult end_record(struct ms_backing *backing, struct ms_chunk chunk, CUresult mapped)
{
    if (mapped == CUDA_SUCCESS)
        count_chunk(backing, chunk, 1);
    else
        forget_chunk(backing, chunk);
    return mapped;
}

/* Nothing is backed in the piece's range from `begin` on yet. */
static CUresult put_piece(struct ms_backing *backing, size_t begin, const struct ms_piece *piece)
{
    const struct ms_chunk chunk = {.begin = begin + piece->begin, .end = begin + piece->end};
    if (!record_chunk(backing, chunk))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return end_record(backing, chunk,
                      map_handle(backing, piece->handle, backing->address + chunk.begin,
                                 chunk.end - chunk.begin));
}

static CUresult add_chunk(struct ms_backing *backing, size_t begin, size_t end)
{
    const CUmemAllocationProp prop = ms_device_memory_properties(backing->device);
    struct ms_piece piece = {.begin = begin, .end = end};
    CUresult result = ms_driver.mem_create(&piece.handle, end - begin, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = put_piece(backing, 0, &piece);
    release(piece.handle);
    return result;
}

/* The end of the mapping at offset, or `end` if that comes first. Returns offset if the program has
 * mapped nothing there. */
static size_t end_of_mapping(const struct ms_backing *backing, size_t offset, size_t end)
{
    if (!backing->is_programs)
        return end;
    const struct ms_program_mapping *mapping = ms_backing_mapping(backing, offset);
    if (mapping == NULL || mapping->begin > offset)
        return offset;
    return mapping->end < end ? mapping->end : end;
}

/* The first range without memory in [at, stop). False when all is backed. */
static bool next_gap(const struct ms_backing *backing, size_t at, size_t stop, size_t *begin_out,
                     size_t *end_out)
{
    struct ms_position next = ms_sorted_behind(&backing->chunks, at);
    const struct ms_chunk *chunk = NULL;
    while (at < stop && (chunk = ms_sorted_step(&backing->chunks, &next)) != NULL &&
           chunk->begin <= at)
        at = chunk->end;
    *begin_out = at;
    *end_out = chunk != NULL && chunk->begin < stop ? chunk->begin : stop;
    return at < stop;
}

CUresult ms_backing_cover(struct ms_backing *backing, size_t begin, size_t end)
{
    size_t at = ms_round_down(begin, backing->granule);
    const size_t stop = ms_round_up(end, backing->granule);
    CUresult result = ms_backing_sink_wait(backing, at, stop);
    while (result == CUDA_SUCCESS && next_gap(backing, at, stop, &begin, &end)) {
        at = end_of_mapping(backing, begin, end);
        result = begin < at ? add_chunk(backing, begin, at) : CUDA_ERROR_INVALID_VALUE;
    }
    return result;
}

bool ms_backing_next(const struct ms_backing *backing, struct ms_range *range)
{
    const struct ms_chunk *chunk = ms_backing_chunk(backing, range->begin);
    if (chunk == NULL || chunk->begin >= range->end)
        return false;
    if (range->begin < chunk->begin)
        range->begin = chunk->begin;
    if (range->end > chunk->end)
        range->end = chunk->end;
    return range->begin < range->end;
}

size_t ms_backing_uncover(struct ms_backing *backing, size_t begin, size_t end, bool pinned_too)
{
    size_t freed = 0;
    const struct ms_chunk *next;
    for (size_t at = begin; (next = ms_backing_chunk(backing, at)) != NULL && next->begin < end;) {
        const struct ms_chunk chunk = *next;
        at = chunk.end;
        if (chunk.begin < begin || chunk.end > end || (chunk.is_pinned && !pinned_too))
            continue;
        unmap(backing->address + chunk.begin, chunk.end - chunk.begin);
        forget_chunk(backing, chunk);
        count_chunk(backing, chunk, -1);
        freed += chunk.end - chunk.begin;
    }
    return freed;
}

/* --- real mappings */

CUresult ms_backing_add_real(struct ms_backing *backing, size_t begin, size_t end)
{
    const struct ms_chunk chunk = {.begin = begin, .end = end, .is_pinned = true};
    return record_chunk(backing, chunk) ? end_record(backing, chunk, CUDA_SUCCESS)
                                        : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- pieces */

static int64_t bytes_of(const struct ms_pieces *pieces)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < pieces->count; i++)
        bytes += (int64_t)(pieces->all[i].end - pieces->all[i].begin);
    return bytes;
}

CUresult ms_backing_create_pieces(CUdevice device, size_t bytes, struct ms_pieces *pieces_out)
{
    const CUmemAllocationProp prop = ms_device_memory_properties(device);
    struct ms_piece *piece = ms_heap_alloc(sizeof(*piece));
    if (piece == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *piece = (struct ms_piece){.begin = 0, .end = bytes};
    const CUresult result = ms_driver.mem_create(&piece->handle, bytes, &prop, 0);
    if (result != CUDA_SUCCESS) {
        ms_heap_free(piece);
        return result;
    }
    count_backed(device, (int64_t)bytes);
    *pieces_out = (struct ms_pieces){piece, 1};
    return CUDA_SUCCESS;
}

static void drop_pieces(struct ms_pieces *pieces)
{
    for (size_t i = 0; i < pieces->count; i++)
        release(pieces->all[i].handle);
    ms_heap_free(pieces->all);
    *pieces = (struct ms_pieces){NULL, 0};
}

void ms_backing_end_pieces(struct ms_pieces *pieces, CUdevice device)
{
    count_backed(device, -bytes_of(pieces));
    drop_pieces(pieces);
}

CUresult ms_backing_take_pieces(const struct ms_backing *backing, size_t begin, size_t end,
                                struct ms_pieces *pieces_out)
{
    struct ms_position at = ms_sorted_behind(&backing->chunks, begin);
    const size_t most =
        ms_sorted_distance(&backing->chunks, at, ms_sorted_behind(&backing->chunks, end));
    struct ms_pieces taken = {ms_heap_alloc((most + 1) * sizeof(*taken.all)), 0};
    CUresult result = taken.all != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (const struct ms_chunk *chunk; result == CUDA_SUCCESS &&
                                       (chunk = ms_sorted_step(&backing->chunks, &at)) != NULL &&
                                       chunk->begin < end;) {
        struct ms_piece *piece = &taken.all[taken.count];
        *piece = (struct ms_piece){.begin = chunk->begin - begin, .end = chunk->end - begin};
        result = ms_driver.mem_retain(&piece->handle,
                                      (void *)(uintptr_t)(backing->address + chunk->begin));
        taken.count += result == CUDA_SUCCESS;
    }
    count_backed(backing->device, bytes_of(&taken));
    if (result == CUDA_SUCCESS)
        *pieces_out = taken;
    else
        ms_backing_end_pieces(&taken, backing->device);
    return result;
}

CUresult ms_backing_put_pieces(struct ms_backing *backing, size_t begin, struct ms_pieces *pieces,
                               bool ends)
{
    /* Mappings count from when they are made, and no byte counts twice. */
    const int64_t ended = ends ? bytes_of(pieces) : 0;
    CUresult result = CUDA_SUCCESS;
    count_backed(backing->device, -ended);
    for (size_t i = 0; i < pieces->count && result == CUDA_SUCCESS; i++)
        result = put_piece(backing, begin, &pieces->all[i]);
    if (result != CUDA_SUCCESS) {
        ms_backing_uncover(backing, begin, begin + pieces->all[pieces->count - 1].end, false);
        count_backed(backing->device, ended);
    } else if (ends) {
        drop_pieces(pieces);
    }
    return result;
}

/* --- joining chunks */

enum { JOIN_ATTEMPTS = 3 };

static bool is_worth_a_try(CUresult result, int *attempts)
{
    return result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY &&
           ++*attempts < JOIN_ATTEMPTS;
}

/* Nothing is backed in the chunk's range yet. `copy` NULL: the memory has the bytes. */
static CUresult fill_one_chunk(struct ms_backing *backing, struct ms_chunk chunk, const void *copy,
                               const struct ms_piece *whole)
{
    CUresult result = whole != NULL ? put_piece(backing, chunk.begin, whole)
                                    : ms_backing_cover(backing, chunk.begin, chunk.end);
    if (result == CUDA_SUCCESS && copy != NULL)
        result =
            ms_driver.memcpy_htod(backing->address + chunk.begin, copy, chunk.end - chunk.begin);
    if (result != CUDA_SUCCESS)
        ms_backing_uncover(backing, chunk.begin, chunk.end, false);
    return result;
}

/* Maps the new memory beside the chunk, and copies the chunk's bytes there on the device. False:
 * they have to come from the host. */
static bool copy_beside(const struct ms_backing *backing, struct ms_chunk chunk,
                        const struct ms_piece *whole)
{
    const size_t bytes = chunk.end - chunk.begin;
    CUdeviceptr beside;
    if (ms_driver.mem_address_reserve(&beside, bytes, backing->granule, 0, 0) != CUDA_SUCCESS)
        return false;
    bool is_copied = map_handle(backing, whole->handle, beside, bytes) == CUDA_SUCCESS;
    if (is_copied) {
        const CUresult queued =
            ms_driver.memcpy_dtod_async(beside, backing->address + chunk.begin, bytes, NULL);
        is_copied = ms_driver_wait(NULL) == CUDA_SUCCESS && queued == CUDA_SUCCESS;
        unmap(beside, bytes);
    }
    free_addresses(beside, bytes);
    return is_copied;
}

/* Creates the new memory before it unmaps the old chunks. On failure the old memory comes back, by
 * its own handles. */
static CUresult replace(struct ms_backing *backing, struct ms_chunk chunk, const void *copy,
                        bool *is_lost_out)
{
    const CUmemAllocationProp prop = ms_device_memory_properties(backing->device);
    struct ms_piece whole = {.begin = 0, .end = chunk.end - chunk.begin};
    struct ms_pieces old;
    CUresult result = ms_driver.mem_create(&whole.handle, whole.end, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_backing_take_pieces(backing, chunk.begin, chunk.end, &old);
    if (result == CUDA_SUCCESS) {
        const bool is_copied = copy_beside(backing, chunk, &whole);
        ms_backing_uncover(backing, chunk.begin, chunk.end, false);
        result = fill_one_chunk(backing, chunk, is_copied ? NULL : copy, &whole);
        *is_lost_out = result != CUDA_SUCCESS &&
                       ms_backing_put_pieces(backing, chunk.begin, &old, false) != CUDA_SUCCESS;
        ms_backing_end_pieces(&old, backing->device);
    }
    release(whole.handle);
    return result;
}

CUresult ms_backing_join(struct ms_backing *backing, size_t begin, size_t end, void *copy,
                         bool may_give_up, bool *is_lost_out)
{
    const struct ms_chunk chunk = {.begin = begin, .end = end};
    int attempts = 0;
    *is_lost_out = false;
    CUresult result = ms_driver.memcpy_dtoh(copy, backing->address + begin, end - begin);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = replace(backing, chunk, copy, is_lost_out);
    while (!*is_lost_out && is_worth_a_try(result, &attempts));
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !may_give_up || *is_lost_out)
        return result;
    ms_backing_uncover(backing, begin, end, false);
    do
        result = fill_one_chunk(backing, chunk, copy, NULL);
    while (is_worth_a_try(result, &attempts));
    *is_lost_out = result != CUDA_SUCCESS;
    return result;
}

CUresult ms_backing_make_real(struct ms_backing *backing, size_t begin, size_t end,
                              CUmemGenericAllocationHandle *real_out)
{
    if (!ms_backing_is_one_chunk(backing, begin, end))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result =
        ms_driver.mem_retain(real_out, (void *)(uintptr_t)(backing->address + begin));
    if (result == CUDA_SUCCESS)
        ms_backing_chunk(backing, begin)->is_pinned = true;
    return result;
}

/*
 * One throw-away granule a device, made at its first use and kept until memory is short.
 * ms_backing_drop_sink frees the granule only while no thread is about to map it, and sets `users`
 * to DROPPING meanwhile.
 */
static struct {
    _Atomic CUmemGenericAllocationHandle handle;
    _Atomic size_t bytes;
    _Atomic uint32_t users;
} sinks[MS_MAX_DEVICES];

enum { DROPPING = 1 << 30 };

static void use_sink(CUdevice device)
{
    uint32_t users = atomic_load(&sinks[device].users);
    while (users >= DROPPING ||
           !atomic_compare_exchange_weak(&sinks[device].users, &users, users + 1))
        users = atomic_load(&sinks[device].users);
}

static void put_sink(CUdevice device)
{
    atomic_fetch_sub(&sinks[device].users, 1);
}

bool ms_backing_drop_sink(CUdevice device)
{
    uint32_t users = 0;
    if (atomic_load(&sinks[device].handle) == 0 ||
        !atomic_compare_exchange_strong(&sinks[device].users, &users, DROPPING))
        return false;
    const CUmemGenericAllocationHandle handle = atomic_exchange(&sinks[device].handle, 0);
    atomic_store(&sinks[device].users, 0);
    if (handle == 0)
        return false;
    atomic_fetch_sub(&backed[device], (int64_t)atomic_load(&sinks[device].bytes));
    release(handle);
    return true;
}

/* The caller has called use_sink. */
static CUresult get_sink(const struct ms_backing *backing, CUmemGenericAllocationHandle *sink_out)
{
    *sink_out = atomic_load(&sinks[backing->device].handle);
    if (*sink_out != 0)
        return CUDA_SUCCESS;
    const CUmemAllocationProp prop = ms_device_memory_properties(backing->device);
    const CUresult result = ms_driver.mem_create(sink_out, backing->granule, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    CUmemGenericAllocationHandle none = 0;
    atomic_store(&sinks[backing->device].bytes, backing->granule);
    if (atomic_compare_exchange_strong(&sinks[backing->device].handle, &none, *sink_out)) {
        atomic_fetch_add(&backed[backing->device], (int64_t)backing->granule);
    } else {
        release(*sink_out);
        *sink_out = none;
    }
    return CUDA_SUCCESS;
}

/* Unmaps the sink from every gap between the chunks. */
static void unmap_sink_granules(const struct ms_backing *backing, size_t from, size_t stop)
{
    size_t begin;
    for (size_t end = from; next_gap(backing, end, stop, &begin, &end);)
        unmap_granules(backing, (struct ms_range){begin, end});
}

/* Maps the sink to every granule of [begin, end), or to none if that fails. One call gives access
 * to the whole range. */
static CUresult sink_granules(const struct ms_backing *backing, CUmemGenericAllocationHandle sink,
                              size_t begin, size_t end)
{
    size_t at = begin;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && at < end) {
        result = ms_driver.mem_map(backing->address + at, backing->granule, 0, sink, 0);
        at += result == CUDA_SUCCESS ? backing->granule : 0;
    }
    if (result == CUDA_SUCCESS)
        result = set_access(backing, backing->address + begin, end - begin);
    if (result != CUDA_SUCCESS)
        unmap_granules(backing, (struct ms_range){begin, at});
    return result;
}

CUresult ms_backing_sink_map(struct ms_backing *backing, size_t begin, size_t end)
{
    const size_t from = ms_round_down(begin, backing->granule);
    const size_t stop = ms_round_up(end, backing->granule);
    CUmemGenericAllocationHandle sink;
    size_t gap, gap_end;
    CUresult result = ms_backing_sink_wait(backing, from, stop);
    if (result != CUDA_SUCCESS || !next_gap(backing, from, stop, &gap, &gap_end))
        return result;
    use_sink(backing->device);
    result = get_sink(backing, &sink);
    for (gap_end = from;
         result == CUDA_SUCCESS && next_gap(backing, gap_end, stop, &gap, &gap_end);) {
        result = sink_granules(backing, sink, gap, gap_end);
        if (result != CUDA_SUCCESS)
            unmap_sink_granules(backing, from, gap);
    }
    put_sink(backing->device);
    return result;
}

CUresult ms_backing_lend(struct ms_backing *backing, const CUmemGenericAllocationHandle *handles,
                         const struct ms_range *ranges, size_t count, CUcontext context,
                         struct ms_sink_mapping **lent_out)
{
    const bool is_sink = handles == NULL;
    CUmemGenericAllocationHandle sink = 0;
    struct ms_sink_mapping *mapping = ms_heap_alloc(sizeof(*mapping) + count * sizeof(*ranges));
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mapping =
        (struct ms_sink_mapping){.next = backing->sinks, .context = context, .is_lent = !is_sink};
    memcpy(mapping->ranges, ranges, count * sizeof(*ranges));
    if (is_sink)
        use_sink(backing->device);
    CUresult result = is_sink ? get_sink(backing, &sink) : CUDA_SUCCESS;
    while (mapping->count < count && result == CUDA_SUCCESS) {
        const struct ms_range range = ranges[mapping->count];
        result = is_sink ? sink_granules(backing, sink, range.begin, range.end)
                         : map_handle(backing, handles[mapping->count],
                                      backing->address + range.begin, range.end - range.begin);
        mapping->count += result == CUDA_SUCCESS;
    }
    if (is_sink)
        put_sink(backing->device);
    backing->sinks = mapping;
    if (result == CUDA_SUCCESS)
        *lent_out = mapping;
    else
        end_mapping(backing, &backing->sinks);
    return result;
}

void ms_backing_sink_unmap(const struct ms_backing *backing, size_t begin, size_t end)
{
    unmap_sink_granules(backing, ms_round_down(begin, backing->granule),
                        ms_round_up(end, backing->granule));
}

CUresult ms_backing_apply_access(struct ms_backing *backing, CUdevice peer, bool enabled)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
        .flags = enabled ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE,
    };
    const struct ms_chunk *chunk;
    for (struct ms_position at = {0, 0}; (chunk = ms_sorted_step(&backing->chunks, &at)) != NULL;) {
        const CUresult result = ms_driver.mem_set_access(backing->address + chunk->begin,
                                                         chunk->end - chunk->begin, &access, 1);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
