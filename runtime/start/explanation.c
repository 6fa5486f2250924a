/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/start/explanation.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/launcher.h"
#include "runtime/base/log.h"
#include "runtime/state/explain.h"
#include "runtime/state/page.h"
#include "runtime/state/snapshot.h"
#include "runtime/state/state.h"

/* --- causes, added up */

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
    struct sum added = {cause->count, cause->bytes, cause->reason, "", ""};
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
        sums->rows[sums->count++] = (struct sum){.reason = added.reason};
    memcpy(sums->rows[at].call, added.call, sizeof(added.call));
    memcpy(sums->rows[at].text, added.text, sizeof(added.text));
    sums->rows[at].count += added.count;
    sums->rows[at].bytes += added.bytes;
}

/* --- the other ranks on this machine */

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

/* Of one rank the process counts that started last. */
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

/* One rank at a time ends its page and looks whether others run. Waits at most a second. */
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
    strcpy(path, ms_state_path());
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
    ms_state_end();
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

/* --- lines */

/* The row with the most bytes, then the most often, of a reason or of all. NULL: all are done. */
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

/* The rows of the reason are done then. */
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

bool ms_explanation_end(void)
{
    struct sums sums = {ms_heap_zalloc(MOST_SUMS * sizeof(*sums.rows)), 0, 1};
    if (sums.rows == NULL) {
        ms_state_end();
        return true;
    }
    const bool is_last = end_run(&sums);
    if (is_last)
        ms_state_visit_causes(add_cause, &sums);
    for (struct sum *first; is_last && (first = find_most(&sums, MS_REASON_COUNT)) != NULL;)
        say_reason(&sums, first);
    if (is_last && sums.count == 0)
        ms_log_say("explain",
                   "nothing to explain: what was deferred stayed so until its bytes were used");
    ms_heap_free(sums.rows);
    return is_last;
}
