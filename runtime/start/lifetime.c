/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/start/lifetime.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/quiet.h"
#include "runtime/calls/file_writes.h"
#include "runtime/control/control.h"
#include "runtime/driver/flags.h"
#include "runtime/fill/compare.h"
#include "runtime/kernel/rules.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "runtime/source/source.h"
#include "runtime/source/source_close.h"
#include "runtime/start/explanation.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char **start_environment;

static void become_inert(void)
{
    memset(&ms_hot, 0, sizeof(ms_hot));
}

static void start(void)
{
    ms_config_read(&ms_config, start_environment);
    if (ms_config.mode == MS_OFF)
        return;
    /* If the kernel cannot wipe the page (before Linux 4.14), fork() at least is covered. */
    if (madvise(&ms_hot, sizeof(ms_hot), MADV_WIPEONFORK) != 0)
        pthread_atfork(NULL, NULL, become_inert);
    ms_state_prepare(&ms_config);
    ms_publish_set_namer(ms_placement_query_name);
    ms_source_close_start(ms_file_writes_answer, ms_file_writes_answer_deletion);
    ms_source_set_snapshot_limit(ms_config.snapshot_bytes);
    if (ms_config.kernel_rules[0] != '\0')
        ms_rules_read(ms_config.kernel_rules);
    ms_log(MS_DEBUG, "started: deferring allocations of %llu bytes and more",
           (unsigned long long)ms_config.min_bytes);
    atomic_store(&ms_hot.started, 1);
    ms_control_start();
}

void ms_lifetime_begin(char **environment)
{
    if (ms_is_started())
        return;
    start_environment = environment;
    pthread_once(&once, start);
}

/* --- what is left at exit: a summary, explanations, and a copy of the state page */

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void log_summary(void)
{
    ms_log(MS_INFO,
           "%" PRIu64 " allocations of %.1f MiB deferred, at most %.1f MiB backed; %.1f MiB copied "
           "to the device, %.1f MiB recorded from files, %.1f MiB from memory",
           ms_counter_get(MS_COUNT_ALLOCATIONS), mib(ms_counter_get(MS_COUNT_REQUESTED_BYTES)),
           mib(ms_counter_get(MS_GAUGE_BACKED_PEAK)), mib(ms_counter_get(MS_COUNT_H2D_BYTES)),
           mib(ms_counter_get(MS_COUNT_RECORDED_FILE_BYTES)),
           mib(ms_counter_get(MS_COUNT_RECORDED_SNAPSHOT_BYTES)));
}

/* Names for a message, and as causes; what does not fit into the message is counted only. */
struct name_text {
    char text[256];
    size_t length, count, named;
    enum ms_reason reason;
};

static void add_name(void *context, size_t index, const char *name)
{
    struct name_text *list = context;
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
    ms_state_cause(MS_EVENT_PLAN, list->reason, name);
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
    struct name_text unmatched = {.reason = MS_REASON_UNMATCHED};
    struct name_text ambiguous = {.reason = MS_REASON_AMBIGUOUS};
    ms_shard_describe(&facts);
    if (facts.generation > 0 || facts.tensors > 0)
        ms_shard_publish_facts(&facts);
    if (facts.tensors == 0)
        return;
    ms_shard_visit_unmatched(add_name, &unmatched);
    ms_shard_visit_ambiguous(add_name, &ambiguous);
    warn_of_names(facts.name, "entries that match no tensor of the program", &unmatched);
    warn_of_names(facts.name, "entries that match more than one block and so decide nothing",
                  &ambiguous);
}

/* Copies the state page, which metashard-dump shows. A new file is the user's alone, as is the
 * page. */
static void write_dump(const char *path)
{
    size_t bytes;
    struct stat stat_;
    const void *page = ms_state_page(&bytes);
    if (stat(path, &stat_) == 0 && S_ISFIFO(stat_.st_mode)) {
        ms_log(MS_WARN, "METASHARD_DUMP: %s is a pipe: expected a regular file", path);
        return;
    }
    /* O_NONBLOCK: if it has become a pipe */
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0600);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    int error = file == NULL ? errno : page == NULL ? ENOMEM : 0;
    struct ms_quiet quiet;
    ms_quiet_begin(&quiet);
    if (file != NULL) {
        if (page != NULL && fwrite(page, 1, bytes, file) != bytes)
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

/* Where to read more. */
static void say_next(bool is_dumped)
{
    const char *path = is_dumped ? ms_config.dump_path : ms_state_path();
    if (path[0] != '\0')
        ms_log_say("info", "for more, run: metashard-dump show %s", path);
}

void ms_lifetime_end(void)
{
    if (!ms_is_started())
        return;
    ms_compare_finish();
    log_summary();
    log_plan();
    const bool is_dumped = ms_config.dump_path[0] != '\0';
    if (is_dumped)
        ms_state_open(); /* the program may have allocated nothing */
    const bool is_explained = ms_config.explain && ms_explanation_end();
    if (!ms_config.explain)
        ms_state_end();
    if (is_dumped)
        write_dump(ms_config.dump_path);
    if (is_explained || ms_config.log.level >= MS_INFO)
        say_next(is_dumped);
    ms_log_finish();
}
