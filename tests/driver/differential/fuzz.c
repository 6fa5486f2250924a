/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz SEED FIRST LAST FOLDER KERNELS TORCH-KERNELS [--keep LIST] [--more OPERATION]
 * [--without OPERATION,...] [--short OPERATIONS] [--first ACT] [--last ACT] [--print] */
#include "tests/driver/differential/fuzz.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/simcuda/driver/hook.h"

CUcontext fuzz_context;
const char *fuzz_folder;
bool fuzz_is_large;

static uint64_t seed;
static uint32_t *kinds_seen,
    *kinds_failed; /* by operation: how often it ran, and had a result that is no success */
static bool prints, has_failed;
static _Thread_local uint64_t draws, way_draws; /* states of the numbers that the operation draws */
static uint64_t seen;                           /* hash of what the operation observed */

/* --- random numbers and hashes */

static uint64_t mix(uint64_t x)
{
    /* the output function of splitmix64, Steele, Lea and Flood 2014 */
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t fuzz_random(void)
{
    return mix(draws += UINT64_C(0x9e3779b97f4a7c15));
}

size_t fuzz_below(size_t limit)
{
    return (size_t)(fuzz_random() % limit);
}

size_t fuzz_way(size_t limit)
{
    return (size_t)(mix(way_draws += UINT64_C(0x9e3779b97f4a7c15)) % limit);
}

bool fuzz_one_in(unsigned chances)
{
    return fuzz_below(chances) == 0;
}

void fuzz_see(uint64_t value)
{
    seen = mix(seen + UINT64_C(0x9e3779b97f4a7c15) + value);
}

void fuzz_see_bytes(const void *bytes, size_t count)
{
    /* Four sums side by side: reading is most of what a program does. */
    const unsigned char *byte = bytes;
    uint64_t sums[4] = {count, 1, 2, 3};
    for (; count >= 32; count -= 32, byte += 32) {
        uint64_t words[4];
        memcpy(words, byte, sizeof(words));
        for (int i = 0; i < 4; i++)
            sums[i] = (sums[i] ^ words[i]) * UINT64_C(0x9ddfea08eb382d69) + (sums[i] >> 29);
    }
    unsigned char rest[32] = {0};
    memcpy(rest, byte, count);
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t word;
        memcpy(&word, rest + 8 * i, sizeof(word));
        sum = mix(mix(sum + sums[i]) ^ word);
    }
    fuzz_see(sum);
    fuzz_say("  bytes: %016llx\n", (unsigned long long)sum);
}

/* --- results */

void fuzz_say(const char *format, ...)
{
    va_list arguments;
    if (!prints)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
}

CUresult fuzz_result(CUresult result, const char *what)
{
    fuzz_see((uint64_t)result);
    has_failed |= result != CUDA_SUCCESS;
    if (prints) {
        const char *open = strstr(what, "CALL(") == what || strstr(what, "TWIN(") == what
                               ? strchr(what, '(') + 1
                               : what;
        fuzz_say("  %s: %d\n", open, (int)result);
    }
    return result;
}

bool fuzz_has_shim(void)
{
    static int answer = -1;
    if (answer < 0)
        answer = dlsym(RTLD_DEFAULT, "metashard_status") != NULL;
    return answer == 1;
}

bool fuzz_defers(void)
{
    static int answer = -1;
    if (answer < 0)
        answer = getenv("FUZZ_DEFERS") != NULL;
    return answer == 1;
}

bool fuzz_driver_has(const char *setting)
{
    const char *whole_run = getenv("SIM_SETTINGS");
    return getenv(setting) != NULL || (whole_run != NULL && strstr(whole_run, setting) != NULL);
}

bool fuzz_device_has_threads(void)
{
    const char *eager = getenv("SIMCUDA_EAGER");
    return eager != NULL && strcmp(eager, "0") == 0;
}

/* Whether the log has a line about it. The log does not always repeat a line. */
static bool is_told(const char *what)
{
    char line[1000];
    const char *path = getenv("FUZZ_LOG");
    FILE *log = path != NULL ? fopen(path, "r") : NULL;
    bool is_found = false;
    while (log != NULL && !is_found && fgets(line, sizeof(line), log) != NULL)
        is_found = strstr(line, what) != NULL;
    if (log != NULL)
        fclose(log);
    return is_found;
}

void fuzz_loud(CUresult result, const char *what)
{
    const bool is_fine = result == CUDA_SUCCESS || !fuzz_has_shim() || is_told(what);
    fuzz_say("  %s: %d%s\n", what, (int)result, is_fine ? "" : ", and nothing in the log");
    fuzz_see(is_fine ? 0 : 1);
}

/* --- operations */

static const struct fuzz_operation *const chapters[] = {
    fuzz_basics, fuzz_copies,   fuzz_shapes,   fuzz_launches, fuzz_hidden,  fuzz_streams,
    fuzz_memory, fuzz_mappings, fuzz_contexts, fuzz_plans,    fuzz_refused, fuzz_pools,
    fuzz_many,   fuzz_files,    fuzz_newer,    fuzz_bounds,   fuzz_loads,   fuzz_tensors};
enum { CHAPTERS = sizeof(chapters) / sizeof(chapters[0]), OPERATIONS_MOST = 128 };

static const struct fuzz_operation *operations[OPERATIONS_MOST];
static unsigned weights[OPERATIONS_MOST], operation_count, total_weight;
static bool left_out[OPERATIONS_MOST];
static uint64_t program = 400; /* operations of a program */

/* Plans come more often, and tensors at all, where plans are drawn. */
static unsigned weight_of(const struct fuzz_operation *const chapter, unsigned weight)
{
    enum { OFTEN = 5 };
    if (chapter == fuzz_tensors && !fuzz_draws_plans())
        return 0;
    return chapter == fuzz_plans && fuzz_draws_plans() ? OFTEN * weight : weight;
}

static void collect(void)
{
    for (int i = 0; i < CHAPTERS; i++) {
        for (const struct fuzz_operation *each = chapters[i]; each->name != NULL; each++) {
            if (operation_count == OPERATIONS_MOST)
                abort();
            operations[operation_count] = each;
            weights[operation_count] = weight_of(chapters[i], each->weight);
            total_weight += weights[operation_count++];
        }
    }
}

static void begin(uint64_t number)
{
    draws = mix(seed + mix(number + UINT64_C(0x1234567)));
    way_draws = ~draws;
    seen = mix(number);
    has_failed = false;
}

/* The name ends with a comma or the text. */
static unsigned find_operation(const char *name)
{
    const size_t length = strcspn(name, ",");
    for (unsigned i = 0; i < operation_count; i++) {
        if (strlen(operations[i]->name) == length &&
            strncmp(operations[i]->name, name, length) == 0)
            return i;
    }
    fprintf(stderr, "no such operation: %s\n", name);
    exit(2);
}

/* An operation that is left out is drawn and not run, so that the others stay as they are. */
static void leave_out(const char *names)
{
    while (names != NULL && *names != '\0') {
        left_out[find_operation(names)] = true;
        names = strchr(names, ',') != NULL ? strchr(names, ',') + 1 : NULL;
    }
}

bool fuzz_is_left_out(const char *name)
{
    return left_out[find_operation(name)];
}

/* Each operation has its own number: a number for all so far would hide which one differs. */
static void run_one(uint64_t number, const char *name, uint64_t *record, uint32_t *kind)
{
    begin(number);
    unsigned left = (unsigned)fuzz_below(total_weight);
    unsigned i = 0;
    if (name != NULL)
        i = find_operation(name);
    else
        while (left >= weights[i])
            left -= weights[i++];
    *record = seen;
    if (left_out[i])
        return;
    fuzz_say("%llu: %s\n", (unsigned long long)number, operations[i]->name);
    kinds_seen[i]++;
    *kind = i + 1;
    operations[i]->run();
    kinds_failed[i] += has_failed;
    *record = seen;
}

/* Draws one operation many times as often. */
static void draw_more(const char *name)
{
    enum { TIMES = 16 };
    const unsigned i = find_operation(name);
    total_weight += (TIMES - 1) * weights[i];
    weights[i] *= TIMES;
}

static void run_act(const struct fuzz_operation *acts, const char *name, uint64_t number,
                    uint64_t *record)
{
    begin(number);
    for (; acts->name != NULL; acts++) {
        if (strcmp(acts->name, name) != 0)
            continue;
        fuzz_say("%s\n", name);
        acts->run();
        *record = seen;
        return;
    }
    fprintf(stderr, "no such act: %s\n", name);
    exit(2);
}

static void end_program(uint64_t number, uint64_t *record, struct simcuda_counts *counts)
{
    begin(~number);
    fuzz_say("%llu ends the program\n", (unsigned long long)number);
    fuzz_end_program();
    *record = seen;
    FUZZ_STAND_IN(simcuda_take_counts)(counts);
    fuzz_say("%llu bytes were sent, %llu bytes of memory at most\n",
             (unsigned long long)counts->h2d_bytes,
             (unsigned long long)counts->physical_bytes_peak);
}

/* --- what stays when the process crashes: files of numbers */

static void *map_file(const char *name, size_t bytes)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", fuzz_folder, name);
    const int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
        perror(path);
        exit(2);
    }
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (address == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    return address;
}

/*
 * "3,17-20,40=free": is this one in the list? A number alone is the operation that the tables give
 * it, which changes with them; one that is kept has its name.
 */
static bool is_kept(const char *list, uint64_t number, const char **name_out)
{
    *name_out = NULL;
    while (list != NULL && *list != '\0') {
        char *end;
        const uint64_t from = strtoull(list, &end, 10);
        const uint64_t to = *end == '-' ? strtoull(end + 1, &end, 10) : from;
        if (number >= from && number <= to) {
            *name_out = *end == '=' ? end + 1 : NULL;
            return true;
        }
        list = strchr(end, ',') != NULL ? strchr(end, ',') + 1 : NULL;
    }
    return false;
}

static void start(char **arguments)
{
    CUdevice device;
    fuzz_entries_init();
    fuzz_plans_begin();
    if (CALL(cuInit)(0) != CUDA_SUCCESS || CALL(cuDeviceGet)(&device, 0) != CUDA_SUCCESS ||
        CALL(cuDevicePrimaryCtxRetain)(&fuzz_context, device) != CUDA_SUCCESS ||
        CALL(cuCtxSetCurrent)(fuzz_context) != CUDA_SUCCESS) {
        fprintf(stderr, "CUDA does not start\n");
        exit(2);
    }
    fuzz_launches_init(arguments[5], arguments[6]);
    fuzz_blocks_init();
    fuzz_plans_init();
}

static const char *option(int count, char **arguments, const char *name)
{
    for (int i = 7; i + 1 < count; i++) {
        if (strcmp(arguments[i], name) == 0)
            return arguments[i + 1];
    }
    return NULL;
}

/* The operations and acts by name, and the entries: what the numbers in "counts" are about. */
static int list(void)
{
    for (unsigned i = 0; i < operation_count; i++)
        printf("operation %s\n", operations[i]->name);
    for (const struct fuzz_operation *act = fuzz_first_acts; act->name != NULL; act++)
        printf("first %s\n", act->name);
    for (const struct fuzz_operation *act = fuzz_last_acts; act->name != NULL; act++)
        printf("last %s\n", act->name);
    for (int i = 0; i < FUZZ_ENTRIES; i++)
        printf("entry %s\n", fuzz_entry_name((enum fuzz_entry)i));
    return 0;
}

int main(int count, char **arguments)
{
    collect();
    if (count == 2 && strcmp(arguments[1], "--list") == 0)
        return list();
    if (count < 7) {
        fprintf(stderr,
                "usage: %s SEED FIRST LAST FOLDER KERNELS TORCH-KERNELS [--keep LIST] "
                "[--more OPERATION] [--without OPERATION,...] [--short OPERATIONS] "
                "[--first ACT] [--last ACT] [--print]\n",
                arguments[0]);
        return 2;
    }
    seed = strtoull(arguments[1], NULL, 10);
    const uint64_t first = strtoull(arguments[2], NULL, 10);
    const uint64_t last = strtoull(arguments[3], NULL, 10);
    fuzz_folder = arguments[4];
    prints = strcmp(arguments[count - 1], "--print") == 0;
    const char *kept = option(count, arguments, "--keep");
    const char *more = option(count, arguments, "--more");
    if (more != NULL)
        draw_more(more);
    leave_out(option(count, arguments, "--without"));
    const char *short_programs = option(count, arguments, "--short");
    fuzz_is_large = short_programs != NULL;
    if (fuzz_is_large)
        program = strtoull(short_programs, NULL, 10);
    const char *first_act = option(count, arguments, "--first");
    const char *last_act = option(count, arguments, "--last");
    /* An act before, one record for each operation and each end of a program, and an act behind. */
    const size_t programs = (size_t)((last - first + program - 1) / program);
    const size_t most = (size_t)(last - first) + programs + 8;
    uint64_t *records = map_file("records", most * sizeof(records[0]));
    uint32_t *kinds = map_file("kinds", (size_t)(last - first) * sizeof(kinds[0])); /* from 1 */
    struct simcuda_counts *sent = map_file("sent", programs * sizeof(sent[0]));
    uint32_t *counts = map_file("counts", (FUZZ_ENTRIES + 2 * OPERATIONS_MOST) * sizeof(counts[0]));
    fuzz_hits = counts;
    kinds_seen = counts + FUZZ_ENTRIES;
    kinds_failed = kinds_seen + OPERATIONS_MOST;
    begin(first);
    start(arguments);

    uint64_t *record = records;
    *record++ = 1;
    if (first_act != NULL)
        run_act(fuzz_first_acts, first_act, ~first, record++);
    for (uint64_t number = first; number < last; number++) {
        const char *name = NULL;
        if (kept == NULL || is_kept(kept, number, &name))
            run_one(number, name, record, kinds + (number - first));
        record++;
        if ((number + 1) % program == 0 || number + 1 == last)
            end_program(number, record++, sent++);
    }
    if (last_act != NULL)
        run_act(fuzz_last_acts, last_act, ~last, record++);
    *record = 1;
    return 0;
}
