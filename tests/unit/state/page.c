/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the state page: its layout, its folder, its name, whose it is, and when it goes. */
#include "runtime/state/page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>

#include "runtime/base/heap.h"
#include "runtime/state/counters.h"
#include "runtime/state/process.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"

enum { MIB = 1 << 20, DAY = 86400, MINUTE = 60 };

static struct ms_page page;
static struct ms_config config;
static char why[256];
static int next_descriptor; /* the lowest that is free: what is left open takes it */

static int free_descriptor(void)
{
    const int found = dup(STDIN_FILENO);
    close(found);
    return found;
}

static void start(void)
{
    page_folder_make();
    config = page_config(MS_STATE_LEAST_BYTES);
    next_descriptor = free_descriptor();
}

static void end(void)
{
    CHECK_EQ(free_descriptor(), next_descriptor);
}
#define PAGE_TEST(name) MS_TEST_BETWEEN(start, end, name)

static const char *in_folder(const char *name)
{
    static char path[sizeof(page_folder) + 256];
    snprintf(path, sizeof(path), "%s/%s", page_folder, name);
    return path;
}

static bool is_there(const char *name)
{
    struct stat found;
    return lstat(in_folder(name), &found) == 0;
}

/* All files, hidden ones too. */
static int count_files(void)
{
    DIR *list = opendir(page_folder);
    int count = -2; /* . and .. */
    while (readdir(list) != NULL)
        count++;
    closedir(list);
    return count;
}

/* Whether the process has that address. */
static bool is_mapped(const void *address)
{
    unsigned char resident;
    return mincore((void *)(uintptr_t)address, 1, &resident) == 0;
}

/* --- the layout */

static bool fills = true;
static struct ms_page filled; /* as the filler saw it */

static bool fill(const struct ms_page *made, const struct ms_config *of)
{
    CHECK(of == &config);
    filled = *made;
    return fills;
}

static void make_in_memory(uint64_t bytes)
{
    config.state_bytes = bytes;
    CHECK(ms_page_make(&page, &config, false, fill, why));
    CHECK_EQ(page.folder, -1);
    CHECK_EQ(page.path[0], '\0');
    CHECK(filled.bytes == page.bytes);
}

static void count_option(void *context, const char *variable, const char *value)
{
    (void)variable, (void)value;
    ++*(uint64_t *)context;
}

/* Sections are in order, each at a multiple of 64, without more between them than that takes; the
 * last ends where no further record fits. */
static void check_layout(uint64_t bytes)
{
    const struct ms_state_header *header = (const struct ms_state_header *)page.bytes;
    uint64_t end_of = sizeof(*header), options = 0;
    ms_config_visit(&config, count_option, &options);
    CHECK_EQ(page.total_bytes, bytes);
    CHECK_EQ(header->total_bytes, bytes);
    CHECK_EQ(memcmp(header->magic, MS_STATE_MAGIC, 8), 0);
    CHECK_EQ(header->version, MS_STATE_VERSION);
    CHECK_EQ(header->mark, MS_STATE_MARK);
    CHECK_EQ(header->section_count, MS_SECTION_COUNT);
    for (int i = 0; i < MS_SECTION_COUNT; i++) {
        const struct ms_state_span *span = &header->sections[i];
        CHECK_EQ(span->offset, (end_of + 63) / 64 * 64);
        CHECK_EQ(span->record_bytes, ms_format_record_bytes((enum ms_state_section)i));
        end_of = span->offset + span->count * span->record_bytes;
    }
    CHECK(end_of <= bytes && end_of + 128 + sizeof(struct ms_state_event) > bytes);
    const uint64_t fixed[] = {2, 2, options, MS_FIGURE_COUNT, MS_FIGURE_COUNT, 64, 128};
    for (int i = 0; i < MS_SECTION_CAUSES; i++)
        CHECK_EQ(header->sections[i].count, fixed[i]);
}

static uint64_t bytes_of(enum ms_state_section section)
{
    const struct ms_state_span *span =
        &((const struct ms_state_header *)page.bytes)->sections[section];
    return span->count * span->record_bytes;
}

/* The section takes all of its share but for less than a record. */
static void check_share(enum ms_state_section section, uint64_t share)
{
    CHECK(bytes_of(section) <= share);
    CHECK(bytes_of(section) + ms_format_record_bytes(section) > share);
}

PAGE_TEST(the_layout_divides_what_there_is)
{
    static const uint64_t sizes[] = {MS_STATE_LEAST_BYTES, 2 * MIB, 64 * MIB};
    for (int i = 0; i < 3; i++) {
        make_in_memory(sizes[i]);
        check_layout(sizes[i]);
        const struct ms_state_span *sections =
            ((const struct ms_state_header *)page.bytes)->sections;
        const uint64_t eighth = (sizes[i] - sections[MS_SECTION_CAUSES].offset) / 8;
        if (sections[MS_SECTION_CAUSES].count != 512)
            check_share(MS_SECTION_CAUSES, eighth);
        else
            CHECK(bytes_of(MS_SECTION_CAUSES) <= eighth);
        check_share(MS_SECTION_SAMPLES, eighth);
        check_share(MS_SECTION_BLOCKS, (sizes[i] - sections[MS_SECTION_BLOCKS].offset) / 2);
        for (uint64_t at = sizeof(struct ms_state_header); at < sizes[i]; at += 4093)
            CHECK_EQ(page.bytes[at], 0);
        CHECK_EQ(munmap(page.bytes, page.total_bytes), 0);
    }
}

PAGE_TEST(the_last_section_ends_within_the_page_whatever_its_size)
{
    for (uint64_t pages = 0; pages < 64; pages++) {
        const uint64_t bytes = MS_STATE_LEAST_BYTES + pages * 4096;
        make_in_memory(bytes);
        check_layout(bytes);
        CHECK_EQ(munmap(page.bytes, page.total_bytes), 0);
    }
}

/* Takes the log, a file of the folder. */
static size_t logged(char *text, size_t bytes)
{
    FILE *file = fopen(in_folder("log"), "re");
    const size_t length = file != NULL ? fread(text, 1, bytes - 1, file) : 0;
    text[length] = '\0';
    if (file != NULL)
        fclose(file);
    unlink(in_folder("log"));
    return length;
}

PAGE_TEST(a_size_that_is_not_possible_is_brought_into_range_and_said)
{
    static const struct {
        uint64_t wanted, used;
        bool is_said;
    } cases[] = {{0, MS_STATE_LEAST_BYTES, true},
                 {MS_STATE_LEAST_BYTES - 1, MS_STATE_LEAST_BYTES, true},
                 {MS_STATE_LEAST_BYTES, MS_STATE_LEAST_BYTES, false},
                 {MS_STATE_LEAST_BYTES + 4095, MS_STATE_LEAST_BYTES, false},
                 {MS_STATE_LEAST_BYTES + 4096, MS_STATE_LEAST_BYTES + 4096, false},
                 {MS_STATE_MOST_BYTES, MS_STATE_MOST_BYTES, false},
                 {MS_STATE_MOST_BYTES + UINT64_C(4096), MS_STATE_MOST_BYTES, true},
                 {UINT64_MAX, MS_STATE_MOST_BYTES, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512], said[128];
        ms_log_open(MS_WARN, in_folder("log"));
        make_in_memory(cases[i].wanted);
        ms_log_open(MS_WARN, NULL);
        check_layout(cases[i].used);
        CHECK_EQ(munmap(page.bytes, page.total_bytes), 0);
        snprintf(said, sizeof(said),
                 "METASHARD_STATE_BYTES=%llu is not from 512K to 1G: using %llu",
                 (unsigned long long)cases[i].wanted, (unsigned long long)cases[i].used);
        CHECK_EQ(logged(text, sizeof(text)) > 0, cases[i].is_said);
        CHECK_EQ(strstr(text, said) != NULL, cases[i].is_said);
    }
    next_descriptor = free_descriptor(); /* the log keeps one */
}

PAGE_TEST(a_page_that_cannot_be_filled_leaves_nothing)
{
    fills = false;
    CHECK(!ms_page_make(&page, &config, false, fill, why));
    CHECK(!is_mapped(filled.bytes));
    CHECK(!ms_page_make(&page, &config, true, fill, why));
    CHECK(!is_mapped(filled.bytes));
    CHECK_EQ(filled.total_bytes, MS_STATE_LEAST_BYTES);
    CHECK_EQ(count_files(), 0);
}

/* Its folder, and then its file, get the number 0. */
PAGE_TEST(a_process_without_a_standard_input_has_a_page)
{
    const int kept = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    CHECK(ms_page_make(&page, &config, true, fill, why));
    CHECK(fcntl(STDIN_FILENO, F_GETFD) < 0);
    CHECK_EQ(dup2(kept, STDIN_FILENO), STDIN_FILENO);
    close(kept);
    CHECK_EQ(count_files(), 1);
    CHECK_EQ(unlink(page.path), 0);
    CHECK_EQ(munmap(page.bytes, page.total_bytes), 0);
}

/* --- the folder */

PAGE_TEST(the_folder_is_the_one_that_is_set_or_the_first_that_can_be_used)
{
    char run[64], shared[64], longest[MS_PATH_BYTES] = "/";
    snprintf(run, sizeof(run), "/run/user/%u/metashard", geteuid());
    snprintf(shared, sizeof(shared), "/tmp/metashard-%u", geteuid());
    memset(longest, '/', sizeof(longest) - strlen("/metashard") - 1);
    const struct {
        const char *set, *runtime;
        const char *expected[4]; /* NULL: there is none */
    } cases[] = {{"", "/run/me", {NULL}},
                 {"/a/folder", "/run/me", {"/a/folder"}},
                 {"auto", "/run/me", {"/run/me/metashard", run, shared}},
                 {"auto", "relative", {run, run, shared}},
                 {"auto", "", {run, run, shared}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        strcpy(config.state_dir, cases[i].set);
        strcpy(config.runtime_dir, cases[i].runtime);
        for (unsigned at = 0; at < 4; at++) {
            char path[MS_PATH_BYTES] = "";
            const char *expected = cases[i].expected[at];
            CHECK_EQ(ms_page_folder(&config, at, path), expected != NULL);
            CHECK(expected == NULL || strcmp(path, expected) == 0);
        }
    }
    char path[MS_PATH_BYTES];
    strcpy(config.state_dir, "auto");
    strcpy(config.runtime_dir, longest);
    CHECK(ms_page_folder(&config, 0, path));
    CHECK_EQ(strlen(path), MS_PATH_BYTES - 1);
    strcat(config.runtime_dir, "/");
    CHECK(!ms_page_folder(&config, 0, path));
}

static void make_open_folder(void)
{
    const int folder = ms_page_open_folder(&config);
    CHECK(folder >= 0);
    close(folder);
}

PAGE_TEST(a_folder_that_can_be_used_is_opened_and_made_if_it_is_not_there)
{
    struct stat found;
    make_open_folder();
    strcpy(config.state_dir, in_folder("new"));
    umask(0);
    make_open_folder();
    make_open_folder();
    CHECK_EQ(stat(config.state_dir, &found), 0);
    CHECK_EQ(found.st_mode, S_IFDIR | 0700);
    strcpy(config.state_dir, in_folder("no/such"));
    CHECK_EQ(ms_page_open_folder(&config), -1);
    strcpy(config.state_dir, "");
    CHECK_EQ(ms_page_open_folder(&config), -1);
}

static void must_not_make(const char *reason)
{
    why[0] = '\0';
    CHECK(!ms_page_make(&page, &config, true, fill, why));
    if (strstr(why, reason) == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s, expected %s", why, reason);
    CHECK_EQ(free_descriptor(), next_descriptor);
    CHECK_EQ(ms_page_open_folder(&config) >= 0, false);
}

PAGE_TEST(a_folder_in_which_others_may_write_is_not_used)
{
    static const mode_t modes[] = {0720, 0702, 0777, 01777};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(chmod(page_folder, modes[i]), 0);
        must_not_make(" belongs to another user, or others can write there");
        CHECK(strstr(why, page_folder) == why);
    }
    CHECK_EQ(chmod(page_folder, 0755), 0); /* to read there is no harm */
    make_open_folder();
    if (geteuid() != 0 || chown(page_folder, 12345, 0) != 0)
        return; /* only root can give it away */
    must_not_make(" belongs to another user, or others can write there");
}

STORY_BETWEEN(start, end, a_path_that_is_no_folder_is_refused_with_its_reason,
              strcpy(config.state_dir, in_folder("file")),
              close(open(config.state_dir, O_CREAT | O_WRONLY, 0600)),
              must_not_make("cannot open "), IS(strstr(why, ": Not a directory") != NULL),
              EQUALS(unlink(config.state_dir), 0),
              EQUALS(symlink(page_folder, config.state_dir), 0), must_not_make("cannot open "),
              strcat(config.state_dir, "/no/such"), must_not_make("cannot create "),
              IS(strstr(why, ": No such file or directory") != NULL))

/* --- the name */

PAGE_TEST(only_files_of_a_certain_name_are_pages)
{
    static const char *const names[] = {"metashard-1.state", "metashard-12-3.state",
                                        "metashard-x.state"};
    static const char *const others[] = {"",
                                         "metashard-.state",
                                         "metashard-1.state.new",
                                         ".metashard-1.state",
                                         "metashard-1",
                                         "1.state",
                                         "Metashard-1.state",
                                         "metashard-1.stat",
                                         "metashard-state"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK(ms_page_is_name(names[i]));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        CHECK(!ms_page_is_name(others[i]));
}

static const char *name_of(int number)
{
    static char name[64];
    snprintf(name, sizeof(name), number > 1 ? "metashard-%d-%d.state" : "metashard-%d.state",
             (int)getpid(), number);
    return name;
}

static void must_make_as(int number)
{
    if (!ms_page_make(&page, &config, true, fill, why))
        ms_test_fail(__FILE__, __LINE__, "%s", why);
    CHECK_EQ(strcmp(page.path, in_folder(name_of(number))), 0);
    CHECK(is_there(name_of(number)) && !is_there(filled.hidden_name));
    CHECK(strncmp(filled.hidden_name, MS_STATE_HIDDEN_PREFIX, strlen(MS_STATE_HIDDEN_PREFIX)) == 0);
    CHECK(is_mapped(page.bytes));
    CHECK_EQ(munmap(page.bytes, page.total_bytes), 0);
}

PAGE_TEST(a_name_that_is_taken_gets_a_number_and_nine_are_tried)
{
    for (int i = 1; i <= 9; i++) {
        must_make_as(i);
        CHECK_EQ(unlink(in_folder(name_of(i))), 0);
        CHECK_EQ(mkdir(in_folder(name_of(i)), 0700), 0); /* nobody replaces it */
    }
    CHECK(!ms_page_make(&page, &config, true, fill, why));
    CHECK_EQ(strncmp(why, name_of(9), strlen(name_of(9))), 0);
    CHECK(strstr(why, " cannot be made: File exists") != NULL);
    CHECK_EQ(count_files(), 9);
    CHECK(!is_mapped(filled.bytes));
}

/* --- whose it is */

static struct ms_process_identity own;

/* A page of a process in a file of that name, as far as others look at it. */
static void put_page(const char *name, const struct ms_state_process *process, uint64_t changed_ns)
{
    make_in_memory(MS_STATE_LEAST_BYTES);
    const struct ms_state_span *sections = ((struct ms_state_header *)page.bytes)->sections;
    memcpy(page.bytes + sections[MS_SECTION_PROCESS].offset, process, sizeof(*process));
    memcpy(page.bytes + sections[MS_SECTION_FIGURES].offset + 8 * MS_GAUGE_CHANGED_NS, &changed_ns,
           8);
    const int file = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK_EQ(write(file, page.bytes, page.total_bytes), page.total_bytes);
    close(file);
    CHECK_EQ(munmap(page.bytes, page.total_bytes), 0);
}

static struct ms_state_process own_process(void)
{
    ms_process_identify(&own);
    struct ms_state_process process = {.sequence = 2,
                                       .pid = own.pid,
                                       .start_ticks = own.start_ticks,
                                       .pid_namespace = own.pid_namespace,
                                       .rank = MS_STATE_NO_RANK,
                                       .world = MS_STATE_NO_RANK};
    memcpy(process.boot, own.boot, sizeof(own.boot));
    return process;
}

/* This very process made the page before exec, or a process that has ended and needs the page no
 * more. Nothing is known of a process of another container. */
PAGE_TEST(a_page_of_this_process_or_of_one_that_ended_is_replaced)
{
    struct ms_state_process process = own_process();
    put_page(name_of(1), &process, 0);
    must_make_as(1);
    process.start_ticks++;
    put_page(name_of(1), &process, 0);
    must_make_as(1);
    process = own_process();
    process.boot[0]++;
    put_page(name_of(1), &process, 0);
    must_make_as(1);
    process.boot[0] = '\0';
    put_page(name_of(1), &process, 0);
    must_make_as(2);
    process = own_process();
    process.pid_namespace++;
    put_page(name_of(1), &process, 0);
    put_page(name_of(2), &process, 0);
    must_make_as(3);
    process = own_process();
    process.pid = (uint64_t)getppid(); /* it lives */
    process.start_ticks = 0;
    put_page(name_of(1), &process, 0);
    must_make_as(1);
}

static int folder;

static bool read_process(const char *name, struct ms_state_process *process, uint64_t *ran_ns)
{
    folder = open(page_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool is_good = ms_page_process(folder, name, process, ran_ns);
    close(folder);
    CHECK_EQ(free_descriptor(), next_descriptor);
    return is_good;
}

static const char a_name[] = "metashard-1.state";

static void change_page(uint64_t at, const void *bytes, size_t count)
{
    const int file = open(in_folder(a_name), O_WRONLY | O_CLOEXEC);
    CHECK_EQ(pwrite(file, bytes, count, (off_t)at), count);
    close(file);
}

static struct ms_state_header read_header(void)
{
    struct ms_state_header header;
    const int file = open(in_folder(a_name), O_RDONLY | O_CLOEXEC);
    CHECK_EQ(read(file, &header, sizeof(header)), sizeof(header));
    close(file);
    return header;
}

PAGE_TEST(a_process_ran_until_it_ended_or_changed_a_block)
{
    struct ms_state_process process = {.sequence = 2, .pid = 7, .ended_ns = 50}, found;
    uint64_t ran_ns;
    put_page(a_name, &process, 40);
    CHECK(read_process(a_name, &found, &ran_ns));
    CHECK_EQ(found.pid, 7);
    CHECK_EQ(ran_ns, 50);
    put_page(a_name, &process, 60);
    CHECK(read_process(a_name, &found, &ran_ns));
    CHECK_EQ(ran_ns, 60);
    /* That figure of a page with other figures is not known. */
    struct ms_state_header header = read_header();
    const struct ms_state_process newer = {.sequence = 4, .pid = 8, .ended_ns = 51};
    change_page(header.sections[MS_SECTION_PROCESS].offset + sizeof(newer), &newer, sizeof(newer));
    header.sections[MS_SECTION_FIGURES].count--;
    change_page(0, &header, sizeof(header));
    CHECK(read_process(a_name, &found, &ran_ns));
    CHECK_EQ(found.pid, 8);
    CHECK_EQ(ran_ns, 51);
}

PAGE_TEST(a_file_that_is_no_page_has_no_process)
{
    const struct ms_state_process process = {.sequence = 2, .pid = 7};
    struct ms_state_process found;
    uint64_t ran_ns;
    const uint32_t version = MS_STATE_VERSION + 1;
    put_page("other", &process, 0);
    CHECK(!read_process("other", &found, &ran_ns));
    CHECK(!read_process(a_name, &found, &ran_ns)); /* not there */
    put_page(a_name, &process, 0);
    CHECK(read_process(a_name, &found, &ran_ns));
    change_page(offsetof(struct ms_state_header, version), &version, 4);
    CHECK(!read_process(a_name, &found, &ran_ns));
    put_page(a_name, &process, 0);
    change_page(7, "x", 1);
    CHECK(!read_process(a_name, &found, &ran_ns));
    put_page(a_name, &process, 0);
    const struct ms_state_header header = read_header();
    const off_t ends = (off_t)header.sections[MS_SECTION_PROCESS].offset + 2 * sizeof(process);
    CHECK_EQ(truncate(in_folder(a_name), ends), 0); /* no figures: how long it ran is not known */
    CHECK(read_process(a_name, &found, &ran_ns));
    CHECK_EQ(ran_ns, 0);
    CHECK_EQ(truncate(in_folder(a_name), ends - 1), 0);
    CHECK(!read_process(a_name, &found, &ran_ns));
    CHECK_EQ(truncate(in_folder(a_name), sizeof(header) - 1), 0);
    CHECK(!read_process(a_name, &found, &ran_ns));
}

PAGE_TEST(a_page_is_a_file)
{
    const struct ms_state_process process = {.sequence = 2, .pid = 7};
    struct ms_state_process found;
    uint64_t ran_ns;
    put_page("page", &process, 0);
    CHECK_EQ(symlink("page", in_folder(a_name)), 0);
    CHECK(!read_process(a_name, &found, &ran_ns));
    CHECK_EQ(unlink(in_folder(a_name)), 0);
    CHECK_EQ(mkfifo(in_folder(a_name), 0600), 0); /* whoever waited there would wait for ever */
    CHECK(!read_process(a_name, &found, &ran_ns));
    CHECK_EQ(unlink(in_folder(a_name)), 0);
    CHECK_EQ(mkdir(in_folder(a_name), 0700), 0);
    CHECK(!read_process(a_name, &found, &ran_ns));
}

/* --- when it goes */

enum { MOST_PAGES = 8 };

static const char *page_name(int number)
{
    static char name[32];
    snprintf(name, sizeof(name), "metashard-%d.state", number + 1);
    return name;
}

/* A page of a process that is gone: that rank of that world (0: none), which began so many seconds
 * ago and ran for some. */
struct left {
    uint32_t rank, world;
    int64_t ago, ran;
    bool stays;
};

static void leave_page(const char *name, const struct left *left)
{
    const time_t now = time(NULL);
    struct ms_state_process process = own_process();
    process.start_ticks++;
    process.started_ns = (uint64_t)(now - left->ago) * 1000000000;
    process.ended_ns = (uint64_t)left->ran * 1000000000;
    process.rank = left->world > 0 ? left->rank : MS_STATE_NO_RANK;
    process.world = left->world > 0 ? left->world : MS_STATE_NO_RANK;
    put_page(name, &process, 0);
    const struct timespec then[2] = {{.tv_sec = now - left->ago + left->ran},
                                     {.tv_sec = now - left->ago + left->ran}};
    CHECK_EQ(utimensat(AT_FDCWD, in_folder(name), then, 0), 0);
}

/* Makes a page, so that others go. */
static void check_cleaning(const struct left lefts[MOST_PAGES], uint64_t kept_bytes)
{
    int count = 0;
    for (; count < MOST_PAGES && lefts[count].ago > 0; count++)
        leave_page(page_name(count), &lefts[count]);
    config.state_kept_bytes = kept_bytes;
    must_make_as(1);
    for (int i = 0; i < count; i++) {
        if (is_there(page_name(i)) != lefts[i].stays)
            ms_test_fail(__FILE__, __LINE__, "page %d is%s there", i, lefts[i].stays ? " not" : "");
        unlink(in_folder(page_name(i)));
    }
    CHECK_EQ(unlink(in_folder(name_of(1))), 0);
}

PAGE_TEST(ranks_that_began_within_ten_minutes_are_a_run)
{
    static const struct left cases[][MOST_PAGES] = {
        {{0, 2, 1000, 900, true}, {1, 2, 400, 350, true}},
        {{0, 2, 1001, 900, false}, {1, 2, 400, 350, true}},
        {{0, 2, 1000, 950, true}, {1, 2, 400, 300, true}},
        {{0, 2, 1001, 950, true}, {1, 2, 400, 300, false}},
        {{0, 2, 400, 300, false}, {0, 2, 400, 301, true}}, /* a rank is in a run once */
        {{0, 2, 400, 301, true}, {1, 3, 400, 300, false}}, /* another world */
        {{0, 0, 400, 301, true}, {0, 0, 400, 300, false}}, /* no ranks at all */
        {{0, 2, 400, 303, true}, {0, 3, 400, 302, false}, {1, 2, 400, 301, true}}, /* at once */
        {{0, 3, 400, 303, true},
         {1, 3, 400, 302, true},
         {2, 3, 400, 301, true},
         {1, 3, 400, 300, false}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_cleaning(cases[i], 1); /* only the newest run stays */
}

PAGE_TEST(the_newest_runs_stay_as_far_as_their_pages_fit)
{
    static const struct left two[MOST_PAGES] = {{0, 0, 100, 10, false}, /* the oldest */
                                                {0, 0, 100, 30, true},
                                                {0, 0, 100, 20, true}};
    static const struct left one[MOST_PAGES] = {{0, 0, 100, 10, false},
                                                {0, 0, 100, 30, true},
                                                {0, 0, 100, 20, false}};
    static const struct left all[MOST_PAGES] = {{0, 0, 100, 10, true},
                                                {0, 0, 100, 30, true},
                                                {0, 0, 100, 20, true}};
    check_cleaning(two, 2 * MS_STATE_LEAST_BYTES);
    check_cleaning(one, 2 * MS_STATE_LEAST_BYTES - 1);
    check_cleaning(all, 4 * MS_STATE_LEAST_BYTES);
    check_cleaning(all, 3 * MS_STATE_LEAST_BYTES);
}

PAGE_TEST(a_page_goes_a_week_after_its_process_ended)
{
    static const struct left lefts[MOST_PAGES] = {{0, 0, 7 * DAY + 100, 160, true},
                                                  {0, 0, 7 * DAY + 100, 40, false},
                                                  {0, 0, 30 * DAY, 29 * DAY, true},
                                                  {0, 2, 7 * DAY + 100, 160, true},
                                                  {1, 2, 7 * DAY + 100, 40, true}};
    check_cleaning(lefts, UINT64_MAX);
}

PAGE_TEST(a_name_that_is_too_long_is_no_page_that_goes)
{
    static const struct left old = {0, 0, 30 * DAY, 10, false};
    char longest[128] = "metashard-", longer[128] = "metashard-x";
    memset(longest + strlen(longest), '1', 63 - strlen("metashard-.state"));
    strcat(longest, ".state");
    strcat(longer, longest + strlen("metashard-"));
    CHECK_EQ(strlen(longest), 63);
    leave_page(longest, &old);
    leave_page(longer, &old);
    must_make_as(1);
    CHECK(!is_there(longest) && is_there(longer));
}

PAGE_TEST(a_file_that_was_being_made_goes_after_an_hour)
{
    static const struct {
        const char *name;
        int64_t ago;
        bool stays;
    } files[] = {{".metashard-new-1-a", 3600 + MINUTE, false},
                 {".metashard-new-1-b", 3600 - MINUTE, true},
                 {".metashard-ne", 30 * DAY, true}};
    for (int i = 0; i < 3; i++) {
        const struct timespec then[2] = {{.tv_sec = time(NULL) - files[i].ago},
                                         {.tv_sec = time(NULL) - files[i].ago}};
        close(open(in_folder(files[i].name), O_CREAT | O_WRONLY, 0600));
        CHECK_EQ(utimensat(AT_FDCWD, in_folder(files[i].name), then, 0), 0);
    }
    must_make_as(1);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(is_there(files[i].name), files[i].stays);
}
