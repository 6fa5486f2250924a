/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a process, and what it leaves and says at its end. */
#include "runtime/files/host_snapshot.h"
#include "runtime/start/lifetime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "runtime/calls/file_writes.h"
#include "runtime/control/control.h"
#include "runtime/driver/flags.h"
#include "runtime/files/source.h"
#include "runtime/kernel/rules.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "tests/state/page_folder.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"

#define MIB ((uint64_t)1 << 20)

static char text[64 << 10]; /* what the process has said */

/* --- what the shim calls, as the linker lets it be seen (meson.build) */

static unsigned naps, locks, refused_locks, controlled, watched;
static bool advice_fails, folder_fails, stream_fails;
static char rules[64];
static ms_tensor_namer *namer;

WRAPS(madvise, nanosleep, flock, fdopendir, fdopen, ms_file_writes_start);
WRAPS(ms_control_start, ms_rules_read, ms_publish_set_namer, ms_shard_describe);
WRAPS(ms_shard_warn_if_waiting, ms_shard_publish, ms_shard_visit_idle);
int __wrap_madvise(void *address, size_t bytes, int advice)
{
    return advice_fails && advice == MADV_WIPEONFORK ? -1 : __real_madvise(address, bytes, advice);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    naps += time->tv_sec == 0 && time->tv_nsec == 10000000;
    return refused_locks > 0 ? 0 : __real_nanosleep(time, left);
}

int __wrap_flock(int file, int operation)
{
    CHECK(file >= 0 && operation == (LOCK_EX | LOCK_NB));
    return locks++ < refused_locks ? -1 : 0;
}

DIR *__wrap_fdopendir(int file)
{
    return folder_fails ? NULL : __real_fdopendir(file);
}

FILE *__wrap_fdopen(int file, const char *mode)
{
    errno = ENOMEM;
    return stream_fails ? NULL : __real_fdopen(file, mode);
}

void __wrap_ms_file_writes_start(void)
{
    watched++;
}

void __wrap_ms_control_start(void)
{
    CHECK(ms_is_started());
    controlled++;
}

void __wrap_ms_rules_read(const char *user_path)
{
    snprintf(rules, sizeof(rules), "%s", user_path);
}

void __wrap_ms_publish_set_namer(ms_tensor_namer *set)
{
    namer = set;
}

static int open_folders(void)
{
    struct stat found;
    int count = 0;
    for (int i = 0; i < 256; i++)
        count += fstat(i, &found) == 0 && S_ISDIR(found.st_mode);
    return count;
}

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
    ms_lifetime_begin(environ, "");
    CHECK(ms_is_started());
}

/* Nothing is left of what it took for that. */
static const char *end(void)
{
    char path[128];
    const int before = live, folders = open_folders();
    const bool had_page = ms_state_view().page != NULL;
    ms_lifetime_end();
    CHECK(live <= before || !had_page);
    CHECK_EQ(open_folders(), folders);
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

STORY_AFTER(start, a_process_that_is_off_starts_nothing, setenv("METASHARD", "off", 1),
            ms_lifetime_begin(environ, ""), IS(!ms_is_started() && !ms_is_recorded()),
            EQUALS(strlen(end()), 0))

STORY_AFTER(start, a_process_starts_once, begin(), setenv("METASHARD_MIN_BYTES", "7", 1),
            ms_lifetime_begin(environ, ""), EQUALS(ms_config.min_bytes, 2 * MIB))

/* --- another library keeps the program's calls from the shim */

static void must_say_bypassed(void)
{
    struct ms_snapshot snapshot;
    struct ms_fault fault;
    CHECK(ms_snapshot_read(ms_state_view().path, &snapshot, &fault));
    CHECK(snapshot.cause_count == 1 && snapshot.causes[0].reason == MS_REASON_BYPASSED);
    CHECK(strncmp(snapshot.causes[0].sentence, "/lib/other.so stands before MetaShard ", 38) == 0);
    CHECK(snapshot.event_count == 0);
    ms_snapshot_cleanup(&snapshot);
    must_say("warn: /lib/other.so stands before MetaShard and ");
    CHECK_EQ(lines_with("\n"), 1);
}

STORY_AFTER(start, a_process_that_bypassed_the_shim_says_so_at_its_end,
            ms_lifetime_begin(environ, "/lib/other.so"),
            IS(!ms_is_started() && controlled == 0 && watched == 0), end(), must_say_bypassed())

STORY_AFTER(start, a_process_that_is_off_says_nothing, setenv("METASHARD", "off", 1),
            ms_lifetime_begin(environ, "/lib/other.so"), IS(!ms_is_recorded()),
            EQUALS(strlen(end()), 0))

static void must_be_inert_in_a_child(void)
{
    int status;
    const pid_t child = fork();
    if (child == 0)
        _exit(ms_is_started() || ms_is_recorded());
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

MS_TEST_AFTER(start, a_forked_child_is_not_started)
{
    if (ms_test_is_watched())
        ms_test_skip("an emulator does not clear the memory of a child");
    begin();
    must_be_inert_in_a_child();
}

STORY_AFTER(start, a_kernel_that_wipes_no_memory_leaves_a_forked_child_inert, advice_fails = true,
            begin(), must_be_inert_in_a_child(), IS(ms_is_started()))

STORY_AFTER(start, the_start_hands_on_what_was_configured,
            setenv("METASHARD_SNAPSHOT_BYTES", "123", 1), begin(),
            IS(atomic_load(&ms_host_snapshot_limit) == 123 && watched == 1 && controlled == 1 &&
               namer == ms_placement_query_name),
            EQUALS(strlen(rules), 0))

STORY_AFTER(start, rules_of_the_user_are_read, setenv("METASHARD_KERNEL_RULES", "/some/rules", 1),
            begin(), IS(strcmp(rules, "/some/rules") == 0))

/* --- explanations */

static void happen(enum ms_reason reason, const char *call, const char *name, uint64_t bytes)
{
    ms_caller = call;
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_FALLBACK, .reason = reason, .text = name, .bytes = bytes});
}

STORY_AFTER(
    start, an_explanation_says_that_nothing_happened, begin(),
    happen(MS_REASON_CALL, "cuCall", "it has no sentence", 1), end(),
    must_say(
        "explain: nothing to explain: deferred memory stayed deferred until its bytes were used\n"),
    must_say("for more, run: metashard-dump show "), must_say(page_path(getpid())),
    EQUALS(lines_with("\n"), 2))

STORY_AFTER(start, each_reason_is_one_line_the_one_with_the_most_bytes_first, begin(),
            happen(MS_REASON_SEALED, "cuSmall", NULL, MIB),
            happen(MS_REASON_EXPORT, "cuLarge", NULL, 2 * MIB),
            happen(MS_REASON_SEALED, "cuSmall", NULL, MIB / 2),
            happen(MS_REASON_UNLOAD, "cuNone", NULL, 0), end(), EQUALS(lines_with("\n"), 4),
            EQUALS(lines_with("explain: "), 3), must_say("explain: cuLarge needs physical memory"),
            must_say("leaves it to the driver. (1 time, 2.0 MiB)\n"),
            must_say("explain: cuSmall is not modelled"),
            must_say("lists them. (2 times, 1.5 MiB)\n"),
            must_say("explain: cuNone unloads code of recorded launches"),
            must_say("are sharded. (1 time)\n"),
            IS(strstr(text, "cuLarge") < strstr(text, "cuSmall")),
            IS(strstr(text, "cuSmall") < strstr(text, "cuNone")))

/* As often as it has bytes; then the one that happened more often comes first. */
MS_TEST_AFTER(start, an_explanation_names_three_more_of_a_reason)
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
STORY_AFTER(start, names_that_differ_in_numbers_are_one, begin(),
            happen(MS_REASON_REMOTE_READ, "cuCall", "layers.0.weight", 10 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "layers.17.weight", 10 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "3.bias", 7 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "4.bias", 7 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "list.5", 3 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "list.6", 3 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "1x.w2.77", MIB), end(),
            must_say("cuCall read tensor layers.*.weight"),
            must_say(" (7 times, 41.0 MiB); also: *.bias, list.*, 1x.w2.*\n"))

STORY_AFTER(start, a_name_that_is_a_number_is_kept, begin(),
            happen(MS_REASON_REMOTE_READ, "cuCall", "17", MIB), end(),
            must_say("cuCall read tensor 17,"))

MS_TEST_AFTER(start, names_are_cut_where_there_is_no_room)
{
    char name[400], expected[400];
    memset(name, 'n', sizeof(name));
    name[350] = '\0';
    begin();
    happen(MS_REASON_REMOTE_READ, "cuCall", "a", 9 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", name, MIB);
    end();
    snprintf(expected, sizeof(expected), "; also: %.80s...\n", name);
    must_say(expected);
}

/* A number is a part between dots; a name is never one "*". */
STORY_AFTER(start, only_whole_parts_are_numbers, begin(),
            happen(MS_REASON_REMOTE_READ, "cuCall", "a1.b", 9 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "a..2x", 3 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "9", 2 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuCall", "b.3.4", MIB), end(),
            must_say("cuCall read tensor a1.b,"), must_say("; also: a..2x, 9, b.*.*\n"))

MS_TEST_AFTER(start, an_explanation_begins_with_the_most_frequent_of_as_many_bytes)
{
    begin();
    happen(MS_REASON_REMOTE_READ, "cuCall", "once", 4 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "first", 2 * MIB);
    happen(MS_REASON_REMOTE_READ, "cuCall", "second", 2 * MIB);
    for (int i = 0; i < 4; i++)
        happen(MS_REASON_REMOTE_READ, "cuCall", "often", MIB);
    end();
    must_say("cuCall read tensor often,");
    must_say("; also: once, first, second\n");
}

STORY_AFTER(start, another_call_is_another_cause, begin(),
            happen(MS_REASON_REMOTE_READ, "cuCall", "x", 2 * MIB),
            happen(MS_REASON_REMOTE_READ, "cuOther", "x", MIB), end(),
            must_say("cuCall read tensor x,"), must_say("; also: x\n"))

MS_TEST_AFTER(start, a_process_without_memory_explains_nothing)
{
    begin();
    happen(MS_REASON_SEALED, "cuCall", NULL, MIB);
    may_make = 0;
    end();
    CHECK_EQ(lines_with("explain: "), 0);
    must_say("for more, run: metashard-dump show ");
    may_make = 1000000;
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK(snapshot.process.ended_ns > 0);
    ms_snapshot_cleanup(&snapshot);
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

/* NULL: it is not known. */
static void set_rank(const char *number, const char *world)
{
    if (number != NULL)
        setenv("RANK", number, 1);
    if (world != NULL)
        setenv("WORLD_SIZE", world, 1);
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
        set_rank(number, world);
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
    set_rank(number, world);
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

MS_TEST_AFTER(start, the_later_process_of_a_restarted_rank_counts)
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

MS_TEST_AFTER(start, a_process_that_does_not_know_its_rank_speaks_for_itself)
{
    static const char *const own[][2] = {{NULL, "2"}, {"0", NULL}};
    for (int i = 0; i < 2; i++) {
        const struct rank one = start_rank("1", own[i][1], MS_REASON_SEALED);
        const pid_t child = fork();
        int status;
        if (child == 0) {
            begin_as(own[i][0], own[i][1]);
            end();
            must_say("lists them. (1 time, 1.0 MiB)\n");
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        kill_rank(one);
        unsetenv("WORLD_SIZE");
    }
}

/* Whoever holds the folder is waited for, a second at most. */
MS_TEST_AFTER(start, ranks_end_one_at_a_time)
{
    static const unsigned refused[] = {0, 2, 99, 100, 1000};
    for (int i = 0; i < 5; i++) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            begin_as("0", "2");
            naps = 0;
            refused_locks = refused[i];
            end();
            CHECK_EQ(naps, refused[i] < 100 ? refused[i] : 100);
            CHECK_EQ(locks, refused[i] < 100 ? refused[i] + 1 : 100);
            must_say("lists them. (1 time, 1.0 MiB)\n");
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

static void end_with_a_killed_rank(void (*change)(pid_t rank), const char *expected)
{
    const struct rank one = start_rank("1", "2", MS_REASON_SEALED);
    begin_as("0", "2");
    kill_rank(one);
    change(one.pid);
    end();
    must_say(expected);
}

static void forbid_folder(pid_t rank)
{
    (void)rank;
    folder_fails = true;
}

static void forbid_pages(pid_t rank)
{
    (void)rank;
    may_make = 1;
}

static void rename_to(pid_t rank, size_t length)
{
    char name[192];
    snprintf(name, sizeof(name), "%s/metashard-%0*d.state", page_folder, (int)length - 16, 7);
    CHECK_EQ(rename(page_path(rank), name), 0);
}

static void make_long(pid_t rank)
{
    rename_to(rank, 63);
}

static void make_too_long(pid_t rank)
{
    rename_to(rank, 64);
}

MS_TEST_AFTER(start, a_rank_without_the_folder_speaks_for_itself)
{
    end_with_a_killed_rank(forbid_folder, "lists them. (1 time, 1.0 MiB)\n");
}

MS_TEST_AFTER(start, a_rank_without_memory_speaks_for_itself)
{
    end_with_a_killed_rank(forbid_pages, "lists them. (1 time, 1.0 MiB)\n");
}

MS_TEST_AFTER(start, a_page_with_a_name_of_any_length_counts)
{
    end_with_a_killed_rank(make_long, "lists them. (2 times, 2.0 MiB, on 2 ranks)\n");
}

MS_TEST_AFTER(start, a_rank_whose_folder_name_is_too_long_speaks_for_itself)
{
    end_with_a_killed_rank(make_too_long, "lists them. (1 time, 1.0 MiB)\n");
}

/* --- what a plan could not do */

static struct ms_state_plan plan;
static struct {
    const char *name;
    bool is_ambiguous;
} idle[8];
static size_t idle_count;
static unsigned warned, published, visited;

void __wrap_ms_shard_describe(struct ms_state_plan *facts_out)
{
    *facts_out = plan;
}

void __wrap_ms_shard_warn_if_waiting(void)
{
    warned++;
}

void __wrap_ms_shard_publish(const char *what, uint64_t began)
{
    CHECK(what == NULL && began == 0);
    published++;
}

void __wrap_ms_shard_visit_idle(ms_shard_visitor *visit, void *context)
{
    visited++;
    for (size_t i = 0; i < idle_count; i++)
        visit(context, i, idle[i].name, idle[i].is_ambiguous);
}

static void add_idle(const char *name, bool is_ambiguous)
{
    idle[idle_count].name = name;
    idle[idle_count++].is_ambiguous = is_ambiguous;
}

static void prepare_plan(void)
{
    start();
    plan = (struct ms_state_plan){.generation = 1, .tensors = 3, .name = "a plan"};
}

static void start_plan(void)
{
    prepare_plan();
    begin();
}

MS_TEST_AFTER(start_plan, entries_that_decide_nothing_are_named)
{
    add_idle("w", false);
    add_idle(NULL, false);
    add_idle("v", true);
    end();
    must_say("warn: a plan: entries that match no tensor of the program: 2 (w, tensors[1])\n");
    must_say("warn: a plan: entries that match more than one block and so decide nothing: 1 (v)\n");
    CHECK(published == 1 && visited == 1 && warned == 0);
    struct ms_snapshot snapshot = page_read(getpid());
    CHECK_EQ(snapshot.cause_count, 3);
    unsigned unmatched = 0;
    for (size_t i = 0; i < 3; i++) {
        const char *name = snapshot.causes[i].text;
        unmatched += snapshot.causes[i].reason == MS_REASON_UNMATCHED;
        CHECK(snapshot.causes[i].reason == MS_REASON_UNMATCHED ||
              (snapshot.causes[i].reason == MS_REASON_AMBIGUOUS && strcmp(name, "v") == 0));
        CHECK(snapshot.causes[i].call[0] == '\0');
    }
    CHECK_EQ(unmatched, 2);
    ms_snapshot_cleanup(&snapshot);
}

STORY_AFTER(start_plan, a_plan_whose_entries_all_decide_is_not_told_of,
            ms_counter_add(MS_COUNT_ALLOCATIONS, 1), end(), EQUALS(lines_with("a plan: "), 0),
            IS(published == 1 && visited == 1 && warned == 1))

/* As many names as there is room for, and none behind one for which there is none. */
MS_TEST_AFTER(prepare_plan, names_that_do_not_fit_are_counted)
{
    char first[127], second[129], expected[512];
    for (size_t more = 0; more < 2; more++) {
        int status;
        memset(first, 'a', sizeof(first));
        memset(second, 'b', sizeof(second));
        first[126] = second[127 + more] = '\0'; /* all have room for 255 bytes */
        const pid_t child = fork();
        if (child == 0) {
            begin();
            add_idle(first, false);
            add_idle(second, false);
            add_idle("c", false);
            end();
            snprintf(expected, sizeof(expected), "program: 3 (%s%s%s and others)\n", first,
                     more == 0 ? ", " : "", more == 0 ? second : "");
            must_say(expected);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

MS_TEST_AFTER(prepare_plan, a_plan_without_tensors_has_no_entries)
{
    static const struct {
        uint64_t generation, tensors;
        unsigned published, visited;
    } cases[] = {{0, 0, 0, 0}, {1, 0, 1, 0}, {0, 3, 1, 1}};
    for (int i = 0; i < 3; i++) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            begin();
            plan.generation = cases[i].generation;
            plan.tensors = cases[i].tensors;
            end();
            CHECK(published == cases[i].published && visited == cases[i].visited);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
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
    CHECK_EQ(lines_with("METASHARD_DUMP"), 1);
}

STORY_AFTER(start, a_dump_has_memory_or_is_said, stream_fails = true,
            set_file("METASHARD_DUMP", "%s/%s", "dump"),
            must_not_dump("/dump: Cannot allocate memory\n"))

/* Without the signal that ends a process. */
MS_TEST_AFTER(start, a_dump_that_is_too_large_is_said)
{
    struct rlimit files, small;
    set_file("METASHARD_DUMP", "%s/%s", "dump");
    begin();
    ms_state_open();
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &files), 0);
    small = files;
    small.rlim_cur = MIB;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    end();
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &files), 0);
    must_say("/dump: File too large\n");
}

MS_TEST_AFTER(start, a_dump_may_have_descriptor_0)
{
    const int kept = fcntl(0, F_DUPFD, 100);
    set_file("METASHARD_DUMP", "%s/%s", "dump");
    begin();
    ms_state_open();
    close(0);
    end();
    if (kept >= 0)
        CHECK(dup2(kept, 0) == 0 && close(kept) == 0);
    CHECK_EQ(lines_with("METASHARD_DUMP"), 0);
}

STORY_AFTER(start, a_dump_that_cannot_be_written_is_said,
            set_file("METASHARD_DUMP", "%s/%s", "no/such"), must_not_dump("cannot write all of "),
            must_say("/no/such: No such file or directory\n"))

STORY_AFTER(start, a_dump_into_a_full_device_is_said, setenv("METASHARD_DUMP", "/dev/full", 1),
            must_not_dump("cannot write all of /dev/full: No space left on device\n"))

STORY_AFTER(
    start, the_summary_has_the_sums, set_file("METASHARD_LOG", "info:%s/%s", "log"),
    set_file("METASHARD_DUMP", "%s/%s", "dump"), unsetenv("METASHARD_EXPLAIN"), begin(),
    ms_state_open(), ms_counter_add(MS_COUNT_ALLOCATIONS, 3),
    ms_counter_add(MS_COUNT_REQUESTED_BYTES, 10 * MIB),
    ms_counter_move(MS_GAUGE_BACKED, (int64_t)(5 * MIB)),
    ms_counter_add(MS_COUNT_H2D_BYTES, 4 * MIB),
    ms_counter_add(MS_COUNT_RECORDED_FILE_BYTES, 2 * MIB),
    ms_counter_add(MS_COUNT_RECORDED_SNAPSHOT_BYTES, MIB / 2),
    ms_counter_move(MS_GAUGE_LIVE, (int64_t)(7 * MIB)), end(),
    must_say("3 allocations of 10.0 MiB deferred; peak 5.0 MiB, 7.0 without MetaShard; 4.0 MiB "
             "copied to the device, 2.0 MiB recorded from files, 0.5 MiB from memory\n"),
    must_say("for more, run: metashard-dump show "), must_say("/dump\n"))

STORY_AFTER(start, the_summary_without_figures_of_live_memory_compares_none,
            set_file("METASHARD_LOG", "info:%s/%s", "log"), begin(), end(),
            must_say("0 allocations of 0.0 MiB deferred; peak 0.0 MiB; 0.0 MiB copied"))
