/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/reads.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/checksum.h"
#include "runtime/base/lock.h"

/* Static, because a program may read where it must not allocate. Pages without notes take no
 * memory. When there are too many ranges, all are forgotten; of files, the oldest. */
enum { MAX_RANGES = 32 << 10, MAX_FILES = MS_READS_FILES, MAX_READS = 64 };
/* One checksum for so many bytes of a read, and for what is left at its end. */
enum { PART_BYTES = 64 << 10, MAX_CHECKSUMS = 1 << 20 };

struct file {
    dev_t device;
    ino_t inode;
    struct timespec changed; /* its change time, which a new path or file changes */
    uint32_t number; /* how many came before, from 1 on; its place is this modulo MAX_FILES */
    bool is_opened, is_mapped;
    uint64_t bytes, read_bytes; /* its own; of reads that were noted */
    char path[MS_PATH_BYTES];
};

struct range {
    uintptr_t begin, end;
    uint64_t offset;                /* of begin, in the file */
    uint32_t file;                  /* its number */
    uint32_t held;                  /* 0: it has no checksums */
    uintptr_t read_begin, read_end; /* before anything was read over it */
    uint64_t first_checksum;
};

/* What was read last, wherever to. */
struct last_read {
    uint64_t offset, bytes;
    uint32_t file;
};

static struct ms_lock lock = MS_LOCK_INIT(reads);
static MS_GUARDED_BY(lock) struct file files[MAX_FILES];
static MS_GUARDED_BY(lock) uint32_t file_count;             /* ever */
static MS_GUARDED_BY(lock) struct range ranges[MAX_RANGES]; /* ascending, none overlaps */
static MS_GUARDED_BY(lock) size_t range_count;
static MS_GUARDED_BY(lock) struct last_read reads[MAX_READS];
static MS_GUARDED_BY(lock) size_t read_count; /* ever */
_Atomic uint32_t ms_reads_unseen;

/* A ring. Who has reserved places fills them without the lock: if they are reserved again
 * meanwhile, wrong ones may stay there, and what was read is not recognised. */
static _Atomic uint64_t checksums[MAX_CHECKSUMS];
static MS_GUARDED_BY(lock) uint64_t checksum_count; /* ever reserved */

/* A handler may have interrupted the thread that has the lock, and in a forked child it may have no
 * owner any more: so nobody waits for long. */
static bool take(void) MS_LOCK_ATTRIBUTE(try_acquire_capability(true, lock));
static bool take(void) MS_LOCK_ATTRIBUTE(no_thread_safety_analysis)
{
    enum { TRIES = 100 };
    for (int i = 0; i < TRIES; i++) {
        if (ms_lock_try(&lock))
            return true;
        sched_yield();
    }
    return false;
}

/* --- files */

bool ms_reads_path(int descriptor, char path_out[MS_PATH_BYTES])
{
    char link[32];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path_out, MS_PATH_BYTES);
    const bool is_whole = length > 0 && length < MS_PATH_BYTES;
    path_out[is_whole ? length : 0] = '\0';
    return is_whole;
}

MS_HOLDS(lock) static struct file *find_file_locked(const struct stat *stat)
{
    const uint32_t kept = file_count < MAX_FILES ? file_count : MAX_FILES;
    for (uint32_t i = 0; i < kept; i++) { /* the newest first */
        struct file *file = &files[(file_count - i) % MAX_FILES];
        if (file->inode == stat->st_ino && file->device == stat->st_dev)
            return file;
    }
    return NULL;
}

/* Also of one that was deleted, and whose inode is a new one's: nobody has seen that. A path that
 * is too long is none. */
MS_HOLDS(lock)
static void set_path_locked(struct file *file, int descriptor, const struct stat *stat)
{
    const struct timespec changed = stat->st_ctim;
    if (file->changed.tv_sec == changed.tv_sec && file->changed.tv_nsec == changed.tv_nsec)
        return;
    file->changed = changed;
    file->bytes = (uint64_t)stat->st_size;
    file->is_opened = file->is_mapped = false;
    file->read_bytes = 0;
    ms_reads_path(descriptor, file->path);
}

/* A header is a small part of a checkpoint. */
MS_HOLDS(lock) static bool is_unseen_locked(const struct file *file)
{
    enum { HEADER_SHARE = 16 };
    return file->is_opened && !file->is_mapped && file->read_bytes < file->bytes / HEADER_SHARE;
}

MS_HOLDS(lock) static struct file *add_file_locked(const struct stat *stat)
{
    struct file *file = &files[(file_count + 1) % MAX_FILES];
    memset(file, 0, sizeof(*file));
    file->device = stat->st_dev;
    file->inode = stat->st_ino;
    file->number = ++file_count;
    return file;
}

MS_HOLDS(lock) static struct file *get_file_locked(int descriptor, const struct stat *stat)
{
    struct file *file = find_file_locked(stat);
    if (file == NULL)
        file = add_file_locked(stat);
    set_path_locked(file, descriptor, stat);
    return file;
}

/* --- ranges */

/* The first that ends behind the address. */
MS_HOLDS(lock) static size_t find_range_locked(uintptr_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (ranges[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

MS_HOLDS(lock) static void replace_locked(size_t first, size_t end, size_t count)
{
    memmove(&ranges[first + count], &ranges[end], (range_count - end) * sizeof(ranges[0]));
    range_count += count - (end - first);
}

/* Of a range that is read over in its middle, only what is before that is kept. */
MS_HOLDS(lock) static void remove_locked(uintptr_t begin, uintptr_t end)
{
    size_t first = find_range_locked(begin);
    if (first < range_count && ranges[first].begin < begin)
        ranges[first++].end = begin;
    size_t last = first;
    while (last < range_count && ranges[last].end <= end)
        last++;
    if (last < range_count && ranges[last].begin < end) {
        ranges[last].offset += end - ranges[last].begin;
        ranges[last].begin = end;
    }
    replace_locked(first, last, 0);
}

/* A read that goes on where the one before it ended makes that longer, if neither has checksums. */
MS_HOLDS(lock) static void add_range_locked(const struct range *range)
{
    remove_locked(range->begin, range->end);
    const size_t at = find_range_locked(range->begin);
    struct range *before = at > 0 ? &ranges[at - 1] : NULL;
    if (before != NULL && before->end == range->begin && before->file == range->file &&
        before->held == 0 && range->held == 0 &&
        before->offset + (before->end - before->begin) == range->offset) {
        before->end = range->end;
        return;
    }
    if (range_count == MAX_RANGES) {
        range_count = 0;
        ranges[range_count++] = *range;
        return;
    }
    replace_locked(at, at, 1);
    ranges[at] = *range;
}

/* --- checksums */

static bool reserve_checksums(size_t count, uint64_t *first_out)
{
    if (!take())
        return false;
    *first_out = checksum_count;
    checksum_count += count;
    ms_lock_drop(&lock);
    return count <= MAX_CHECKSUMS;
}

/* False: the note has none. */
static bool add_checksums(const unsigned char *address, size_t bytes, uint64_t *first_out)
{
    if (!reserve_checksums((bytes + PART_BYTES - 1) / PART_BYTES, first_out))
        return false;
    uint64_t at = *first_out;
    for (size_t done = 0; done < bytes; done += PART_BYTES) {
        const size_t left = bytes - done;
        const uint64_t sum = ms_checksum(address + done, left < PART_BYTES ? left : PART_BYTES);
        atomic_store_explicit(&checksums[at++ % MAX_CHECKSUMS], sum, memory_order_relaxed);
    }
    return true;
}

MS_HOLDS(lock)
static bool find_part_locked(uintptr_t address, struct ms_reads_part *part)
{
    const size_t at = find_range_locked(address);
    if (at == range_count || ranges[at].begin > address || ranges[at].held == 0)
        return false;
    const struct range *range = &ranges[at];
    const uint64_t number = (address - range->read_begin) / PART_BYTES;
    const uint64_t place = range->first_checksum + number;
    if (checksum_count - place > MAX_CHECKSUMS)
        return false;
    part->begin = range->read_begin + number * PART_BYTES;
    const size_t left = range->read_end - part->begin;
    part->bytes = left < PART_BYTES ? left : PART_BYTES;
    part->file_offset = range->offset - range->begin + part->begin;
    part->checksum = atomic_load_explicit(&checksums[place % MAX_CHECKSUMS], memory_order_relaxed);
    part->held = range->held;
    return true;
}

bool ms_reads_find_part(const void *address, struct ms_reads_part *part_out)
{
    if (!take())
        return false;
    const bool is_found = find_part_locked((uintptr_t)address, part_out);
    ms_lock_drop(&lock);
    return is_found;
}

/* --- notes */

static void note(int descriptor, uintptr_t address, size_t bytes, int64_t offset, uint32_t held)
{
    uint64_t first = 0;
    struct stat stat;
    if (syscall(SYS_fstat, descriptor, &stat) != 0 || !S_ISREG(stat.st_mode))
        return;
    if (offset < 0)
        offset = syscall(SYS_lseek, descriptor, 0L, SEEK_CUR) - (int64_t)bytes;
    if (offset < 0)
        return;
    if (held != 0 && !add_checksums((const unsigned char *)address, bytes, &first))
        held = 0;
    if (!take())
        return;
    struct file *file = get_file_locked(descriptor, &stat);
    const bool was_unseen = is_unseen_locked(file);
    file->read_bytes += bytes;
    if (was_unseen && !is_unseen_locked(file))
        atomic_fetch_add(&ms_reads_unseen, 1);
    reads[read_count++ % MAX_READS] = (struct last_read){(uint64_t)offset, bytes, file->number};
    add_range_locked(&(struct range){.begin = address,
                                     .end = address + bytes,
                                     .offset = (uint64_t)offset,
                                     .file = file->number,
                                     .held = held,
                                     .read_begin = address,
                                     .read_end = address + bytes,
                                     .first_checksum = first});
    ms_lock_drop(&lock);
}

void ms_reads_note(int descriptor, const void *address, size_t bytes, int64_t offset, uint32_t held)
{
    const int before = errno;
    note(descriptor, (uintptr_t)address, bytes, offset, held);
    errno = before;
}

enum way { OPENED, MAPPED };

static void note_way(int descriptor, enum way way)
{
    struct stat stat;
    if (syscall(SYS_fstat, descriptor, &stat) != 0 || !S_ISREG(stat.st_mode) ||
        stat.st_size < MS_READS_LEAST || !take())
        return;
    struct file *file =
        way == OPENED ? get_file_locked(descriptor, &stat) : find_file_locked(&stat);
    const bool was_unseen = file != NULL && is_unseen_locked(file);
    if (file != NULL) {
        file->is_opened |= way == OPENED;
        file->is_mapped |= way == MAPPED;
        if (was_unseen != is_unseen_locked(file))
            atomic_fetch_add(&ms_reads_unseen, 1);
    }
    ms_lock_drop(&lock);
}

void ms_reads_note_open(int descriptor)
{
    const int before = errno;
    note_way(descriptor, OPENED);
    errno = before;
}

/* A file that is mapped before it is opened by a name that is noted is none of these. */
void ms_reads_note_map(int descriptor)
{
    const int before = errno;
    if (atomic_load_explicit(&ms_reads_unseen, memory_order_relaxed) != 0)
        note_way(descriptor, MAPPED);
    errno = before;
}

MS_HOLDS(lock) static bool set_place_locked(uint32_t number, struct ms_mapping *place)
{
    const struct file *file = &files[number % MAX_FILES];
    if (file->number != number || file->path[0] == '\0')
        return false;
    place->device = file->device;
    place->inode = file->inode;
    memcpy(place->path, file->path, sizeof(place->path));
    return true;
}

MS_HOLDS(lock) static bool find_locked(uintptr_t begin, uintptr_t middle, struct ms_mapping *place)
{
    const size_t at = find_range_locked(middle);
    if (at == range_count || ranges[at].begin > middle)
        return false;
    const struct range *range = &ranges[at];
    if (begin < range->begin && range->begin - begin > range->offset)
        return false;
    place->file_offset = range->offset + (begin - range->begin);
    return set_place_locked(range->file, place);
}

/* *at counts the place of the memory, then those of reads. */
MS_HOLDS(lock) static bool next_read_locked(size_t bytes, size_t *at, struct ms_mapping *place)
{
    const size_t kept = read_count < MAX_READS ? read_count : MAX_READS;
    while (*at <= kept) {
        const struct last_read *read = &reads[(read_count - (*at)++) % MAX_READS];
        const size_t before = bytes - read->bytes; /* from a buffer */
        place->file_offset = read->offset - before;
        if (read->bytes <= bytes && before < MS_READS_LEAST && before <= read->offset &&
            set_place_locked(read->file, place))
            return true;
    }
    return false;
}

bool ms_reads_next(const void *address, size_t bytes, size_t *at, struct ms_mapping *place_out)
{
    const uintptr_t begin = (uintptr_t)address;
    *place_out = (struct ms_mapping){.is_read = true};
    if (!take())
        return false;
    bool is_found = *at == 0 && find_locked(begin, begin + bytes / 2, place_out);
    *at += *at == 0;
    is_found = is_found || next_read_locked(bytes, at, place_out);
    ms_lock_drop(&lock);
    return is_found;
}

MS_HOLDS(lock) static bool next_unseen_locked(size_t *at, struct ms_mapping *place)
{
    const uint32_t kept = file_count < MAX_FILES ? file_count : MAX_FILES;
    while (*at < kept) {
        const uint32_t number = file_count - (uint32_t)(*at)++;
        if (is_unseen_locked(&files[number % MAX_FILES]) && set_place_locked(number, place))
            return true;
    }
    return false;
}

bool ms_reads_next_unseen(size_t *at, struct ms_mapping *place_out)
{
    *place_out = (struct ms_mapping){.is_read = true};
    if (!take())
        return false;
    const bool is_found = next_unseen_locked(at, place_out);
    ms_lock_drop(&lock);
    return is_found;
}
