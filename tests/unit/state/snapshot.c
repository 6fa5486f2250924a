/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a state page: of which every byte is the test's, and each read passes by the test. */
#include "runtime/state/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"

/* --- the page */

static int file;
static unsigned char *page; /* its bytes, shared with the file */
static struct ms_state_header *header;
static struct ms_snapshot snapshot;
static struct ms_fault fault;

static void *record(enum ms_state_section section, uint64_t index)
{
    const struct ms_state_span *span = &header->sections[section];
    return page + span->offset + index * span->record_bytes;
}
#define RECORD(type, section, index) ((struct ms_state_##type *)record(MS_SECTION_##section, index))

/* So many records of each section, one section right behind the other. */
static void make_page(const uint64_t counts[MS_SECTION_COUNT])
{
    struct ms_state_header made = {.version = MS_STATE_VERSION,
                                   .mark = MS_STATE_MARK,
                                   .section_count = MS_SECTION_COUNT,
                                   .total_bytes = sizeof(made)};
    memcpy(made.magic, MS_STATE_MAGIC, sizeof(made.magic));
    for (int i = 0; i < MS_SECTION_COUNT; i++) {
        const uint64_t bytes = ms_format_record_bytes((enum ms_state_section)i);
        made.sections[i] = (struct ms_state_span){made.total_bytes, counts[i], bytes};
        made.total_bytes += counts[i] * bytes;
    }
    file = memfd_create("page", MFD_CLOEXEC);
    CHECK(file >= 0 && ftruncate(file, (off_t)made.total_bytes) == 0);
    page = mmap(NULL, made.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(page != MAP_FAILED);
    header = (struct ms_state_header *)page;
    *header = made;
    RECORD(process, PROCESS, 0)->sequence = 2;
    for (uint64_t i = 0; i < counts[MS_SECTION_FIGURES]; i++)
        strcpy(RECORD(figure_name, FIGURE_NAMES, i)->text, ms_counter_names[i]);
}

static void make_small_page(void)
{
    static const uint64_t counts[MS_SECTION_COUNT] = {
        2, 2, 2, MS_FIGURE_COUNT, MS_FIGURE_COUNT, 4, 3, 6, 8, 8, 8};
    make_page(counts);
}

static uint64_t *figure(int number)
{
    return record(MS_SECTION_FIGURES, (uint64_t)number);
}

static bool read_page(void)
{
    return ms_snapshot_read_file(file, "a page", &snapshot, &fault);
}

static void must_read(void)
{
    if (!read_page())
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
}

static void must_refuse(const char *reason)
{
    CHECK(!read_page());
    if (strstr(fault.text, "a page: ") != fault.text || strstr(fault.text, reason) == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s, expected %s", fault.text, reason);
    CHECK_EQ(live, 0);
}

static void end(void)
{
    ms_snapshot_cleanup(&snapshot);
    CHECK_EQ(live, 0);
    if (page != NULL)
        CHECK_EQ(munmap(page, header->total_bytes), 0);
    close(file);
}
#define PAGE_TEST(name) MS_TEST_BETWEEN(make_small_page, end, name)

/* --- reads */

static struct {
    uint64_t at; /* where that read begins */
    size_t bytes;
    unsigned seen;                /* of these */
    void (*before)(unsigned nth); /* before the nth of these, from 1 on */
    unsigned interrupted, failed; /* so many reads are, next */
    size_t most;                  /* bytes of one; 0: all */
    uint64_t calls;
} reads;

/* Calls `before` before each read of just these bytes. */
static void watch(const void *at, size_t bytes, void (*before)(unsigned nth))
{
    reads.at = (uint64_t)((const unsigned char *)at - page);
    reads.bytes = bytes;
    reads.seen = 0;
    reads.before = before;
}

static void watch_section(enum ms_state_section section, void (*before)(unsigned nth))
{
    const struct ms_state_span *span = &header->sections[section];
    watch(record(section, 0), span->count * span->record_bytes, before);
}

WRAPS(pread64);

ssize_t __wrap_pread64(int from, void *to, size_t bytes, off_t offset)
{
    reads.calls++;
    if (reads.before != NULL && (uint64_t)offset == reads.at && bytes == reads.bytes)
        reads.before(++reads.seen);
    if (reads.interrupted > 0 || reads.failed > 0) {
        errno = reads.interrupted > 0 ? EINTR : EIO;
        reads.interrupted -= errno == EINTR;
        reads.failed -= errno == EIO;
        return -1;
    }
    return __real_pread64(from, to, reads.most > 0 && reads.most < bytes ? reads.most : bytes,
                          offset);
}

/* --- the file */

PAGE_TEST(a_page_of_nothing_but_a_process_is_read)
{
    must_read();
    CHECK_EQ(strcmp(snapshot.path, "a page"), 0);
    CHECK(snapshot.is_own);
    CHECK_EQ(snapshot.option_count, 2);
    CHECK_EQ(snapshot.figure_count, MS_FIGURE_COUNT);
    CHECK_EQ(snapshot.device_count + snapshot.file_count + snapshot.cause_count, 0);
    CHECK_EQ(snapshot.block_count + snapshot.event_count + snapshot.events_lost, 0);
    CHECK_EQ(snapshot.torn_records, 0);
    CHECK_EQ(snapshot.plan.generation, 0);
    CHECK_EQ(snapshot.sample_count, 1); /* now */
    CHECK_EQ(snapshot.taken_ns, 1);
    CHECK_EQ(snapshot.life, MS_LIFE_UNKNOWN);
}

PAGE_TEST(a_damaged_header_is_refused_with_its_place)
{
    const struct {
        void *field;
        size_t bytes;
        uint64_t change; /* added */
        const char *reason;
    } damages[] = {
        {header->magic, 1, 1, "byte 0: expected \"metashrd\""},
        {header->magic + 7, 1, 1, "byte 0: expected \"metashrd\""},
        {&header->version, 4, 1, "byte 8: expected a state page of version 3, found version 4"},
        {&header->mark, 4, 1, "byte 12: expected 0x01020304, found 0x01020305"},
        {&header->total_bytes, 8, 8, "byte 16: expected the size of the file"},
        {&header->section_count, 8, 1, "byte 24: expected 11 sections, found 12"},
        {&header->sections[3].record_bytes, 8, 8,
         "byte 120: figures: expected records of 8 bytes, found 16"},
        {&header->sections[0].offset, 8, -8, "byte 32: process: expected a place in order"},
        {&header->sections[5].offset, 8, -8, "byte 152: devices: expected a place in order"},
        {&header->sections[10].offset, 8, 4, "byte 272: events: expected a place in order"},
        {&header->sections[10].offset, 8, 8, "byte 272: events: expected a place in order"},
        {&header->sections[10].offset, 8, INT64_MIN, "events: expected a place in order"},
        {&header->sections[10].count, 8, 1, "found 9 records at byte"},
        {&header->sections[9].count, 8, UINT64_MAX / 2, "byte 248: blocks: expected a place"},
        {&header->sections[0].count, 8, -1, "process: expected 2 records, found 1"},
        {&header->sections[1].count, 8, -2, "plan: expected 2 records, found 0"},
        {&header->sections[3].count, 8, -1, "expected as many figures as names, found"},
    };
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        uint64_t before = 0, after;
        memcpy(&before, damages[i].field, damages[i].bytes);
        after = before + damages[i].change;
        memcpy(damages[i].field, &after, damages[i].bytes);
        must_refuse(damages[i].reason);
        memcpy(damages[i].field, &before, damages[i].bytes);
    }
    must_read();
}

PAGE_TEST(a_section_may_leave_room_before_it_and_be_empty_at_the_end)
{
    header->sections[MS_SECTION_EVENTS] =
        (struct ms_state_span){header->total_bytes, 0, sizeof(struct ms_state_event)};
    header->sections[MS_SECTION_BLOCKS].count = 2;
    must_read();
    CHECK_EQ(snapshot.event_count, 0);
}

PAGE_TEST(a_page_without_a_whole_process_is_refused)
{
    RECORD(process, PROCESS, 0)->sequence = 0;
    must_refuse("byte 296: expected a process, found a record that is not whole");
    RECORD(process, PROCESS, 0)->sequence = 3;
    RECORD(process, PROCESS, 1)->sequence = 5;
    must_refuse("byte 296: expected a process, found a record that is not whole");
}

static void make_nothing(void)
{
    file = -1;
}

MS_TEST_BETWEEN(make_nothing, end, a_descriptor_of_no_file_is_refused)
{
    int ends[2];
    must_refuse("Bad file descriptor");
    CHECK_EQ(pipe(ends), 0);
    file = ends[0];
    must_refuse("expected a file, found something else");
    close(ends[1]);
}

MS_TEST_BETWEEN(make_nothing, end, a_file_without_a_header_is_refused)
{
    const char start[] = MS_STATE_MAGIC;
    file = memfd_create("page", MFD_CLOEXEC);
    must_refuse("byte 0: expected 296 more bytes, found the end of the file");
    CHECK_EQ(write(file, start, 7), 7);
    must_refuse("byte 7: expected 289 more bytes, found the end of the file");
    CHECK_EQ(write(file, "x", 1), 1);
    must_refuse("byte 0: expected \"metashrd\"");
    CHECK_EQ(ftruncate(file, MS_STATE_MOST_BYTES), 0);
    must_refuse("byte 0: expected \"metashrd\"");
    CHECK_EQ(ftruncate(file, (off_t)MS_STATE_MOST_BYTES + 1), 0);
    must_refuse("expected at most 1073741824 bytes, found 1073741825");
}

PAGE_TEST(a_page_of_another_user_is_not_own)
{
    if (geteuid() != 0 || fchown(file, 12345, 0) != 0)
        ms_test_skip("only root can give a file away");
    must_read();
    CHECK(!snapshot.is_own);
}

PAGE_TEST(reads_that_are_short_or_interrupted_go_on)
{
    struct ms_state_file *const named = record(MS_SECTION_FILES, 1);
    named->sequence = 2;
    strcpy(named->path, "/a/file");
    reads.most = 24;
    reads.interrupted = 3;
    must_read();
    CHECK_EQ(snapshot.file_count, 1);
    CHECK_EQ(strcmp(snapshot.files[0].path, "/a/file"), 0);
}

PAGE_TEST(a_read_that_fails_is_a_fault_with_its_place)
{
    must_read();
    const uint64_t all = reads.calls;
    ms_snapshot_cleanup(&snapshot);
    reads.failed = 2; /* that of the magic number is one */
    must_refuse("byte 0: cannot read: Input/output error");
    CHECK(all > 20);
}

static unsigned fails_at;

static void fail_then(unsigned nth)
{
    reads.failed = nth == fails_at;
}

/* Sections that never change are read once, and so are devices. */
static bool has_three_readings(enum ms_state_section section)
{
    return section <= MS_SECTION_PLAN || section >= MS_SECTION_FILES;
}

/* Each section is one window, which is read once or three times. */
PAGE_TEST(a_read_that_fails_in_a_section_gives_all_back)
{
    RECORD(block, BLOCKS, 0)->sequence = 3;
    for (int i = 0; i < MS_SECTION_COUNT; i++) {
        for (fails_at = 1; fails_at <= 3; fails_at++) {
            watch_section((enum ms_state_section)i, fail_then);
            if (fails_at == 1 || has_three_readings((enum ms_state_section)i)) {
                must_refuse("cannot read: Input/output error");
                continue;
            }
            must_read();
            CHECK_EQ(reads.seen, 1);
            ms_snapshot_cleanup(&snapshot);
        }
    }
}

PAGE_TEST(a_read_of_one_record_that_fails_gives_all_back)
{
    static const struct {
        size_t bytes;
        unsigned nth;
    } cases[] = {{8, 1}, {sizeof(struct ms_state_block), 1}, {8, 2}, {8, 3}};
    RECORD(block, BLOCKS, 0)->sequence = 3;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fails_at = cases[i].nth;
        watch(record(MS_SECTION_BLOCKS, 0), cases[i].bytes, fail_then);
        must_refuse("cannot read: Input/output error");
        CHECK_EQ(reads.seen, cases[i].nth);
    }
}

PAGE_TEST(a_read_without_memory_fails_and_keeps_nothing)
{
    must_read();
    ms_snapshot_cleanup(&snapshot);
    for (int i = 0;; i++) {
        may_make = i;
        const bool is_read = read_page();
        may_make = 1000000;
        if (is_read) {
            CHECK(i > 10);
            return;
        }
        CHECK_EQ(strcmp(fault.text, "a page: out of memory"), 0);
        CHECK_EQ(live, 0);
        CHECK(snapshot.options == NULL && snapshot.events == NULL && snapshot.path == NULL);
    }
}

MS_TEST(a_path_that_leads_to_no_file_is_refused)
{
    const int next = dup(STDIN_FILENO);
    close(next);
    CHECK(!ms_snapshot_read("/nowhere/page", &snapshot, &fault));
    CHECK_EQ(strcmp(fault.text, "/nowhere/page: No such file or directory"), 0);
    CHECK(!ms_snapshot_read("/tmp", &snapshot, &fault));
    CHECK_EQ(strcmp(fault.text, "/tmp: expected a file, found something else"), 0);
    CHECK_EQ(dup(STDIN_FILENO), next); /* nothing is left open */
    close(next);
}

/* --- records */

PAGE_TEST(the_newer_of_two_records_counts)
{
    static const struct {
        uint64_t sequences[2];
        uint64_t rank;
    } cases[] = {{{2, 0}, 1}, {{2, 4}, 2}, {{6, 4}, 1}, {{3, 4}, 2}, {{6, 7}, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t at = 0; at < 2; at++) {
            RECORD(process, PROCESS, at)->sequence = cases[i].sequences[at];
            RECORD(process, PROCESS, at)->rank = at + 1;
            RECORD(plan, PLAN, at)->sequence = cases[i].sequences[at];
            RECORD(plan, PLAN, at)->generation = at + 1;
        }
        must_read();
        CHECK_EQ(snapshot.process.rank, cases[i].rank);
        CHECK_EQ(snapshot.plan.generation, cases[i].rank);
        CHECK_EQ(snapshot.torn_records, 0); /* the other one exists for this case */
        ms_snapshot_cleanup(&snapshot);
    }
}

/* A block that is written while it is read. */
static void write_block(uint64_t sequence, uint64_t bytes)
{
    *RECORD(block, BLOCKS, 3) =
        (struct ms_state_block){.sequence = sequence, .id = 7, .bytes = bytes};
}

static void must_have_block(uint64_t bytes)
{
    must_read();
    CHECK_EQ(snapshot.torn_records, 0);
    CHECK_EQ(snapshot.block_count, 1);
    CHECK_EQ(snapshot.blocks[0].bytes, bytes);
    ms_snapshot_cleanup(&snapshot);
}

static unsigned changes_in;

static void change_then(unsigned nth)
{
    if (nth == changes_in)
        write_block(4, 200);
}

PAGE_TEST(a_record_that_changes_between_readings_is_read_again)
{
    for (changes_in = 1; changes_in <= 3; changes_in++) {
        write_block(2, 100);
        watch_section(MS_SECTION_BLOCKS, change_then);
        must_have_block(200);
        CHECK_EQ(reads.seen, 3);
    }
}

/* Read by itself, it changes once more: between its sequence and it, or while it is read, so that
 * the sequence behind it alone tells. */
static void change_behind_the_sequence(unsigned nth)
{
    if (nth == 1)
        write_block(6, 400);
}

static void change_around_the_record(unsigned nth)
{
    if (nth == 1)
        RECORD(block, BLOCKS, 3)->bytes = 300; /* half of what follows */
    if (nth == 2)
        write_block(6, 400);
}

static size_t watched_bytes;
static void (*change_alone)(unsigned nth);

static void change_in_the_last_reading(unsigned nth)
{
    if (nth != 3)
        return;
    write_block(4, 200);
    watch(record(MS_SECTION_BLOCKS, 3), watched_bytes, change_alone);
}

PAGE_TEST(a_record_is_whole_only_if_nobody_writes_it_meanwhile)
{
    static const struct {
        size_t bytes; /* of the reads that are seen */
        void (*change)(unsigned nth);
        uint64_t expected;
    } ways[] = {{sizeof(struct ms_state_block), change_behind_the_sequence, 400},
                {sizeof(uint64_t), change_around_the_record, 400}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        write_block(2, 100);
        watched_bytes = ways[i].bytes;
        change_alone = ways[i].change;
        watch_section(MS_SECTION_BLOCKS, change_in_the_last_reading);
        must_have_block(ways[i].expected);
    }
}

PAGE_TEST(a_record_that_stays_half_written_is_left_out_and_counted)
{
    for (uint64_t i = 0; i < 3; i++)
        *RECORD(block, BLOCKS, i) =
            (struct ms_state_block){.sequence = i == 1 ? 3 : 2, .id = i + 1, .bytes = 10 + i};
    RECORD(event, EVENTS, 2)->sequence = 5;
    must_read();
    CHECK_EQ(snapshot.torn_records, 2);
    CHECK_EQ(snapshot.block_count, 2);
    CHECK_EQ(snapshot.blocks[0].id, 3);
    CHECK_EQ(snapshot.blocks[1].id, 1);
    CHECK_EQ(snapshot.event_count, 0);
}

/* 200 tries of three reads each, and no more. */
PAGE_TEST(the_patience_for_a_record_has_an_end)
{
    must_read();
    const uint64_t without = reads.calls;
    ms_snapshot_cleanup(&snapshot);
    write_block(3, 100);
    must_read();
    CHECK_EQ(reads.calls - 2 * without, 600);
}

/* --- what is kept of a page that is very large */

static void make_page_of(enum ms_state_section section, uint64_t count)
{
    uint64_t counts[MS_SECTION_COUNT] = {2, 2, 0, MS_FIGURE_COUNT, MS_FIGURE_COUNT, 1};
    counts[section] = count;
    make_page(counts);
}

MS_TEST(a_snapshot_keeps_the_last_of_very_many_events)
{
    enum { MOST = (64 << 20) / sizeof(struct ms_state_event), MORE = 5 };
    make_page_of(MS_SECTION_EVENTS, MOST + MORE);
    for (uint64_t i = 0; i < MOST + MORE; i++)
        RECORD(event, EVENTS, (i + 77) % (MOST + MORE))->sequence = 2 * i + 2;
    must_read();
    CHECK_EQ(snapshot.event_count, MOST);
    CHECK_EQ(snapshot.events_lost, MORE);
    for (uint64_t i = 0; i < MOST; i++)
        CHECK_EQ(snapshot.events[i].sequence, 2 * (i + MORE) + 2);
    end();
}

/* Among blocks as large as the smallest kept one, as many are kept as there is room for. */
MS_TEST(a_snapshot_keeps_the_largest_of_very_many_blocks)
{
    enum { MOST = (128 << 20) / sizeof(struct ms_state_block), MORE = 4, LARGE = 10 };
    make_page_of(MS_SECTION_BLOCKS, MOST + MORE);
    for (uint64_t i = 0; i < MOST + MORE; i++) {
        struct ms_state_block *at = RECORD(block, BLOCKS, i);
        at->sequence = 2;
        at->id = i + 1;
        at->bytes = i < MORE - 1 ? 1 : i >= MOST + MORE - LARGE ? 1000 : 5;
    }
    *figure(MS_GAUGE_BLOCKS_OUT) = 7;
    must_read();
    CHECK_EQ(snapshot.block_count, MOST);
    CHECK_EQ(snapshot.blocks[0].id, MOST + MORE - LARGE + 1);
    CHECK_EQ(snapshot.blocks[LARGE - 1].bytes, 1000);
    CHECK_EQ(snapshot.blocks[LARGE].bytes, 5);
    CHECK_EQ(snapshot.blocks[MOST - 1].bytes, 5);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "blocks_left_out"), 7 + MORE);
    end();
}

MS_TEST(a_snapshot_finds_few_blocks_in_very_many_slots)
{
    enum { MOST = (128 << 20) / sizeof(struct ms_state_block), MORE = 4 };
    make_page_of(MS_SECTION_BLOCKS, MOST + MORE);
    static const uint64_t places[] = {0, 900, 901, MOST + MORE - 1};
    for (uint64_t i = 0; i < 4; i++)
        *RECORD(block, BLOCKS, places[i]) =
            (struct ms_state_block){.sequence = 2, .id = i == 2 ? 0 : i + 1, .bytes = 9};
    must_read();
    CHECK_EQ(snapshot.block_count, 3);
    CHECK_EQ(snapshot.blocks[2].id, 4);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "blocks_left_out"), 0);
    end();
}

/* --- what is in it */

PAGE_TEST(every_text_ends_and_is_printable)
{
    char *const texts[] = {
        RECORD(process, PROCESS, 0)->job,     RECORD(process, PROCESS, 0)->version,
        RECORD(process, PROCESS, 0)->boot,    RECORD(process, PROCESS, 0)->host,
        RECORD(process, PROCESS, 0)->command, RECORD(process, PROCESS, 0)->folder,
        RECORD(plan, PLAN, 0)->name,          RECORD(option, OPTIONS, 1)->name,
        RECORD(option, OPTIONS, 1)->value,    RECORD(device, DEVICES, 1)->name,
        RECORD(device, DEVICES, 1)->unmet,    RECORD(file, FILES, 0)->path,
        RECORD(cause, CAUSES, 0)->call,       RECORD(cause, CAUSES, 0)->text,
        RECORD(cause, CAUSES, 0)->sentence,   RECORD(block, BLOCKS, 0)->backed_call,
        RECORD(block, BLOCKS, 0)->name,       RECORD(event, EVENTS, 0)->call,
        RECORD(event, EVENTS, 0)->text,       RECORD(figure_name, FIGURE_NAMES, 1)->text};
    const size_t sizes[] = {24,  32,  40, 64,  1024, 256, 512, 48, 464, 120,
                            376, 504, 64, 304, 576,  80,  120, 64, 128, 48};
    enum { TEXTS = sizeof(texts) / sizeof(texts[0]) };
    for (int i = 0; i < TEXTS; i++)
        memset(texts[i], '\n', sizes[i]);
    RECORD(plan, PLAN, 0)->sequence = RECORD(device, DEVICES, 1)->sequence = 2;
    RECORD(file, FILES, 0)->sequence = RECORD(cause, CAUSES, 0)->sequence = 2;
    RECORD(block, BLOCKS, 0)->sequence = RECORD(event, EVENTS, 0)->sequence = 2;
    RECORD(cause, CAUSES, 0)->count = RECORD(block, BLOCKS, 0)->id = 1;
    must_read();
    const char *const seen[TEXTS] = {snapshot.process.job,        snapshot.process.version,
                                     snapshot.process.boot,       snapshot.process.host,
                                     snapshot.process.command,    snapshot.process.folder,
                                     snapshot.plan.name,          snapshot.options[1].name,
                                     snapshot.options[1].value,   snapshot.devices[1].name,
                                     snapshot.devices[1].unmet,   snapshot.files[0].path,
                                     snapshot.causes[0].call,     snapshot.causes[0].text,
                                     snapshot.causes[0].sentence, snapshot.blocks[0].backed_call,
                                     snapshot.blocks[0].name,     snapshot.events[0].call,
                                     snapshot.events[0].text,     snapshot.figure_names[1].text};
    for (int i = 0; i < TEXTS; i++) {
        CHECK_EQ(strnlen(seen[i], sizes[i]), sizes[i] - 1);
        CHECK_EQ(strspn(seen[i], "?"), sizes[i] - 1);
    }
}

PAGE_TEST(devices_are_those_up_to_the_last_that_is_whole)
{
    for (uint64_t i = 0; i < 4; i++) {
        RECORD(device, DEVICES, i)->sequence = (const uint64_t[]){0, 2, 3, 4}[i];
        strcpy(RECORD(device, DEVICES, i)->name, "a device");
    }
    must_read();
    CHECK_EQ(snapshot.device_count, 4);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(strcmp(snapshot.devices[i].name, i % 2 == 1 ? "a device" : ""), 0);
    ms_snapshot_cleanup(&snapshot);
    RECORD(device, DEVICES, 3)->sequence = 0;
    must_read();
    CHECK_EQ(snapshot.device_count, 2);
}

static void add_block(uint64_t at, uint64_t id, uint64_t address, uint64_t bytes, uint32_t flags)
{
    *RECORD(block, BLOCKS, at) = (struct ms_state_block){
        .sequence = 2 + 2 * at, .id = id, .address = address, .bytes = bytes, .flags = flags};
}

PAGE_TEST(allocations_are_ordered_by_size_each_before_its_parts)
{
    static const struct {
        uint64_t id, address;
    } expected[] = {{6, 600}, {2, 200}, {2, 200}, {2, 250}, {2, 280}, {1, 100}, {4, 400}, {4, 400}};
    add_block(0, 1, 100, 50, 0);
    add_block(1, 2, 280, 40, MS_BLOCK_PART);
    add_block(2, 4, 400, 50, MS_BLOCK_CARVED);
    add_block(3, 2, 200, 20, MS_BLOCK_PART);
    add_block(4, 2, 250, 30, MS_BLOCK_PART);
    add_block(5, 2, 200, 90, MS_BLOCK_CARVED);
    add_block(6, 6, 600, 91, 0);
    add_block(7, 4, 400, 50, MS_BLOCK_PART);
    must_read();
    CHECK_EQ(snapshot.block_count, 8);
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(snapshot.blocks[i].id, expected[i].id);
        CHECK_EQ(snapshot.blocks[i].address, expected[i].address);
    }
    CHECK_EQ(snapshot.blocks[1].flags, MS_BLOCK_CARVED);
    CHECK_EQ(snapshot.blocks[6].flags, MS_BLOCK_CARVED);
}

PAGE_TEST(the_file_of_a_block_is_one_that_there_is)
{
    for (uint32_t i = 0; i < 4; i++) {
        add_block(i, i + 1, 100, 100 - i, 0);
        RECORD(block, BLOCKS, i)->file = i;
    }
    add_block(4, 0, 100, 1000, 0); /* freed */
    RECORD(file, FILES, 0)->sequence = RECORD(file, FILES, 1)->sequence = 2;
    must_read();
    CHECK_EQ(snapshot.file_count, 2);
    CHECK_EQ(snapshot.block_count, 4);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQ(snapshot.blocks[i].file, i <= 2 ? i : 0);
}

static void add_cause(uint64_t at, uint64_t count, uint64_t bytes, uint64_t ns)
{
    *RECORD(cause, CAUSES, at) = (struct ms_state_cause){.sequence = 2,
                                                         .count = count,
                                                         .bytes = bytes,
                                                         .duration_ns = ns,
                                                         .loaded_count = 1,
                                                         .loaded_bytes = 2,
                                                         .loaded_duration_ns = 3};
}

PAGE_TEST(causes_are_ordered_by_bytes_then_by_how_often)
{
    static const uint64_t expected[][2] = {{2, 70}, {1, 70}, {5, 60}, {4, 60}};
    add_cause(0, 4, 60, 9);
    add_cause(1, 1, 70, 9);
    add_cause(2, 0, 90, 9);
    add_cause(3, 5, 60, 9);
    add_cause(5, 2, 70, 9);
    must_read();
    CHECK_EQ(snapshot.cause_count, 4);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(snapshot.causes[i].count, expected[i][0]);
        CHECK_EQ(snapshot.causes[i].bytes, expected[i][1]);
        /* It has not loaded yet. */
        CHECK_EQ(snapshot.causes[i].loaded_count, snapshot.causes[i].count);
        CHECK_EQ(snapshot.causes[i].loaded_bytes, snapshot.causes[i].bytes);
        CHECK_EQ(snapshot.causes[i].loaded_duration_ns, 9);
    }
}

PAGE_TEST(a_cause_has_loaded_figures_no_larger_than_its_own)
{
    static const uint64_t cases[][3] = {{1, 2, 3}, {9, 9, 9}, {0, 0, 0}};
    *figure(MS_GAUGE_LOADED_NS) = 1;
    for (uint64_t i = 0; i < 6; i++) {
        add_cause(i, 10, 100 - i, 10);
        uint64_t *const loaded[] = {&RECORD(cause, CAUSES, i)->loaded_count,
                                    &RECORD(cause, CAUSES, i)->loaded_bytes,
                                    &RECORD(cause, CAUSES, i)->loaded_duration_ns};
        for (uint64_t k = 0; k < 3; k++)
            *loaded[k] = i < 3 ? cases[i][k] : k == i - 3 ? 101 : 2;
    }
    RECORD(cause, CAUSES, 1)->loaded_count = 10; /* all of it, and not more */
    RECORD(cause, CAUSES, 1)->loaded_bytes = 99;
    RECORD(cause, CAUSES, 1)->loaded_duration_ns = 10;
    must_read();
    CHECK_EQ(snapshot.causes[0].loaded_count, 1);
    CHECK_EQ(snapshot.causes[0].loaded_bytes, 2);
    CHECK_EQ(snapshot.causes[0].loaded_duration_ns, 3);
    CHECK_EQ(snapshot.causes[1].loaded_bytes, 99);
    CHECK_EQ(snapshot.causes[2].loaded_bytes, 0);
    for (uint64_t i = 3; i < 6; i++) { /* damaged: then all is of loading */
        CHECK_EQ(snapshot.causes[i].loaded_count, 10);
        CHECK_EQ(snapshot.causes[i].loaded_bytes, 100 - i);
        CHECK_EQ(snapshot.causes[i].loaded_duration_ns, 10);
    }
}

PAGE_TEST(events_are_ordered_by_number_and_those_between_are_lost)
{
    static const uint64_t sequences[] = {20, 6, 0, 14, 8};
    for (uint64_t i = 0; i < 5; i++)
        RECORD(event, EVENTS, i)->sequence = sequences[i];
    must_read();
    CHECK_EQ(snapshot.event_count, 4);
    CHECK_EQ(snapshot.events[0].sequence, 6);
    CHECK_EQ(snapshot.events[1].sequence, 8);
    CHECK_EQ(snapshot.events[2].sequence, 14);
    CHECK_EQ(snapshot.events[3].sequence, 20);
    CHECK_EQ(snapshot.events_lost, 6);
}

PAGE_TEST(no_more_events_than_numbers_are_lost)
{
    RECORD(event, EVENTS, 0)->sequence = RECORD(event, EVENTS, 1)->sequence = 2;
    must_read();
    CHECK_EQ(snapshot.event_count, 2);
    CHECK_EQ(snapshot.events_lost, 0);
}

static void add_sample(uint64_t at, uint64_t time_ns, uint64_t backed)
{
    *RECORD(sample, SAMPLES, at) =
        (struct ms_state_sample){.sequence = 2, .time_ns = time_ns, .backed_bytes = backed};
}

PAGE_TEST(samples_are_in_order_one_a_moment_and_the_last_is_now)
{
    static const uint64_t expected[][2] = {{10, 3}, {20, 9}, {30, 4}, {50, 44}};
    RECORD(process, PROCESS, 0)->ended_ns = 50;
    *figure(MS_GAUGE_BACKED) = 44;
    *figure(MS_GAUGE_LIVE) = 45;
    *figure(MS_GAUGE_DEFERRED) = 46;
    *figure(MS_COUNT_H2D_BYTES) = 47;
    add_sample(0, 20, 9);
    add_sample(1, 10, 3);
    add_sample(2, 0, 99);
    add_sample(3, 20, 5);
    add_sample(4, 50, 7);
    add_sample(5, 30, 4);
    add_sample(6, 51, 7);
    must_read();
    CHECK_EQ(snapshot.taken_ns, 50);
    CHECK_EQ(snapshot.sample_count, 4);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(snapshot.samples[i].time_ns, expected[i][0]);
        CHECK_EQ(snapshot.samples[i].backed_bytes, expected[i][1]);
    }
    CHECK_EQ(snapshot.samples[3].live_bytes, 45);
    CHECK_EQ(snapshot.samples[3].deferred_bytes, 46);
    CHECK_EQ(snapshot.samples[3].h2d_bytes, 47);
}

PAGE_TEST(a_page_of_a_process_that_is_gone_is_of_its_last_change)
{
    must_read();
    CHECK_EQ(snapshot.taken_ns, 1);
    ms_snapshot_cleanup(&snapshot);
    *figure(MS_GAUGE_CHANGED_NS) = 100;
    must_read();
    CHECK_EQ(snapshot.taken_ns, 100);
    ms_snapshot_cleanup(&snapshot);
    add_sample(0, 101, 1);
    add_sample(1, 90, 1);
    must_read();
    CHECK_EQ(snapshot.taken_ns, 101);
    ms_snapshot_cleanup(&snapshot);
    RECORD(event, EVENTS, 0)->sequence = 4;
    RECORD(event, EVENTS, 0)->time_ns = 102;
    RECORD(event, EVENTS, 1)->sequence = 2;
    RECORD(event, EVENTS, 1)->time_ns = 95;
    must_read();
    CHECK_EQ(snapshot.taken_ns, 102);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

PAGE_TEST(a_page_of_a_living_process_is_of_now)
{
    struct ms_process_identity own;
    struct ms_state_process *process = record(MS_SECTION_PROCESS, 0);
    ms_process_identify(&own);
    process->pid = own.pid;
    process->start_ticks = own.start_ticks;
    process->pid_namespace = own.pid_namespace;
    memcpy(process->boot, own.boot, sizeof(own.boot));
    process->started_monotonic_ns = now_ns() - 1000;
    *figure(MS_GAUGE_CHANGED_NS) = 7;
    must_read();
    CHECK_EQ(snapshot.life, MS_LIFE_ALIVE);
    CHECK(snapshot.taken_ns >= 1000);
    CHECK(snapshot.taken_ns <= now_ns() - process->started_monotonic_ns);
    ms_snapshot_cleanup(&snapshot);
    process->started_monotonic_ns = UINT64_MAX; /* damaged */
    must_read();
    CHECK_EQ(snapshot.taken_ns, 7);
}

PAGE_TEST(a_peak_while_loading_is_at_most_the_peak)
{
    *figure(MS_GAUGE_BACKED_PEAK) = 50;
    *figure(MS_GAUGE_LOADED_PEAK) = 60;
    *figure(MS_GAUGE_LOADED_LIVE_PEAK) = 70;
    must_read();
    CHECK_EQ(ms_snapshot_figure(&snapshot, "loaded_backed_bytes_peak"), 50);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "loaded_live_bytes_peak"), 70);
    ms_snapshot_cleanup(&snapshot);
    *figure(MS_GAUGE_LOADED_PEAK) = 40;
    must_read();
    CHECK_EQ(ms_snapshot_figure(&snapshot, "loaded_backed_bytes_peak"), 40);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "no such figure"), 0);
}
