/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/start/exit_report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/quiet.h"
#include "runtime/config/config.h"
#include "runtime/shard/active_plan.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"

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
           mib(ms_backed_bytes_peak()), mib(ms_counter_get(MS_COUNT_H2D_BYTES)),
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
    ms_shard_publish_facts(&facts);
    if (facts.tensors == 0)
        return;
    ms_shard_visit_unmatched(add_name, &unmatched);
    ms_shard_visit_ambiguous(add_name, &ambiguous);
    warn_of_names(facts.name, "entries that match no tensor of the program", &unmatched);
    warn_of_names(facts.name, "entries that match more than one block and so decide nothing",
                  &ambiguous);
}

void ms_report_dump(const char *path)
{
    size_t bytes;
    const void *page = ms_state_page(&bytes);
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
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

static void explain(__attribute__((unused)) void *context, const struct ms_state_cause *cause)
{
    if (cause->sentence[0] == '\0')
        return;
    char bytes[32] = "";
    if (cause->bytes > 0)
        snprintf(bytes, sizeof(bytes), ", %.1f MiB", mib(cause->bytes));
    ms_say("explain", "%s (%" PRIu64 " time%s%s)", cause->sentence, cause->count,
           cause->count > 1 ? "s" : "", bytes);
}

void ms_report(const struct ms_config *config)
{
    log_summary();
    log_plan();
    if (config->explain)
        ms_state_visit_causes(explain, NULL);
}
