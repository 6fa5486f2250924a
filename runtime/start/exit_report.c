/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/start/exit_report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/base/quiet.h"
#include "runtime/config/config.h"
#include "runtime/fill/settle.h"
#include "runtime/memory/allocations.h"
#include "runtime/memory/recorded_launch.h"
#include "runtime/shard/active_plan.h"
#include "runtime/source/source.h"
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

static struct ms_shard_facts facts; /* 15 KiB; one thread reports */

/* Names for a message; those that do not fit are only counted. */
struct name_text {
    char text[256];
    size_t length, count, named;
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
    struct name_text unmatched = {0}, ambiguous = {0};
    if (facts.tensors == 0)
        return;
    ms_shard_visit_unmatched(add_name, &unmatched);
    ms_shard_visit_ambiguous(add_name, &ambiguous);
    warn_of_names(facts.name, "entries that match no tensor of the program", &unmatched);
    warn_of_names(facts.name, "entries that match more than one block and so decide nothing",
                  &ambiguous);
}

static void print_string(FILE *file, const char *text)
{
    putc('"', file);
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            putc(c, file);
    }
    putc('"', file);
}

static const char *kind_name(const struct ms_content *content)
{
    if (content->kind != MS_SOURCE)
        return ms_kind_names[content->kind];
    return ms_source_is_file(content->source) ? "file" : "snapshot";
}

static void print_extent(FILE *file, const struct ms_extent *extent)
{
    const struct ms_content *content = &extent->content;
    fprintf(file, "[%zu, %zu, \"%s%s%s\"", extent->begin, extent->end,
            content->locality == MS_REMOTE ? "away " : "", content->cached ? "cached " : "",
            kind_name(content));
    if (content->kind == MS_FILL)
        fprintf(file, ", \"%08" PRIx32 "\"", content->pattern);
    if (content->kind == MS_LAUNCHED) {
        fprintf(file, ", ");
        print_string(file, ms_launch_name(content->recorded->launch));
        fprintf(file, ", %" PRIu64, content->source_offset);
    }
    if (content->kind == MS_SOURCE && ms_source_is_file(content->source)) {
        fprintf(file, ", ");
        print_string(file, ms_source_path(content->source));
        fprintf(file, ", %" PRIu64, content->source_offset);
    }
    fprintf(file, "]");
}

static void print_taken(FILE *file, const struct ms_blocks *blocks)
{
    fprintf(file, ", \"taken\": [");
    for (size_t i = 0; i < blocks->count; i++)
        fprintf(file, "%s[%" PRIu64 ", %" PRIu64 "]", i > 0 ? ", " : "", blocks->all[i].begin,
                blocks->all[i].end);
    fprintf(file, "]");
}

/* Prints an allocation; "taken" are the blocks that a caching allocator has handed out of it. */
static void print_allocation(FILE *file, const struct ms_allocation *allocation)
{
    fprintf(file,
            "    {\"id\": %" PRIu64 ", \"address\": \"0x%llx\", \"device\": %d, \"bytes\": %zu, "
            "\"backed_bytes\": %zu, \"lineage\": [",
            allocation->id, allocation->address, allocation->device, allocation->bytes,
            allocation->backing.backed_bytes);
    for (size_t i = 0; i < allocation->lineage.count; i++) {
        if (i > 0)
            fprintf(file, ", ");
        print_extent(file, &allocation->lineage.extents[i]);
    }
    fprintf(file, "]");
    if (allocation->blocks.carved)
        print_taken(file, &allocation->blocks);
    fprintf(file, "}");
}

/* Totals of the list of allocations. */
struct totals {
    uint64_t deferred_bytes;
    unsigned printed;     /* allocations */
    unsigned busy;        /* of them, those that another thread works on */
    unsigned patience_ms; /* left for all of them together */
};

static bool is_there(const struct ms_allocation_facts *block)
{
    struct ms_allocation_facts now;
    return ms_space_look_up(block->address, &now) && now.id == block->id;
}

/*
 * Another thread may hold the claim for ever: it waits for a collective whose peer has died, or the
 * program ends within a call. So this waits a little, and the process ends. Returns NULL if another
 * thread still holds it, or has freed the allocation.
 */
static struct ms_allocation *claim_soon(const struct ms_allocation_facts *block,
                                        struct totals *totals)
{
    struct ms_allocation *allocation;
    while ((allocation = ms_space_try_claim(block->address)) == NULL && is_there(block) &&
           totals->patience_ms > 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        totals->patience_ms--;
    }
    return allocation;
}

static void print_busy(FILE *file, const struct ms_allocation_facts *block)
{
    fprintf(file,
            "    {\"id\": %" PRIu64 ", \"address\": \"0x%llx\", \"device\": %d, "
            "\"bytes\": %zu, \"backed_bytes\": 0, \"busy\": true, \"lineage\": []}",
            block->id, block->address, block->device, block->bytes);
}

static void print_one(FILE *file, const struct ms_allocation_facts *block, struct totals *totals)
{
    struct ms_allocation *allocation = claim_soon(block, totals);
    if (allocation == NULL && !is_there(block))
        return;
    fprintf(file, totals->printed++ > 0 ? ",\n" : "\n");
    if (allocation == NULL) {
        totals->busy++;
        print_busy(file, block);
        return;
    }
    print_allocation(file, allocation);
    const struct ms_lineage *lineage = &allocation->lineage;
    totals->deferred_bytes +=
        lineage->bytes - lineage->resident_bytes - lineage->cached_bytes - lineage->dead_bytes;
    ms_space_release(allocation);
}

static struct totals print_allocations(FILE *file)
{
    enum { PATIENCE_MS = 1000 };
    struct totals totals = {.patience_ms = PATIENCE_MS};
    struct ms_allocation_facts block;
    fprintf(file, "  \"blocks\": [");
    for (CUdeviceptr at = 0; ms_space_first_behind(at, &block); at = block.address + block.bytes)
        print_one(file, &block, &totals);
    fprintf(file, "\n  ],\n");
    return totals;
}

/* A list that is being printed; long lists are cut. */
struct name_list {
    FILE *file;
    size_t count;
};

static void print_name(void *context, size_t index, const char *name)
{
    enum { MAX_NAMES = 1000 };
    struct name_list *list = context;
    if (list->count++ >= MAX_NAMES)
        return;
    fprintf(list->file, list->count > 1 ? ", " : "");
    if (name != NULL)
        print_string(list->file, name);
    else
        fprintf(list->file, "\"tensors[%zu]\"", index);
}

static void print_culprits(FILE *file)
{
    fprintf(file, "    \"remote_readers\": [");
    for (size_t i = 0; i < facts.remote_reader_count; i++) {
        const struct ms_remote_reader *remote_reader = &facts.remote_readers[i];
        fprintf(file, "%s\n      {\"call\": ", i > 0 ? "," : "");
        print_string(file, remote_reader->call);
        fprintf(file, ", \"tensor\": ");
        print_string(file, remote_reader->tensor);
        fprintf(file, ", \"count\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", remote_reader->count,
                remote_reader->bytes);
    }
    fprintf(file, "]\n  },\n");
}

static void print_plan(FILE *file)
{
    if (facts.generation == 0)
        return;
    fprintf(file, "  \"plan\": {\n    \"file\": ");
    print_string(file, facts.name);
    fprintf(file,
            ", \"mode\": \"%s\", \"rank\": %" PRIu32 ", \"world_size\": %" PRIu32
            ", \"plans\": %" PRIu64 ",\n    \"tensors\": %" PRIu64 ", \"planned_bytes\": %" PRIu64
            ", \"owned_bytes\": %" PRIu64 ", \"remote_reads\": %" PRIu64
            ", \"remote_read_bytes\": %" PRIu64 ",\n    \"unmatched\": [",
            ms_config.plan_mode == MS_ENFORCE ? "enforce" : "advise", facts.rank, facts.world,
            facts.generation, facts.tensors, facts.planned_bytes, facts.owned_bytes,
            facts.remote_reads, facts.remote_read_bytes);
    ms_shard_visit_unmatched(print_name, &(struct name_list){.file = file});
    fprintf(file, "],\n    \"ambiguous\": [");
    ms_shard_visit_ambiguous(print_name, &(struct name_list){.file = file});
    fprintf(file, "],\n");
    print_culprits(file);
}

/* Returns how many allocations were busy. */
static unsigned print_dump(FILE *file)
{
    fprintf(file,
            "{\n  \"format\": \"metashard-dump/1\",\n  \"version\": \"%s\",\n  \"pid\": %d,\n",
            METASHARD_VERSION, (int)getpid());
    for (int i = 0; i < MS_COUNTER_COUNT; i++)
        fprintf(file, "  \"%s\": %" PRIu64 ",\n", ms_counter_names[i],
                ms_counter_get((enum ms_counter)i));
    fprintf(file, "  \"backed_bytes\": %" PRIu64 ",\n  \"backed_bytes_peak\": %" PRIu64 ",\n",
            ms_backed_bytes(), ms_backed_bytes_peak());
    fprintf(file, "  \"snapshot_bytes\": %" PRIu64 ",\n", ms_source_snapshot_bytes());
    fprintf(file, "  \"settle_cause\": ");
    print_string(file, ms_settle_last_cause());
    fprintf(file, ",\n");
    print_plan(file);
    const struct totals totals = print_allocations(file);
    fprintf(file, "  \"busy_blocks\": %u,\n  \"deferred_bytes\": %" PRIu64 "\n}\n", totals.busy,
            totals.deferred_bytes);
    return totals.busy;
}

static void write_dump(const char *path)
{
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    int error = file == NULL ? errno : 0;
    unsigned busy = 0;
    struct ms_quiet quiet;
    ms_quiet_begin(&quiet);
    if (file != NULL) {
        busy = print_dump(file);
        /* What does not fit in the buffer has failed before the end. */
        const bool has_failed = ferror(file) != 0;
        error = fclose(file) != 0 ? errno : has_failed ? EIO : 0;
    } else if (descriptor >= 0) {
        close(descriptor);
    }
    ms_quiet_end(&quiet, error != 0);
    if (error != 0)
        ms_log(MS_WARN, "METASHARD_DUMP: cannot write all of %s: %s", path, strerror(error));
    if (busy > 0)
        ms_log(
            MS_WARN,
            "METASHARD_DUMP: %u allocations are busy in other threads, which may wait for ever: %s "
            "has no contents for them",
            busy, path);
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
    ms_shard_describe(&facts);
    log_summary();
    log_plan();
    if (config->explain)
        ms_state_visit_causes(explain, NULL);
    if (config->dump_path[0] != '\0')
        write_dump(config->dump_path);
}
