/* SPDX-License-Identifier: Apache-2.0 */
/* The state page: what is kept when there is no room, who may write where, and when pages go. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "runtime/base/version.h"
#include "runtime/driver/flags.h"
#include "runtime/start/lifetime.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "runtime/state/explain.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"

#define MIB ((uint64_t)1 << 20)

static struct ms_state_block block_of(uint64_t id, uint64_t bytes)
{
    return (struct ms_state_block){.id = id,
                                   .address = id << 32,
                                   .bytes = bytes,
                                   .kind_bytes = {[MS_BYTES_FILL] = bytes},
                                   .deferred_bytes = bytes};
}

/* The lead of the clock: less for a thread that took the time and had to wait. */
static uint64_t ahead_ns;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    const long result = syscall(SYS_clock_gettime, clock, time);
    const uint64_t now = (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec + ahead_ns;
    *time = (struct timespec){.tv_sec = (time_t)(now / 1000000000),
                              .tv_nsec = (long)(now % 1000000000)};
    return (int)result;
}

/* --- what it holds */

MS_TEST_AFTER(page_folder_make, the_process_and_its_settings_are_there)
{
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "8", 1);
    page_start(1 * MIB);
    ms_state_set_device(1, &(struct ms_device_facts){.check = MS_CHECK_KEPT,
                                                     .steps_aside = true,
                                                     .unmet = "set: ends; copy: ends"});
    ms_state_set_device(1, &(struct ms_device_facts){.name = "a device"});
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.process.pid, getpid());
    CHECK_EQ(snapshot.process.rank, 3);
    CHECK_EQ(snapshot.process.world, 8);
    CHECK_EQ(snapshot.life, MS_LIFE_ALIVE);
    CHECK_EQ(snapshot.process.ended_ns, 0);
    CHECK(strstr(snapshot.process.command, "unit") != NULL);
    char folder[4096], host[256];
    CHECK(getcwd(folder, sizeof(folder)) != NULL && gethostname(host, sizeof(host)) == 0);
    CHECK_EQ(strncmp(snapshot.process.folder, folder, sizeof(snapshot.process.folder) - 1), 0);
    CHECK_EQ(strncmp(snapshot.process.host, host, sizeof(snapshot.process.host) - 1), 0);
    CHECK_EQ(strcmp(snapshot.process.version, ms_version), 0);
    CHECK_EQ(snapshot.process.uid, geteuid());
    CHECK_EQ(snapshot.device_count, 2);
    CHECK(strcmp(snapshot.devices[1].name, "a device") == 0);
    CHECK_EQ(snapshot.devices[1].check, MS_CHECK_KEPT);
    CHECK_EQ(snapshot.devices[1].steps_aside, 1);
    CHECK(strcmp(snapshot.devices[1].unmet, "set: ends; copy: ends") == 0);
    bool is_given = false;
    for (size_t i = 0; i < snapshot.option_count; i++)
        is_given |= strcmp(snapshot.options[i].name, "METASHARD_STATE_BYTES") == 0 &&
                    strcmp(snapshot.options[i].value, "1048576") == 0;
    CHECK(is_given);
    ms_snapshot_cleanup(&snapshot);
    ms_state_end(NULL, NULL);
    snapshot = page_read(getpid());
    CHECK(snapshot.process.ended_ns > 0);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_AFTER(page_folder_make, the_command_line_can_be_left_out)
{
    struct ms_config config = page_config(1 * MIB);
    config.state_command = false;
    ms_state_prepare(&config);
    ms_state_open();
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.process.command[0], '\0');
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_AFTER(page_folder_make, figures_are_those_of_the_counters)
{
    ms_counter_add(MS_COUNT_LOOKUPS, 5); /* before there is a page */
    page_start(1 * MIB);
    ms_counter_add(MS_COUNT_LOOKUPS, 2);
    ms_counter_move(MS_GAUGE_BACKED, 30);
    ms_counter_move(MS_GAUGE_BACKED, -20);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(ms_snapshot_figure(&snapshot, "lookups"), 7);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "backed_bytes"), 10);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "backed_bytes_peak"), 30);
    CHECK_EQ(ms_counter_get(MS_COUNT_LOOKUPS), 7);
    ms_snapshot_cleanup(&snapshot);
}

static void load_and_end(uint64_t bytes, uint64_t peak)
{
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD, .bytes = bytes, .loads = true});
    ms_counter_move(MS_GAUGE_BACKED, (int64_t)(peak - ms_counter_get(MS_GAUGE_BACKED)));
    ms_examining_begin();
    ms_examining_end();
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_ALLOCATE});
}

MS_TEST_AFTER(page_folder_make, the_peak_of_loading_is_that_when_nothing_is_deferred_any_more)
{
    page_start(1 * MIB);
    load_and_end(100, 3);
    CHECK_EQ(ms_counter_get(MS_GAUGE_LOADED_PEAK), 3);
    load_and_end(80, 5); /* a second part */
    CHECK_EQ(ms_counter_get(MS_GAUGE_LOADED_PEAK), 5);
    load_and_end(20, 9); /* a step of training */
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_SETTLE});
    CHECK_EQ(ms_counter_get(MS_GAUGE_LOADED_PEAK), 5);
}

static void compute(enum ms_reason reason)
{
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_FALLBACK, .reason = reason, .bytes = 1});
}

MS_TEST_AFTER(page_folder_make, memory_deferred_when_a_program_computes_counts_as_loaded)
{
    page_start(1 * MIB);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD, .bytes = 100, .loads = true});
    ms_counter_move(MS_GAUGE_DEFERRED, 50);
    ms_counter_move(MS_GAUGE_BACKED, 20);
    compute(MS_REASON_PARAMETERS);
    CHECK_EQ(ms_counter_get(MS_GAUGE_LOADED_PEAK), 0);
    compute(MS_REASON_NO_RULE);
    CHECK_EQ(ms_counter_get(MS_GAUGE_LOADED_PEAK), 70);
    ms_counter_move(MS_GAUGE_BACKED, 100); /* activations */
    compute(MS_REASON_NO_RULE);
    CHECK_EQ(ms_counter_get(MS_GAUGE_LOADED_PEAK), 70);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.cause_count, 2);
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(snapshot.causes[i].loaded_count, 1); /* with that which ended it */
        CHECK_EQ(snapshot.causes[i].loaded_bytes, 1);
    }
    ms_snapshot_cleanup(&snapshot);
}

STORY_AFTER(page_folder_make, memory_deferred_under_a_plan_does_not_count_as_loaded,
            page_start(1 * MIB), ms_state_set_plan(&(struct ms_state_plan){.generation = 1}),
            ms_state_event(&(struct ms_event){
                .kind = MS_EVENT_RECORD, .bytes = 100, .loads = true}),
            ms_counter_move(MS_GAUGE_DEFERRED, 50), compute(MS_REASON_NO_RULE),
            EQUALS(ms_counter_get(MS_GAUGE_LOADED_PEAK), 0), ms_counter_move(MS_GAUGE_BACKED, 20),
            ms_state_event(&(struct ms_event){.kind = MS_EVENT_SETTLE}),
            EQUALS(ms_counter_get(MS_GAUGE_LOADED_PEAK), 20))

MS_TEST_AFTER(page_folder_make, the_rank_of_a_communicator_counts_only_where_none_is_known)
{
    unsetenv("RANK");
    page_start(1 * MIB);
    ms_state_set_rank(0, 1); /* of one process: it says nothing */
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.process.rank, MS_STATE_NO_RANK);
    ms_snapshot_cleanup(&snapshot);
    ms_state_set_rank(5, 6);
    ms_state_set_rank(1, 2);
    snapshot = page_read(getpid());
    CHECK_EQ(snapshot.process.rank, 5);
    CHECK_EQ(snapshot.process.world, 6);
    ms_snapshot_cleanup(&snapshot);
}

/* --- no room */

MS_TEST_AFTER(page_folder_make, a_full_table_keeps_the_biggest_blocks)
{
    enum { BLOCKS = 4000 };
    static struct ms_state_place places[BLOCKS];
    page_start(MS_STATE_LEAST_BYTES);
    for (uint64_t i = 0; i < BLOCKS; i++) { /* in no order of their sizes */
        const struct ms_state_block block = block_of(i + 1, MIB + (i * 7919) % BLOCKS);
        ms_state_put(&places[i], &block);
    }
    struct ms_snapshot snapshot = page_read(getpid());
    const size_t kept = snapshot.block_count;
    CHECK(kept > 100 && kept < BLOCKS);
    for (size_t i = 0; i < kept; i++)
        CHECK_EQ(snapshot.blocks[i].bytes, MIB + BLOCKS - 1 - i);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "blocks_live"), BLOCKS);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "blocks_left_out"), BLOCKS - kept);
    ms_snapshot_cleanup(&snapshot);

    /* A freed block makes room: the next block of which something is told takes it. */
    for (uint64_t i = 0; i < BLOCKS; i++) {
        if ((i * 7919) % BLOCKS >= BLOCKS - 10)
            ms_state_remove(&places[i]);
    }
    for (uint64_t i = 0; i < BLOCKS; i++) {
        const uint64_t place = (i * 7919) % BLOCKS;
        const struct ms_state_block block = block_of(i + 1, MIB + place);
        if (place < BLOCKS - 10)
            ms_state_put(&places[i], &block);
    }
    snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, kept);
    for (size_t i = 0; i < kept; i++)
        CHECK_EQ(snapshot.blocks[i].bytes, MIB + BLOCKS - 11 - i);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "blocks_left_out"), BLOCKS - 10 - kept);
    ms_snapshot_cleanup(&snapshot);
    for (uint64_t i = 0; i < BLOCKS; i++)
        ms_state_remove(&places[i]);
    snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 0);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "blocks_live"), 0);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "blocks_left_out"), 0);
    ms_snapshot_cleanup(&snapshot);
}

/* Calls of read() and its kin that this process has made. */
static long long count_reads(void)
{
    char text[512] = "";
    FILE *file = fopen("/proc/self/io", "re");
    if (file == NULL || fread(text, 1, sizeof(text) - 1, file) == 0)
        ms_test_skip("/proc/self/io cannot be read");
    fclose(file);
    const char *found = strstr(text, "syscr: ");
    CHECK(found != NULL);
    return atoll(found + strlen("syscr: "));
}

/* Whoever made it so: reading it ends soon. */
MS_TEST_AFTER(page_folder_make, a_page_of_half_written_records_does_not_hold_its_reader_up)
{
    struct ms_state_header header;
    const uint64_t odd = 3;
    page_start(16 * MIB);
    const int file = open(page_path(getpid()), O_RDWR | O_CLOEXEC);
    CHECK_EQ(pread(file, &header, sizeof(header), 0), sizeof(header));
    const struct ms_state_span *blocks = &header.sections[MS_SECTION_BLOCKS];
    CHECK(blocks->count > 10000);
    for (uint64_t i = 0; i < blocks->count; i++)
        CHECK_EQ(pwrite(file, &odd, sizeof(odd),
                        (off_t)(blocks->offset + i * blocks->record_bytes)),
                 sizeof(odd));
    close(file);
    const long long before = count_reads();
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(count_reads() - before < 4 * (long long)blocks->count + 20000); /* and not 600 for each */
    CHECK_EQ(snapshot.block_count, 0);
    CHECK(snapshot.torn_records >= blocks->count);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_AFTER(page_folder_make, a_full_ring_keeps_the_last_events_and_counts_the_others)
{
    enum { EVENTS = 5000 };
    page_start(MS_STATE_LEAST_BYTES);
    for (uint64_t i = 0; i < EVENTS; i++)
        ms_state_event(&(struct ms_event){
            .kind = MS_EVENT_RECORD, .block = i, .bytes = 3 * i, .text = "a text"});
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(snapshot.event_count > 100 && snapshot.event_count < EVENTS);
    CHECK_EQ(snapshot.events_lost, EVENTS - snapshot.event_count);
    for (size_t i = 0; i < snapshot.event_count; i++) {
        const struct ms_state_event *event = &snapshot.events[i];
        CHECK_EQ(event->block, EVENTS - snapshot.event_count + i);
        CHECK_EQ(event->bytes, 3 * event->block);
        CHECK_EQ(event->sequence / 2 - 1, event->block);
        CHECK(strcmp(event->text, "a text") == 0);
    }
    ms_snapshot_cleanup(&snapshot);
}

/* A kernel's name and pointers do not tell whether it reads what it writes. */
MS_TEST(no_sentence_offers_a_rule)
{
    static const char *const classes[] = {"write-only", "in-place", "from-other", "from-first",
                                          "concatenate"}; /* "each" is a word */
    char sentence[4096];
    for (int reason = 0; reason < MS_REASON_COUNT; reason++) {
        if (!ms_explain((enum ms_reason)reason, "cuLaunchKernel", "_Z6reducePf", sentence,
                        sizeof(sentence)))
            continue;
        for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
            CHECK(strstr(sentence, classes[i]) == NULL);
    }
}

MS_TEST_AFTER(page_folder_make, causes_are_added_up_and_the_rest_is_together)
{
    char text[32];
    uint64_t count = 0, bytes = 0;
    page_start(MS_STATE_LEAST_BYTES);
    ms_caller = "cuCall";
    for (int i = 0; i < 2000; i++) {
        snprintf(text, sizeof(text), "kernel %d", i % 1000);
        ms_state_event(&(struct ms_event){
            .kind = MS_EVENT_FALLBACK, .reason = MS_REASON_NO_RULE, .bytes = 10, .text = text});
    }
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(snapshot.cause_count > 10);
    for (size_t i = 0; i < snapshot.cause_count; i++) {
        const struct ms_state_cause *cause = &snapshot.causes[i];
        count += cause->count;
        bytes += cause->bytes;
        if (cause->call[0] == '\0')
            continue; /* the rest */
        CHECK_EQ(cause->count, 2);
        CHECK(strstr(cause->sentence, cause->text) != NULL);
        CHECK(strstr(cause->sentence, "METASHARD_KERNEL_RULES") != NULL);
    }
    CHECK_EQ(count, 2000);
    CHECK_EQ(bytes, 20000);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_AFTER(page_folder_make, a_reader_of_a_page_gives_all_back)
{
    struct ms_snapshot snapshot;
    struct ms_fault fault;
    page_start(MS_STATE_LEAST_BYTES);
    ms_state_set_device(1, &(struct ms_device_facts){.name = "a device"});
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_FALLBACK, .reason = MS_REASON_NO_RULE});
    const int before = live;
    snapshot = page_read(getpid());
    CHECK(live > before + 5);
    ms_snapshot_cleanup(&snapshot);
    CHECK_EQ(live, before);
    CHECK_EQ(truncate(page_path(getpid()), 4096), 0);
    CHECK(!ms_snapshot_read(page_path(getpid()), &snapshot, &fault));
    CHECK_EQ(live, before);
}

/* Threads take the time before they take their turn. */
MS_TEST_AFTER(page_folder_make, a_cause_that_comes_in_late_is_not_before_the_first)
{
    const uint64_t hour_ns = UINT64_C(3600000000000);
    page_start(MS_STATE_LEAST_BYTES);
    ahead_ns = 2 * hour_ns;
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_FALLBACK, .reason = MS_REASON_NO_RULE, .bytes = 10, .text = "kernel"});
    ahead_ns = hour_ns;
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_FALLBACK, .reason = MS_REASON_NO_RULE, .bytes = 10, .text = "kernel"});
    ahead_ns = 0;
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.cause_count, 1);
    CHECK(snapshot.causes[0].first_ns >= hour_ns);
    CHECK(snapshot.causes[0].first_ns < snapshot.causes[0].last_ns);
    CHECK_EQ(snapshot.causes[0].last_ns, snapshot.events[0].time_ns);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_AFTER(page_folder_make, samples_cover_all_of_the_life_and_keep_the_peak)
{
    page_start(MS_STATE_LEAST_BYTES);
    const struct timespec pause = {.tv_nsec = 1100000};
    uint64_t peak_at = 0;
    for (int i = 0; i < 2500; i++) { /* more than there is room for */
        ms_counter_move(MS_GAUGE_BACKED, 1);
        if (i == 700) {
            ms_counter_move(MS_GAUGE_BACKED, 1000000);
            ms_state_sample();
            peak_at = ms_state_now();
            ms_counter_move(MS_GAUGE_BACKED, -1000000);
        }
        ms_state_sample();
        nanosleep(&pause, NULL);
    }
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(snapshot.sample_count > 200 && snapshot.sample_count < 2500);
    uint64_t most = 0, most_at = 0;
    for (size_t i = 0; i < snapshot.sample_count; i++) {
        const struct ms_state_sample *sample = &snapshot.samples[i];
        CHECK(i == 0 || sample->time_ns > sample[-1].time_ns);
        if (sample->backed_bytes > most)
            most = sample->backed_bytes, most_at = sample->time_ns;
    }
    CHECK_EQ(most, 1000701);
    CHECK(most_at + 50000000 > peak_at && most_at < peak_at + 50000000);
    CHECK_EQ(snapshot.samples[snapshot.sample_count - 1].backed_bytes, 2500);
    CHECK(snapshot.samples[0].time_ns < 500000000);
    ms_snapshot_cleanup(&snapshot);
}

/* --- blocks */

MS_TEST_AFTER(page_folder_make, a_block_keeps_what_it_was_backed_for)
{
    struct ms_state_place place = {0};
    page_start(1 * MIB);
    struct ms_state_block block = block_of(1, 4 * MIB);
    ms_state_put(&place, &block);
    ms_caller = "cuLaunchKernel";
    ms_caller_kernel = "a_kernel";
    ms_caller_reason = MS_REASON_NO_RULE;
    block.backed_bytes = 2 * MIB;
    ms_state_put(&place, &block);
    ms_caller = "cuMemcpyDtoH_v2";
    ms_caller_kernel = NULL;
    ms_caller_reason = MS_REASON_CALL;
    block.backed_bytes = 4 * MIB;
    ms_state_put(&place, &block);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 1);
    CHECK_EQ(snapshot.blocks[0].backed_bytes, 4 * MIB);
    CHECK_EQ(snapshot.blocks[0].backed_reason, MS_REASON_NO_RULE);
    CHECK(strcmp(snapshot.blocks[0].backed_call, "cuLaunchKernel of a_kernel") == 0);
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_AFTER(page_folder_make, a_block_of_another_file_is_written_anew)
{
    struct ms_state_place place = {0};
    page_start(1 * MIB);
    struct ms_state_block block = block_of(1, 4 * MIB);
    for (uint32_t file = 1; file <= 2; file++) {
        block.file = ms_state_file(file == 1 ? "/one" : "/other");
        CHECK_EQ(block.file, file);
        ms_state_put(&place, &block);
        struct ms_snapshot snapshot = page_read(getpid());
        CHECK_EQ(snapshot.blocks[0].file, file);
        ms_snapshot_cleanup(&snapshot);
    }
}

MS_TEST_AFTER(page_folder_make, bytes_that_are_no_text_do_not_reach_a_reader)
{
    page_start(1 * MIB);
    ms_state_event(
        &(struct ms_event){.kind = MS_EVENT_RECORD,
                           .block = 1,
                           .text = "a\033[31m\n\xff\xc3\xa9\xe2\x80\xa8z\xc2\x9b\xe2\x80\xae"});
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.event_count, 1);
    CHECK(strcmp(snapshot.events[0].text, "a?[31m??\xc3\xa9???z?????") == 0);
    ms_snapshot_cleanup(&snapshot);
}

/* --- who may write where */

MS_TEST_AFTER(page_folder_make, page_and_folder_are_private)
{
    struct stat of_page, of_folder;
    strcat(page_folder, "/new");
    umask(0);
    page_start(1 * MIB);
    CHECK_EQ(stat(page_path(getpid()), &of_page), 0);
    CHECK_EQ(stat(page_folder, &of_folder), 0);
    *strrchr(page_folder, '/') = '\0';
    CHECK_EQ(of_page.st_mode & 07777, 0600);
    CHECK_EQ(of_folder.st_mode & 07777, 0700);
    CHECK_EQ(of_page.st_size, 1 * MIB);
    CHECK(of_page.st_blocks * 512 >= (blkcnt_t)(1 * MIB)); /* reserved */
}

static void start_somewhere(const char *folder)
{
    struct ms_config config = page_config(1 * MIB);
    snprintf(config.state_dir, sizeof(config.state_dir), "%s", folder);
    ms_state_prepare(&config);
    ms_state_open();
}

MS_TEST_AFTER(page_folder_make, a_folder_that_others_may_write_is_not_used)
{
    CHECK_EQ(chmod(page_folder, 0770), 0);
    page_start(1 * MIB);
    CHECK(!ms_is_recorded());
    CHECK_EQ(page_count(), 0);
}

MS_TEST_AFTER(page_folder_make, a_link_is_not_followed)
{
    char target[80], link[80];
    snprintf(target, sizeof(target), "%s/target", page_folder);
    snprintf(link, sizeof(link), "%s/link", page_folder);
    CHECK_EQ(mkdir(target, 0700), 0);
    CHECK_EQ(symlink(target, link), 0);
    start_somewhere(link);
    CHECK(!ms_is_recorded());
    CHECK_EQ(rmdir(target), 0); /* it is empty */
}

MS_TEST_AFTER(page_folder_make, a_planted_name_is_left_alone_and_another_one_taken)
{
    char victim[80], name[128];
    struct stat stat_of;
    snprintf(victim, sizeof(victim), "%s/victim", page_folder);
    const int file = open(victim, O_WRONLY | O_CREAT, 0600);
    CHECK(file >= 0 && write(file, "mine", 4) == 4);
    close(file);
    CHECK_EQ(symlink(victim, page_path(getpid())), 0);
    page_start(1 * MIB);
    CHECK(ms_is_recorded());
    CHECK_EQ(stat(victim, &stat_of), 0);
    CHECK_EQ(stat_of.st_size, 4);
    snprintf(name, sizeof(name), "%s/metashard-%d-2.state", page_folder, (int)getpid());
    CHECK_EQ(lstat(name, &stat_of), 0);
    CHECK(S_ISREG(stat_of.st_mode));
}

STORY_AFTER(page_folder_make, an_empty_setting_means_none, start_somewhere(""),
            IS(!ms_is_recorded()), EQUALS(ms_state_now(), 0),
            ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD, .block = 1}),
            ms_state_end(NULL, NULL), EQUALS(page_count(), 0))

MS_TEST_AFTER(page_folder_make, a_size_out_of_range_is_brought_into_it)
{
    struct stat stat_of;
    page_start(0);
    CHECK_EQ(stat(page_path(getpid()), &stat_of), 0);
    CHECK_EQ(stat_of.st_size, MS_STATE_LEAST_BYTES);
}

/* A limit on the size of files would be a signal that ends the program. */
MS_TEST_AFTER(page_folder_make, a_limit_on_the_size_of_files_means_no_page)
{
    const struct rlimit limit = {1 << 16, 1 << 16};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    page_start(1 * MIB);
    CHECK(!ms_is_recorded());
    CHECK_EQ(rmdir(page_folder), 0); /* nothing is left, hidden or not */
}

MS_TEST(explanations_need_no_file)
{
    struct ms_config config = {.state_bytes = MIB, .explain = true};
    ms_state_prepare(&config);
    ms_state_open();
    CHECK(ms_is_recorded());
    ms_state_event(
        &(struct ms_event){.kind = MS_EVENT_FALLBACK, .reason = MS_REASON_SEALED, .bytes = 1});
}

/* --- processes */

static void must_end_well(pid_t child)
{
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

MS_TEST_AFTER(page_folder_make, a_forked_child_writes_nothing)
{
    setenv("METASHARD_STATE_DIR", page_folder, 1);
    ms_lifetime_begin(environ, "");
    CHECK(ms_state_open());
    ms_counter_add(MS_COUNT_LOOKUPS, 1);
    const pid_t child = fork();
    if (child == 0) {
        struct ms_state_place place = {0};
        const struct ms_state_block block = block_of(1, MIB);
        ms_counter_add(MS_COUNT_LOOKUPS, 100);
        ms_counter_move(MS_GAUGE_BACKED, 100);
        ms_state_put(&place, &block);
        ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD, .block = 1});
        ms_state_sample();
        ms_state_end(NULL, NULL);
        _exit(ms_is_recorded());
    }
    must_end_well(child);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(ms_snapshot_figure(&snapshot, "lookups"), 1);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "backed_bytes"), 0);
    CHECK_EQ(snapshot.block_count, 0);
    CHECK_EQ(snapshot.event_count, 0);
    CHECK_EQ(snapshot.process.ended_ns, 0);
    ms_snapshot_cleanup(&snapshot);
    CHECK_EQ(page_count(), 1);
}

MS_TEST_AFTER(page_folder_make, a_process_has_no_page_before_the_first_record)
{
    const struct ms_config config = page_config(1 * MIB);
    ms_state_prepare(&config);
    CHECK(ms_is_recorded());
    ms_counter_add(MS_COUNT_LOOKUPS, 3);
    ms_state_sample();
    const pid_t child = fork();
    if (child == 0) { /* it ends without a record */
        ms_state_end(NULL, NULL);
        _exit(0);
    }
    must_end_well(child);
    CHECK_EQ(page_count(), 0);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD, .block = 1, .text = "the first"});
    ms_counter_add(MS_COUNT_LOOKUPS, 1);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.event_count, 1);
    CHECK_EQ(ms_snapshot_figure(&snapshot, "lookups"), 4); /* counted before and after */
    ms_snapshot_cleanup(&snapshot);
    CHECK_EQ(page_count(), 1);
}

MS_TEST_AFTER(page_folder_make, a_child_that_is_forked_before_makes_no_page)
{
    setenv("METASHARD_STATE_DIR", page_folder, 1);
    ms_lifetime_begin(environ, "");
    const pid_t child = fork();
    if (child == 0) {
        ms_state_event(&(struct ms_event){.kind = MS_EVENT_RECORD, .block = 1});
        _exit(ms_is_recorded() || ms_state_open());
    }
    must_end_well(child);
    CHECK_EQ(page_count(), 0);
}

/* A process with a page, which ends in a way of its own. */
static pid_t run_process(bool is_killed)
{
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        page_start(MS_STATE_LEAST_BYTES);
        ms_state_event(&(
            struct ms_event){.kind = MS_EVENT_RECORD, .block = 7, .text = "the last that it did"});
        if (is_killed)
            raise(SIGKILL);
        ms_state_end(NULL, NULL);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return child;
}

MS_TEST_AFTER(page_folder_make, a_killed_process_leaves_its_page)
{
    const pid_t child = run_process(true);
    struct ms_snapshot snapshot = page_read(child);
    CHECK_EQ(snapshot.life, MS_LIFE_GONE);
    CHECK_EQ(snapshot.process.ended_ns, 0);
    CHECK_EQ(snapshot.event_count, 1);
    CHECK(strcmp(snapshot.events[0].text, "the last that it did") == 0);
    CHECK_EQ(snapshot.taken_ns, snapshot.events[0].time_ns);
    ms_snapshot_cleanup(&snapshot);
}

/* Rank `rank` of `world` (0: none), which made its page and was killed so many seconds ago. */
static pid_t leave_page(unsigned rank, unsigned world, long long ago)
{
    struct ms_state_header header;
    struct ms_state_process process;
    char text[16];
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    if (world > 0) {
        snprintf(text, sizeof(text), "%u", rank);
        setenv("RANK", text, 1);
        snprintf(text, sizeof(text), "%u", world);
        setenv("WORLD_SIZE", text, 1);
    }
    const pid_t child = run_process(true);
    const int file = open(page_path(child), O_RDWR | O_CLOEXEC);
    CHECK_EQ(pread(file, &header, sizeof(header), 0), sizeof(header));
    for (uint64_t i = 0; i < 2; i++) {
        const off_t at = (off_t)(header.sections[MS_SECTION_PROCESS].offset + i * sizeof(process));
        CHECK_EQ(pread(file, &process, sizeof(process), at), sizeof(process));
        process.started_ns -= (uint64_t)ago * 1000000000;
        CHECK_EQ(pwrite(file, &process, sizeof(process), at), sizeof(process));
    }
    const struct timespec then = {.tv_sec = time(NULL) - ago};
    CHECK_EQ(futimens(file, (const struct timespec[]){then, then}), 0);
    close(file);
    return child;
}

static bool is_there(pid_t pid)
{
    return access(page_path(pid), F_OK) == 0;
}

/* The page of this process, which removes those of others. */
static void clean_pages(uint64_t kept_bytes)
{
    struct ms_config config = page_config(MS_STATE_LEAST_BYTES);
    config.state_kept_bytes = kept_bytes;
    ms_state_prepare(&config);
    ms_state_open();
}

MS_TEST(the_oldest_pages_go_beyond_a_total_size)
{
    enum { PAGES = 6, KEPT = 4 };
    pid_t children[PAGES];
    page_folder_make();
    for (int i = 0; i < PAGES; i++)
        children[i] = leave_page(0, 0, 100 * (PAGES - i));
    clean_pages(KEPT * MS_STATE_LEAST_BYTES);
    CHECK_EQ(page_count(), KEPT + 1);
    for (int i = 0; i < PAGES; i++)
        CHECK_EQ(is_there(children[i]), i >= PAGES - KEPT);
}

/* The ranks of a run differ by a few seconds, in any order. */
MS_TEST(the_ranks_of_a_run_go_together)
{
    enum { RUNS = 3, RANKS = 4 };
    pid_t children[RUNS][RANKS];
    page_folder_make();
    for (int run = 0; run < RUNS; run++) {
        for (int rank = 0; rank < RANKS; rank++)
            children[run][rank] =
                leave_page((unsigned)rank, RANKS, 100 * (RUNS - run) + (rank * 3) % RANKS);
    }
    clean_pages((2 * RANKS + 2) * MS_STATE_LEAST_BYTES); /* two runs and a half */
    for (int run = 0; run < RUNS; run++) {
        for (int rank = 0; rank < RANKS; rank++)
            CHECK_EQ(is_there(children[run][rank]), run > 0);
    }
}

MS_TEST_AFTER(page_folder_make, the_newest_run_stays_however_large_it_is)
{
    const pid_t old = leave_page(0, 2, 1000), first = leave_page(0, 2, 10),
                second = leave_page(1, 2, 10);
    clean_pages(1);
    CHECK(!is_there(old));
    CHECK(is_there(first) && is_there(second));
}

/* Two nodes' worth of one world, hours apart, are two runs. */
MS_TEST_AFTER(page_folder_make, other_ranks_of_the_same_world_hours_later_are_another_run)
{
    const pid_t old = leave_page(0, 4, 8000), young = leave_page(1, 4, 10);
    clean_pages(1);
    CHECK(!is_there(old) && is_there(young));
}

/* Makes a file that was changed so many hours ago. */
static void make_old_file(const char *name, const char *content, int hours)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", page_folder, name);
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK_EQ(write(file, content, strlen(content)), strlen(content));
    const struct timespec then = {.tv_sec = time(NULL) - hours * 3600L};
    CHECK_EQ(futimens(file, (const struct timespec[]){then, then}), 0);
    close(file);
}

MS_TEST(a_cleaning_removes_unfinished_pages_and_no_other_files)
{
    enum { MONTH = 24 * 30 };
    static const struct {
        const char *name;
        bool goes;
        int hours;
    } files[] = {{".metashard-new-1-2", true, 2},  {".metashard-new-3-4", false, 0},
                 {".other", false, MONTH},         {"other.state", false, MONTH},
                 {"metashard-plan", false, MONTH}, {"metashard-1.state", false, MONTH}};
    char path[128];
    page_folder_make();
    const pid_t unmarked = leave_page(0, 0, MONTH * 3600);
    const int page = open(page_path(unmarked), O_WRONLY | O_CLOEXEC);
    CHECK_EQ(pwrite(page, "another", 7, 0), 7);
    close(page);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        make_old_file(files[i].name, "content", files[i].hours);
    clean_pages(0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", page_folder, files[i].name);
        if ((access(path, F_OK) != 0) != files[i].goes)
            ms_test_fail(__FILE__, __LINE__, "%s is%s there", files[i].name,
                         files[i].goes ? "" : " not");
    }
    CHECK(is_there(unmarked));
}

MS_TEST(old_pages_go_and_those_of_living_processes_stay)
{
    enum { DAY = 86400 };
    const time_t now = time(NULL);
    const struct timespec eight_days[2] = {{.tv_sec = now - 8 * DAY}, {.tv_sec = now - 8 * DAY}};
    int ready[2];
    page_folder_make();
    CHECK_EQ(pipe(ready), 0);
    const pid_t old = leave_page(0, 0, 8 * DAY), young = leave_page(0, 0, 6 * DAY), alive = fork();
    if (alive == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        page_start(MS_STATE_LEAST_BYTES);
        if (write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
    }
    char byte;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    /* The time of a file does not show how long its process ran: tmpfs keeps that of the start. */
    const pid_t long_run = run_process(false);
    CHECK_EQ(utimensat(AT_FDCWD, page_path(long_run), eight_days, 0), 0);
    CHECK_EQ(utimensat(AT_FDCWD, page_path(alive), eight_days, 0), 0);
    page_start(MS_STATE_LEAST_BYTES);
    CHECK(!is_there(old));
    CHECK(is_there(young) && is_there(alive) && is_there(long_run));
    kill(alive, SIGKILL);
    waitpid(alive, NULL, 0);
}

MS_TEST_AFTER(page_folder_make, a_program_that_calls_exec_has_one_page)
{
    setenv("METASHARD_STATE_DIR", page_folder, 1);
    const pid_t child = fork();
    if (child == 0) {
        page_start(MS_STATE_LEAST_BYTES);
        execl("/proc/self/exe", "unit-state", "after_exec", NULL);
        _exit(1);
    }
    must_end_well(child);
    CHECK_EQ(page_count(), 1);
    struct ms_snapshot snapshot = page_read(child);
    CHECK(strstr(snapshot.process.command, "after_exec") != NULL);
    ms_snapshot_cleanup(&snapshot);
}

/* Run by the test above, by its name. */
MS_TEST(after_exec)
{
    const char *folder = getenv("METASHARD_STATE_DIR");
    if (folder == NULL)
        ms_test_skip("it is run by another test");
    struct ms_config config = {.state_bytes = MS_STATE_LEAST_BYTES, .state_command = true};
    snprintf(config.state_dir, sizeof(config.state_dir), "%s", folder);
    ms_state_prepare(&config);
    ms_state_open();
    CHECK(ms_is_recorded());
}

/* --- blocks that change */

static struct ms_state_block read_block(void)
{
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.block_count, 1);
    const struct ms_state_block block = snapshot.blocks[0];
    ms_snapshot_cleanup(&snapshot);
    return block;
}

/* Each by itself. */
MS_TEST_AFTER(page_folder_make, whatever_of_a_block_changes_is_written)
{
    struct ms_state_place place = {0};
    struct ms_state_block block = block_of(1, 4 * MIB);
    uint64_t *const numbers[] = {&block.address,
                                 &block.bytes,
                                 &block.backed_bytes,
                                 &block.kind_bytes[0],
                                 &block.deferred_bytes,
                                 &block.cached_bytes,
                                 &block.remote_bytes,
                                 &block.kind_bytes[MS_BYTES_KIND_COUNT - 1],
                                 &block.id};
    page_start(1 * MIB);
    ms_state_put(&place, &block);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        ++*numbers[i];
        ms_state_put(&place, &block);
        const struct ms_state_block seen = read_block();
        CHECK_EQ(memcmp(&seen.id, &block.id, offsetof(struct ms_state_block, allocated_ns) - 8), 0);
    }
    block.flags = MS_BLOCK_CARVED;
    ms_state_put(&place, &block);
    CHECK_EQ(read_block().flags, MS_BLOCK_CARVED);
    strcpy(block.name, "a.tensor");
    ms_state_put(&place, &block);
    CHECK(strcmp(read_block().name, "a.tensor") == 0);
    CHECK_EQ(ms_counter_get(MS_GAUGE_BLOCKS), 1);
}

MS_TEST_AFTER(page_folder_make, a_block_that_is_the_same_is_not_written)
{
    struct ms_state_place place = {0};
    const struct ms_state_block block = block_of(1, 4 * MIB);
    page_start(1 * MIB);
    ms_state_put(&place, &block);
    const struct ms_state_block before = read_block();
    CHECK_EQ(before.allocated_ns, before.changed_ns);
    ahead_ns = 1000000;
    ms_state_put(&place, &block);
    CHECK_EQ(read_block().changed_ns, before.changed_ns);
    struct ms_state_block changed = block;
    changed.deferred_bytes--;
    ms_state_put(&place, &changed);
    const struct ms_state_block after = read_block();
    CHECK(after.changed_ns >= before.changed_ns + 1000000);
    CHECK_EQ(after.allocated_ns, before.allocated_ns);
    CHECK_EQ(ms_counter_get(MS_GAUGE_CHANGED_NS), after.changed_ns);
}

/* Bytes in memory have no lineage any more; the page keeps where they came from. */
MS_TEST_AFTER(page_folder_make, a_block_keeps_where_it_came_from)
{
    struct ms_state_place place = {0};
    struct ms_state_block block = block_of(1, 4 * MIB);
    page_start(1 * MIB);
    block.file = ms_state_file("/a/file");
    block.file_offset = 77;
    strcpy(block.name, "a.tensor");
    ms_state_put(&place, &block);
    block.file = 0;
    block.file_offset = 5;
    block.name[0] = '\0';
    block.backed_bytes = 1;
    ms_state_put(&place, &block);
    CHECK_EQ(read_block().file, 1);
    CHECK_EQ(read_block().file_offset, 77);
    CHECK(strcmp(read_block().name, "a.tensor") == 0);
    block.file = ms_state_file("/other/file");
    strcpy(block.name, "another");
    ms_state_put(&place, &block);
    CHECK_EQ(read_block().file, 2);
    CHECK_EQ(read_block().file_offset, 5);
    CHECK(strcmp(read_block().name, "another") == 0);
}

MS_TEST_AFTER(page_folder_make, a_block_is_backed_for_what_the_thread_is_in)
{
    struct ms_state_place place = {0};
    struct ms_state_block block = block_of(1, 4 * MIB);
    page_start(1 * MIB);
    ms_caller = "cuCall";
    ms_caller_reason = MS_REASON_EXPORT;
    ms_state_put(&place, &block);
    CHECK_EQ(read_block().backed_call[0], '\0'); /* it has no memory */
    CHECK_EQ(read_block().backed_reason, 0);
    block.backed_bytes = 1;
    ms_state_put(&place, &block);
    CHECK(strcmp(read_block().backed_call, "cuCall") == 0);
    CHECK_EQ(read_block().backed_reason, MS_REASON_EXPORT);
    block.backed_bytes = 0; /* evicted; and then it comes again */
    ms_state_put(&place, &block);
    ms_caller = NULL;
    ms_caller_reason = MS_REASON_SETTLE;
    block.backed_bytes = 2;
    ms_state_put(&place, &block);
    CHECK_EQ(read_block().backed_call[0], '\0');
    CHECK_EQ(read_block().backed_reason, MS_REASON_SETTLE);
}

MS_TEST_AFTER(page_folder_make, a_block_is_removed_once)
{
    struct ms_state_place places[2] = {{0}, {0}};
    const struct ms_state_block blocks[] = {block_of(1, 4 * MIB), block_of(2, 5 * MIB)};
    page_start(1 * MIB);
    ms_state_remove(&places[0]); /* it was never put */
    CHECK_EQ(ms_counter_get(MS_GAUGE_BLOCKS), 0);
    ms_state_put(&places[0], &blocks[0]);
    ms_state_put(&places[1], &blocks[1]);
    CHECK_EQ(ms_counter_get(MS_GAUGE_BLOCKS), 2);
    ms_state_remove(&places[0]);
    ms_state_remove(&places[0]);
    CHECK_EQ(ms_counter_get(MS_GAUGE_BLOCKS), 1);
    CHECK_EQ(ms_counter_get(MS_GAUGE_BLOCKS_OUT), 0);
    CHECK_EQ(read_block().id, 2);
}

MS_TEST_AFTER(page_folder_make, a_file_has_one_number)
{
    char path[32];
    page_start(1 * MIB);
    for (uint32_t i = 1; i <= 130; i++) {
        snprintf(path, sizeof(path), "/file/%u", i);
        CHECK_EQ(ms_state_file(path), i <= 128 ? i : 0); /* no more have room */
    }
    CHECK_EQ(ms_state_file("/file/1"), 1);
    CHECK_EQ(ms_state_file("/file/128"), 128);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.file_count, 128);
    CHECK(strcmp(snapshot.files[127].path, "/file/128") == 0);
    ms_snapshot_cleanup(&snapshot);
}

/* --- texts */

MS_TEST_AFTER(page_folder_make, a_text_is_cut_between_two_characters)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {{"12345678901234567890123", "12345678901234567890123"},
                 {"123456789012345678901234", "12345678901234567890123"},
                 {"1234567890123456789012\xc3\xa4", "1234567890123456789012"},
                 {"123456789012345678901\xe2\x82\xac", "123456789012345678901"},
                 {"123456789012345678901\xc3\xa4z", "123456789012345678901\xc3\xa4"},
                 {"12345678901234567890\xe2\x82\xaczz", "12345678901234567890\xe2\x82\xac"},
                 {"", ""}};
    unsetenv("SLURM_JOB_ID");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const pid_t child = fork();
        if (child == 0) {
            struct ms_config config = page_config(1 * MIB);
            strcpy(config.job, cases[i].text);
            ms_state_prepare(&config);
            ms_state_open();
            struct ms_snapshot snapshot = page_read(getpid());
            _exit(strcmp(snapshot.process.job, cases[i].expected) != 0);
        }
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        if (status != 0)
            ms_test_fail(__FILE__, __LINE__, "%s is not cut to %s", cases[i].text,
                         cases[i].expected);
    }
}

/* --- devices and plans */

MS_TEST_AFTER(page_folder_make, a_device_keeps_what_is_not_told_again)
{
    page_start(1 * MIB);
    ms_state_set_device(63, &(struct ms_device_facts){.name = "the last"});
    ms_state_set_device(64, &(struct ms_device_facts){.name = "one more"});
    ms_state_set_device(0, &(struct ms_device_facts){.name = "a device", .check = MS_CHECK_RUN});
    ms_state_set_device(0, &(struct ms_device_facts){.unmet = "nothing", .steps_aside = true});
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.device_count, 64);
    CHECK(strcmp(snapshot.devices[63].name, "the last") == 0);
    CHECK(strcmp(snapshot.devices[0].name, "a device") == 0);
    CHECK_EQ(snapshot.devices[0].check, MS_CHECK_RUN);
    CHECK_EQ(snapshot.devices[0].steps_aside, 0);
    CHECK(strcmp(snapshot.devices[0].unmet, "") == 0);
    CHECK_EQ(snapshot.file_count, 0); /* what follows the devices in the page */
    ms_snapshot_cleanup(&snapshot);
}

MS_TEST_AFTER(page_folder_make, the_last_plan_counts_and_so_does_its_rank)
{
    page_start(1 * MIB);
    for (uint64_t i = 1; i <= 5; i++) {
        ms_state_set_plan(&(struct ms_state_plan){
            .generation = i, .tensors = 10 * i, .rank = (uint32_t)i, .world = 8, .name = "a plan"});
        struct ms_snapshot snapshot = page_read(getpid());
        CHECK_EQ(snapshot.plan.generation, i);
        CHECK_EQ(snapshot.plan.tensors, 10 * i);
        CHECK_EQ(snapshot.process.rank, i);
        CHECK_EQ(snapshot.process.world, 8);
        ms_snapshot_cleanup(&snapshot);
    }
    ms_state_set_plan(&(struct ms_state_plan){.tensors = 3, .rank = 7, .world = 9});
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.plan.generation, 0); /* it waits: it has no rank yet */
    CHECK_EQ(snapshot.plan.tensors, 3);
    CHECK_EQ(snapshot.process.rank, 5);
    ms_snapshot_cleanup(&snapshot);
}

/* --- where it is kept */

static size_t said(char *text, size_t bytes)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/log", page_folder);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = file >= 0 ? read(file, text, bytes - 1) : 0;
    text[got > 0 ? got : 0] = '\0';
    close(file);
    unlink(path);
    return strlen(text);
}

static void log_to_folder(enum ms_log_level level)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/log", page_folder);
    ms_log_open(level, path);
}

MS_TEST_AFTER(page_folder_make, a_page_that_cannot_be_kept_is_said)
{
    char text[1024];
    log_to_folder(MS_WARN);
    start_somewhere("/nowhere/at/all");
    CHECK(!ms_is_recorded());
    CHECK(said(text, sizeof(text)) > 0);
    CHECK(strstr(text, "no state page is kept: cannot create /nowhere/at/all: No such file or "
                       "directory") != NULL);
    CHECK_EQ(ms_state_view().bytes, 0);
    CHECK(ms_state_view().page == NULL && strcmp(ms_state_view().path, "") == 0);
}

MS_TEST_AFTER(page_folder_make, the_log_tells_that_there_is_no_memory_for_a_page)
{
    char text[1024];
    for (int i = 0; i < 3; i++) {
        const pid_t child = fork();
        if (child == 0) {
            log_to_folder(MS_WARN);
            may_make = i;
            page_start(1 * MIB);
            may_make = 1000;
            _exit(ms_is_recorded() || said(text, sizeof(text)) == 0 ||
                  strstr(text, "no state page is kept: out of memory") == NULL ||
                  page_count() != 0);
        }
        must_end_well(child);
    }
}

MS_TEST_AFTER(page_folder_make, a_page_that_is_kept_for_the_end_alone_needs_no_file)
{
    for (int i = 0; i < 3; i++) {
        const pid_t child = fork();
        if (child == 0) {
            struct ms_config config = {.state_bytes = MIB, .explain = i == 1};
            strcpy(config.dump_path, i == 2 ? "/a/dump" : "");
            ms_state_prepare(&config);
            CHECK_EQ(ms_is_recorded(), i > 0);
            CHECK_EQ(ms_state_open(), i > 0);
            CHECK_EQ(ms_state_view().bytes, i > 0 ? MIB : 0);
            CHECK_EQ(ms_state_view().path[0], '\0');
            _exit(0);
        }
        must_end_well(child);
    }
}

MS_TEST_AFTER(page_folder_make, memory_takes_the_place_of_a_file_that_cannot_be_made)
{
    struct ms_config config = page_config(1 * MIB);
    strcpy(config.state_dir, "/nowhere/at/all");
    config.explain = true;
    log_to_folder(MS_ERROR);
    ms_state_prepare(&config);
    CHECK(ms_state_open() && ms_state_view().page != NULL);
    CHECK_EQ(ms_state_view().path[0], '\0');
}

MS_TEST_AFTER(page_folder_make, the_view_is_of_the_whole_page)
{
    page_start(1 * MIB);
    const struct ms_state_view view = ms_state_view();
    CHECK_EQ(view.bytes, MIB);
    CHECK(strcmp(view.path, page_path(getpid())) == 0);
    CHECK_EQ(memcmp(view.page, MS_STATE_MAGIC, 8), 0);
}

/* --- events and causes */

static struct ms_state_event read_event(size_t number)
{
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(snapshot.event_count > number);
    const struct ms_state_event event = snapshot.events[number];
    ms_snapshot_cleanup(&snapshot);
    return event;
}

MS_TEST_AFTER(page_folder_make, an_event_says_what_happened_where_and_how_long_it_took)
{
    page_start(1 * MIB);
    ms_caller = "cuCall";
    ms_caller_kernel = "a_kernel";
    ms_caller_reason = MS_REASON_EXPORT;
    const uint64_t began = ms_state_now();
    ahead_ns = 5000000;
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_MATERIALISE, .block = 7, .address = 0x1000, .bytes = 100, .began = began});
    ms_state_event(
        &(struct ms_event){.kind = MS_EVENT_EVICT, .reason = MS_REASON_PRESSURE, .text = "text"});
    const struct ms_state_event first = read_event(0), second = read_event(1);
    CHECK(first.kind == MS_EVENT_MATERIALISE && first.block == 7 && first.address == 0x1000);
    CHECK(first.bytes == 100 && first.reason == MS_REASON_EXPORT);
    CHECK(first.duration_ns >= 5000000 && first.duration_ns < 1000000000);
    CHECK_EQ(first.time_ns, began + first.duration_ns);
    CHECK_EQ(first.thread, syscall(SYS_gettid));
    CHECK(strcmp(first.call, "cuCall") == 0 && strcmp(first.text, "a_kernel") == 0);
    CHECK(second.duration_ns == 0 && second.reason == MS_REASON_PRESSURE);
    CHECK(strcmp(second.text, "text") == 0);
}

MS_TEST_AFTER(page_folder_make, some_events_are_causes_and_others_are_not)
{
    static const struct {
        enum ms_event_kind kind;
        bool is_cause, has_sentence;
    } kinds[] = {{MS_EVENT_ALLOCATE, false, false}, {MS_EVENT_FREE, false, false},
                 {MS_EVENT_RECORD, false, false},   {MS_EVENT_PRESSURE, false, false},
                 {MS_EVENT_PLAN, false, false},     {MS_EVENT_MATERIALISE, true, false},
                 {MS_EVENT_REPLAY, true, false},    {MS_EVENT_EVICT, true, false},
                 {MS_EVENT_PIN, true, false},       {MS_EVENT_REMOTE_READ, true, true},
                 {MS_EVENT_FALLBACK, true, true},   {MS_EVENT_SETTLE, true, false},
                 {MS_EVENT_FAIL, true, true},       {MS_EVENT_DIFFER, true, false}};
    size_t expected = 0;
    page_start(1 * MIB);
    ms_caller = "cuCall";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        ms_state_event(&(struct ms_event){
            .kind = kinds[i].kind, .reason = MS_REASON_SEALED, .bytes = 100 - i, .block = i});
        expected += kinds[i].is_cause;
        struct ms_snapshot snapshot = page_read(getpid());
        CHECK_EQ(snapshot.event_count, i + 1);
        CHECK_EQ(snapshot.cause_count, expected);
        if (kinds[i].is_cause) {
            const struct ms_state_cause *cause = &snapshot.causes[expected - 1];
            CHECK_EQ(cause->kind, kinds[i].kind);
            CHECK_EQ(cause->sentence[0] != '\0', kinds[i].has_sentence);
        }
        ms_snapshot_cleanup(&snapshot);
    }
}

/* A plan's entry that does nothing, say. */
MS_TEST_AFTER(page_folder_make, an_event_of_no_call_is_a_cause_and_no_event)
{
    page_start(1 * MIB);
    ms_caller = "cuCall";
    ms_caller_kernel = "a_kernel";
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_PLAN, .reason = MS_REASON_UNMATCHED, .text = "x", .is_of_no_call = true});
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_PLAN, .reason = MS_REASON_UNMATCHED, .is_of_no_call = true});
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.event_count, 0);
    CHECK_EQ(snapshot.cause_count, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(snapshot.causes[i].call[0], '\0');
        CHECK(snapshot.causes[i].text[0] == '\0' || strcmp(snapshot.causes[i].text, "x") == 0);
    }
    ms_snapshot_cleanup(&snapshot);
}

/* One of a kind, reason, call and text. */
MS_TEST_AFTER(page_folder_make, causes_differ_by_all_that_they_are_of)
{
    page_start(1 * MIB);
    const struct ms_event one = {.kind = MS_EVENT_EVICT, .reason = MS_REASON_PRESSURE, .text = "x"};
    struct ms_event other = one;
    ms_caller = "cuCall";
    ms_state_event(&one);
    other.kind = MS_EVENT_REPLAY;
    ms_state_event(&other);
    other = one;
    other.reason = MS_REASON_OVERCOMMIT;
    ms_state_event(&other);
    other = one;
    other.text = "y";
    ms_state_event(&other);
    ms_caller = "cuOther";
    ms_state_event(&one);
    ms_caller = "cuCall";
    ms_state_event(&one);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.cause_count, 5);
    CHECK_EQ(snapshot.causes[0].count, 2);
    CHECK_EQ(snapshot.causes[1].count, 1);
    ms_snapshot_cleanup(&snapshot);
}

static size_t visited;

static void visit_cause(void *context, const struct ms_state_cause *cause)
{
    CHECK(context == &visited && cause->count > 0);
    visited++;
}

MS_TEST_AFTER(page_folder_make, the_end_shows_each_cause_and_the_last_sample)
{
    page_start(1 * MIB);
    for (int i = 0; i < 3; i++)
        ms_state_event(&(struct ms_event){.kind = MS_EVENT_EVICT, .text = i == 0 ? "x" : "y"});
    ms_counter_move(MS_GAUGE_BACKED, 40);
    ahead_ns = 10000000;
    ms_state_end(visit_cause, &visited);
    CHECK_EQ(visited, 2);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(snapshot.process.ended_ns >= 10000000);
    CHECK_EQ(snapshot.taken_ns, snapshot.process.ended_ns);
    ms_snapshot_cleanup(&snapshot);
}
