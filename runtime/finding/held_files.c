/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/held_files.h"

#include <errno.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/kept_files.h"
#include "runtime/files/lease_thread.h"
#include "runtime/files/mapping.h"
#include "runtime/files/trust.h"
#include "runtime/finding/reads.h"
#include "runtime/state/caller.h"

enum { MAX_HELD = 64 };

struct held {
    uint32_t number;   /* 0: the place is free */
    struct stat stat;  /* of the program's descriptor */
    bool is_trusted;   /* it could be a source */
    unsigned refusals; /* in a row */
    uint64_t next_ns;  /* when a refused file is tried again */
};

static struct ms_lock lock = MS_LOCK_INIT(held_files);
static MS_GUARDED_BY(lock) struct held table[MAX_HELD];
static MS_GUARDED_BY(lock) uint32_t last_number;
static MS_GUARDED_BY(lock) size_t next_place; /* of the file that was tried first */

/* Keeps the file of each place in the table open, for the copy that is likely to follow. */
static struct ms_kept_file kept[MAX_HELD];

bool ms_held_files_has(uint32_t number, const struct ms_file *file)
{
    struct stat then;
    bool is_found = false;
    ms_lock_take(&lock);
    for (size_t i = 0; i < MAX_HELD && number != 0 && !is_found; i++) {
        is_found = table[i].number == number && table[i].is_trusted;
        if (is_found)
            then = table[i].stat;
    }
    ms_lock_drop(&lock);
    return is_found && file != NULL && ms_trust_had_times(file, &then);
}

MS_HOLDS(lock) static struct held *find_locked(const struct stat *stat)
{
    for (size_t i = 0; i < MAX_HELD; i++) {
        struct held *held = &table[i];
        if (held->number != 0 && held->stat.st_ino == stat->st_ino &&
            held->stat.st_dev == stat->st_dev)
            return held;
    }
    return NULL;
}

/* True if the file need not be tried again: *number_out is the earlier answer. */
static bool is_known(const struct stat *stat, uint32_t *number_out)
{
    ms_lock_take(&lock);
    const struct held *held = find_locked(stat);
    const bool is_held =
        held != NULL && held->is_trusted && ms_trust_is_unchanged(&held->stat, stat);
    const bool is_refused =
        held != NULL && !is_held && ms_clock_ns(CLOCK_MONOTONIC) < held->next_ns;
    *number_out = is_held ? held->number : 0;
    if (is_held)
        ms_kept_files_use(&kept[held - table]);
    ms_lock_drop(&lock);
    return is_held || is_refused;
}

/* Tries a file that somebody writes all the time less and less often. */
MS_HOLDS(lock) static void refuse_locked(struct held *held)
{
    enum { MAX_DOUBLINGS = 6 };
    held->next_ns = ms_clock_ns(CLOCK_MONOTONIC) + ((uint64_t)MS_NS_PER_S << held->refusals);
    held->refusals += held->refusals < MAX_DOUBLINGS;
}

static uint32_t set(const struct stat *stat, bool is_trusted, size_t *place_out)
{
    ms_lock_take(&lock);
    struct held *held = find_locked(stat);
    if (held == NULL) {
        held = &table[next_place++ % MAX_HELD];
        held->refusals = 0;
    }
    held->number = ++last_number;
    held->stat = *stat;
    held->is_trusted = is_trusted;
    held->next_ns = 0;
    if (is_trusted)
        held->refusals = 0;
    else
        refuse_locked(held);
    const uint32_t number = is_trusted ? held->number : 0;
    *place_out = (size_t)(held - table);
    ms_lock_drop(&lock);
    return number;
}

/* A file that the program is about to read, as its descriptor shows it. */
struct wanted {
    struct stat stat;
    struct ms_mapping place;
    bool has_path;
    uint32_t number; /* 0: it cannot be trusted */
};

/* In the file thread, so threads that begin to read the same file open it once. */
static void look(void *argument)
{
    struct wanted *wanted = argument;
    size_t place;
    if (is_known(&wanted->stat, &wanted->number))
        return;
    struct ms_file *file = wanted->has_path ? ms_trust_look(&wanted->place, &wanted->stat) : NULL;
    wanted->number = set(&wanted->stat, file != NULL, &place);
    ms_kept_files_set(&kept[place], file);
}

static uint32_t try(int descriptor, const struct stat *stat)
{
    struct wanted wanted = {
        .stat = *stat, .place = {.is_read = true, .device = stat->st_dev, .inode = stat->st_ino}};
    wanted.has_path = ms_reads_path(descriptor, wanted.place.path);
    ms_file_thread_call(look, &wanted);
    ms_lease_thread_serve(false);
    return wanted.number;
}

static uint32_t hold(int descriptor, const struct stat *stat)
{
    uint32_t number;
    return is_known(stat, &number) || ms_file_thread_is_of_parent() ? number
                                                                    : try(descriptor, stat);
}

/* False if the descriptor can write: its user must not wait for the lease of its own process. */
static bool is_read_directly(int descriptor)
{
    const long flags = syscall(SYS_fcntl, descriptor, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && (flags & O_ACCMODE) == O_RDONLY;
}

uint32_t ms_held_files_hold(int descriptor)
{
    struct stat stat;
    uint32_t number = 0;
    const int before = errno;
    if (ms_calls_inside == 0 && is_read_directly(descriptor) &&
        syscall(SYS_fstat, descriptor, &stat) == 0 && S_ISREG(stat.st_mode)) {
        ms_calls_inside++;
        number = hold(descriptor, &stat);
        ms_calls_inside--;
    }
    errno = before;
    return number;
}
