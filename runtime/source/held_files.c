/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/held_files.h"

#include <errno.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/source/descriptor.h"
#include "runtime/source/file_thread.h"
#include "runtime/source/mapping.h"
#include "runtime/source/reads.h"
#include "runtime/source/source_close.h"
#include "runtime/source/source_internal.h"
#include "runtime/source/trust.h"
#include "runtime/state/caller.h"

enum { MAX_HELD = 64 };

struct held {
    uint32_t number;          /* 0: the place is free */
    struct stat stat;         /* of the program's descriptor */
    struct ms_source *source; /* NULL: it could not be one */
    unsigned refusals;        /* one after the other */
    uint64_t next_ns;         /* when it is asked for again then */
};

/* Others that read the same file wait until it is held, or not. */
static struct ms_lock holding = MS_LOCK_INIT(holding);

static struct ms_lock lock = MS_LOCK_INIT(held_files);
static MS_GUARDED_BY(lock) struct held table[MAX_HELD];
static MS_GUARDED_BY(lock) uint32_t last_number;
static MS_GUARDED_BY(lock) size_t next_place; /* of the one that was held first */

bool ms_held_files_has(uint32_t number, const struct ms_source *file)
{
    bool has = false;
    ms_lock_take(&lock);
    for (size_t i = 0; i < MAX_HELD && number != 0 && !has; i++)
        has = table[i].number == number && table[i].source == file;
    ms_lock_drop(&lock);
    return has;
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

MS_HOLDS(lock) static bool is_held_locked(const struct held *held, const struct stat *stat)
{
    return held->source != NULL && ms_source_state(held->source) == MS_SOURCE_IS_OPEN &&
           ms_trust_is_unchanged(&held->stat, stat);
}

/* True if nothing is to be asked: *number_out is what the answer was. */
static bool is_known(const struct stat *stat, uint32_t *number_out)
{
    ms_lock_take(&lock);
    const struct held *held = find_locked(stat);
    const bool is_held = held != NULL && is_held_locked(held, stat);
    const bool is_refused =
        held != NULL && !is_held && ms_clock_ns(CLOCK_MONOTONIC) < held->next_ns;
    *number_out = is_held ? held->number : 0;
    ms_lock_drop(&lock);
    return is_held || is_refused;
}

/* A file that somebody writes all the time is asked for less and less often. */
MS_HOLDS(lock) static void refuse_locked(struct held *held)
{
    enum { MAX_DOUBLINGS = 6 };
    const uint64_t second_ns = UINT64_C(1000000000);
    held->next_ns = ms_clock_ns(CLOCK_MONOTONIC) + (second_ns << held->refusals);
    held->refusals += held->refusals < MAX_DOUBLINGS;
}

/* Takes the source, and returns the one in whose place it comes: also itself, if it is held already
 * and only its times are new, as after chmod(2). */
static struct ms_source *set(const struct stat *stat, struct ms_source *source,
                             uint32_t *number_out)
{
    ms_lock_take(&lock);
    struct held *held = find_locked(stat);
    if (held == NULL) {
        held = &table[next_place++ % MAX_HELD];
        held->refusals = 0;
    }
    struct ms_source *before = held->number != 0 ? held->source : NULL;
    if (before == NULL || before != source)
        held->number = ++last_number;
    held->stat = *stat;
    held->source = source;
    held->next_ns = 0;
    if (source != NULL)
        held->refusals = 0;
    else
        refuse_locked(held);
    *number_out = source != NULL ? held->number : 0;
    ms_lock_drop(&lock);
    return before;
}

/*
 * Opens the file of a descriptor of the program as a source: not an overlay's, where a descriptor
 * from before a copy-up reads another file (trust.h).
 */
static struct ms_source *open_file(int descriptor, const struct stat *stat)
{
    struct ms_mapping place = {.is_read = true, .device = stat->st_dev, .inode = stat->st_ino};
    if (!ms_reads_path(descriptor, place.path))
        return NULL;
    struct ms_source *file = ms_trust_open(&place, 0);
    ms_source_close_serve(file != NULL);
    if (file == NULL)
        return NULL;
    const struct stat *opened = ms_source_stat(file);
    if (!file->system.is_overlay && opened->st_dev == stat->st_dev &&
        opened->st_ino == stat->st_ino)
        return file;
    ms_source_drop(file);
    return NULL;
}

static uint32_t hold(int descriptor, const struct stat *stat)
{
    uint32_t number;
    if (is_known(stat, &number) || ms_file_thread_is_of_parent())
        return number;
    ms_lock_take(&holding);
    if (!is_known(stat, &number)) {
        struct ms_source *before = set(stat, open_file(descriptor, stat), &number);
        if (before != NULL)
            ms_source_drop(before);
    }
    ms_lock_drop(&holding);
    return number;
}

/* Not if it can write: who does so, or may, is not to wait for its own lease. */
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
