/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/start/lifetime.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/launcher.h"
#include "runtime/base/log.h"
#include "runtime/base/quiet.h"
#include "runtime/calls/file_writes.h"
#include "runtime/control/control.h"
#include "runtime/driver/flags.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/source.h"
#include "runtime/fill/compare.h"
#include "runtime/kernel/rules.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/state/counters.h"
#include "runtime/state/explain.h"
#include "runtime/state/page.h"
#include "runtime/state/snapshot.h"
#include "runtime/state/state.h"

static void become_inert(void)
{
    memset(&ms_hot, 0, sizeof(ms_hot));
}

static void say_bypassed(const char *library)
{
    ms_log(MS_WARN,
           "%s stands before MetaShard and hands on the driver's own functions: MetaShard does not "
           "see all calls, and defers nothing; put libmetashard.so first in LD_PRELOAD, or set "
           "METASHARD=off",
           library);
    ms_state_event(&(struct ms_event){.kind = MS_EVENT_FALLBACK,
                                      .reason = MS_REASON_BYPASSED,
                                      .text = library,
                                      .is_of_no_call = true});
}

static void start(char **environment, const char *around)
{
    ms_config_read(&ms_config, environment);
    if (ms_config.mode == MS_OFF)
        return;
    /* If the kernel cannot wipe the page (before Linux 4.14), fork() at least is covered. */
    if (madvise(&ms_hot, sizeof(ms_hot), MADV_WIPEONFORK) != 0)
        pthread_atfork(NULL, NULL, become_inert);
    ms_state_prepare(&ms_config);
    if (around[0] != '\0') {
        say_bypassed(around);
        return;
    }
    ms_publish_set_namer(ms_placement_query_name);
    ms_file_writes_start();
    ms_host_snapshot_set_limit(ms_config.snapshot_bytes);
    if (ms_config.kernel_rules[0] != '\0')
        ms_rules_read(ms_config.kernel_rules);
    ms_log(MS_DEBUG, "started: deferring allocations of %llu bytes and more",
           (unsigned long long)ms_config.min_bytes);
    atomic_store(&ms_hot.started, 1);
    ms_control_start();
}

void ms_lifetime_begin(char **environment, const char *around)
{
    static _Atomic bool is_begun;
    if (!atomic_exchange(&is_begun, true))
        start(environment, around);
}

/* --- what METASHARD_EXPLAIN prints: one line for each reason, however many kernels, tensors and
 * ranks it adds up. The last rank of a run on this machine prints the lines for all ranks. */

enum { MOST_SUMS = 1024, MOST_RANKS = 512 };

struct sum {
    uint64_t count, bytes;
    uint32_t reason;
    char call[64], text[320];
};

struct sums {
    struct sum *rows;
    size_t count, ranks;
};

/* Copies a name, with "*" for each part between dots that is a number. */
static void make_pattern(char *to, size_t bytes, const char *name)
{
    size_t used = 0;
    for (const char *at = name; *at != '\0' && used + 1 < bytes;) {
        const size_t digits = strspn(at, "0123456789");
        const bool is_part = (at == name || at[-1] == '.') && digits > 0 &&
                             (at[digits] == '.' || (at[digits] == '\0' && at != name));
        to[used++] = is_part ? '*' : *at;
        at += is_part ? digits : 1;
    }
    to[used] = '\0';
}

static void add_cause(void *context, const struct ms_state_cause *cause)
{
    struct sums *sums = context;
    struct sum added = {.reason = cause->reason};
    size_t at = 0;
    if (cause->sentence[0] == '\0' || cause->reason >= MS_REASON_COUNT)
        return;
    memcpy(added.call, cause->call, sizeof(added.call) - 1);
    make_pattern(added.text, sizeof(added.text), cause->text);
    while (at < sums->count &&
           (sums->rows[at].reason != added.reason || strcmp(sums->rows[at].call, added.call) != 0 ||
            strcmp(sums->rows[at].text, added.text) != 0))
        at++;
    if (at == MOST_SUMS)
        return;
    if (at == sums->count)
        sums->rows[sums->count++] = added;
    sums->rows[at].count += cause->count;
    sums->rows[at].bytes += cause->bytes;
}

/* The other ranks on this machine. */

struct rank_page {
    char name[64];
    uint32_t rank;
    uint64_t started_ns;
    bool runs;
};

static bool is_running(const struct ms_state_process *process)
{
    return process->ended_ns == 0 && ms_process_life(NULL, process) == MS_LIFE_ALIVE;
}

/* Adds a page. The process that started last counts for its rank. */
static void add_page(struct rank_page *pages, size_t *count, const char *name,
                     const struct ms_state_process *process)
{
    struct rank_page *page = pages;
    while (page < pages + *count && page->rank != process->rank)
        page++;
    if (page == pages + MOST_RANKS ||
        (page < pages + *count && page->started_ns > process->started_ns))
        return;
    *count += page == pages + *count;
    *page = (struct rank_page){"", process->rank, process->started_ns, is_running(process)};
    strcpy(page->name, name);
}

/* Lists the pages of other ranks that ran while this process did. */
static size_t list_ranks(int folder, const struct ms_state_process *own, struct rank_page *pages)
{
    const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again >= 0 ? fdopendir(again) : NULL;
    size_t count = 0;
    for (const struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        struct ms_state_process process;
        uint64_t ran_ns;
        if (strlen(entry->d_name) >= sizeof(pages->name) ||
            !ms_page_process(folder, entry->d_name, &process, &ran_ns))
            continue;
        if (process.world == own->world && process.rank != own->rank &&
            memcmp(process.boot, own->boot, sizeof(own->boot)) == 0 &&
            (process.started_ns + ran_ns > own->started_ns || is_running(&process)))
            add_page(pages, &count, entry->d_name, &process);
    }
    if (list != NULL)
        closedir(list);
    else if (again >= 0)
        close(again);
    return count;
}

static void add_rank(struct sums *sums, const char *folder, const char *name)
{
    char path[MS_PATH_BYTES + sizeof(((struct rank_page *)NULL)->name)];
    struct ms_snapshot snapshot;
    struct ms_fault fault;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (!ms_snapshot_read(path, &snapshot, &fault))
        return;
    for (size_t i = 0; i < snapshot.cause_count; i++)
        add_cause(sums, &snapshot.causes[i]);
    sums->ranks++;
    ms_snapshot_cleanup(&snapshot);
}

/* Lets one rank at a time end its page and look whether others run. Waits at most a second. */
static void lock_folder(int folder)
{
    const struct timespec moment = {.tv_nsec = 10L * MS_NS_PER_MS};
    for (int i = 0; i < 100 && flock(folder, LOCK_EX | LOCK_NB) != 0; i++)
        nanosleep(&moment, NULL);
}

/* Ends the page. Returns false if another rank runs; otherwise adds the causes of all of them. */
static bool end_run(struct sums *sums)
{
    char path[MS_PATH_BYTES];
    struct ms_state_process own;
    uint64_t ran_ns;
    strcpy(path, ms_state_view().path);
    char *name = strrchr(path, '/');
    int folder = -1;
    if (name != NULL) {
        *name++ = '\0';
        folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    struct rank_page *pages = ms_heap_alloc(MOST_RANKS * sizeof(*pages));
    size_t count = 0;
    bool is_last = true;
    if (folder >= 0)
        lock_folder(folder);
    ms_state_end(add_cause, sums);
    if (folder >= 0 && pages != NULL && ms_page_process(folder, name, &own, &ran_ns) &&
        own.rank != MS_STATE_NO_RANK && own.world != MS_STATE_NO_RANK)
        count = list_ranks(folder, &own, pages);
    for (size_t i = 0; i < count; i++)
        is_last &= !pages[i].runs;
    for (size_t i = 0; i < count && is_last; i++)
        add_rank(sums, path, pages[i].name);
    ms_heap_free(pages);
    if (folder >= 0)
        close(folder);
    return is_last;
}

/* Returns the row with the most bytes, then the highest count, of a reason or of all; or NULL. */
static struct sum *find_most(const struct sums *sums, uint32_t reason)
{
    struct sum *most = NULL;
    for (struct sum *row = sums->rows; row < sums->rows + sums->count; row++) {
        if (row->count > 0 && (reason == MS_REASON_COUNT || row->reason == reason) &&
            (most == NULL || row->bytes > most->bytes ||
             (row->bytes == most->bytes && row->count > most->count)))
            most = row;
    }
    return most;
}

/* Prints the line of a reason, and sets the counts of its rows to 0: they are done. */
static void say_reason(const struct sums *sums, struct sum *first)
{
    enum { MOST_NAMED = 3, NAME_BYTES = 80 };
    char sentence[576], bytes[32] = "", ranks[48] = "", others[320] = "";
    uint64_t count = first->count, sum = first->bytes;
    size_t used = 0, left_out = 0, named = 0;
    if (!ms_explain((enum ms_reason)first->reason, first->call, first->text, sentence,
                    sizeof(sentence)))
        sentence[0] = '\0';
    first->count = 0;
    for (struct sum *row; (row = find_most(sums, first->reason)) != NULL; row->count = 0) {
        count += row->count;
        sum += row->bytes;
        left_out += named == MOST_NAMED;
        if (named == MOST_NAMED)
            continue;
        const char *name = row->text[0] != '\0' ? row->text : row->call;
        used += (size_t)snprintf(others + used, sizeof(others) - used, "%s%.*s%s",
                                 named++ == 0 ? "; also: " : ", ", NAME_BYTES, name,
                                 strlen(name) > NAME_BYTES ? "..." : "");
    }
    if (left_out > 0)
        snprintf(others + used, sizeof(others) - used, " and %zu more", left_out);
    if (sum > 0)
        snprintf(bytes, sizeof(bytes), ", %.1f MiB", (double)sum / (1 << 20));
    if (sums->ranks > 1)
        snprintf(ranks, sizeof(ranks), ", on %zu ranks", sums->ranks);
    ms_log_say("explain", "%s (%" PRIu64 " time%s%s%s)%s", sentence, count, count > 1 ? "s" : "",
               bytes, ranks, others);
}

/* Ends the state page, and prints. Returns false if another rank still runs, which is to print. */
static bool explain(void)
{
    struct sums sums = {ms_heap_zalloc(MOST_SUMS * sizeof(*sums.rows)), 0, 1};
    if (sums.rows == NULL) {
        ms_state_end(NULL, NULL);
        return true;
    }
    const bool is_last = end_run(&sums);
    for (struct sum *first; is_last && (first = find_most(&sums, MS_REASON_COUNT)) != NULL;)
        say_reason(&sums, first);
    if (is_last && sums.count == 0)
        ms_log_say("explain",
                   "nothing to explain: deferred memory stayed deferred until its bytes were used");
    ms_heap_free(sums.rows);
    return is_last;
}

/* --- what is left at exit: a summary, explanations, and a copy of the state page */

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void log_summary(void)
{
    char without[48] = ""; /* only a state page counts it */
    const uint64_t live_peak = ms_counter_get(MS_GAUGE_LIVE_PEAK);
    if (live_peak != 0)
        snprintf(without, sizeof(without), ", %.1f without MetaShard", mib(live_peak));
    ms_log(MS_INFO,
           "%" PRIu64 " allocations of %.1f MiB deferred; peak %.1f MiB%s; %.1f MiB copied to the "
           "device, %.1f MiB recorded from files, %.1f MiB from memory",
           ms_counter_get(MS_COUNT_ALLOCATIONS), mib(ms_counter_get(MS_COUNT_REQUESTED_BYTES)),
           mib(ms_counter_get(MS_GAUGE_BACKED_PEAK)), without,
           mib(ms_counter_get(MS_COUNT_H2D_BYTES)),
           mib(ms_counter_get(MS_COUNT_RECORDED_FILE_BYTES)),
           mib(ms_counter_get(MS_COUNT_RECORDED_SNAPSHOT_BYTES)));
}

/* Names for a message, and as causes; names that do not fit into the message are only counted. */
struct name_text {
    char text[256];
    size_t length, count, named;
    enum ms_reason reason;
};

struct idle {
    struct name_text unmatched, ambiguous;
};

static void add_name(void *context, size_t index, const char *name, bool is_ambiguous)
{
    struct idle *idle = context;
    struct name_text *list = is_ambiguous ? &idle->ambiguous : &idle->unmatched;
    char number[32];
    snprintf(number, sizeof(number), "tensors[%zu]", index);
    if (name == NULL)
        name = number;
    const size_t room = sizeof(list->text) - list->length;
    if (list->count++ == list->named && strlen(name) + 2 < room) {
        list->length += (size_t)snprintf(list->text + list->length, room, "%s%s",
                                         list->length > 0 ? ", " : "", name);
        list->named++;
    }
    ms_state_event(&(struct ms_event){
        .kind = MS_EVENT_PLAN, .reason = list->reason, .text = name, .is_of_no_call = true});
}

static void warn_of_names(const char *plan, const char *what, const struct name_text *list)
{
    if (list->count > 0)
        ms_log(MS_WARN, "%s: %s: %zu (%s%s)", plan, what, list->count, list->text,
               list->count > list->named ? " and others" : "");
}

/* Logs what the plan could not do, in a process that has tensors of it. */
static void log_plan(void)
{
    struct ms_state_plan facts;
    struct idle idle = {.unmatched = {.reason = MS_REASON_UNMATCHED},
                        .ambiguous = {.reason = MS_REASON_AMBIGUOUS}};
    if (ms_counter_get(MS_COUNT_ALLOCATIONS) > 0)
        ms_shard_warn_if_waiting();
    ms_shard_describe(&facts);
    if (facts.generation > 0 || facts.tensors > 0)
        ms_shard_publish(NULL, 0);
    if (facts.tensors == 0)
        return;
    ms_shard_visit_idle(add_name, &idle);
    warn_of_names(facts.name, "entries that match no tensor of the program", &idle.unmatched);
    warn_of_names(facts.name, "entries that match more than one block and so decide nothing",
                  &idle.ambiguous);
}

/* Copies the state page, which metashard-dump shows. Only the user may read a new file, like the
 * page. */
static void write_dump(const char *path)
{
    struct stat stat_;
    const struct ms_state_view view = ms_state_view();
    if (stat(path, &stat_) == 0 && S_ISFIFO(stat_.st_mode)) {
        ms_log(MS_WARN, "METASHARD_DUMP: %s is a pipe: expected a regular file", path);
        return;
    }
    /* O_NONBLOCK: if the path has become a pipe */
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0600);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    int error = file == NULL ? errno : view.page == NULL ? ENOMEM : 0;
    struct ms_quiet quiet;
    ms_quiet_begin(&quiet);
    if (file != NULL) {
        if (view.page != NULL && fwrite(view.page, 1, view.bytes, file) != view.bytes)
            error = errno;
        if (fclose(file) != 0 && error == 0)
            error = errno;
    } else if (descriptor >= 0) {
        close(descriptor);
    }
    ms_quiet_end(&quiet, error != 0);
    if (error != 0)
        ms_log(MS_WARN, "METASHARD_DUMP: cannot write all of %s: %s", path, strerror(error));
}

void ms_lifetime_end(void)
{
    if (!ms_is_started()) {
        ms_state_end(NULL, NULL); /* of a process that was bypassed */
        return;
    }
    ms_compare_finish();
    log_summary();
    log_plan();
    const bool is_dumped = ms_config.dump_path[0] != '\0';
    if (is_dumped)
        ms_state_open(); /* the program may have allocated nothing */
    const bool is_explained = ms_config.explain && explain();
    if (!ms_config.explain)
        ms_state_end(NULL, NULL);
    if (is_dumped)
        write_dump(ms_config.dump_path);
    const char *path = is_dumped ? ms_config.dump_path : ms_state_view().path;
    if ((is_explained || ms_config.log.level >= MS_INFO) && path[0] != '\0')
        ms_log_say("info", "for more, run: metashard-dump show %s", path);
    ms_log_finish();
}
