/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hammer [SECONDS [WRITERS]]: a process writes its state page as fast as it can, and another one
 * reads it all the time. Every record says one number in all of its fields, so a torn one shows.
 * TAP.
 *
 * METASHARD_HAMMER_SECONDS asks for a longer run than the default, 2 s; a minute is what a release
 * wants.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "runtime/state/caller.h"
#include "tests/state/page_folder.h"

enum { MAX_WRITERS = 16, PLACES = 64 };

static _Atomic bool is_over;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- the writer */

static void name_of(uint64_t number, char name[100])
{
    snprintf(name, 100, "%020" PRIu64 "-%020" PRIu64 "-%020" PRIu64 "-%020" PRIu64, number, number,
             number, number);
}

static struct ms_state_block block_of(uint64_t id, uint64_t number)
{
    struct ms_state_block block = {.id = id,
                                   .address = number,
                                   .bytes = id << 20,
                                   .backed_bytes = number,
                                   .deferred_bytes = number,
                                   .cached_bytes = number,
                                   .remote_bytes = number,
                                   .file_offset = number,
                                   .file = 1};
    for (int i = 0; i < MS_BYTES_KIND_COUNT; i++)
        block.kind_bytes[i] = number;
    name_of(number, block.name);
    return block;
}

/* Each thread has blocks of its own, as claims give them; events are everybody's. */
static void *write_all(void *argument)
{
    const uint64_t thread = *(const uint64_t *)argument;
    static _Thread_local struct ms_state_place places[PLACES];
    char name[100];
    for (uint64_t number = 1; !atomic_load(&is_over); number++) {
        const uint64_t at = number % PLACES;
        const struct ms_state_block block = block_of(1 + thread * PLACES + at, number);
        if (number % 97 == 0)
            ms_state_remove(&places[at]);
        ms_state_put(&places[at], &block);
        const uint64_t said = number % 5 == 0 ? number % 32 : number;
        name_of(said, name);
        ms_state_event(
            &(struct ms_event){.kind = number % 5 == 0 ? MS_EVENT_EVICT : MS_EVENT_RECORD,
                               .block = said,
                               .address = said,
                               .bytes = said,
                               .text = name});
    }
    return NULL;
}

static void run_writer(size_t writers, int ready)
{
    pthread_t threads[MAX_WRITERS];
    static uint64_t numbers[MAX_WRITERS];
    page_start(MS_STATE_LEAST_BYTES);
    ms_caller = "cuCall";
    for (size_t i = 0; i < writers; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, write_all, &numbers[i]) != 0)
            _exit(1);
    }
    if (write(ready, "", 1) != 1)
        _exit(1);
    for (size_t i = 0; i < writers; i++)
        pthread_join(threads[i], NULL);
}

/* --- the reader */

static bool is_whole_block(const struct ms_state_block *block)
{
    const struct ms_state_block wanted = block_of(block->id, block->address);
    bool is_whole = block->bytes == wanted.bytes && block->backed_bytes == block->address &&
                    block->deferred_bytes == block->address &&
                    block->cached_bytes == block->address &&
                    block->remote_bytes == block->address && block->file_offset == block->address &&
                    strcmp(block->name, wanted.name) == 0;
    for (int i = 0; i < MS_BYTES_KIND_COUNT; i++)
        is_whole = is_whole && block->kind_bytes[i] == block->address;
    return is_whole;
}

static bool is_whole_event(const struct ms_state_event *event)
{
    char name[100];
    name_of(event->block, name);
    return event->address == event->block && event->bytes == event->block &&
           strcmp(event->text, name) == 0;
}

/* The part that was read wrong, in words; NULL: all was whole. */
static const char *find_torn(const struct ms_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->block_count; i++) {
        if (!is_whole_block(&snapshot->blocks[i]))
            return "a block";
    }
    for (size_t i = 0; i < snapshot->event_count; i++) {
        if (!is_whole_event(&snapshot->events[i]))
            return "an event";
    }
    for (size_t i = 0; i < snapshot->cause_count; i++) {
        const struct ms_state_cause *cause = &snapshot->causes[i];
        if (cause->kind != MS_EVENT_EVICT || cause->last_ns < cause->first_ns ||
            cause->bytes != cause->count * strtoull(cause->text, NULL, 10))
            return "a cause";
    }
    return NULL;
}

static uint64_t read_all(pid_t writer, double seconds, const char **torn_out)
{
    const double end = now() + seconds;
    uint64_t readings = 0, records = 0;
    for (*torn_out = NULL; *torn_out == NULL && now() < end; readings++) {
        struct ms_snapshot snapshot = page_read(writer);
        *torn_out = find_torn(&snapshot);
        records += snapshot.block_count + snapshot.event_count;
        ms_snapshot_cleanup(&snapshot);
    }
    printf("# %" PRIu64 " readings, %" PRIu64 " records\n", readings, records);
    return records;
}

static double seconds_of(int argc, char **argv)
{
    const char *text = argc > 1 ? argv[1] : getenv("METASHARD_HAMMER_SECONDS");
    return text != NULL ? strtod(text, NULL) : 2;
}

int main(int argc, char **argv)
{
    const double seconds = seconds_of(argc, argv);
    size_t writers = argc > 2 ? strtoul(argv[2], NULL, 10) : 3;
    writers = writers > MAX_WRITERS ? MAX_WRITERS : writers;
    int ready[2];
    page_folder_make();
    CHECK_EQ(pipe(ready), 0);
    const pid_t writer = fork();
    if (writer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_writer(writers, ready[1]);
        _exit(0);
    }
    char byte;
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    const char *torn;
    const uint64_t records = read_all(writer, seconds, &torn);
    kill(writer, SIGKILL); /* in the middle of a write, as likely as not */
    waitpid(writer, NULL, 0);
    printf("1..4\n%s 1 no record of a live process is torn%s%s\n", torn == NULL ? "ok" : "not ok",
           torn != NULL ? ": " : "", torn != NULL ? torn : "");
    printf("%s 2 there was something to read\n", records > 1000 ? "ok" : "not ok");
    struct ms_snapshot snapshot = page_read(writer);
    const char *torn_after = find_torn(&snapshot);
    printf("%s 3 nor of one that was killed\n", torn_after == NULL ? "ok" : "not ok");
    printf("%s 4 at most one for each thread is left out\n# %zu of %zu\n",
           snapshot.torn_records <= 2 * writers ? "ok" : "not ok", snapshot.torn_records, writers);
    const bool is_good = torn == NULL && records > 1000 && torn_after == NULL &&
                         snapshot.torn_records <= 2 * writers;
    ms_snapshot_cleanup(&snapshot);
    return !is_good;
}
