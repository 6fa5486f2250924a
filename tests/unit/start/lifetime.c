/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a process, and what it leaves and says at its end. */
#include "runtime/start/lifetime.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "runtime/driver/flags.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"

#define MIB ((uint64_t)1 << 20)

static char text[64 << 10]; /* what the process has said */

static void set_file(const char *variable, const char *format, const char *name)
{
    char value[256];
    snprintf(value, sizeof(value), format, page_folder, name);
    setenv(variable, value, 1);
}

static void start(void)
{
    page_folder_make();
    setenv("METASHARD_STATE_DIR", page_folder, 1);
    setenv("METASHARD_EXPLAIN", "on", 1);
    set_file("METASHARD_LOG", "warn:%s/%s", "log");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static void begin(void)
{
    ms_lifetime_begin(environ);
    CHECK(ms_is_started());
}

static const char *end(void)
{
    char path[128];
    ms_lifetime_end();
    snprintf(path, sizeof(path), "%s/log", page_folder);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = file >= 0 ? read(file, text, sizeof(text) - 1) : 0;
    CHECK(got >= 0);
    text[got] = '\0';
    close(file);
    return text;
}

static int lines_with(const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        count++;
    return count;
}

static void must_say(const char *part)
{
    if (strstr(text, part) == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s, expected %s", text, part);
}

/* --- the start */

MS_TEST_AFTER(start, a_process_that_is_off_starts_nothing)
{
    setenv("METASHARD", "off", 1);
    ms_lifetime_begin(environ);
    CHECK(!ms_is_started() && !ms_is_recorded());
    CHECK_EQ(strlen(end()), 0);
}

MS_TEST_AFTER(start, a_process_starts_once)
{
    begin();
    setenv("METASHARD_MIN_BYTES", "7", 1);
    ms_lifetime_begin(environ);
    CHECK_EQ(ms_config.min_bytes, 2 * MIB);
}

MS_TEST_AFTER(start, a_forked_child_is_not_started)
{
    int status;
    if (ms_test_is_watched())
        ms_test_skip("an emulator does not clear the memory of a child");
    begin();
    const pid_t child = fork();
    if (child == 0)
        _exit(ms_is_started() || ms_is_recorded());
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

/* --- explanations */

static void happen(enum ms_reason reason, const char *call, const char *name, uint64_t bytes)
{
    ms_caller = call;
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_FALLBACK, .reason = reason, .text = name, .bytes = bytes});
}

MS_TEST_AFTER(start, where_nothing_happened_nothing_is_explained)
{
    begin();
    happen(MS_REASON_CALL, "cuCall", "it has no sentence", 1);
    end();
    must_say(
        "explain: nothing to explain: what was deferred stayed so until its bytes were used\n");
    must_say("for more, run: metashard-dump show ");
    must_say(page_path(getpid()));
    CHECK_EQ(lines_with("\n"), 2);
}

MS_TEST_AFTER(start, each_reason_is_one_line_the_one_with_the_most_bytes_first)
{
    begin();
    happen(MS_REASON_SEALED, "cuSmall", NULL, MIB);
    happen(MS_REASON_EXPORT, "cuLarge", NULL, 2 * MIB);
    happen(MS_REASON_SEALED, "cuSmall", NULL, MIB / 2);
    happen(MS_REASON_UNLOAD, "cuNone", NULL, 0);
    end();
    CHECK_EQ(lines_with("\n"), 4);
    CHECK_EQ(lines_with("explain: "), 3);
    must_say("explain: cuLarge needs physical memory");
    must_say("leaves it to the driver. (1 time, 2.0 MiB)\n");
    must_say("explain: cuSmall is not modelled");
    must_say("lists them. (2 times, 1.5 MiB)\n");
    must_say("explain: cuNone unloads code of recorded launches");
    must_say("are sharded. (1 time)\n");
    CHECK(strstr(text, "cuLarge") < strstr(text, "cuSmall"));
    CHECK(strstr(text, "cuSmall") < strstr(text, "cuNone"));
}

/* As often as it has bytes; then the one that happened more often comes first. */
MS_TEST_AFTER(start, of_a_reason_the_first_is_explained_and_three_more_are_named)
{
    char names[8][2] = {"a", "b", "c", "d", "e", "f"};
    begin();
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k <= i; k++)
            happen(MS_REASON_NO_RULE, "cuLaunchKernel", names[i], 0);
    }
    end();
    must_say("The kernel f used these tensors");
    must_say(" (21 times); also: e, d, c and 2 more\n");
}

MS_TEST_AFTER(start, names_beside_it_are_cut_and_a_call_stands_for_one_without)
{
    char name[100];
    memset(name, 'n', sizeof(name));
    begin();
    happen(MS_REASON_REMOTE_READ, "cuCall", "largest", 9 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuOther", NULL, 3 * MIB);
    name[80] = '\0';
    happen(MS_REASON_REMOTE_READ, "cuCall", name, 2 * MIB);
    name[80] = 'n';
    name[81] = '\0';
    happen(MS_REASON_REMOTE_READ, "cuCall", name, MIB);
    end();
    must_say("cuCall read tensor largest");
    must_say(" (4 times, 15.0 MiB); also: cuOther, nnn");
    name[80] = '\0';
    char both[256];
    snprintf(both, sizeof(both), "; also: cuOther, %s, %s...\n", name, name);
    must_say(both);
}

/* layers.0.weight and layers.1.weight are one. */
MS_TEST_AFTER(start, names_that_differ_in_numbers_are_one)
{
    begin();
    happen(MS_REASON_REMOTE_READ, "cuCall", "layers.0.weight", 10 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "layers.17.weight", 10 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "3.bias", 7 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "4.bias", 7 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "list.5", 3 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "list.6", 3 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "1x.w2.77", MIB);
    end();
    must_say("cuCall read tensor layers.*.weight");
    must_say(" (7 times, 41.0 MiB); also: *.bias, list.*, 1x.w2.*\n");
}

MS_TEST_AFTER(start, a_name_that_is_a_number_is_kept)
{
    begin();
    happen(MS_REASON_REMOTE_READ, "cuCall", "17", MIB);
    end();
    must_say("cuCall read tensor 17,");
}

/* --- ranks */

struct rank {
    pid_t pid;
    int tell;
};

/* The last change of a block tells that it ran until then. */
static void be_killed(void)
{
    struct ms_state_place place = {0};
    ms_state_put(&place, &(struct ms_state_block){.id = 1, .bytes = MIB});
    raise(SIGKILL);
}

/* A rank that has started, and ends when it is told to. */
static struct rank start_rank(const char *number, const char *world, enum ms_reason reason)
{
    int ready[2], done[2];
    char byte;
    CHECK_EQ(pipe(ready), 0);
    CHECK_EQ(pipe(done), 0);
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("RANK", number, 1);
        setenv("WORLD_SIZE", world, 1);
        set_file("METASHARD_LOG", "warn:%s/%s", "log-of-rank");
        begin();
        happen(reason, "cuRank", NULL, MIB);
        close(done[1]);
        CHECK_EQ(write(ready[1], "", 1), 1);
        CHECK_EQ(read(done[0], &byte, 1), 1);
        if (byte == 'k')
            be_killed();
        ms_lifetime_end();
        _exit(0);
    }
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(done[0]);
    return (struct rank){child, done[1]};
}

static void tell_rank(struct rank rank, char what, int expected)
{
    int status;
    CHECK_EQ(write(rank.tell, &what, 1), 1);
    CHECK_EQ(waitpid(rank.pid, &status, 0), rank.pid);
    CHECK_EQ(status, expected);
    close(rank.tell);
}

static void end_rank(struct rank rank)
{
    tell_rank(rank, 'e', 0);
}

static void kill_rank(struct rank rank)
{
    tell_rank(rank, 'k', SIGKILL);
}

static void begin_as(const char *number, const char *world)
{
    setenv("RANK", number, 1);
    setenv("WORLD_SIZE", world, 1);
    begin();
    happen(MS_REASON_SEALED, "cuRank", NULL, MIB);
}

MS_TEST_AFTER(start, the_last_rank_of_a_run_speaks_for_all)
{
    const struct rank one = start_rank("1", "3", MS_REASON_SEALED),
                      two = start_rank("2", "3", MS_REASON_EXPORT);
    begin_as("0", "3");
    end_rank(one);
    kill_rank(two); /* what it did is in its page */
    end();
    CHECK_EQ(lines_with("\n"), 3);
    must_say("lists them. (2 times, 2.0 MiB, on 3 ranks)\n");
    must_say("to the driver. (1 time, 1.0 MiB, on 3 ranks)\n");
}

MS_TEST_AFTER(start, a_rank_that_is_not_the_last_says_nothing)
{
    if (ms_test_is_watched())
        ms_test_skip("an emulator does not tell which processes live");
    const struct rank one = start_rank("1", "2", MS_REASON_SEALED);
    begin_as("0", "2");
    CHECK_EQ(strlen(end()), 0);
    kill_rank(one);
}

MS_TEST_AFTER(start, ranks_of_another_run_do_not_count)
{
    const struct rank same = start_rank("0", "2", MS_REASON_SEALED),
                      other = start_rank("1", "3", MS_REASON_SEALED),
                      before = start_rank("1", "2", MS_REASON_SEALED);
    kill_rank(before); /* it never ran while this process did: its last sign is from before */
    const struct timespec moment = {.tv_nsec = 20000000};
    nanosleep(&moment, NULL);
    begin_as("0", "2");
    end();
    must_say("lists them. (1 time, 1.0 MiB)\n");
    kill_rank(same);
    kill_rank(other);
}

MS_TEST_AFTER(start, of_a_rank_that_was_started_again_the_later_process_counts)
{
    const struct rank first = start_rank("1", "2", MS_REASON_EXPORT),
                      second = start_rank("1", "2", MS_REASON_SEALED);
    begin_as("0", "2");
    end_rank(second);
    end_rank(first);
    end();
    CHECK_EQ(lines_with("\n"), 2);
    must_say("lists them. (2 times, 2.0 MiB, on 2 ranks)\n");
}

/* --- what is left */

MS_TEST_AFTER(start, a_dump_is_a_copy_of_the_page)
{
    char path[128];
    struct ms_snapshot snapshot;
    struct ms_fault fault;
    set_file("METASHARD_DUMP", "%s/%s", "dump");
    unsetenv("METASHARD_EXPLAIN");
    snprintf(path, sizeof(path), "%s/dump", page_folder);
    umask(0);
    begin();
    CHECK_EQ(strlen(end()), 0); /* nor is said where it is */
    struct stat found;
    CHECK_EQ(stat(path, &found), 0);
    CHECK_EQ(found.st_mode, S_IFREG | 0600);
    CHECK_EQ(found.st_size, 4 * MIB);
    CHECK(ms_snapshot_read(path, &snapshot, &fault));
    CHECK_EQ(snapshot.process.pid, getpid());
    CHECK(snapshot.process.ended_ns > 0);
    ms_snapshot_cleanup(&snapshot);
}

static void must_not_dump(const char *expected)
{
    begin();
    end();
    must_say("warn: METASHARD_DUMP: ");
    must_say(expected);
}

MS_TEST_AFTER(start, a_dump_into_a_pipe_is_refused)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/pipe", page_folder);
    CHECK_EQ(mkfifo(path, 0600), 0);
    set_file("METASHARD_DUMP", "%s/%s", "pipe");
    must_not_dump("/pipe is a pipe: expected a regular file\n");
}

MS_TEST_AFTER(start, a_dump_that_cannot_be_written_is_said)
{
    set_file("METASHARD_DUMP", "%s/%s", "no/such");
    must_not_dump("cannot write all of ");
    must_say("/no/such: No such file or directory\n");
}

MS_TEST_AFTER(start, a_dump_into_a_full_device_is_said)
{
    setenv("METASHARD_DUMP", "/dev/full", 1);
    must_not_dump("cannot write all of /dev/full: No space left on device\n");
}

MS_TEST_AFTER(start, the_summary_has_the_sums)
{
    set_file("METASHARD_LOG", "info:%s/%s", "log");
    set_file("METASHARD_DUMP", "%s/%s", "dump");
    unsetenv("METASHARD_EXPLAIN");
    begin();
    ms_state_open();
    ms_counter_add(MS_COUNT_ALLOCATIONS, 3);
    ms_counter_add(MS_COUNT_REQUESTED_BYTES, 10 * MIB);
    ms_counter_move(MS_GAUGE_BACKED, (int64_t)(5 * MIB));
    ms_counter_add(MS_COUNT_H2D_BYTES, 4 * MIB);
    ms_counter_add(MS_COUNT_RECORDED_FILE_BYTES, 2 * MIB);
    ms_counter_add(MS_COUNT_RECORDED_SNAPSHOT_BYTES, MIB / 2);
    ms_counter_move(MS_GAUGE_LIVE, (int64_t)(7 * MIB));
    end();
    must_say("3 allocations of 10.0 MiB deferred; peak 5.0 MiB, 7.0 without MetaShard; 4.0 MiB "
             "copied to the device, 2.0 MiB recorded from files, 0.5 MiB from memory\n");
    must_say("for more, run: metashard-dump show ");
    must_say("/dump\n");
}

MS_TEST_AFTER(start, without_figures_of_what_lives_the_summary_does_not_compare)
{
    set_file("METASHARD_LOG", "info:%s/%s", "log");
    begin();
    end();
    must_say("0 allocations of 0.0 MiB deferred; peak 0.0 MiB; 0.0 MiB copied");
}
