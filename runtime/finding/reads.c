/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/reads.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/checksum.h"
#include "runtime/base/lock.h"
#include "runtime/base/number.h"
#include "runtime/driver/flags.h"
#include "runtime/finding/tensor_places.h"

/*
 * The tables are static or mapped by a system call, because a program may read where it must not
 * allocate. Pages without notes take no memory. If a table is full, a new file or range takes the
 * place of the oldest.
 *
 * A note costs the same however many there are, and threads that read side by side rarely meet:
 *
 *     the file      found by device and inode, without a lock
 *     what was read without a lock
 *     where to      memory is cut into windows; each has a list of what was read to it, under the
 *                   flag of its shard
 */
enum { MAX_FILES = MS_READS_FILES, FILE_HEAD_BITS = 11, MAX_READS = 64 };
/* One checksum for each PART_BYTES of a read, and one for the rest at its end. */
enum { PART_BYTES = 64 << 10, MAX_CHECKSUMS = 1 << 20 };
/* Neighbouring windows have neighbouring lists, in different shards. */
enum { WINDOW_BITS = 19, HEAD_BITS = 18, SHARD_BITS = 6, SHARDS = 1 << SHARD_BITS };
enum { SHARD_RANGES = 8 << 10, RANGES = SHARD_RANGES * SHARDS };
enum { FEW_OF_SHARD = 512, FEW_RANGES = FEW_OF_SHARD * SHARDS };

/* A lock that nobody waits for long: a mutex would take a quarter of the time of a note. */
struct MS_LOCK_ATTRIBUTE(capability("flag")) flag {
    _Atomic bool is_taken;
};

/* Threads that add files change this, with files_flag. Others read all but the path without it. */
struct file {
    _Atomic uint32_t number; /* files are counted from 1 on; the place is this modulo MAX_FILES */
    _Atomic uint32_t next;   /* the number of an older file with its hash; 0: none */
    _Atomic dev_t device;
    _Atomic ino_t inode;
    _Atomic uint64_t changed_ns; /* its change time, which a new path or file changes */
    _Atomic bool is_opened, is_mapped;
    _Atomic uint64_t bytes, read_bytes; /* the file's; of noted reads */
    char path[MS_PATH_BYTES];
};

/* Memory within one window. The number of a range is its place in the table. */
struct range {
    uintptr_t begin, read_begin; /* the range's; the read's, before other reads went over it */
    uint64_t offset;             /* of begin, in the file */
    uint64_t read_bytes, first_checksum;
    uint32_t bytes;
    uint32_t file;         /* the file's number */
    uint32_t held;         /* the number of the held file; 0: no checksums */
    uint32_t next;         /* in the list; 0: none */
    uint32_t older, newer; /* in its shard */
};

/* A shard has each SHARDS-th range behind its own number, so that few ranges take few pages. */
struct shard {
    _Alignas(64) struct flag flag;
    uint32_t used, unused; /* how many ranges were ever used; the first that is free again */
    uint32_t oldest, newest;
};

/* The last reads, to any memory. There is no lock: two reads that mix are only a wrong guess. */
struct last_read {
    _Atomic uint64_t offset, bytes;
    _Atomic uint32_t file;
};

static struct flag files_flag;
static struct file files[MAX_FILES];
static _Atomic uint32_t file_heads[1 << FILE_HEAD_BITS]; /* the newest file of each hash */
static MS_GUARDED_BY(files_flag) uint32_t file_count;    /* ever */
static struct shard shards[SHARDS];
static struct range *ranges; /* atomic; immutable once set */
static struct range few_ranges[FEW_RANGES];
static uint32_t shard_ranges;          /* how many each shard may have; set before `ranges` */
static uint32_t heads[1 << HEAD_BITS]; /* the first range of each list */
static struct last_read reads[MAX_READS];
static _Atomic size_t read_count; /* ever */
_Atomic uint32_t ms_reads_unseen;

/* A ring. Wrong sums may stay where places are reserved again before they are filled: then the
 * bytes are not recognised. */
static _Atomic uint64_t checksums[MAX_CHECKSUMS];
static _Atomic uint64_t checksum_count; /* ever reserved */

#define READ(member) atomic_load_explicit(&(member), memory_order_relaxed)
#define WRITE(member, value) atomic_store_explicit(&(member), value, memory_order_release)

/* Nobody waits for long: a handler may have interrupted the thread that has the flag, and in a
 * forked child the flag may have no owner any more. */
static bool take(struct flag *flag) MS_LOCK_ATTRIBUTE(try_acquire_capability(true, *flag));
static bool take(struct flag *flag) MS_LOCK_ATTRIBUTE(no_thread_safety_analysis)
{
    enum { TRIES = 100 };
    for (int i = 0; i < TRIES; i++) {
        if (!atomic_exchange_explicit(&flag->is_taken, true, memory_order_acquire))
            return true;
        sched_yield();
    }
    return false;
}

static void drop(struct flag *flag) MS_LOCK_ATTRIBUTE(release_capability(*flag));
static void drop(struct flag *flag) MS_LOCK_ATTRIBUTE(no_thread_safety_analysis)
{
    WRITE(flag->is_taken, false);
}

/* --- files */

/* Returns the length of the path, or 0. */
static size_t read_path(int descriptor, char path_out[MS_PATH_BYTES])
{
    char link[32] = "/proc/self/fd/", digits[12];
    size_t count = 0, end = sizeof("/proc/self/fd/") - 1;
    unsigned rest = (unsigned)descriptor;
    do
        digits[count++] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    while (count > 0)
        link[end++] = digits[--count];
    const ssize_t length = readlink(link, path_out, MS_PATH_BYTES);
    const size_t used = length > 0 && length < MS_PATH_BYTES ? (size_t)length : 0;
    path_out[used] = '\0';
    return used;
}

bool ms_reads_path(int descriptor, char path_out[MS_PATH_BYTES])
{
    return read_path(descriptor, path_out) > 0;
}

typedef _Atomic uint32_t file_head;

static file_head *get_file_head(dev_t device, ino_t inode)
{
    const uint64_t hash = (inode ^ device << 32) * UINT64_C(0x9e3779b97f4a7c15);
    return &file_heads[hash >> (64 - FILE_HEAD_BITS)];
}

/* Without the flag, also NULL if others change the list. Numbers descend in the list. */
static inline struct file *find_file_of(const file_head *head, const struct stat *stat)
{
    uint32_t number = atomic_load_explicit(head, memory_order_acquire);
    while (number != 0) {
        struct file *file = &files[number % MAX_FILES];
        const uint32_t next = atomic_load_explicit(&file->next, memory_order_acquire);
        const bool is_same =
            atomic_load_explicit(&file->inode, memory_order_acquire) == stat->st_ino &&
            atomic_load_explicit(&file->device, memory_order_acquire) == stat->st_dev;
        if (READ(file->number) != number)
            return NULL;
        if (is_same)
            return file;
        number = next;
    }
    return NULL;
}

static struct file *find_file(const struct stat *stat)
{
    return find_file_of(get_file_head(stat->st_dev, stat->st_ino), stat);
}

/* A header is a small part of a checkpoint. */
static inline bool is_unseen_after(const struct file *file, uint64_t read_bytes)
{
    enum { HEADER_SHARE = 16 };
    return READ(file->is_opened) && !READ(file->is_mapped) &&
           read_bytes < READ(file->bytes) / HEADER_SHARE;
}

static bool is_unseen(const struct file *file)
{
    return is_unseen_after(file, READ(file->read_bytes));
}

MS_HOLDS(files_flag) static void forget_file_locked(struct file *file)
{
    const uint32_t number = READ(file->number);
    if (number == 0)
        return;
    file_head *link = get_file_head(READ(file->device), READ(file->inode));
    while (READ(*link) != number)
        link = &files[READ(*link) % MAX_FILES].next;
    WRITE(*link, READ(file->next));
    WRITE(file->number, 0);
}

MS_HOLDS(files_flag)
static struct file *add_file_locked(file_head *head, const struct stat *stat)
{
    const uint32_t number = ++file_count;
    struct file *file = &files[number % MAX_FILES];
    forget_file_locked(file);
    WRITE(file->device, stat->st_dev);
    WRITE(file->inode, stat->st_ino);
    WRITE(file->changed_ns, UINT64_MAX); /* none */
    WRITE(file->next, READ(*head));
    WRITE(file->number, number);
    WRITE(*head, number);
    return file;
}

static uint64_t changed_ns(const struct stat *stat)
{
    return (uint64_t)stat->st_ctim.tv_sec * 1000000000 + (uint64_t)stat->st_ctim.tv_nsec;
}

/* Starts anew if the change time differs, as for a new file with the inode of a deleted file:
 * nobody has seen the deletion. A path that is too long counts as absent. */
MS_HOLDS(files_flag)
static void set_path_locked(struct file *file, const char *path, size_t length,
                            const struct stat *stat)
{
    if (READ(file->changed_ns) == changed_ns(stat))
        return;
    WRITE(file->bytes, (uint64_t)stat->st_size);
    WRITE(file->is_opened, false);
    WRITE(file->is_mapped, false);
    WRITE(file->read_bytes, 0);
    memcpy(file->path, path, length + 1);
    WRITE(file->changed_ns, changed_ns(stat));
}

static __attribute__((noinline)) struct file *add_file(file_head *head, int descriptor,
                                                       const struct stat *stat)
{
    char path[MS_PATH_BYTES];
    const size_t length = read_path(descriptor, path);
    if (!take(&files_flag))
        return NULL;
    struct file *file = find_file_of(head, stat);
    if (file == NULL)
        file = add_file_locked(head, stat);
    set_path_locked(file, path, length, stat);
    drop(&files_flag);
    return file;
}

/* NULL: others are busy. Another file may take the place of this file at any time. */
static inline struct file *get_file(int descriptor, const struct stat *stat)
{
    file_head *const head = get_file_head(stat->st_dev, stat->st_ino);
    struct file *file = find_file_of(head, stat);
    return file != NULL && READ(file->changed_ns) == changed_ns(stat)
               ? file
               : add_file(head, descriptor, stat);
}

/* --- files that could be checkpoints */

/* Looks how files of known formats begin. A large file may be of any format. */
static bool may_be_checkpoint(int descriptor, const struct stat *stat)
{
    static const char starts[][8] = {"PK\3\4", "GGUF", "\x89HDF", "\x93NUM"};
    enum { LARGE_BYTES = 64 << 20, START = 4, PICKLE = 0x80, NEWEST_PICKLE = 5 };
    unsigned char start[MS_TENSOR_PLACES_START];
    uint64_t length;
    if (stat->st_size >= LARGE_BYTES)
        return true;
    const long got = syscall(SYS_pread64, descriptor, start, sizeof(start), 0L);
    if (got < (long)sizeof(start))
        return got < 0; /* past the page cache, only whole blocks can be read */
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (memcmp(start, starts[i], START) == 0)
            return true;
    }
    return (start[0] == PICKLE && start[1] <= NEWEST_PICKLE) ||
           ms_tensor_places_is_start(start, &length);
}

/* Most processes never use a device: until the shim has started, only files that could be
 * checkpoints are noted (is_wanted). A child of a process that uses a device cannot use it. */
static inline bool is_of_use(void)
{
    static _Atomic bool was_started;
    const bool is_started = ms_is_started();
    if (is_started && !READ(was_started))
        WRITE(was_started, true);
    return is_started || !READ(was_started);
}

static inline bool is_wanted(int descriptor, const struct stat *stat)
{
    return ms_is_started() || find_file(stat) != NULL || may_be_checkpoint(descriptor, stat);
}

/* --- ranges. A thread that changes a list has the flag of its shard. */

static uint32_t window_head(uintptr_t address)
{
    const uintptr_t window = address >> WINDOW_BITS;
    return (uint32_t)(window ^ window >> HEAD_BITS) & ((1 << HEAD_BITS) - 1);
}

static struct shard *head_shard(uint32_t head)
{
    return &shards[(head ^ head >> SHARD_BITS) & (SHARDS - 1)];
}

static void make_newest(uint32_t number, struct shard *shard)
{
    const uint32_t before = shard->newest;
    ranges[number].older = before;
    ranges[number].newer = 0;
    *(before != 0 ? &ranges[before].newer : &shard->oldest) = number;
    shard->newest = number;
}

static void leave_order(uint32_t number, struct shard *shard)
{
    const uint32_t older = ranges[number].older, newer = ranges[number].newer;
    *(older != 0 ? &ranges[older].newer : &shard->oldest) = newer;
    *(newer != 0 ? &ranges[newer].older : &shard->newest) = older;
}

/* Takes out the range that the link leads to. */
static void forget_range(uint32_t *link, struct shard *shard)
{
    const uint32_t number = *link;
    *link = ranges[number].next;
    leave_order(number, shard);
    ranges[number].next = shard->unused;
    shard->unused = number;
}

static void forget_oldest(struct shard *shard)
{
    uint32_t *link = &heads[window_head(ranges[shard->oldest].begin)];
    while (*link != shard->oldest)
        link = &ranges[*link].next;
    forget_range(link, shard);
}

static uint32_t get_unused(struct shard *shard)
{
    uint32_t number = shard->unused;
    if (number == 0 && shard->used < shard_ranges - 1)
        return ++shard->used * SHARDS + (uint32_t)(shard - shards);
    if (number == 0) {
        forget_oldest(shard);
        number = shard->unused;
    }
    shard->unused = ranges[number].next;
    return number;
}

/* Takes out what a read has overwritten. A range overwritten in its middle keeps only the front. */
static void cut(struct range *range, uintptr_t begin, uintptr_t end)
{
    if (range->begin < begin) {
        range->bytes = (uint32_t)(begin - range->begin);
    } else {
        range->bytes -= (uint32_t)(end - range->begin);
        range->offset += end - range->begin;
        range->begin = end;
    }
}

/* Forgets what the new range overwrites. Returns the range that ends where it begins, or 0. */
static uint32_t make_room(uint32_t *head, struct shard *shard, uintptr_t begin, uintptr_t end)
{
    uint32_t before = 0;
    for (uint32_t *link = head, number; (number = *link) != 0;) {
        struct range *const range = &ranges[number];
        const uintptr_t range_end = range->begin + range->bytes;
        const bool is_met = range->begin < end && range_end > begin;
        if (is_met && range->begin >= begin && range_end <= end) {
            forget_range(link, shard);
            continue;
        }
        if (is_met)
            cut(range, begin, end);
        if (range_end >= begin && range->begin < begin)
            before = number;
        link = &range->next;
    }
    return before;
}

/* True if the read goes on where the range before ends, so that the range grows. Ranges with
 * checksums do not. */
static bool goes_on(const struct range *before, const struct range *range)
{
    return before->file == range->file && before->held == 0 && range->held == 0 &&
           before->offset + before->bytes == range->offset;
}

static void add_range(uint32_t *head, struct shard *shard, const struct range *range)
{
    uint32_t number = make_room(head, shard, range->begin, range->begin + range->bytes);
    if (number != 0 && goes_on(&ranges[number], range)) {
        ranges[number].bytes += range->bytes;
        leave_order(number, shard);
    } else {
        number = get_unused(shard);
        ranges[number] = *range;
        ranges[number].next = *head;
        *head = number;
    }
    make_newest(number, shard);
}

/* A small table in static memory has to do where addresses are scarce. */
static struct range *map_ranges(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY)
        return NULL;
    const long at = syscall(SYS_mmap, NULL, sizeof(struct range) * RANGES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
    return at != -1 ? (struct range *)at : NULL;
}

/* Called with the first note. The first of several threads makes the table. */
static __attribute__((noinline)) void make_ranges(void)
{
    if (!take(&files_flag))
        return;
    if (ranges == NULL) {
        struct range *mapped = map_ranges();
        shard_ranges = mapped != NULL ? SHARD_RANGES : FEW_OF_SHARD;
        __atomic_store_n(&ranges, mapped != NULL ? mapped : few_ranges, __ATOMIC_RELEASE);
    }
    drop(&files_flag);
}

static inline bool has_ranges(void)
{
    return __atomic_load_n(&ranges, __ATOMIC_ACQUIRE) != NULL;
}

/* Adds a range for each window that the read reaches. `part` begins as the whole read. */
static void add_ranges(struct range *part)
{
    const uintptr_t end = part->begin + part->read_bytes;
    if (!has_ranges())
        make_ranges();
    if (!has_ranges())
        return;
    for (; part->begin < end; part->begin += part->bytes, part->offset += part->bytes) {
        const uintptr_t window_end = ((part->begin >> WINDOW_BITS) + 1) << WINDOW_BITS;
        const uint32_t head = window_head(part->begin);
        struct shard *const shard = head_shard(head);
        part->bytes = (uint32_t)((end < window_end ? end : window_end) - part->begin);
        if (!take(&shard->flag))
            continue;
        add_range(&heads[head], shard, part);
        drop(&shard->flag);
    }
}

/* Finds the range that has the address; its bytes are 0 if there is none. False: others are
 * busy. */
static bool find_range(uintptr_t address, struct range *range_out)
{
    const uint32_t head = window_head(address);
    struct flag *const flag = &head_shard(head)->flag;
    range_out->bytes = 0;
    if (!has_ranges())
        return true;
    if (!take(flag))
        return false;
    uint32_t number = heads[head];
    while (number != 0 && address - ranges[number].begin >= ranges[number].bytes)
        number = ranges[number].next;
    if (number != 0)
        *range_out = ranges[number];
    drop(flag);
    return true;
}

/* --- checksums */

/* False: the read is too long to have checksums. */
static bool add_checksums(const unsigned char *address, size_t bytes, uint64_t *first_out)
{
    const size_t count = (bytes + PART_BYTES - 1) / PART_BYTES;
    uint64_t at = atomic_fetch_add(&checksum_count, count);
    *first_out = at;
    if (count > MAX_CHECKSUMS)
        return false;
    for (size_t done = 0; done < bytes; done += PART_BYTES) {
        const uint64_t sum = ms_checksum(address + done, ms_least(bytes - done, PART_BYTES));
        atomic_store_explicit(&checksums[at++ % MAX_CHECKSUMS], sum, memory_order_relaxed);
    }
    return true;
}

bool ms_reads_find_part(const void *address, struct ms_reads_part *part_out)
{
    struct range range;
    if (!find_range((uintptr_t)address, &range) || range.bytes == 0 || range.held == 0)
        return false;
    const uint64_t number = ((uintptr_t)address - range.read_begin) / PART_BYTES;
    const uint64_t place = range.first_checksum + number;
    if (atomic_load(&checksum_count) - place > MAX_CHECKSUMS)
        return false;
    part_out->begin = range.read_begin + number * PART_BYTES;
    part_out->bytes = ms_least(range.read_begin + range.read_bytes - part_out->begin, PART_BYTES);
    part_out->file_offset = range.offset - range.begin + part_out->begin;
    part_out->checksum = READ(checksums[place % MAX_CHECKSUMS]);
    part_out->held = range.held;
    return true;
}

/* --- notes */

static void add_read_bytes(struct file *file, size_t bytes)
{
    const uint64_t before =
        atomic_fetch_add_explicit(&file->read_bytes, bytes, memory_order_relaxed);
    if (is_unseen_after(file, before) && !is_unseen_after(file, before + bytes))
        atomic_fetch_add(&ms_reads_unseen, 1);
}

static void add_last_read(uint64_t offset, size_t bytes, uint32_t file)
{
    const size_t at = atomic_fetch_add_explicit(&read_count, 1, memory_order_relaxed);
    struct last_read *read = &reads[at % MAX_READS];
    WRITE(read->offset, offset);
    WRITE(read->bytes, bytes);
    WRITE(read->file, file);
}

static void note(int descriptor, uintptr_t address, size_t bytes, int64_t offset, uint32_t held)
{
    uint64_t first = 0;
    struct stat stat;
    if (!is_of_use() || syscall(SYS_fstat, descriptor, &stat) != 0 || !S_ISREG(stat.st_mode) ||
        !is_wanted(descriptor, &stat))
        return;
    if (offset < 0)
        offset = lseek(descriptor, 0, SEEK_CUR) - (int64_t)bytes;
    if (offset < 0)
        return;
    if (held != 0 && !add_checksums((const unsigned char *)address, bytes, &first))
        held = 0;
    struct file *file = get_file(descriptor, &stat);
    if (file == NULL)
        return;
    add_read_bytes(file, bytes);
    const uint32_t number = READ(file->number);
    add_last_read((uint64_t)offset, bytes, number);
    add_ranges(&(struct range){.begin = address,
                               .read_begin = address,
                               .offset = (uint64_t)offset,
                               .read_bytes = bytes,
                               .file = number,
                               .held = held,
                               .first_checksum = first});
}

void ms_reads_note(int descriptor, const void *address, size_t bytes, int64_t offset, uint32_t held)
{
    const int before = errno;
    note(descriptor, (uintptr_t)address, bytes, offset, held);
    errno = before;
}

enum way { OPENED, MAPPED };

/* Takes the flag, so that each change is counted once. */
static void note_way(int descriptor, enum way way)
{
    struct stat stat;
    if (!is_of_use() || syscall(SYS_fstat, descriptor, &stat) != 0 || !S_ISREG(stat.st_mode) ||
        stat.st_size < MS_READS_LEAST)
        return;
    struct file *file = way == OPENED ? get_file(descriptor, &stat) : find_file(&stat);
    if (file == NULL || !take(&files_flag))
        return;
    const bool was_unseen = is_unseen(file);
    if (way == OPENED)
        WRITE(file->is_opened, true);
    else
        WRITE(file->is_mapped, true);
    if (was_unseen != is_unseen(file))
        atomic_fetch_add(&ms_reads_unseen, 1);
    drop(&files_flag);
}

void ms_reads_note_open(int descriptor)
{
    const int before = errno;
    note_way(descriptor, OPENED);
    errno = before;
}

/* Does nothing before any file was unseen: then the open of the mapped file was not noted. */
void ms_reads_note_map(int descriptor)
{
    const int before = errno;
    if (READ(ms_reads_unseen) != 0)
        note_way(descriptor, MAPPED);
    errno = before;
}

MS_HOLDS(files_flag) static bool set_place_locked(uint32_t number, struct ms_mapping *place)
{
    const struct file *file = &files[number % MAX_FILES];
    if (READ(file->number) != number || file->path[0] == '\0')
        return false;
    place->device = READ(file->device);
    place->inode = READ(file->inode);
    memcpy(place->path, file->path, sizeof(place->path));
    return true;
}

static bool set_place(uint32_t number, struct ms_mapping *place)
{
    if (!take(&files_flag))
        return false;
    const bool is_set = set_place_locked(number, place);
    drop(&files_flag);
    return is_set;
}

/* Finds where `begin` is in the file if all was read as the range was. */
static bool find_begin(const struct range *range, uintptr_t begin, struct ms_mapping *place)
{
    if (range->bytes == 0 || (begin < range->begin && range->begin - begin > range->offset))
        return false;
    place->file_offset = range->offset + (begin - range->begin);
    return set_place(range->file, place);
}

/* *at counts the place by the range, then the places by the last reads. */
static bool next_read(size_t bytes, size_t *at, struct ms_mapping *place)
{
    const size_t count = READ(read_count), kept = count < MAX_READS ? count : MAX_READS;
    while (*at <= kept) {
        const struct last_read *read = &reads[(count - (*at)++) % MAX_READS];
        const uint64_t read_bytes = READ(read->bytes), offset = READ(read->offset);
        const uint64_t before = bytes - read_bytes; /* bytes that came through a buffer */
        place->file_offset = offset - before;
        if (read_bytes <= bytes && before < MS_READS_LEAST && before <= offset &&
            set_place(READ(read->file), place))
            return true;
    }
    return false;
}

bool ms_reads_next(const void *address, size_t bytes, size_t *at, struct ms_mapping *place_out)
{
    const uintptr_t begin = (uintptr_t)address;
    struct range range;
    *place_out = (struct ms_mapping){.is_read = true};
    if (*at == 0) {
        if (!find_range(begin + bytes / 2, &range))
            return false;
        ++*at;
        if (find_begin(&range, begin, place_out))
            return true;
    }
    return next_read(bytes, at, place_out);
}

MS_HOLDS(files_flag) static bool next_unseen_locked(size_t *at, struct ms_mapping *place)
{
    const uint32_t kept = file_count < MAX_FILES ? file_count : MAX_FILES;
    while (*at < kept) {
        const uint32_t number = file_count - (uint32_t)(*at)++;
        if (is_unseen(&files[number % MAX_FILES]) && set_place_locked(number, place))
            return true;
    }
    return false;
}

bool ms_reads_next_unseen(size_t *at, struct ms_mapping *place_out)
{
    *place_out = (struct ms_mapping){.is_read = true};
    if (!take(&files_flag))
        return false;
    const bool is_found = next_unseen_locked(at, place_out);
    drop(&files_flag);
    return is_found;
}
