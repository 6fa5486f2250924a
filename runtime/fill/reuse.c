/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/fill/reuse.h"

#include <stdatomic.h>

#include "runtime/base/lock.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/fill/loaded.h"
#include "runtime/fill/replay.h"
#include "runtime/memory/space.h"
#include "runtime/shard/shard.h"

/* Few enough notes to search them all; smaller copies are sent as fast as a search takes. */
enum { NOTES = 1024 };
static const size_t min_bytes = (size_t)16 << 10;

/* Bytes of a file, and where an original has them. */
struct note {
    const struct ms_file *file; /* compared, never followed: it may be gone; NULL: no note */
    uint64_t offset, bytes;
    CUdeviceptr address;
    uint64_t allocation_id;
    bool is_used; /* a copy of the bytes was used */
};

static struct {
    struct ms_lock lock;
    struct note notes[NOTES];
    size_t next; /* modulo NOTES the oldest note */
} table = {.lock = MS_LOCK_INIT(reuse)};

static _Atomic bool is_any_used; /* some note is, or was; read without the lock */

/* A copy of bytes of a block, or the result that a recorded launch makes of them. */
struct dependent {
    CUdeviceptr from;
    size_t from_bytes; /* 0: no dependent */
    CUdeviceptr address;
    size_t bytes;
    uint64_t allocation_id;
};

static struct {
    struct ms_lock lock;
    struct dependent dependents[NOTES];
    size_t next; /* modulo NOTES the oldest dependent */
} made = {.lock = MS_LOCK_INIT(dependents)};

static _Atomic bool is_any_made; /* there was a dependent; read without the lock */

/* True where this module does nothing: a plan itself says what stays, and a capture runs later. */
static bool is_left(void)
{
    return ms_shard_is_active() || ms_is_capturing();
}

/* The note of this age; 0: the newest. */
MS_HOLDS(table.lock) static struct note *note_locked(size_t age)
{
    return &table.notes[(table.next - 1 - age) % NOTES];
}

static bool is_noted(const struct ms_content *content, size_t bytes)
{
    return !content->cached && bytes >= min_bytes && ms_content_file(content) != NULL;
}

static void add(const struct note *note)
{
    ms_lock_take(&table.lock);
    table.notes[table.next++ % NOTES] = *note;
    ms_lock_drop(&table.lock);
}

void ms_reuse_forget(const struct ms_allocation *written, size_t begin, size_t bytes)
{
    const CUdeviceptr address = written->address + begin;
    if (!atomic_load(&is_any_used))
        return;
    ms_lock_take(&table.lock);
    for (size_t age = 0; age < NOTES; age++) {
        struct note *note = note_locked(age);
        if (note->address < address + bytes && address < note->address + note->bytes)
            note->file = NULL;
    }
    ms_lock_drop(&table.lock);
}

static struct ms_range common_of(const struct note *note, uint64_t begin, uint64_t end)
{
    const uint64_t note_end = note->offset + note->bytes;
    return (struct ms_range){note->offset > begin ? note->offset : begin,
                             note_end < end ? note_end : end};
}

static bool is_common(const struct note *note, const struct ms_file *file, uint64_t begin,
                      uint64_t end)
{
    const struct ms_range common = common_of(note, begin, end);
    return note->file == file && common.begin < common.end &&
           common.end - common.begin >= min_bytes;
}

/* True if two notes share bytes of the file that lie at the same addresses. */
static bool is_same(const struct note *a, const struct note *b)
{
    return a->file == b->file && a->address - a->offset == b->address - b->offset &&
           a->allocation_id == b->allocation_id && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

/* A copy of the note's bytes is used: marks their notes. True if another copy of some was used
 * before. */
MS_HOLDS(table.lock) static bool use_locked(const struct note *note)
{
    bool is_again = false;
    atomic_store(&is_any_used, true);
    for (size_t age = 0; age < NOTES; age++) {
        struct note *other = note_locked(age);
        if (is_same(other, note)) {
            is_again |= other->is_used;
            other->is_used = true;
        }
    }
    return is_again;
}

static bool is_again(const struct note *wanted)
{
    struct note note = *wanted;
    ms_lock_take(&table.lock);
    const bool is_again = use_locked(&note);
    ms_lock_drop(&table.lock);
    note.is_used = true;
    if (!is_again)
        add(&note);
    return is_again && !ms_shard_is_active();
}

/* The copied bytes depend on [from, from + bytes). */
static void add_dependent(const struct ms_copied *copied, CUdeviceptr from, size_t bytes)
{
    if (bytes < min_bytes)
        return;
    ms_lock_take(&made.lock);
    made.dependents[made.next++ % NOTES] =
        (struct dependent){from, bytes, copied->copy->address + copied->to, copied->bytes,
                           copied->copy->id};
    ms_lock_drop(&made.lock);
    atomic_store_explicit(&is_any_made, true, memory_order_relaxed);
}

/* Both places wait for the same bytes of a source. */
static void note_waiting(const struct ms_copied *copied)
{
    struct ms_loaded_place place = {copied->content->source, copied->content->source_offset,
                                    copied->bytes, copied->source->address + copied->from};
    ms_loaded_note(&place, MS_LOADED_WAITS);
    place.address = copied->copy->address + copied->to;
    ms_loaded_note(&place, MS_LOADED_WAITS);
}

/* Notes a copy of bytes of a snapshot. True if they were copied before, and are sent at once: then
 * they should come into memory instead. */
static bool note_snapshot(const struct ms_copied *copied)
{
    struct ms_source *source = copied->content->source;
    const bool is_at_once = copied->copy == NULL, is_again = ms_host_snapshot_is_shared(source);
    if (!ms_host_snapshot_may_be_shared(source) || copied->content->cached ||
        (is_at_once && copied->bytes < MS_LOADED_LEAST))
        return false;
    ms_host_snapshot_share(source);
    if (!is_at_once)
        note_waiting(copied);
    return is_at_once && is_again && !is_left();
}

bool ms_reuse_note(const struct ms_copied *copied)
{
    const struct ms_content *content = copied->content;
    const bool is_later = copied->copy != NULL;
    if (content->kind == MS_LAUNCHED && is_later && content->recorded->input != NULL)
        add_dependent(copied, content->recorded->input->address,
                      content->recorded->input->lineage.bytes);
    if (content->kind == MS_SOURCE && ms_content_file(content) == NULL)
        return note_snapshot(copied);
    if (!is_noted(content, copied->bytes))
        return false;
    const struct note note = {.file = ms_content_file(content),
                              .offset = content->source_offset,
                              .bytes = copied->bytes,
                              .address = copied->source->address + copied->from,
                              .allocation_id = copied->source->id};
    if (!is_later)
        return is_again(&note);
    add(&note);
    if (copied->bytes >= MS_LOADED_LEAST)
        note_waiting(copied);
    add_dependent(copied, note.address, copied->bytes);
    return false;
}

/* Finds the original that has the earliest of these bytes of a file; if several do, the newest,
 * which may be a copy itself. False if there is none. */
static bool find(const struct ms_file *file, uint64_t begin, uint64_t end,
                 struct note *original_out, bool *is_again_out)
{
    struct note *first = NULL;
    ms_lock_take(&table.lock);
    for (size_t age = 0; age < NOTES; age++) {
        struct note *note = note_locked(age);
        if (is_common(note, file, begin, end) &&
            (first == NULL ||
             common_of(note, begin, end).begin < common_of(first, begin, end).begin))
            first = note;
    }
    if (first != NULL) {
        *original_out = *first;
        *is_again_out = use_locked(original_out);
    }
    ms_lock_drop(&table.lock);
    return first != NULL;
}

static void forget(const struct note *original)
{
    ms_lock_take(&table.lock);
    for (size_t age = 0; age < NOTES; age++) {
        if (is_same(note_locked(age), original))
            note_locked(age)->file = NULL;
    }
    ms_lock_drop(&table.lock);
}

/* An extent of a claimed allocation, and the bytes of its file that an original has. */
struct wanted {
    struct ms_allocation *copy;
    struct ms_extent extent;
    struct ms_range bytes;
};

/* How many of the wanted bytes, from the first on, the original still has, at *at_out; 0: none. */
static size_t count_there(const struct ms_allocation *original, const struct note *note,
                          const struct wanted *wanted, size_t *at_out)
{
    const size_t bytes = wanted->bytes.end - wanted->bytes.begin;
    const size_t at = note->address + (wanted->bytes.begin - note->offset) - original->address;
    const bool meets_copy =
        original == wanted->copy && at < wanted->extent.end && wanted->extent.begin < at + bytes;
    if (original->id != note->allocation_id || original->context != wanted->copy->context ||
        at + bytes > original->bytes || meets_copy)
        return 0;
    const struct ms_extent extent = ms_lineage_at(ms_allocation_lineage(original), at);
    const size_t there = extent.end - at < bytes ? extent.end - at : bytes;
    *at_out = at;
    return ms_content_file(&extent.content) == note->file &&
                   extent.content.source_offset == wanted->bytes.begin
               ? there
               : 0;
}

static bool bring_in(struct ms_allocation *original, size_t at, size_t bytes)
{
    return !ms_lineage_any(ms_allocation_lineage(original), at, at + bytes, MS_MISSING) ||
           (ms_materialise_has_room(bytes) &&
            ms_materialise(original, at, at + bytes, MS_NEED_READ) == CUDA_SUCCESS);
}

/* Returns how many bytes were copied. */
static size_t copy_original(struct ms_allocation *original, const struct note *note,
                            const struct wanted *wanted)
{
    const size_t to =
        wanted->extent.begin + (wanted->bytes.begin - wanted->extent.content.source_offset);
    size_t at;
    const size_t bytes = count_there(original, note, wanted, &at);
    const bool is_done =
        bytes > 0 && bring_in(original, at, bytes) &&
        ms_materialise_copied(wanted->copy, to, to + bytes, original->address + at) == CUDA_SUCCESS;
    return is_done ? bytes : 0;
}

static size_t use_original(const struct note *note, const struct wanted *wanted)
{
    MS_CLAIMED struct ms_allocation *other;
    struct ms_allocation *original = ms_materialise_beside(wanted->copy, note->address, &other);
    return original != NULL ? copy_original(original, note, wanted) : 0;
}

/* Goes piece by piece, because one extent may be copies of several originals. */
static void use_originals(struct ms_allocation *copy, const struct ms_extent *extent, bool at_once)
{
    const struct ms_content *content = &extent->content;
    uint64_t begin = content->source_offset;
    const uint64_t end = begin + (extent->end - extent->begin);
    struct note note;
    bool is_again;
    while (begin < end && find(ms_content_file(content), begin, end, &note, &is_again)) {
        const struct wanted wanted = {copy, *extent, common_of(&note, begin, end)};
        const bool is_wanted = at_once || is_again;
        const size_t bytes = is_wanted ? use_original(&note, &wanted) : 0;
        begin = is_wanted ? wanted.bytes.begin + bytes : wanted.bytes.end;
        if (is_wanted && bytes == 0)
            forget(&note);
    }
}

void ms_reuse_originals(struct ms_allocation *copy, size_t begin, size_t end, enum ms_need need)
{
    const bool at_once = ms_needs[need].original == MS_ORIGINAL_AT_ONCE;
    struct ms_extent extent;
    if (ms_needs[need].original == MS_ORIGINAL_LEFT || is_left() ||
        !ms_lineage_any(ms_allocation_lineage(copy), begin, end, MS_OF_KIND(MS_SOURCE)))
        return;
    while (ms_lineage_next(ms_allocation_lineage(copy), &begin, end, &extent)) {
        if (is_noted(&extent.content, extent.end - extent.begin))
            use_originals(copy, &extent, at_once);
    }
}

/* Takes the next dependent of these bytes from the table, from *place on: each is made once. */
static bool take_dependent(CUdeviceptr begin, size_t bytes, size_t *place,
                           struct dependent *dependent_out)
{
    bool is_found = false;
    ms_lock_take(&made.lock);
    for (; *place < NOTES && !is_found; ++*place) {
        struct dependent *dependent = &made.dependents[*place];
        is_found =
            dependent->from < begin + bytes && begin < dependent->from + dependent->from_bytes;
        if (is_found) {
            *dependent_out = *dependent;
            dependent->from_bytes = 0;
        }
    }
    ms_lock_drop(&made.lock);
    return is_found;
}

/* True if the launch's input still exists, and still holds the bytes that the launch needs for
 * these bytes of the result. */
static bool holds_input(struct ms_allocation *claimed, const struct ms_content *content,
                        size_t bytes)
{
    MS_CLAIMED struct ms_allocation *other;
    const struct ms_allocation *input =
        ms_materialise_beside(claimed, content->recorded->input->address, &other);
    return input != NULL &&
           ms_replay_holds_input(input, content->recorded,
                                 ms_replay_needed(content->recorded, content->source_offset,
                                                  content->source_offset + bytes));
}

static bool is_result(struct ms_allocation *claimed, const struct ms_extent *extent,
                      const struct dependent *dependent)
{
    const struct ms_content *content = &extent->content;
    const size_t bytes = extent->end - extent->begin;
    return content->kind == MS_LAUNCHED && !content->cached && content->recorded->input != NULL &&
           content->recorded->input->address == dependent->from &&
           holds_input(claimed, content, bytes) &&
           ms_materialise_has_room(bytes + dependent->from_bytes);
}

static void make_results(struct ms_allocation *allocation, size_t begin, size_t end,
                         const struct dependent *dependent)
{
    struct ms_extent extent;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS &&
           ms_lineage_next(ms_allocation_lineage(allocation), &begin, end, &extent)) {
        if (is_result(allocation, &extent, dependent))
            result = ms_materialise(allocation, extent.begin, extent.end, MS_NEED_LOAD);
    }
}

static void make_dependent(const struct dependent *dependent)
{
    MS_CLAIMED struct ms_allocation *allocation = ms_space_try_claim(dependent->address);
    if (allocation == NULL || allocation->id != dependent->allocation_id)
        return;
    const size_t begin = ms_offset(allocation, dependent->address);
    ms_reuse_originals(allocation, begin, begin + dependent->bytes, MS_NEED_CONTRIBUTE);
    make_results(allocation, begin, begin + dependent->bytes, dependent);
}

void ms_reuse_make_dependents(CUdeviceptr begin, size_t bytes)
{
    struct dependent dependent;
    if (!atomic_load_explicit(&is_any_made, memory_order_relaxed) || is_left())
        return;
    for (size_t place = 0; take_dependent(begin, bytes, &place, &dependent);)
        make_dependent(&dependent);
}
