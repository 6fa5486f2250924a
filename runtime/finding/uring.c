/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/uring.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/regular_file.h"
#include "runtime/config/config.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file.h"
#include "runtime/files/file_read.h"
#include "runtime/files/kept_files.h"
#include "runtime/files/mapping.h"
#include "runtime/files/sums.h"
#include "runtime/files/trust.h"
#include "runtime/finding/file_compare.h"
#include "runtime/finding/reads.h"
#include "runtime/finding/tensor_places.h"

enum {
    MAX_HELD = 64,           /* files that are held though nothing comes from them */
    MAX_GUESSES = 256,       /* for one copy: each may read a page from a disk */
    MAX_STEPS = 64,          /* copy sizes to look further on */
    STEPPED_BYTES = 1 << 20, /* smaller copies are not looked for further on */
    MAX_MISSES = 16,         /* in a row; then only the likeliest place is tried */
    POINT_BYTES = 4096,      /* of a place, to tell it from others */
    MAX_POINTS = 4096,       /* for one copy: beyond, all bytes are compared */
    STEP_SUMS = 4 * MAX_STEPS
};

struct opened {
    struct opened *next;
    bool is_unseen;           /* in the current walk */
    struct ms_kept_file kept; /* the file's source; none: the file is not held */
    struct stat seen;         /* the file's attributes when its header was read */
    struct ms_tensor_places header;
    size_t last;         /* the tensor that matched last */
    uint64_t copied_end; /* of the copy that was found last */
    uint64_t next_ns;    /* when a file that is not trusted is tried again */
    struct ms_mapping place;
};

/* Only the file thread uses these. The file that was found or opened last comes first. */
static struct opened *all;
static uint32_t learned; /* the last value of ms_reads_unseen */
static unsigned misses, guesses, points;
static uint64_t copied_start; /* the sum of the first POINT_BYTES that were copied */

/* Sums of places some copy sizes further on, or back, kept because each copy asks for only one
 * place more than the copy before. */
static struct {
    const struct opened *file;
    uint64_t offset, sum;
} step_sums[STEP_SUMS];

static void move_to_front(struct opened *file)
{
    struct opened **link = &all;
    while (*link != file)
        link = &(*link)->next;
    *link = file->next;
    file->next = all;
    all = file;
}

static void let_go(struct opened *file)
{
    ms_kept_files_set(&file->kept, NULL);
}

static void forget(struct opened *file)
{
    memset(step_sums, 0, sizeof(step_sums));
    let_go(file);
    ms_tensor_places_cleanup(&file->header);
    ms_heap_free(file);
}

static struct opened *find_opened(const struct ms_mapping *place)
{
    struct opened *file = all;
    while (file != NULL &&
           (file->place.device != place->device || file->place.inode != place->inode))
        file = file->next;
    return file;
}

static void learn_place(const struct ms_mapping *place)
{
    struct opened *file = find_opened(place);
    if (file == NULL && (file = ms_heap_zalloc(sizeof(*file))) != NULL) {
        file->next = all;
        all = file;
    }
    if (file == NULL)
        return;
    if (strcmp(file->place.path, place->path) != 0)
        file->next_ns = 0;
    file->place = *place;
    file->is_unseen = true;
}

/* Forgets files that are not unseen any more: their copies are found in other ways. */
static void forget_seen(void)
{
    for (struct opened **link = &all; *link != NULL;) {
        struct opened *file = *link;
        if (file->is_unseen) {
            file->is_unseen = false;
            link = &file->next;
        } else {
            *link = file->next;
            forget(file);
        }
    }
}

static void learn(void)
{
    const uint32_t unseen = atomic_load(&ms_reads_unseen);
    struct ms_mapping place;
    if (unseen == learned)
        return;
    learned = unseen;
    misses = 0;
    for (size_t at = 0; ms_reads_next_unseen(&at, &place);)
        learn_place(&place);
    forget_seen();
}

static void let_go_old(void)
{
    size_t count = 0;
    for (struct opened *file = all; file != NULL; file = file->next) {
        if (++count > MAX_HELD)
            let_go(file);
    }
}

static bool is_held(struct opened *file)
{
    struct ms_file_failure failure;
    if (file->kept.file != NULL && (ms_file_state(file->kept.file) != MS_FILE_IS_OPEN ||
                                    !ms_trust_check(file->kept.file, &failure)))
        let_go(file);
    ms_kept_files_use(&file->kept);
    if (file->kept.file != NULL)
        return true;
    if (ms_clock_ns(CLOCK_MONOTONIC) < file->next_ns)
        return false;
    struct ms_mapping place = file->place;
    ms_kept_files_set(&file->kept, ms_trust_open(&place, 0));
    if (file->kept.file == NULL) {
        file->next_ns = ms_clock_ns(CLOCK_MONOTONIC) + MS_NS_PER_S;
        return false;
    }
    if (!ms_regular_file_is_same(&file->seen, ms_file_stat(file->kept.file))) {
        memset(step_sums, 0, sizeof(step_sums));
        ms_tensor_places_cleanup(&file->header);
        ms_tensor_places_read(file->kept.file, &file->header);
        file->seen = *ms_file_stat(file->kept.file);
        file->last = 0;
    }
    return true;
}

/* --- other places that begin as the copied bytes do */

/* Returns the sum of a page. 0: the page cannot be read, or this copy has read too many. */
static uint64_t sum_at(struct opened *file, uint64_t offset)
{
    unsigned char page[POINT_BYTES];
    struct ms_file_failure failure;
    if (points == 0 || (file->kept.file == NULL && !is_held(file)))
        return 0;
    points--;
    return ms_file_read_now(file->kept.file, offset, page, sizeof(page), &failure)
               ? ms_checksum(page, sizeof(page)) | 1
               : 0;
}

/* False if a sum cannot be read: the bytes may then be of any tensor. */
static bool learn_points(struct opened *file, size_t number, bool is_whole)
{
    for (int i = 0; i < (is_whole ? 1 : 2); i++) {
        const struct ms_tensor_place *tensor = &file->header.tensors[number];
        const uint64_t offset = tensor->offset + (i == 0 ? 0 : tensor->bytes / 2);
        if ((i == 0 ? tensor->start : tensor->middle) != 0)
            continue;
        const uint64_t sum = sum_at(file, offset);
        if (sum == 0 || number >= file->header.count) /* the file had changed */
            return false;
        *(i == 0 ? &file->header.tensors[number].start : &file->header.tensors[number].middle) =
            sum;
    }
    return true;
}

/* A place that matches the sample of the copied bytes, and the tensor there. */
struct place {
    struct opened *file;
    uint64_t offset;
    struct ms_tensor_place tensor; /* zeroed: none that is sampled */
    bool is_whole;
};

static uint64_t shared_bytes(const struct ms_tensor_place *tensor, uint64_t begin, uint64_t end)
{
    const uint64_t last = tensor->offset + tensor->bytes;
    const uint64_t from = tensor->offset > begin ? tensor->offset : begin;
    const uint64_t to = last < end ? last : end;
    return from < to ? to - from : 0;
}

/* Finds the tensor that has most of the bytes there. False if the sums that tell it from others
 * cannot be read. */
static bool set_tensor(struct place *place, size_t bytes)
{
    const struct ms_tensor_places *header = &place->file->header;
    uint64_t most = 0, shared;
    size_t found = 0;
    for (size_t i = 0; i < header->count; i++) {
        shared = shared_bytes(&header->tensors[i], place->offset, place->offset + bytes);
        if (shared <= most || header->tensors[i].bytes < MS_SUMS_PART)
            continue;
        most = shared;
        found = i;
    }
    if (most == 0)
        return true;
    place->tensor = header->tensors[found];
    place->is_whole = place->tensor.offset == place->offset && place->tensor.bytes == bytes;
    if (!learn_points(place->file, found, place->is_whole))
        return false;
    place->tensor = header->tensors[found];
    return true;
}

static bool has_room(const struct opened *file, uint64_t offset, size_t bytes)
{
    const uint64_t all_bytes = (uint64_t)file->seen.st_size;
    return offset <= all_bytes && bytes <= all_bytes - offset;
}

/* True if the copied bytes may be of this tensor, too. */
static bool is_twin(const struct place *place, struct opened *file, size_t number)
{
    if (!learn_points(file, number, place->is_whole))
        return true;
    const struct ms_tensor_place *twin = &file->header.tensors[number];
    if (place->is_whole)
        return twin->start == copied_start;
    if (twin->start != place->tensor.start && twin->middle != place->tensor.middle)
        return false;
    const uint64_t at = twin->offset + (place->offset - place->tensor.offset);
    if (!has_room(file, at, POINT_BYTES))
        return false;
    const uint64_t sum = sum_at(file, at);
    return sum == 0 || sum == copied_start;
}

static bool has_twin(const struct place *place, struct opened *file)
{
    for (size_t i = 0; i < file->header.count; i++) {
        const struct ms_tensor_place *twin = &file->header.tensors[i];
        const bool is_itself = file == place->file && twin->offset == place->tensor.offset;
        if (!is_itself && twin->bytes == place->tensor.bytes && is_twin(place, file, i))
            return true;
    }
    return false;
}

static bool is_step(struct opened *file, uint64_t offset, size_t bytes)
{
    const size_t slot = (size_t)(offset / bytes) % STEP_SUMS;
    if (!has_room(file, offset, bytes))
        return false;
    if (step_sums[slot].file != file || step_sums[slot].offset != offset ||
        step_sums[slot].sum == 0) {
        step_sums[slot].sum = sum_at(file, offset);
        step_sums[slot].file = file;
        step_sums[slot].offset = offset;
    }
    return step_sums[slot].sum == 0 || step_sums[slot].sum == copied_start;
}

/* True if the bytes may be of a place further on or back: loaders may read pieces in any order. */
static bool has_step(const struct place *place, size_t bytes)
{
    for (uint64_t i = 1; i <= MAX_STEPS && bytes >= STEPPED_BYTES; i++) {
        const uint64_t away = i * bytes;
        if (is_step(place->file, place->offset + away, bytes) ||
            (place->offset >= away && is_step(place->file, place->offset - away, bytes)))
            return true;
    }
    return false;
}

/* True if the copied bytes may be of this file as well. Two files without tensors may be alike:
 * then they have equal bytes at the same place. */
static bool is_rival(const struct place *place, struct opened *file)
{
    if (file->seen.st_ino == 0 && !is_held(file))
        return true;
    if (place->tensor.bytes != 0)
        return has_twin(place, file);
    if (file == place->file || file->header.count > 0 ||
        !has_room(file, place->offset, POINT_BYTES))
        return false;
    const uint64_t sum = sum_at(file, place->offset);
    return sum == 0 || sum == copied_start;
}

static bool has_rivals(struct opened *file, const struct ms_wanted_source *wanted, uint64_t offset)
{
    struct place place = {.file = file, .offset = offset};
    points = MAX_POINTS;
    if (!set_tensor(&place, wanted->bytes) || (!place.is_whole && has_step(&place, wanted->bytes)))
        return true;
    for (struct opened *other = all; other != NULL; other = other->next) {
        if (is_rival(&place, other))
            return true;
    }
    return false;
}

/* A copy of less than a part is compared whole anyway. */
static bool is_sampled(const struct ms_wanted_source *wanted)
{
    return ms_config.unseen_reads && wanted->bytes >= MS_SUMS_PART;
}

static enum ms_comparing choose_comparing(struct opened *file,
                                          const struct ms_wanted_source *wanted, uint64_t offset)
{
    if (!ms_config.unseen_reads)
        return MS_COMPARING_CACHED;
    return is_sampled(wanted) && has_rivals(file, wanted, offset) ? MS_COMPARING_ALL
                                                                  : MS_COMPARING_SAMPLED;
}

static bool has_bytes(struct opened *file, const struct ms_wanted_source *wanted, uint64_t offset)
{
    struct ms_file_failure failure;
    points = 1;
    if (is_sampled(wanted) && sum_at(file, offset) != copied_start)
        return false;
    const enum ms_comparing compared = choose_comparing(file, wanted, offset);
    if (!ms_file_begin_use(file->kept.file, &failure))
        return false;
    const bool is_same =
        ms_file_compare(file->kept.file, offset, wanted->address, wanted->bytes, compared) &&
        ms_trust_is_sure(file->kept.file);
    ms_file_end_use(file->kept.file);
    return is_same;
}

/* --- places where the copied bytes may be */

/* True if no other place is to be tried. */
static bool is_there(struct opened *file, struct ms_wanted_source *wanted, uint64_t offset)
{
    if (guesses == 0)
        return true;
    if (!has_room(file, offset, wanted->bytes))
        return false;
    guesses--;
    if (!has_bytes(file, wanted, offset))
        return false;
    file->copied_end = offset + wanted->bytes;
    wanted->offset = offset;
    wanted->found = file->kept.file;
    ms_file_take(file->kept.file);
    move_to_front(file);
    return true;
}

/* Loaders read in order. Ranks that share the reading leave out each other's pieces. */
static bool is_further_on(struct opened *file, struct ms_wanted_source *wanted)
{
    const unsigned steps = wanted->bytes >= STEPPED_BYTES && misses < MAX_MISSES ? MAX_STEPS : 1;
    if (!is_held(file))
        return false;
    for (unsigned i = 0; i < steps; i++) {
        if (is_there(file, wanted, file->copied_end + (uint64_t)i * wanted->bytes))
            return true;
    }
    return false;
}

/* Starts after the last match, and wraps around. */
static bool is_tensor(struct opened *file, struct ms_wanted_source *wanted)
{
    const struct ms_tensor_places *header = &file->header;
    if (!is_held(file))
        return false;
    for (size_t i = 1; i <= header->count; i++) {
        const size_t at = (file->last + i) % header->count;
        if (header->tensors[at].bytes != wanted->bytes ||
            !is_there(file, wanted, header->tensors[at].offset))
            continue;
        file->last = at;
        return true;
    }
    return false;
}

static bool is_start(struct opened *file, struct ms_wanted_source *wanted)
{
    return is_held(file) && is_there(file, wanted, 0);
}

static bool begins_like_a_file(const struct ms_wanted_source *wanted)
{
    unsigned char start[MS_TENSOR_PLACES_START];
    uint64_t length;
    return ms_mapping_peek(wanted->address, start, sizeof(start)) &&
           ms_tensor_places_is_start(start, &length);
}

typedef bool is_of(struct opened *file, struct ms_wanted_source *wanted);

static bool is_any(is_of *is_of_it, struct ms_wanted_source *wanted)
{
    struct opened *file = all, *next;
    for (; file != NULL; file = next) {
        next = file->next; /* a match moves the file */
        if (is_of_it(file, wanted))
            return true;
    }
    return false;
}

/* True if a note says what the program has read to this address: find.c compared that, and
 * it differs. */
static bool is_noted(const struct ms_wanted_source *wanted)
{
    struct ms_mapping place;
    size_t at = 0;
    return ms_reads_next(wanted->address, wanted->bytes, &at, &place) && at == 1;
}

static bool sum_start(const struct ms_wanted_source *wanted)
{
    unsigned char page[POINT_BYTES];
    if (!is_sampled(wanted))
        return true;
    if (!ms_mapping_peek(wanted->address, page, sizeof(page)))
        return false;
    copied_start = ms_checksum(page, sizeof(page)) | 1;
    return true;
}

void ms_uring_find(struct ms_wanted_source *wanted)
{
    learn();
    if (all == NULL || is_noted(wanted) || !sum_start(wanted))
        return;
    guesses = MAX_GUESSES;
    if (!is_further_on(all, wanted) && !is_any(is_tensor, wanted) && begins_like_a_file(wanted))
        is_any(is_start, wanted);
    misses = wanted->found != NULL ? 0 : misses + 1;
    let_go_old();
}
