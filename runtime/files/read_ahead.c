/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/read_ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/files/file_thread.h"
#include "runtime/files/lease.h"
#include "runtime/state/caller.h"

enum {
    MAX_MAPPINGS = 1024,
    MAX_TRIES = 3, /* no advice is given once faults took it back so often */
    FAULTS_OF_A_COPY = 2,
    /* A look ignores FREE_FAULTS. MANY_FAULTS more make it ask which pages are there. */
    FREE_FAULTS = 1,
    MANY_FAULTS = 32,
    /* A fault maps up to PAGES_OF_A_COPY pages, if they were read before. Beside the pages of
     * copies and of the header, MANY_PAGES may be there. */
    PAGES_OF_A_COPY = 16,
    MANY_PAGES = 64,
    HEADER_BYTES = 1 << 20,
    LEAST_BYTES = 4 << 20,       /* of a mapping */
    MAX_HEADER_BYTES = 16 << 20, /* that are read at once */
};

/* Only the file thread uses the mappings and `tries`. */
static struct ms_mapping_range {
    uintptr_t begin, end;
    dev_t device;
    ino_t inode;
    size_t copies;
} mappings[MAX_MAPPINGS];
static size_t mapping_count, last_found;
static unsigned tries;

static _Atomic bool is_given, is_new; /* is_new: nobody has looked since */
static _Atomic uint64_t copies;

/* Only the lease thread uses these counts. */
static uint64_t faults_before, copies_before, bucket;

/* --- giving and taking back, in the file thread */

/* True if the mapping still is there, as it was. */
static bool is_there(const struct ms_mapping_range *range)
{
    struct ms_mapping now;
    return ms_mapping_find_at(range->begin, &now) && now.begin == range->begin &&
           now.end == range->end && now.device == range->device && now.inode == range->inode;
}

static void forget_unmapped(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < mapping_count; i++) {
        if (is_there(&mappings[i]))
            mappings[kept++] = mappings[i];
    }
    mapping_count = kept;
    last_found = 0;
}

/* Forgets older mappings that lay where this mapping lies. */
static void forget(const struct ms_mapping *mapping)
{
    size_t kept = 0;
    for (size_t i = 0; i < mapping_count; i++) {
        if (mappings[i].end <= mapping->begin || mapping->end <= mappings[i].begin)
            mappings[kept++] = mappings[i];
    }
    mapping_count = kept;
    last_found = 0;
}

static struct ms_mapping_range *find(const struct ms_mapping *mapping)
{
    for (size_t i = 0; i < mapping_count; i++) {
        const size_t at = (last_found + i) % mapping_count;
        struct ms_mapping_range *range = &mappings[at];
        if (range->begin == mapping->begin && range->end == mapping->end &&
            range->inode == mapping->inode && range->device == mapping->device) {
            last_found = at;
            return range;
        }
    }
    return NULL;
}

static void advise(const struct ms_mapping *mapping)
{
    if (tries == MAX_TRIES || mapping->end - mapping->begin < LEAST_BYTES)
        return;
    forget(mapping);
    if (mapping_count == MAX_MAPPINGS)
        forget_unmapped();
    if (mapping_count == MAX_MAPPINGS ||
        madvise((void *)mapping->begin, mapping->end - mapping->begin, MADV_RANDOM) != 0)
        return;
    last_found = mapping_count;
    mappings[mapping_count++] =
        (struct ms_mapping_range){mapping->begin, mapping->end, mapping->device, mapping->inode,
                                  .copies = 1};
    if (!atomic_load(&is_given)) {
        atomic_store(&is_new, true);
        atomic_store(&is_given, true);
    }
}

/* Leaves alone what was mapped there since: its owner may have given other advice. */
static void take_back(__attribute__((unused)) void *argument)
{
    for (size_t i = 0; i < mapping_count; i++) {
        if (is_there(&mappings[i]))
            madvise((void *)mappings[i].begin, mappings[i].end - mappings[i].begin, MADV_NORMAL);
    }
    mapping_count = last_found = 0;
    atomic_store(&is_given, false);
}

static bool is_used(const struct ms_mapping_range *range)
{
    const size_t most = MANY_PAGES + PAGES_OF_A_COPY * range->copies;
    return is_there(range) && ms_mapping_has_pages(range->begin + HEADER_BYTES, range->end, most);
}

/* Faults may have other causes, such as code that is read: so the pages of mappings decide. */
static void take_back_if_used(void *argument)
{
    bool is_any_used = false;
    for (size_t i = 0; i < mapping_count && !is_any_used; i++)
        is_any_used = is_used(&mappings[i]);
    if (!is_any_used)
        return;
    tries++;
    take_back(argument);
}

void ms_read_ahead_note_copy(const struct ms_mapping *mapping)
{
    atomic_fetch_add_explicit(&copies, 1, memory_order_relaxed);
    struct ms_mapping_range *range = find(mapping);
    if (range != NULL)
        range->copies++;
    else if (ms_lease_any())
        advise(mapping);
}

/* --- mappings from now on */

static void advise_new(void *address)
{
    struct ms_mapping found;
    const uintptr_t begin = (uintptr_t)address;
    if (atomic_load(&is_given) && ms_mapping_find_at(begin, &found) && found.begin == begin)
        advise(&found);
}

/* True for a safetensors file: 8 bytes of length, then a JSON object. Does not read a device, which
 * would have side effects. Each read is of pages that are there already: otherwise the kernel would
 * read more behind them. */
static bool read_length(int file, uint64_t *length_out)
{
    struct stat stat;
    struct {
        uint64_t bytes;
        char first;
    } start;
    const size_t start_bytes = sizeof(start.bytes) + 1;
    if (syscall(SYS_fstat, file, &stat) != 0 || !S_ISREG(stat.st_mode))
        return false;
    syscall(SYS_readahead, file, 0L, start_bytes);
    if (syscall(SYS_pread64, file, &start, start_bytes, 0L) != (long)start_bytes)
        return false;
    *length_out = start.bytes;
    return start.first == '{';
}

void ms_read_ahead_note_map(int file, void *address, size_t bytes)
{
    const int before = errno;
    uint64_t length = 0;
    if (address == MAP_FAILED || bytes < LEAST_BYTES || ms_calls_inside != 0) {
        ms_mapping_note_new(address != MAP_FAILED ? address : NULL);
        return;
    }
    ms_calls_inside++;
    const bool is_checkpoint = read_length(file, &length);
    ms_mapping_note_new(is_checkpoint ? address : NULL);
    if (is_checkpoint && length <= MAX_HEADER_BYTES) {
        syscall(SYS_readahead, file, 0L, sizeof(length) + length);
        if (atomic_load_explicit(&is_given, memory_order_relaxed) && !ms_file_thread_is_of_parent())
            ms_file_thread_call(advise_new, address);
    }
    ms_calls_inside--;
    errno = before;
}

/* --- faults */

bool ms_read_ahead_look_at(uint64_t faults)
{
    const uint64_t copied = atomic_load_explicit(&copies, memory_order_relaxed);
    const uint64_t new_faults = faults - faults_before;
    const uint64_t explained = FREE_FAULTS + FAULTS_OF_A_COPY * (copied - copies_before);
    faults_before = faults;
    copies_before = copied;
    if (!atomic_load(&is_given) || atomic_exchange(&is_new, false))
        bucket = 0;
    else
        bucket = bucket + new_faults > explained ? bucket + new_faults - explained : 0;
    if (bucket > MANY_FAULTS) {
        bucket = 0;
        ms_file_thread_call(take_back_if_used, NULL);
    }
    return atomic_load(&is_given);
}

bool ms_read_ahead_look(bool has_leases)
{
    struct rusage usage;
    if (!has_leases && atomic_load(&is_given))
        ms_file_thread_call(take_back, NULL);
    return getrusage(RUSAGE_SELF, &usage) == 0 && ms_read_ahead_look_at((uint64_t)usage.ru_majflt);
}
