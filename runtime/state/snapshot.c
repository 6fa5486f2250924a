/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/utf8.h"

/* A file in the middle of reading. */
struct page {
    int file;
    struct ms_fault_context reading;
    struct ms_state_header header;
    uint64_t torn;
    /* How often records may still be read again. A process writes a few records at a time; a page
     * whose records are all half written is not valid. */
    unsigned patience;
};

enum { PATIENCE_FOR_A_RECORD = 200, PATIENCE_FOR_A_PAGE = 20 * PATIENCE_FOR_A_RECORD };

static const char section_names[MS_SECTION_COUNT][20] = {
    "process", "plan",    "options", "figures", "names of figures", "devices", "files",
    "causes",  "samples", "blocks",  "events"};

/* --- the file */

static bool read_at(struct page *page, uint64_t offset, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got =
            pread(page->file, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ms_fault_at(&page->reading, NULL, "byte %" PRIu64 ": cannot read: %s",
                               offset + done, strerror(errno));
        if (got == 0)
            return ms_fault_at(&page->reading, NULL,
                               "byte %" PRIu64
                               ": expected %zu more bytes, found the end of the file",
                               offset + done, bytes - done);
        done += (size_t)got;
    }
    return true;
}

static bool check_span(struct page *page, int section)
{
    const struct ms_state_span *span = &page->header.sections[section];
    const uint64_t at =
        offsetof(struct ms_state_header, sections) + (uint64_t)section * sizeof(*span);
    const uint64_t record = ms_format_record_bytes((enum ms_state_section)section);
    const uint64_t total = page->header.total_bytes;
    if (span->record_bytes != record)
        return ms_fault_at(&page->reading, NULL,
                           "byte %" PRIu64 ": %s: expected records of %" PRIu64
                           " bytes, found %" PRIu64,
                           at + 16, section_names[section], record, span->record_bytes);
    const struct ms_state_span *before = section > 0 ? span - 1 : NULL;
    const uint64_t least = before != NULL ? before->offset + before->count * before->record_bytes
                                          : sizeof(struct ms_state_header);
    if (span->offset % 8 != 0 || span->offset < least || span->offset > total ||
        span->count > (total - span->offset) / record)
        return ms_fault_at(&page->reading, NULL,
                           "byte %" PRIu64 ": %s: expected a place in order within %" PRIu64
                           " bytes, found %" PRIu64 " records at byte %" PRIu64,
                           at, section_names[section], total, span->count, span->offset);
    return true;
}

static bool check_header(struct page *page, uint64_t file_bytes)
{
    const struct ms_state_header *header = &page->header;
    if (header->mark != MS_STATE_MARK)
        return ms_fault_at(&page->reading, NULL,
                           "byte 12: expected 0x%08x, found 0x%08" PRIx32
                           ": a page of a machine with another byte order, or damaged",
                           MS_STATE_MARK, header->mark);
    if (header->version != MS_STATE_VERSION)
        return ms_fault_at(&page->reading, NULL,
                           "byte 8: expected a state page of version %d, found version %" PRIu32,
                           MS_STATE_VERSION, header->version);
    if (header->total_bytes != file_bytes)
        return ms_fault_at(&page->reading, NULL,
                           "byte 16: expected the size of the file, %" PRIu64 ", found %" PRIu64
                           ": the file was cut",
                           file_bytes, header->total_bytes);
    if (header->section_count != MS_SECTION_COUNT)
        return ms_fault_at(&page->reading, NULL, "byte 24: expected %d sections, found %" PRIu64,
                           MS_SECTION_COUNT, header->section_count);
    for (int i = 0; i < MS_SECTION_COUNT; i++) {
        if (!check_span(page, i))
            return false;
    }
    const struct ms_state_span *sections = header->sections;
    for (int i = MS_SECTION_PROCESS; i <= MS_SECTION_PLAN; i++) {
        if (sections[i].count != 2)
            return ms_fault_at(&page->reading, NULL, "%s: expected 2 records, found %" PRIu64,
                               section_names[i], sections[i].count);
    }
    if (sections[MS_SECTION_FIGURES].count != sections[MS_SECTION_FIGURE_NAMES].count)
        return ms_fault_at(&page->reading, NULL,
                           "expected as many figures as names, found %" PRIu64 " and %" PRIu64,
                           sections[MS_SECTION_FIGURES].count,
                           sections[MS_SECTION_FIGURE_NAMES].count);
    return true;
}

static bool open_page(struct page *page, struct ms_snapshot *snapshot)
{
    struct stat stat;
    if (fstat(page->file, &stat) != 0)
        return ms_fault_at(&page->reading, NULL, "%s", strerror(errno));
    if (!S_ISREG(stat.st_mode))
        return ms_fault_at(&page->reading, NULL, "expected a file, found something else");
    if ((uint64_t)stat.st_size > MS_STATE_MOST_BYTES)
        return ms_fault_at(&page->reading, NULL, "expected at most %d bytes, found %" PRIu64,
                           (int)MS_STATE_MOST_BYTES, (uint64_t)stat.st_size);
    snapshot->is_own = stat.st_uid == geteuid();
    char magic[sizeof(page->header.magic)];
    if (pread(page->file, magic, sizeof(magic), 0) == (ssize_t)sizeof(magic) &&
        memcmp(magic, MS_STATE_MAGIC, sizeof(magic)) != 0)
        return ms_fault_at(&page->reading, NULL,
                           "byte 0: expected \"" MS_STATE_MAGIC
                           "\", found something else: not a state page");
    return read_at(page, 0, &page->header, sizeof(page->header)) &&
           check_header(page, (uint64_t)stat.st_size);
}

/* --- records */

static uint64_t sequence_of(const void *record)
{
    uint64_t sequence;
    memcpy(&sequence, record, sizeof(sequence));
    return sequence;
}

/* A pointer to records of any type. */
typedef void *__attribute__((may_alias)) pointer;

/* Reads some records of a section as they are, perhaps in the middle of a write. */
static bool read_some(struct page *page, enum ms_state_section section, size_t first, size_t count,
                      char *records)
{
    const struct ms_state_span *span = &page->header.sections[section];
    return read_at(page, span->offset + first * span->record_bytes, records,
                   count * (size_t)span->record_bytes);
}

/* Reads all records of a section as they are. `records_out` is the address of a pointer to them. */
static bool read_section(struct page *page, enum ms_state_section section, void *records_out)
{
    const struct ms_state_span *span = &page->header.sections[section];
    char *records = ms_heap_alloc((size_t)(span->count * span->record_bytes) + 1);
    if (records == NULL)
        return ms_fault_at(&page->reading, NULL, "out of memory");
    if (!read_some(page, section, 0, (size_t)span->count, records)) {
        ms_heap_free(records);
        return false;
    }
    *(pointer *)records_out = records;
    return true;
}

/* Reads one whole record: sequence, record, sequence. Each read sees nothing older than the read
 * before. Returns false without a fault if the record is half written, and stays so. */
static bool read_record(struct page *page, uint64_t offset, char *record, size_t bytes,
                        bool *is_good_out)
{
    uint64_t before, after;
    *is_good_out = true;
    for (int i = 0; i < PATIENCE_FOR_A_RECORD && *is_good_out; i++) {
        *is_good_out = read_at(page, offset, &before, sizeof(before)) &&
                       read_at(page, offset, record, bytes) &&
                       read_at(page, offset, &after, sizeof(after));
        if (*is_good_out && before == after && before % 2 == 0 && sequence_of(record) == before)
            return true;
        if (page->patience == 0)
            return false;
        page->patience--;
        sched_yield();
    }
    return false;
}

/*
 * A reader takes no more memory than this for blocks, and for events, however large the page: the
 * largest blocks are kept, and the last events.
 */
enum { BLOCKS_BYTES = 128 << 20, EVENTS_BYTES = 64 << 20 };

/* Which records of a section are kept: those with the greatest weights. */
struct choice {
    uint64_t (*weigh)(const void *record); /* 0: it is not in use */
    size_t most;
    uint64_t least; /* the least weight that is kept */
    size_t equal;   /* how many more of that weight are kept */
    size_t kept;    /* so far; a process may write meanwhile */
    uint64_t left_out;
};

static uint64_t weigh_block(const void *record)
{
    const struct ms_state_block *block = record;
    return block->id != 0 ? block->bytes : 0;
}

static uint64_t weigh_event(const void *record)
{
    const struct ms_state_event *event = record;
    return event->sequence;
}

static bool is_chosen(struct choice *choice, const void *record)
{
    const uint64_t weight = choice->weigh(record);
    const bool is_equal = weight == choice->least && choice->equal > 0;
    if (choice->kept == choice->most || (weight <= choice->least && !is_equal)) {
        choice->left_out += weight > 0;
        return false;
    }
    choice->equal -= is_equal;
    choice->kept++;
    return true;
}

/* Records side by side, read three times. Large sections are read in several windows, so that most
 * of the memory held is for records that are kept. */
enum { WINDOW_BYTES = 256 << 10 };
struct window {
    enum ms_state_section section;
    size_t first, count, record_bytes;
    char *before, *records, *after;
    struct choice *choice; /* NULL: all are kept */
};

/* Moves the records that are whole, and were ever written, to `kept`. Most have equal sequences in
 * the readings before and after; the others are read one by one. */
static bool keep_whole(struct page *page, const struct window *window, char *kept,
                       size_t *count_out)
{
    const size_t size = window->record_bytes;
    const uint64_t offset = page->header.sections[window->section].offset;
    bool is_good = true;
    *count_out = 0;
    for (size_t i = 0; i < window->count && is_good; i++) {
        char *record = window->records + i * size;
        const uint64_t sequence = sequence_of(window->before + i * size);
        bool is_whole = sequence % 2 == 0 && sequence == sequence_of(window->after + i * size) &&
                        sequence == sequence_of(record);
        if (!is_whole) {
            is_whole =
                read_record(page, offset + (window->first + i) * size, record, size, &is_good);
            page->torn += !is_whole;
        }
        if (is_whole && sequence_of(record) != 0 &&
            (window->choice == NULL || is_chosen(window->choice, record)))
            memcpy(kept + (*count_out)++ * size, record, size);
    }
    return is_good;
}

/* Keeps the windows' records one behind the other. Memory for records that do not exist is not
 * touched. */
static bool keep_all(struct page *page, struct window *window, size_t total, char *kept,
                     size_t *count_out)
{
    const size_t most = WINDOW_BYTES / window->record_bytes;
    size_t count;
    *count_out = 0;
    for (; window->first < total; window->first += window->count) {
        window->count = total - window->first < most ? total - window->first : most;
        if (!read_some(page, window->section, window->first, window->count, window->before) ||
            !read_some(page, window->section, window->first, window->count, window->records) ||
            !read_some(page, window->section, window->first, window->count, window->after) ||
            !keep_whole(page, window, kept + *count_out * window->record_bytes, &count))
            return false;
        *count_out += count;
    }
    return true;
}

static int greatest_first(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left > right ? -1 : left < right;
}

/* Weighs all records, as they are now. */
static bool weigh_all(struct page *page, const struct window *window, size_t total,
                      uint64_t *weights)
{
    const size_t most = WINDOW_BYTES / window->record_bytes;
    for (size_t first = 0, count; first < total; first += count) {
        count = total - first < most ? total - first : most;
        if (!read_some(page, window->section, first, count, window->records))
            return false;
        for (size_t i = 0; i < count; i++)
            weights[first + i] = window->choice->weigh(window->records + i * window->record_bytes);
    }
    return true;
}

static bool choose(struct page *page, const struct window *window, size_t total)
{
    struct choice *choice = window->choice;
    uint64_t *weights = ms_heap_alloc(total * sizeof(*weights));
    if (weights == NULL)
        return ms_fault_at(&page->reading, NULL, "out of memory");
    const bool is_good = weigh_all(page, window, total, weights);
    if (is_good) {
        qsort(weights, total, sizeof(*weights), greatest_first);
        choice->least = weights[choice->most - 1];
        while (choice->least > 0 && choice->equal < choice->most &&
               weights[choice->most - 1 - choice->equal] == choice->least)
            choice->equal++;
    }
    ms_heap_free(weights);
    return is_good;
}

/* Reads the whole records of a section, or those that `choice` selects. Leaves out records that
 * were never written or are half written. */
static bool read_chosen(struct page *page, enum ms_state_section section, struct choice *choice,
                        void *records_out, size_t *count_out)
{
    const struct ms_state_span *span = &page->header.sections[section];
    const size_t total = (size_t)span->count, size = (size_t)span->record_bytes;
    const bool is_cut = choice != NULL && total > choice->most;
    char *readings = ms_heap_alloc(3 * (size_t)WINDOW_BYTES);
    char *kept = ms_heap_alloc((is_cut ? choice->most : total) * size + 1);
    struct window window = {.section = section,
                            .record_bytes = size,
                            .before = readings,
                            .records = readings + WINDOW_BYTES,
                            .after = readings + 2 * (size_t)WINDOW_BYTES,
                            .choice = is_cut ? choice : NULL};
    const bool has_memory = readings != NULL && kept != NULL;
    const bool is_good = has_memory && (!is_cut || choose(page, &window, total)) &&
                         keep_all(page, &window, total, kept, count_out);
    ms_heap_free(readings);
    if (!is_good)
        ms_heap_free(kept);
    if (!has_memory)
        return ms_fault_at(&page->reading, NULL, "out of memory");
    if (is_good)
        *(pointer *)records_out = kept;
    return is_good;
}

static bool read_records(struct page *page, enum ms_state_section section, void *records_out,
                         size_t *count_out)
{
    return read_chosen(page, section, NULL, records_out, count_out);
}

/* Reads the newer of two records; all zero if neither was written. */
static bool read_pair(struct page *page, enum ms_state_section section, void *record_out)
{
    void *records;
    size_t count;
    const size_t size = ms_format_record_bytes(section);
    const uint64_t torn = page->torn;
    if (!read_records(page, section, &records, &count))
        return false;
    const char *second = (const char *)records + size;
    memset(record_out, 0, size);
    if (count > 0) {
        memcpy(record_out,
               count > 1 && sequence_of(second) > sequence_of(records) ? second : records, size);
        page->torn = torn; /* the other record exists for this case */
    }
    ms_heap_free(records);
    return true;
}

/* --- texts */

void ms_state_clean_text(char *text, size_t bytes)
{
    text[bytes - 1] = '\0';
    ms_utf8_make_printable(text);
}
#define CLEAN(field) ms_state_clean_text(field, sizeof(field))

/* --- order */

static int compare(uint64_t left, uint64_t right)
{
    return left < right ? -1 : left > right;
}

static int by_bytes(const void *a, const void *b)
{
    const struct ms_state_cause *left = a, *right = b;
    const int order = compare(right->bytes, left->bytes);
    return order != 0 ? order : compare(right->count, left->count);
}

static int by_time(const void *a, const void *b)
{
    const struct ms_state_sample *left = a, *right = b;
    const int order = compare(left->time_ns, right->time_ns);
    return order != 0 ? order : compare(left->backed_bytes, right->backed_bytes);
}

static int by_number(const void *a, const void *b)
{
    const struct ms_state_event *left = a, *right = b;
    return compare(left->sequence, right->sequence);
}

/* Orders parts behind their allocation, and allocations by `sequence`: see order_blocks. */
static int by_size_and_id(const void *a, const void *b)
{
    const struct ms_state_block *left = a, *right = b;
    int order = compare(right->sequence, left->sequence);
    if (order == 0)
        order = compare(left->id, right->id);
    if (order == 0)
        order = compare(left->flags & MS_BLOCK_PART, right->flags & MS_BLOCK_PART);
    return order != 0 ? order : compare(left->address, right->address);
}

/* Reuses `sequence`, which means nothing any more in a whole record, as the key by which its
 * allocation is sorted: the bytes of the greatest block with its id. */
static void order_blocks(struct ms_state_block *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        blocks[i].sequence = 0;
    qsort(blocks, count, sizeof(*blocks), by_size_and_id);
    for (size_t first = 0, end; first < count; first = end) {
        uint64_t most = 0;
        for (end = first; end < count && blocks[end].id == blocks[first].id; end++)
            most = blocks[end].bytes > most ? blocks[end].bytes : most;
        for (size_t i = first; i < end; i++)
            blocks[i].sequence = most;
    }
    qsort(blocks, count, sizeof(*blocks), by_size_and_id);
}

/* --- the snapshot */

/* NULL: the page has no figure of that name. Names may lack their zero. */
static uint64_t *find_figure(const struct ms_snapshot *snapshot, const char *name)
{
    for (size_t i = 0; i < snapshot->figure_count; i++) {
        const struct ms_state_figure_name *one = &snapshot->figure_names[i];
        if (strncmp(one->text, name, sizeof(one->text)) == 0)
            return &snapshot->figures[i];
    }
    return NULL;
}

uint64_t ms_snapshot_figure(const struct ms_snapshot *snapshot, const char *name)
{
    const uint64_t *figure = find_figure(snapshot, name);
    return figure != NULL ? *figure : 0;
}

static void drop_free_blocks(struct ms_snapshot *snapshot)
{
    size_t kept = 0;
    for (size_t i = 0; i < snapshot->block_count; i++) {
        struct ms_state_block *block = &snapshot->blocks[i];
        if (block->id == 0)
            continue;
        CLEAN(block->backed_call);
        CLEAN(block->name);
        if (block->file > snapshot->file_count)
            block->file = 0;
        snapshot->blocks[kept++] = *block;
    }
    snapshot->block_count = kept;
}

/* All causes of a program that has not loaded yet count as loading. */
static void clean_causes(struct ms_snapshot *snapshot)
{
    const bool has_loaded = ms_snapshot_figure(snapshot, "loaded_ns") > 0;
    size_t kept = 0;
    for (size_t i = 0; i < snapshot->cause_count; i++) {
        struct ms_state_cause *cause = &snapshot->causes[i];
        CLEAN(cause->call);
        CLEAN(cause->text);
        CLEAN(cause->sentence);
        if (!has_loaded || cause->loaded_count > cause->count ||
            cause->loaded_bytes > cause->bytes || cause->loaded_duration_ns > cause->duration_ns) {
            cause->loaded_count = cause->count;
            cause->loaded_bytes = cause->bytes;
            cause->loaded_duration_ns = cause->duration_ns;
        }
        if (cause->count > 0)
            snapshot->causes[kept++] = *cause;
    }
    snapshot->cause_count = kept;
    qsort(snapshot->causes, kept, sizeof(*snapshot->causes), by_bytes);
}

static void clean_events(struct ms_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->event_count; i++) {
        CLEAN(snapshot->events[i].call);
        CLEAN(snapshot->events[i].text);
    }
    if (snapshot->event_count == 0)
        return;
    qsort(snapshot->events, snapshot->event_count, sizeof(*snapshot->events), by_number);
    const uint64_t last = snapshot->events[snapshot->event_count - 1].sequence / 2;
    snapshot->events_lost = last > snapshot->event_count ? last - snapshot->event_count : 0;
}

/* The last sample holds the current figures, at the time of the last change. */
static void order_samples(struct ms_snapshot *snapshot)
{
    struct ms_state_sample *samples = snapshot->samples;
    size_t kept = 0;
    qsort(samples, snapshot->sample_count, sizeof(*samples), by_time);
    for (size_t i = 0; i < snapshot->sample_count; i++) {
        if (samples[i].time_ns == 0)
            continue;
        kept -= kept > 0 && samples[kept - 1].time_ns == samples[i].time_ns;
        samples[kept++] = samples[i];
    }
    while (kept > 0 && samples[kept - 1].time_ns >= snapshot->taken_ns)
        kept--;
    samples[kept++] =
        (struct ms_state_sample){.time_ns = snapshot->taken_ns,
                                 .live_bytes = ms_snapshot_figure(snapshot, "live_bytes"),
                                 .deferred_bytes = ms_snapshot_figure(snapshot, "deferred_bytes"),
                                 .backed_bytes = ms_snapshot_figure(snapshot, "backed_bytes"),
                                 .h2d_bytes = ms_snapshot_figure(snapshot, "h2d_bytes")};
    snapshot->sample_count = kept;
}

static uint64_t time_of(const struct ms_snapshot *snapshot)
{
    const struct ms_state_process *process = &snapshot->process;
    if (process->ended_ns > 0)
        return process->ended_ns;
    const uint64_t ns = ms_clock_ns(CLOCK_MONOTONIC);
    if (snapshot->life == MS_LIFE_ALIVE && ns > process->started_monotonic_ns)
        return ns - process->started_monotonic_ns;
    uint64_t last = ms_snapshot_figure(snapshot, "changed_ns");
    for (size_t i = 0; i < snapshot->sample_count; i++)
        last = snapshot->samples[i].time_ns > last ? snapshot->samples[i].time_ns : last;
    for (size_t i = 0; i < snapshot->event_count; i++)
        last = snapshot->events[i].time_ns > last ? snapshot->events[i].time_ns : last;
    return last > 0 ? last : 1;
}

/* Takes out bytes that were to come when the program had loaded (state.c), and never came. */
static void clean_figures(struct ms_snapshot *snapshot)
{
    const uint64_t most = ms_snapshot_figure(snapshot, "backed_bytes_peak");
    uint64_t *loaded = find_figure(snapshot, "loaded_backed_bytes_peak");
    if (loaded != NULL && *loaded > most)
        *loaded = most;
}

static void clean_process(struct ms_snapshot *snapshot)
{
    struct ms_state_process *process = &snapshot->process;
    CLEAN(process->job);
    CLEAN(process->version);
    CLEAN(process->boot);
    CLEAN(process->host);
    CLEAN(process->command);
    CLEAN(process->folder);
    CLEAN(snapshot->plan.name);
    snapshot->life = ms_process_life(NULL, process);
}

static void clean_lists(struct ms_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->option_count; i++) {
        CLEAN(snapshot->options[i].name);
        CLEAN(snapshot->options[i].value);
    }
    for (size_t i = 0; i < snapshot->figure_count; i++)
        CLEAN(snapshot->figure_names[i].text);
    for (size_t i = 0; i < snapshot->file_count; i++)
        CLEAN(snapshot->files[i].path);
}

/* The index is the device's number, so devices without a name are kept. */
static bool read_devices(struct page *page, struct ms_snapshot *snapshot)
{
    if (!read_section(page, MS_SECTION_DEVICES, &snapshot->devices))
        return false;
    const size_t count = (size_t)page->header.sections[MS_SECTION_DEVICES].count;
    for (size_t i = 0; i < count; i++) {
        struct ms_state_device *device = &snapshot->devices[i];
        if (device->sequence == 0 || device->sequence % 2 != 0)
            *device = (struct ms_state_device){0};
        CLEAN(device->name);
        CLEAN(device->unmet);
        if (device->sequence != 0)
            snapshot->device_count = i + 1;
    }
    return true;
}

static bool read_all(struct page *page, struct ms_snapshot *snapshot)
{
    const struct ms_state_span *sections = page->header.sections;
    if (!read_section(page, MS_SECTION_OPTIONS, &snapshot->options) ||
        !read_section(page, MS_SECTION_FIGURES, &snapshot->figures) ||
        !read_section(page, MS_SECTION_FIGURE_NAMES, &snapshot->figure_names))
        return false;
    snapshot->option_count = (size_t)sections[MS_SECTION_OPTIONS].count;
    snapshot->figure_count = (size_t)sections[MS_SECTION_FIGURES].count;
    struct choice events = {.weigh = weigh_event,
                            .most = EVENTS_BYTES / sizeof(struct ms_state_event)};
    struct choice blocks = {.weigh = weigh_block,
                            .most = BLOCKS_BYTES / sizeof(struct ms_state_block)};
    /* Files last: a block's file is there before the block says so. */
    if (!read_chosen(page, MS_SECTION_EVENTS, &events, &snapshot->events, &snapshot->event_count) ||
        !read_chosen(page, MS_SECTION_BLOCKS, &blocks, &snapshot->blocks, &snapshot->block_count) ||
        !read_records(page, MS_SECTION_SAMPLES, &snapshot->samples, &snapshot->sample_count) ||
        !read_records(page, MS_SECTION_CAUSES, &snapshot->causes, &snapshot->cause_count) ||
        !read_records(page, MS_SECTION_FILES, &snapshot->files, &snapshot->file_count))
        return false;
    uint64_t *left_out = find_figure(snapshot, "blocks_left_out");
    if (left_out != NULL) /* as if they had not fitted into the page */
        *left_out += blocks.left_out;
    return true;
}

/* Makes room for one more record than the section has: the current figures. */
static bool grow_samples(struct ms_snapshot *snapshot)
{
    struct ms_state_sample *grown =
        ms_heap_realloc(snapshot->samples, (snapshot->sample_count + 1) * sizeof(*grown));
    if (grown != NULL)
        snapshot->samples = grown;
    return grown != NULL;
}

static bool read_snapshot(struct page *page, struct ms_snapshot *snapshot)
{
    if (!read_pair(page, MS_SECTION_PROCESS, &snapshot->process) ||
        !read_pair(page, MS_SECTION_PLAN, &snapshot->plan))
        return false;
    if (snapshot->process.sequence == 0)
        return ms_fault_at(&page->reading, NULL,
                           "byte %" PRIu64 ": expected a process, found a record that is not whole",
                           page->header.sections[MS_SECTION_PROCESS].offset);
    if (!read_devices(page, snapshot) || !read_all(page, snapshot))
        return false;
    clean_process(snapshot);
    clean_lists(snapshot);
    drop_free_blocks(snapshot);
    clean_figures(snapshot);
    clean_causes(snapshot);
    clean_events(snapshot);
    snapshot->taken_ns = time_of(snapshot);
    snapshot->torn_records = (size_t)page->torn;
    if (!grow_samples(snapshot))
        return ms_fault_at(&page->reading, NULL, "out of memory");
    order_blocks(snapshot->blocks, snapshot->block_count);
    order_samples(snapshot);
    return true;
}

bool ms_snapshot_read_file(int file, const char *name, struct ms_snapshot *snapshot_out,
                           struct ms_fault *fault)
{
    struct page page = {.file = file, .reading = {name, fault}, .patience = PATIENCE_FOR_A_PAGE};
    *snapshot_out = (struct ms_snapshot){.path = name};
    if (open_page(&page, snapshot_out) && read_snapshot(&page, snapshot_out))
        return true;
    ms_snapshot_cleanup(snapshot_out);
    return false;
}

bool ms_snapshot_read(const char *path, struct ms_snapshot *snapshot_out, struct ms_fault *fault)
{
    struct stat stat;
    const int file = ms_regular_file_open(path, &stat);
    if (file < 0)
        return ms_fault_set(fault, "%s: %s", path,
                            errno != 0 ? strerror(errno) : "expected a file, found something else");
    const bool is_good = ms_snapshot_read_file(file, path, snapshot_out, fault);
    close(file);
    return is_good;
}

void ms_snapshot_cleanup(struct ms_snapshot *snapshot)
{
    ms_heap_free(snapshot->options);
    ms_heap_free(snapshot->figures);
    ms_heap_free(snapshot->figure_names);
    ms_heap_free(snapshot->devices);
    ms_heap_free(snapshot->files);
    ms_heap_free(snapshot->causes);
    ms_heap_free(snapshot->samples);
    ms_heap_free(snapshot->blocks);
    ms_heap_free(snapshot->events);
    *snapshot = (struct ms_snapshot){0};
}
