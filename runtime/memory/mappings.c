/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/mappings.h"

#include "runtime/base/log.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/carve.h"
#include "runtime/memory/memory_internal.h"

/* Adds the mapping, or replaces the mapping with the same begin. False if out of memory. */
static bool put(struct ms_allocation *allocation, const struct ms_program_mapping *mapping)
{
    struct ms_backing *backing = &MS_OWN(allocation)->backing;
    ms_lock_take(&ms_space_lock);
    struct ms_program_mapping *there = ms_backing_mapping(backing, mapping->begin);
    bool has_room = there != NULL && there->begin == mapping->begin;
    if (has_room) {
        *there = *mapping;
    } else {
        backing->mappings.item_bytes = sizeof(*mapping);
        has_room =
            ms_sorted_insert(&backing->mappings,
                             ms_sorted_behind(&backing->mappings, mapping->begin), mapping, 1);
        backing->mapped_bytes += has_room ? mapping->end - mapping->begin : 0;
    }
    ms_lock_drop(&ms_space_lock);
    return has_room;
}

/* Removes the mapping that begins at `begin`. */
static void drop(struct ms_allocation *allocation, size_t begin)
{
    struct ms_backing *backing = &MS_OWN(allocation)->backing;
    ms_lock_take(&ms_space_lock);
    const struct ms_position at = ms_sorted_behind(&backing->mappings, begin);
    const struct ms_program_mapping *mapping = ms_sorted_item(&backing->mappings, at);
    backing->mapped_bytes -= mapping->end - begin;
    ms_sorted_remove(&backing->mappings, at, 1);
    ms_lock_drop(&ms_space_lock);
}

_Noreturn static void fail(const struct ms_allocation *allocation, size_t begin)
{
    ms_fatal("there is no memory for the record of a mapping at 0x%llx",
             allocation->address + begin);
}

static void set_content(struct ms_allocation *allocation, size_t begin, size_t end,
                        enum ms_kind kind)
{
    if (ms_bytes_set_kind(allocation, begin, end, kind) != CUDA_SUCCESS)
        fail(allocation, begin);
}

bool ms_mappings_add(struct ms_allocation *allocation, const struct ms_program_mapping *mapping)
{
    if (!mapping->is_real)
        return mapping->begin % allocation->granule == 0 && put(allocation, mapping);
    if (!put(allocation, mapping) ||
        ms_backing_add_real(&MS_OWN(allocation)->backing, mapping->begin, mapping->end) !=
            CUDA_SUCCESS)
        fail(allocation, mapping->begin);
    return true;
}

static CUresult join(struct ms_allocation *allocation, const struct ms_program_mapping *mapping,
                     struct ms_host_snapshot *copy, bool may_give_up)
{
    const struct ms_content content = {.kind = MS_SOURCE, .source = ms_host_snapshot_source(copy)};
    bool is_lost;
    const CUresult result =
        ms_backing_join(&MS_OWN(allocation)->backing, mapping->begin, mapping->end,
                        ms_host_snapshot_data(copy), may_give_up, &is_lost);
    if (is_lost && ms_bytes_set(allocation, mapping->begin, mapping->end, &content) != CUDA_SUCCESS)
        fail(allocation, mapping->begin);
    return result;
}

CUresult ms_mappings_pin(struct ms_allocation *allocation, const struct ms_program_mapping *mapping,
                         struct ms_host_snapshot *copy, bool may_give_up,
                         CUmemGenericAllocationHandle *real_out)
{
    struct ms_program_mapping real = *mapping;
    CUresult result = copy != NULL ? join(allocation, mapping, copy, may_give_up) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = ms_backing_make_real(&MS_OWN(allocation)->backing, real.begin, real.end, real_out);
    real.is_real = true;
    if (result == CUDA_SUCCESS)
        put(allocation, &real);
    return result;
}

CUresult ms_mappings_unite(CUdevice device, size_t bytes, const struct ms_pieces *pieces,
                           void *copy, CUmemGenericAllocationHandle *real_out)
{
    struct ms_pieces kept = *pieces;
    struct ms_backing scratch;
    bool is_lost;
    CUresult result = ms_addresses_reserve_backing(&scratch, device, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = ms_backing_put_pieces(&scratch, 0, &kept, false);
    if (result == CUDA_SUCCESS)
        result = ms_backing_cover(&scratch, 0, bytes);
    if (result == CUDA_SUCCESS)
        result = copy != NULL ? ms_backing_join(&scratch, 0, bytes, copy, false, &is_lost)
                              : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        result = ms_backing_make_real(&scratch, 0, bytes, real_out);
    ms_backing_release(&scratch);
    return result;
}

static void set_access(struct ms_allocation *allocation, const struct ms_program_mapping *mapping,
                       bool is_accessible, enum ms_kind kind)
{
    struct ms_program_mapping changed = *mapping;
    ms_carve_settle(allocation, 0, allocation->bytes);
    changed.is_accessible = is_accessible;
    set_content(allocation, mapping->begin, mapping->end, kind);
    put(allocation, &changed);
}

CUresult ms_mappings_set_access(struct ms_allocation *allocation,
                                const struct ms_program_mapping *mapping, bool is_accessible,
                                struct ms_pieces *pieces)
{
    const enum ms_kind unwritten = MS_OWN(allocation)->is_carved ? MS_DEAD : MS_UNDEFINED;
    const enum ms_kind kind = mapping->is_real ? MS_RESIDENT : unwritten;
    set_access(allocation, mapping, is_accessible, is_accessible ? kind : MS_UNMAPPED);
    if (pieces == NULL || pieces->count == 0)
        return CUDA_SUCCESS;
    const CUresult result =
        ms_backing_put_pieces(&MS_OWN(allocation)->backing, mapping->begin, pieces, false);
    if (result != CUDA_SUCCESS) {
        set_access(allocation, mapping, false, MS_UNMAPPED);
        return result;
    }
    for (size_t i = 0; i < pieces->count; i++)
        set_content(allocation, mapping->begin + pieces->all[i].begin,
                    mapping->begin + pieces->all[i].end, MS_RESIDENT);
    allocation->notes.keeps_dead = true;
    ms_backing_end_pieces(pieces, allocation->device);
    return CUDA_SUCCESS;
}

bool ms_mappings_is_alive(struct ms_allocation *allocation,
                          const struct ms_program_mapping *mapping)
{
    const struct ms_blocks *blocks = &MS_OWN(allocation)->blocks;
    ms_carve_settle(allocation, mapping->begin, mapping->end);
    if (MS_OWN(allocation)->is_carved && !blocks->uses_dead) {
        const struct ms_block *block = ms_block_behind(allocation, mapping->begin);
        return block != NULL && block->begin < mapping->end;
    }
    return ms_lineage_any(&MS_OWN(allocation)->lineage, mapping->begin, mapping->end,
                          MS_DEFERRED | MS_OF_KIND(MS_RESIDENT));
}

CUresult ms_mappings_remove(struct ms_allocation *allocation,
                            const struct ms_program_mapping *mapping, struct ms_pieces *pieces_out)
{
    struct ms_backing *backing = &MS_OWN(allocation)->backing;
    CUresult result = ms_backing_sink_wait(backing, mapping->begin, mapping->end);
    if (result == CUDA_SUCCESS && pieces_out != NULL)
        result = ms_backing_take_pieces(backing, mapping->begin, mapping->end, pieces_out);
    if (result != CUDA_SUCCESS)
        return result;
    allocation->notes.touches++;
    ms_carve_cut(allocation, mapping->begin, mapping->end);
    ms_backing_uncover(backing, mapping->begin, mapping->end, true);
    set_content(allocation, mapping->begin, mapping->end, MS_UNMAPPED);
    drop(allocation, mapping->begin);
    return CUDA_SUCCESS;
}
