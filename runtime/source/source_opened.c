/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/source_opened.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/config/config.h"
#include "runtime/source/mapping.h"
#include "runtime/source/reads.h"
#include "runtime/source/source_compare.h"
#include "runtime/source/source_header.h"
#include "runtime/source/trust.h"

enum {
    MAX_HELD = 64,           /* files that are held though nothing comes from them */
    MAX_GUESSES = 256,       /* for one copy: each may read a page from a disk */
    MAX_STEPS = 64,          /* sizes further on */
    STEPPED_BYTES = 1 << 20, /* smaller copies are not looked for there */
    MAX_MISSES = 16          /* one after the other; from then on only the likeliest are tried */
};

struct opened {
    struct opened *next;
    bool is_unseen;           /* in the current walk */
    struct ms_source *source; /* NULL: it is not held */
    struct stat seen;         /* of which the header is */
    struct ms_source_header header;
    size_t last;         /* the tensor that matched last */
    uint64_t copied_end; /* of what was found last */
    uint64_t next_ns;    /* when it is asked for again, if it could not be trusted */
    struct ms_mapping place;
};

/* All for the file thread. The one that was found, or opened, last comes first. */
static struct opened *all;
static uint32_t learned; /* of ms_reads_unseen */
static unsigned misses, guesses;

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
    if (file->source != NULL)
        ms_source_drop(file->source);
    file->source = NULL;
}

static void forget(struct opened *file)
{
    let_go(file);
    ms_source_header_cleanup(&file->header);
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

/* What the program reads otherwise is found otherwise. */
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
    const uint32_t unseen = ms_reads_unseen();
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

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool is_held(struct opened *file)
{
    static const uint64_t pause_ns = UINT64_C(1000000000);
    struct ms_source_failure failure;
    if (file->source != NULL && (ms_source_state(file->source) != MS_SOURCE_IS_OPEN ||
                                 !ms_trust_check(file->source, &failure)))
        let_go(file);
    if (file->source != NULL)
        return true;
    if (ms_clock_ns(CLOCK_MONOTONIC) < file->next_ns)
        return false;
    struct ms_mapping place = file->place;
    file->source = ms_trust_open(&place, 0);
    if (file->source == NULL) {
        file->next_ns = ms_clock_ns(CLOCK_MONOTONIC) + pause_ns;
        return false;
    }
    if (!is_same_file(&file->seen, ms_source_stat(file->source))) {
        ms_source_header_cleanup(&file->header);
        ms_source_header_read(file->source, &file->header);
        file->seen = *ms_source_stat(file->source);
        file->last = 0;
    }
    return true;
}

static bool has_bytes(const struct opened *file, const struct ms_wanted_source *wanted,
                      uint64_t offset)
{
    struct ms_source_failure failure;
    if (!ms_source_begin_use(file->source, &failure))
        return false;
    const bool is_same =
        ms_source_compare(file->source, offset, wanted->address, wanted->bytes,
                          ms_config.unseen_reads ? MS_COMPARING_SAMPLED : MS_COMPARING_CACHED) &&
        ms_trust_is_sure(file->source);
    ms_source_end_use(file->source);
    return is_same;
}

/* True if no other place is to be tried. */
static bool is_there(struct opened *file, struct ms_wanted_source *wanted, uint64_t offset)
{
    const uint64_t all_bytes = (uint64_t)ms_source_stat(file->source)->st_size;
    if (guesses == 0)
        return true;
    if (offset > all_bytes || wanted->bytes > all_bytes - offset)
        return false;
    guesses--;
    if (!has_bytes(file, wanted, offset))
        return false;
    file->copied_end = offset + wanted->bytes;
    wanted->offset = offset;
    wanted->found = file->source;
    ms_counted_take(&file->source->counted);
    move_to_front(file);
    return true;
}

/* Loaders read in order; a rank that reads for others too leaves out what those read. */
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
    const struct ms_source_header *header = &file->header;
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
    unsigned char start[MS_SOURCE_HEADER_START];
    uint64_t length;
    return ms_mapping_peek(wanted->address, start, sizeof(start)) &&
           ms_source_header_is_start(start, &length);
}

typedef bool is_of(struct opened *file, struct ms_wanted_source *wanted);

static bool is_any(is_of *is_of_it, struct ms_wanted_source *wanted)
{
    struct opened *file = all, *next;
    for (; file != NULL; file = next) {
        next = file->next; /* a match moves it */
        if (is_of_it(file, wanted))
            return true;
    }
    return false;
}

/* What the program has read there was compared (source_find.c), and differs. */
static bool is_noted(const struct ms_wanted_source *wanted)
{
    struct ms_mapping place;
    size_t at = 0;
    return ms_reads_next(wanted->address, wanted->bytes, &at, &place) && at == 1;
}

void ms_source_opened_find(struct ms_wanted_source *wanted)
{
    learn();
    if (all == NULL || is_noted(wanted))
        return;
    guesses = MAX_GUESSES;
    if (!is_further_on(all, wanted) && !is_any(is_tensor, wanted) && begins_like_a_file(wanted))
        is_any(is_start, wanted);
    misses = wanted->found != NULL ? 0 : misses + 1;
    let_go_old();
}
