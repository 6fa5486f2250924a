/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/state.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/launcher.h"
#include "runtime/base/lock.h"
#include "runtime/base/log.h"
#include "runtime/base/version.h"
#include "runtime/driver/flags.h"
#include "runtime/state/caller.h"
#include "runtime/state/counters.h"
#include "runtime/state/explain.h"
#include "runtime/state/page.h"
#include "runtime/state/process.h"
#include "runtime/state/secrets.h"

_Thread_local const char *ms_caller = NULL;
_Thread_local const char *ms_caller_kernel = NULL;
_Thread_local uint32_t ms_caller_reason = 0;
_Thread_local uint32_t ms_calls_inside = 0;

/* The word by which records of any type are copied. */
typedef uint64_t __attribute__((may_alias)) word;

static struct {
    /* immutable after ms_state_prepare */
    const struct ms_config *config;
    uint64_t started_ns, started_real_ns; /* monotonic, and realtime */
    /* immutable after ms_state_open */
    unsigned char *page;
    char path[MS_PATH_BYTES]; /* of its file; "" if it has none */
    struct ms_state_header header;

    _Atomic bool has_plan;
    _Atomic uint64_t next_event;
    _Atomic uint64_t last_sample_ns, last_sample_backed, sample_interval_ns;

    struct ms_lock lock; /* guards all below, and the tables of the page; a leaf */
    struct ms_state_process process;
    uint64_t next_token;
    uint64_t *tokens;     /* by slot of the block table; 0: free */
    uint32_t *heap;       /* slots in use, the slot with the fewest bytes first */
    uint32_t *heap_place; /* by slot: its index in the heap; if it is free, the next free slot */
    uint32_t heap_count, free_slot; /* UINT32_MAX: none is free */
    uint64_t sample_count;
    uint32_t file_count;
} state = {.lock = MS_LOCK_INIT(state)};

/* --- records */

static void *record(enum ms_state_section section, uint64_t index)
{
    const struct ms_state_span *span = &state.header.sections[section];
    return state.page + span->offset + index * span->record_bytes;
}

static uint64_t count_of(enum ms_state_section section)
{
    return state.header.sections[section].count;
}

/* Every word is stored with release, so that none is seen before the odd sequence, and the even
 * sequence is seen last. That costs nothing on x86-64. */
static void write_words(void *to_record, const void *value, size_t bytes, uint64_t sequence)
{
    word *to = to_record;
    const word *from = value;
    __atomic_store_n(&to[0], sequence - 1, __ATOMIC_RELAXED);
    for (size_t i = 1; i < bytes / sizeof(word); i++)
        __atomic_store_n(&to[i], from[i], __ATOMIC_RELEASE);
    __atomic_store_n(&to[0], sequence, __ATOMIC_RELEASE);
}

static void write_record(enum ms_state_section section, uint64_t index, const void *value)
{
    word *to = record(section, index);
    write_words(to, value, ms_format_record_bytes(section),
                __atomic_load_n(&to[0], __ATOMIC_RELAXED) + 2);
}

/* Writes the older of the two records. */
static void write_pair(enum ms_state_section section, const void *value)
{
    word *first = record(section, 0), *second = record(section, 1);
    const bool is_first = first[0] <= second[0];
    write_words(is_first ? first : second, value, ms_format_record_bytes(section),
                (is_first ? second[0] : first[0]) + 2);
}

/* Cuts the text between two characters, and zeroes the rest. */
static void put_text(char *to, size_t bytes, const char *text)
{
    size_t length = text != NULL ? strnlen(text, bytes) : 0;
    if (length == bytes) {
        length--;
        while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80)
            length--;
    }
    memcpy(to, text != NULL ? text : "", length);
    memset(to + length, 0, bytes - length);
}
#define PUT_TEXT(field, text) put_text(field, sizeof(field), text)

static uint64_t now_ns(void)
{
    return ms_clock_ns(CLOCK_MONOTONIC) - state.started_ns;
}

uint64_t ms_state_now(void)
{
    return ms_is_recorded() ? now_ns() : 0;
}

/* --- the start */

/* Reads at most MOST bytes. An argument that is cut there is left out (ms_secrets_mask), because
 * half a secret is not recognised. */
static void read_command(char *text, size_t bytes)
{
    enum { MOST = 64 << 10 };
    FILE *file = fopen("/proc/self/cmdline", "re");
    char *arguments = ms_heap_alloc(MOST + 1);
    size_t length = 0;
    text[0] = '\0';
    if (file != NULL && arguments != NULL)
        length = fread(arguments, 1, MOST, file);
    if (length > 0 && length < MOST && arguments[length - 1] != '\0')
        arguments[length++] = '\0'; /* the program may have overwritten the zero */
    if (arguments != NULL)
        ms_secrets_mask(arguments, length, text, bytes);
    if (file != NULL)
        fclose(file);
    ms_heap_free(arguments);
}

static void describe_process(struct ms_state_process *process, const struct ms_config *config)
{
    struct ms_process_identity identity;
    char text[sizeof(process->command)];
    ms_process_identify(&identity);
    *process = (struct ms_state_process){
        .pid = identity.pid,
        .start_ticks = identity.start_ticks,
        .pid_namespace = identity.pid_namespace,
        .uid = geteuid(),
        .started_ns = state.started_real_ns,
        .started_monotonic_ns = state.started_ns,
        .rank = MS_STATE_NO_RANK,
        .world = MS_STATE_NO_RANK,
    };
    const struct ms_launched launched = ms_launcher_read(true);
    if (launched.has_rank) {
        process->rank = launched.rank;
        process->world = launched.world;
    }
    PUT_TEXT(process->job, config->job[0] != '\0' ? config->job : launched.job);
    PUT_TEXT(process->version, ms_version);
    PUT_TEXT(process->boot, identity.boot);
    if (gethostname(text, sizeof(text)) == 0)
        PUT_TEXT(process->host, text);
    if (config->state_command) {
        read_command(text, sizeof(text));
        PUT_TEXT(process->command, text);
    }
    if (getcwd(text, sizeof(text)) != NULL)
        PUT_TEXT(process->folder, text);
}

static void put_option(void *context, const char *variable, const char *value)
{
    uint64_t *at = context;
    struct ms_state_option *option = record(MS_SECTION_OPTIONS, (*at)++);
    PUT_TEXT(option->name, variable);
    PUT_TEXT(option->value, value);
}

static bool make_tables(void)
{
    const uint64_t count = count_of(MS_SECTION_BLOCKS);
    ms_heap_free(state.tokens); /* of a page that could not be shown */
    ms_heap_free(state.heap);
    ms_heap_free(state.heap_place);
    state.tokens = ms_heap_zalloc(count * sizeof(*state.tokens));
    state.heap = ms_heap_zalloc(count * sizeof(*state.heap));
    state.heap_place = ms_heap_zalloc(count * sizeof(*state.heap_place));
    if (state.tokens == NULL || state.heap == NULL || state.heap_place == NULL)
        return false;
    for (uint64_t i = 0; i < count; i++)
        state.heap_place[i] = i + 1 < count ? (uint32_t)(i + 1) : UINT32_MAX;
    return true;
}

static bool fill_page(const struct ms_page *page, const struct ms_config *config)
{
    uint64_t options = 0;
    state.page = page->bytes;
    memcpy(&state.header, page->bytes, sizeof(state.header));
    if (!make_tables())
        return false;
    ms_config_visit(config, put_option, &options);
    for (int i = 0; i < MS_FIGURE_COUNT; i++) {
        struct ms_state_figure_name *name = record(MS_SECTION_FIGURE_NAMES, (uint64_t)i);
        PUT_TEXT(name->text, ms_counter_names[i]);
    }
    describe_process(&state.process, config);
    write_pair(MS_SECTION_PROCESS, &state.process);
    state.next_token = 1;
    state.sample_interval_ns = 1000000;
    return true;
}

/* Makes the page, filled. Returns false with the reason in `text`. */
static bool start_page(const struct ms_config *config, bool is_file, char text[256])
{
    struct ms_page page;
    if (!ms_page_make(&page, config, is_file, fill_page, text))
        return false;
    if (!is_file)
        return true;
    memcpy(state.path, page.path, sizeof(state.path));
    ms_log(MS_DEBUG, "the state page is %s", page.path);
    return true;
}

static bool can_be_file(const struct ms_config *config)
{
    return config->state_dir[0] != '\0' && getauxval(AT_SECURE) == 0;
}

static bool can_be_in_memory(const struct ms_config *config)
{
    return config->explain || config->dump_path[0] != '\0';
}

MS_HOLDS(state.lock) static bool make_page_locked(void)
{
    char text[256] = "", unused[256];
    const struct ms_config *config = state.config;
    const bool is_file = can_be_file(config) && start_page(config, true, text);
    if (!is_file && can_be_file(config))
        ms_log(strcmp(config->state_dir, "auto") != 0 ? MS_WARN : MS_INFO,
               "no state page is kept: %s", text[0] != '\0' ? text : "out of memory");
    if (!is_file && !(can_be_in_memory(config) && start_page(config, false, unused)))
        return false;
    ms_counters_share(record(MS_SECTION_FIGURES, 0));
    return true;
}

__attribute__((noinline, cold)) static bool make_page(void)
{
    ms_lock_take(&state.lock);
    if (atomic_load(&ms_hot.recorded) == MS_WILL_BE_RECORDED)
        atomic_store(&ms_hot.recorded, make_page_locked() ? MS_RECORDED : MS_NOT_RECORDED);
    ms_lock_drop(&state.lock);
    return atomic_load(&ms_hot.recorded) == MS_RECORDED;
}

static bool has_page(void)
{
    return atomic_load_explicit(&ms_hot.recorded, memory_order_acquire) == MS_RECORDED;
}

bool ms_state_open(void)
{
    return has_page() || (ms_is_recorded() && make_page());
}

void ms_state_prepare(const struct ms_config *config)
{
    state.config = config;
    state.started_ns = ms_clock_ns(CLOCK_MONOTONIC);
    state.started_real_ns = ms_clock_ns(CLOCK_REALTIME);
    atomic_store(&ms_hot.recorded, can_be_file(config) || can_be_in_memory(config)
                                       ? MS_WILL_BE_RECORDED
                                       : MS_NOT_RECORDED);
}

struct ms_state_view ms_state_view(void)
{
    if (!has_page())
        return (struct ms_state_view){.path = ""};
    return (struct ms_state_view){state.page, state.header.total_bytes, state.path};
}

MS_HOLDS(state.lock) static void set_rank_locked(uint32_t rank, uint32_t world)
{
    state.process.rank = rank;
    state.process.world = world;
    write_pair(MS_SECTION_PROCESS, &state.process);
}

void ms_state_set_rank(uint32_t rank, uint32_t world)
{
    if (!ms_state_open())
        return;
    ms_lock_take(&state.lock);
    if (state.process.rank == MS_STATE_NO_RANK && world > 1)
        set_rank_locked(rank, world);
    ms_lock_drop(&state.lock);
}

void ms_state_set_plan(const struct ms_state_plan *plan)
{
    if (!ms_state_open())
        return;
    ms_lock_take(&state.lock);
    write_pair(MS_SECTION_PLAN, plan);
    atomic_store(&state.has_plan, plan->generation > 0);
    if (plan->generation > 0)
        set_rank_locked(plan->rank, plan->world);
    ms_lock_drop(&state.lock);
}

void ms_state_set_device(uint32_t device, const struct ms_device_facts *facts)
{
    struct ms_state_device value;
    if (!ms_state_open() || device >= count_of(MS_SECTION_DEVICES))
        return;
    ms_lock_take(&state.lock);
    value = *(const struct ms_state_device *)record(MS_SECTION_DEVICES, device);
    if (facts->name != NULL)
        PUT_TEXT(value.name, facts->name);
    if (facts->check != MS_CHECK_NONE) {
        value.check = facts->check;
        value.steps_aside = facts->steps_aside;
        PUT_TEXT(value.unmet, facts->unmet);
    }
    write_record(MS_SECTION_DEVICES, device, &value);
    ms_lock_drop(&state.lock);
}

uint32_t ms_state_file(const char *path)
{
    struct ms_state_file value = {0};
    uint32_t found = 0;
    if (!ms_state_open())
        return 0;
    PUT_TEXT(value.path, path);
    ms_lock_take(&state.lock);
    for (uint32_t i = 0; i < state.file_count && found == 0; i++) {
        const struct ms_state_file *file = record(MS_SECTION_FILES, i);
        found = strcmp(file->path, value.path) == 0 ? i + 1 : 0;
    }
    if (found == 0 && state.file_count < count_of(MS_SECTION_FILES)) {
        write_record(MS_SECTION_FILES, state.file_count, &value);
        found = ++state.file_count;
    }
    ms_lock_drop(&state.lock);
    return found;
}

/* --- samples */

/* Keeps half of the samples, at twice the distance, so that all of the process's life fits. Keeps,
 * from each pair, the sample with more memory. */
MS_HOLDS(state.lock) static void thin_samples_locked(void)
{
    static const struct ms_state_sample none;
    const uint64_t half = state.sample_count / 2;
    for (uint64_t i = 0; i < half; i++) {
        const struct ms_state_sample *first = record(MS_SECTION_SAMPLES, 2 * i);
        const struct ms_state_sample *second = record(MS_SECTION_SAMPLES, 2 * i + 1);
        struct ms_state_sample kept = first->backed_bytes > second->backed_bytes ? *first : *second;
        write_record(MS_SECTION_SAMPLES, i, &kept);
    }
    for (uint64_t i = half; i < state.sample_count; i++)
        write_record(MS_SECTION_SAMPLES, i, &none);
    state.sample_count = half;
    atomic_store(&state.sample_interval_ns, 2 * atomic_load(&state.sample_interval_ns));
}

MS_HOLDS(state.lock) static void sample_locked(uint64_t now, bool is_new)
{
    if (is_new && state.sample_count == count_of(MS_SECTION_SAMPLES))
        thin_samples_locked();
    const struct ms_state_sample sample = {.time_ns = now > 0 ? now : 1,
                                           .live_bytes = ms_counter_get(MS_GAUGE_LIVE),
                                           .deferred_bytes = ms_counter_get(MS_GAUGE_DEFERRED),
                                           .backed_bytes = ms_counter_get(MS_GAUGE_BACKED),
                                           .h2d_bytes = ms_counter_get(MS_COUNT_H2D_BYTES)};
    if (is_new) {
        state.sample_count++;
        atomic_store_explicit(&state.last_sample_ns, now, memory_order_relaxed);
    }
    if (state.sample_count > 0)
        write_record(MS_SECTION_SAMPLES, state.sample_count - 1, &sample);
    atomic_store_explicit(&state.last_sample_backed, sample.backed_bytes, memory_order_relaxed);
}

/* Replaces the sample of the interval by one with more memory, so that peaks are not lost. */
void ms_state_sample(void)
{
    if (!has_page())
        return;
    const uint64_t now = now_ns();
    const uint64_t last = atomic_load_explicit(&state.last_sample_ns, memory_order_relaxed);
    const bool is_new = last == 0 || now - last >= atomic_load(&state.sample_interval_ns);
    if (!is_new && ms_counter_get(MS_GAUGE_BACKED) <=
                       atomic_load_explicit(&state.last_sample_backed, memory_order_relaxed))
        return;
    if (!ms_lock_try(&state.lock))
        return;
    sample_locked(now, is_new);
    ms_lock_drop(&state.lock);
}

/* --- blocks */

static const struct ms_state_block *block_at(uint32_t slot)
{
    return record(MS_SECTION_BLOCKS, slot);
}

static void heap_set(uint32_t place, uint32_t slot)
{
    state.heap[place] = slot;
    state.heap_place[slot] = place;
}

MS_HOLDS(state.lock) static void heap_lift_locked(uint32_t place)
{
    const uint32_t slot = state.heap[place];
    const uint64_t bytes = block_at(slot)->bytes;
    while (place > 0 && block_at(state.heap[(place - 1) / 2])->bytes > bytes) {
        heap_set(place, state.heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    heap_set(place, slot);
}

MS_HOLDS(state.lock) static void heap_sink_locked(uint32_t place)
{
    const uint32_t slot = state.heap[place];
    const uint64_t bytes = block_at(slot)->bytes;
    for (uint32_t child; (child = 2 * place + 1) < state.heap_count; place = child) {
        if (child + 1 < state.heap_count &&
            block_at(state.heap[child + 1])->bytes < block_at(state.heap[child])->bytes)
            child++;
        if (block_at(state.heap[child])->bytes >= bytes)
            break;
        heap_set(place, state.heap[child]);
    }
    heap_set(place, slot);
}

MS_HOLDS(state.lock) static void release_slot_locked(uint32_t slot)
{
    static const struct ms_state_block none;
    const uint32_t place = state.heap_place[slot];
    write_record(MS_SECTION_BLOCKS, slot, &none);
    state.tokens[slot] = 0;
    state.heap_count--;
    if (place != state.heap_count) {
        heap_set(place, state.heap[state.heap_count]);
        heap_lift_locked(place);
        heap_sink_locked(state.heap_place[state.heap[place]]);
    }
    state.heap_place[slot] = state.free_slot;
    state.free_slot = slot;
}

/* Finds a slot for a block of `bytes`: a free slot, or the slot of the smallest block if that block
 * is smaller. */
MS_HOLDS(state.lock) static bool find_slot_locked(uint64_t bytes, uint32_t *slot_out)
{
    if (state.free_slot == UINT32_MAX && state.heap_count > 0) {
        if (block_at(state.heap[0])->bytes >= bytes)
            return false;
        release_slot_locked(state.heap[0]);
        ms_counter_move(MS_GAUGE_BLOCKS_OUT, 1);
    }
    if (state.free_slot == UINT32_MAX)
        return false;
    *slot_out = state.free_slot;
    state.free_slot = state.heap_place[*slot_out];
    return true;
}

MS_HOLDS(state.lock) static bool has_slot_locked(const struct ms_state_place *place)
{
    return place->token != 0 && state.tokens[place->slot] == place->token;
}

static bool is_same(const struct ms_state_block *a, const struct ms_state_block *b)
{
    const size_t begin = offsetof(struct ms_state_block, id);
    const size_t end = offsetof(struct ms_state_block, allocated_ns);
    return memcmp((const char *)a + begin, (const char *)b + begin, end - begin) == 0 &&
           a->flags == b->flags && a->file == b->file && strcmp(a->name, b->name) == 0;
}

/* Keeps the reason from when the block first got memory. */
static void put_cause(struct ms_state_block *block, const struct ms_state_block *old)
{
    if (block->backed_bytes == 0)
        return;
    if (old != NULL && old->backed_bytes > 0) {
        block->backed_reason = old->backed_reason;
        memcpy(block->backed_call, old->backed_call, sizeof(block->backed_call));
        return;
    }
    block->backed_reason = ms_caller_reason;
    char text[sizeof(block->backed_call)];
    snprintf(text, sizeof(text), "%s%s%s", ms_caller != NULL ? ms_caller : "",
             ms_caller_kernel != NULL ? " of " : "",
             ms_caller_kernel != NULL ? ms_caller_kernel : "");
    PUT_TEXT(block->backed_call, text);
}

/* Keeps the name and the file of bytes that are in memory now, and so have no lineage any more. */
static void put_origin(struct ms_state_block *block, const struct ms_state_block *old)
{
    if (old != NULL && block->name[0] == '\0')
        memcpy(block->name, old->name, sizeof(block->name));
    if (old != NULL && block->file == 0) {
        block->file = old->file;
        block->file_offset = old->file_offset;
    }
}

MS_HOLDS(state.lock)
static void put_locked(struct ms_state_place *place, struct ms_state_block *block)
{
    const struct ms_state_block *old = has_slot_locked(place) ? block_at(place->slot) : NULL;
    if (old == NULL) {
        const bool has_slot = find_slot_locked(block->bytes, &place->slot);
        if (has_slot == place->is_counted) /* the block was out, or is out from now on */
            ms_counter_move(MS_GAUGE_BLOCKS_OUT, has_slot ? -1 : 1);
        if (!has_slot)
            return;
        place->token = state.next_token++;
        state.tokens[place->slot] = place->token;
    } else if (is_same(old, block)) {
        return;
    }
    block->changed_ns = now_ns();
    block->allocated_ns = old != NULL ? old->allocated_ns : block->changed_ns;
    put_cause(block, old);
    put_origin(block, old);
    write_record(MS_SECTION_BLOCKS, place->slot, block);
    word *figures = record(MS_SECTION_FIGURES, 0);
    __atomic_store_n(&figures[MS_GAUGE_CHANGED_NS], block->changed_ns, __ATOMIC_RELAXED);
    if (old == NULL) {
        heap_set(state.heap_count++, place->slot);
        heap_lift_locked(state.heap_count - 1);
    }
}

void ms_state_put(struct ms_state_place *place, const struct ms_state_block *block)
{
    if (!ms_state_open())
        return;
    struct ms_state_block value = *block;
    ms_lock_take(&state.lock);
    put_locked(place, &value);
    if (!place->is_counted)
        ms_counter_move(MS_GAUGE_BLOCKS, 1);
    place->is_counted = true;
    ms_lock_drop(&state.lock);
}

void ms_state_remove(struct ms_state_place *place)
{
    if (!place->is_counted || !has_page())
        return;
    ms_lock_take(&state.lock);
    if (has_slot_locked(place))
        release_slot_locked(place->slot);
    else
        ms_counter_move(MS_GAUGE_BLOCKS_OUT, -1);
    ms_counter_move(MS_GAUGE_BLOCKS, -1);
    ms_lock_drop(&state.lock);
    *place = (struct ms_state_place){0};
}

/* --- causes */

/* True for kinds of events that are added up. */
static bool is_cause(enum ms_event_kind kind)
{
    return kind == MS_EVENT_MATERIALISE || kind == MS_EVENT_REPLAY || kind == MS_EVENT_EVICT ||
           kind == MS_EVENT_REMOTE_READ || kind == MS_EVENT_FALLBACK || kind == MS_EVENT_SETTLE ||
           kind == MS_EVENT_FAIL || kind == MS_EVENT_PIN || kind == MS_EVENT_DIFFER;
}

/* True for kinds with a sentence. A fallback's sentence also explains what was materialised. */
static bool is_explained(uint32_t kind)
{
    return kind == MS_EVENT_FALLBACK || kind == MS_EVENT_REMOTE_READ || kind == MS_EVENT_FAIL;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (hash ^ 0xff) * UINT64_C(0x100000001b3);
}

static bool is_cause_of(const struct ms_state_cause *cause, const struct ms_state_cause *wanted)
{
    return cause->kind == wanted->kind && cause->reason == wanted->reason &&
           strcmp(cause->call, wanted->call) == 0 && strcmp(cause->text, wanted->text) == 0;
}

/* Returns the index of the cause, or of a free record. If the table is full, the first record takes
 * the rest. */
MS_HOLDS(state.lock) static uint64_t find_cause_locked(const struct ms_state_cause *wanted)
{
    enum { PROBES = 16 };
    const uint64_t count = count_of(MS_SECTION_CAUSES) - 1;
    uint64_t at =
        hash_text(hash_text(wanted->kind * 64 + wanted->reason, wanted->call), wanted->text);
    for (int i = 0; i < PROBES; i++, at++) {
        const struct ms_state_cause *cause = record(MS_SECTION_CAUSES, 1 + at % count);
        if (cause->count == 0 || is_cause_of(cause, wanted))
            return 1 + at % count;
    }
    return 0;
}

/* Threads take the time before the lock: an earlier moment may come in after a later one. */
static void add_cause(struct ms_state_cause *added)
{
    ms_lock_take(&state.lock);
    const uint64_t at = find_cause_locked(added);
    struct ms_state_cause cause = *(const struct ms_state_cause *)record(MS_SECTION_CAUSES, at);
    const bool is_new = cause.count == 0;
    if (is_new && at == 0) {
        cause = (struct ms_state_cause){.first_ns = added->first_ns};
        PUT_TEXT(cause.text, "others, for which the table is full");
    } else if (is_new) {
        cause = *added;
        cause.count = cause.bytes = cause.duration_ns = 0;
        if (is_explained(cause.kind))
            ms_explain((enum ms_reason)cause.reason, cause.call, cause.text, cause.sentence,
                       sizeof(cause.sentence));
    }
    cause.count++;
    cause.bytes += added->bytes;
    cause.duration_ns += added->duration_ns;
    if (cause.first_ns > added->first_ns)
        cause.first_ns = added->first_ns;
    if (cause.last_ns < added->last_ns)
        cause.last_ns = added->last_ns;
    write_record(MS_SECTION_CAUSES, at, &cause);
    ms_lock_drop(&state.lock);
}

void ms_state_end(ms_state_visitor *visit, void *context)
{
    if (!has_page())
        return;
    ms_state_sample();
    ms_lock_take(&state.lock);
    state.process.ended_ns = now_ns();
    write_pair(MS_SECTION_PROCESS, &state.process);
    ms_lock_drop(&state.lock);
    for (uint64_t i = 0; visit != NULL && i < count_of(MS_SECTION_CAUSES); i++) {
        struct ms_state_cause cause;
        ms_lock_take(&state.lock);
        cause = *(const struct ms_state_cause *)record(MS_SECTION_CAUSES, i);
        ms_lock_drop(&state.lock);
        if (cause.count > 0)
            visit(context, &cause);
    }
}

/* --- events */

static uint32_t thread_id(void)
{
    static _Thread_local uint32_t id __attribute__((tls_model("initial-exec")));
    if (id == 0)
        id = (uint32_t)syscall(SYS_gettid);
    return id;
}

/* Loses the event if another thread, a whole round behind, is still writing the slot. */
static void write_event(const struct ms_state_event *event)
{
    const uint64_t number = atomic_fetch_add_explicit(&state.next_event, 1, memory_order_relaxed);
    word *slot = record(MS_SECTION_EVENTS, number % count_of(MS_SECTION_EVENTS));
    uint64_t seen = __atomic_load_n(&slot[0], __ATOMIC_RELAXED);
    do {
        if (seen % 2 != 0 || seen > 2 * number)
            return;
    } while (!__atomic_compare_exchange_n(&slot[0], &seen, 2 * number + 1, true, __ATOMIC_ACQ_REL,
                                          __ATOMIC_RELAXED));
    write_words(slot, event, sizeof(*event), 2 * number + 2);
}

/* A kernel without a rule computes with loaded bytes. Not under a plan, where much stays deferred
 * that never comes. */
static bool is_computing(const struct ms_event *happened)
{
    return happened->kind == MS_EVENT_FALLBACK && happened->reason == MS_REASON_NO_RULE &&
           !atomic_load(&state.has_plan);
}

/* Counts all that each cause has so far as part of loading. */
static void note_causes(void)
{
    ms_lock_take(&state.lock);
    for (uint64_t i = 0; i < count_of(MS_SECTION_CAUSES); i++) {
        const struct ms_state_cause *known = record(MS_SECTION_CAUSES, i);
        if (known->count == known->loaded_count)
            continue;
        struct ms_state_cause cause = *known;
        cause.loaded_count = cause.count;
        cause.loaded_bytes = cause.bytes;
        cause.loaded_duration_ns = cause.duration_ns;
        write_record(MS_SECTION_CAUSES, i, &cause);
    }
    ms_lock_drop(&state.lock);
}

/* The program has loaded, and now takes memory for its work. Bytes that it has loaded and not used
 * yet count as if they had come. */
static void note_peaks(bool computes)
{
    word *figures = record(MS_SECTION_FIGURES, 0);
    const uint64_t peak = ms_counter_get(MS_GAUGE_BACKED_PEAK);
    const uint64_t to_come =
        computes ? ms_counter_get(MS_GAUGE_BACKED) + ms_counter_get(MS_GAUGE_DEFERRED) : 0;
    __atomic_store_n(&figures[MS_GAUGE_LOADED_PEAK], peak > to_come ? peak : to_come,
                     __ATOMIC_RELAXED);
    __atomic_store_n(&figures[MS_GAUGE_LOADED_LIVE_PEAK], ms_counter_get(MS_GAUGE_LIVE_PEAK),
                     __ATOMIC_RELAXED);
    __atomic_store_n(&figures[MS_GAUGE_LOADED_NS], now_ns(), __ATOMIC_RELAXED);
}

/* Loading ends when nothing is deferred any more, or when the program computes: weights may stay
 * deferred until an optimizer changes them. Computing opens windows of its own: a window in which
 * far less was loaded than in the largest is no window of loading. */
static void note_loaded(const struct ms_event *happened)
{
    static _Atomic uint64_t loaded, largest;
    static _Atomic uint32_t seen;
    if (happened->loads)
        atomic_fetch_add(&loaded, happened->bytes);
    const uint32_t now = atomic_load_explicit(&ms_hot.unexamined, memory_order_relaxed);
    const bool computes = is_computing(happened);
    if (happened->kind != MS_EVENT_SETTLE && !computes &&
        atomic_load_explicit(&seen, memory_order_relaxed) == now)
        return;
    atomic_store(&seen, now);
    const uint64_t bytes = atomic_exchange(&loaded, 0), most = atomic_load(&largest);
    if (bytes < most / 2 || (bytes == 0 && (most > 0 || happened->kind != MS_EVENT_SETTLE)))
        return;
    if (bytes > most)
        atomic_store(&largest, bytes);
    note_peaks(computes);
    note_causes();
}

static void write_happened(const struct ms_event *happened)
{
    const bool has_call = !happened->is_of_no_call;
    const uint64_t now = now_ns();
    const char *text = happened->text != NULL || !has_call ? happened->text : ms_caller_kernel;
    struct ms_state_event event = {.time_ns = now,
                                   .duration_ns = happened->began > 0 ? now - happened->began : 0,
                                   .block = happened->block,
                                   .address = happened->address,
                                   .bytes = happened->bytes,
                                   .kind = happened->kind,
                                   .reason = happened->reason != MS_REASON_CALL ? happened->reason
                                                                                : ms_caller_reason,
                                   .thread = thread_id()};
    PUT_TEXT(event.call, has_call ? ms_caller : NULL);
    PUT_TEXT(event.text, text);
    if (has_call)
        write_event(&event);
    if (has_call && !is_cause(happened->kind))
        return;
    struct ms_state_cause cause = {.bytes = event.bytes,
                                   .duration_ns = event.duration_ns,
                                   .first_ns = now,
                                   .last_ns = now,
                                   .kind = event.kind,
                                   .reason = event.reason};
    memcpy(cause.call, event.call, sizeof(cause.call));
    PUT_TEXT(cause.text, text);
    add_cause(&cause);
}

/* Writes the event first, so that the use that ends loading counts as part of loading. */
void ms_state_event(const struct ms_event *happened)
{
    if (!ms_state_open())
        return;
    write_happened(happened);
    note_loaded(happened);
}
