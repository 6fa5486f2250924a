/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/number.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file_thread.h"

/* pagemap entry bits, Documentation/admin-guide/mm/pagemap.rst of the Linux kernel. A page that the
 * kernel is moving counts as swapped; PAGE_OF_FILE holds then, too. */
#define PAGE_PRESENT (1ULL << 63)
#define PAGE_SWAPPED (1ULL << 62)
#define PAGE_OF_FILE (1ULL << 61)

enum { MAPS_CHUNK = 8192, MAX_KEPT = 64 };

/* --- the kernel's own files about this process. They stay open where nobody else can close them,
 * or take their numbers: in the file thread's table. */

struct own_file {
    const char *path;
    int kept; /* -1: not open */
};
static struct own_file maps = {"/proc/self/maps", -1}, pages = {"/proc/self/pagemap", -1};

static int open_own(struct own_file *file)
{
    if (file->kept >= 0)
        return file->kept;
    const int descriptor = ms_descriptor_open(file->path, O_RDONLY);
    if (ms_file_thread_has_own_table())
        file->kept = descriptor;
    return descriptor;
}

static void close_own(const struct own_file *file, int descriptor)
{
    if (descriptor >= 0 && descriptor != file->kept)
        ms_descriptor_close(descriptor);
}

/* Files that stay open in the program's table. Only the file thread uses this. */
static struct {
    dev_t device;
    ino_t inode;
} held[MAX_KEPT];
static size_t held_count;

/* --- querying one mapping: PROCMAP_QUERY, Linux 6.11 and newer. Older headers lack it. */

enum query_flags {
    THAT_ARE_WRITABLE = 0x02,
    THAT_ARE_SHARED = 0x08,
    OR_THE_NEXT = 0x10,
    OF_FILES = 0x20,
};

/* struct procmap_query of <linux/fs.h>, version 1. A line of the list gives the same answers, but
 * for page_bytes. */
struct query {
    uint64_t size, flags, address;
    /* Answers from here on; `is` has the first two of query_flags. */
    uint64_t begin, end, is, page_bytes, offset, inode;
    uint32_t major_number, minor_number;
    uint32_t name_bytes; /* the buffer's, then the name's */
    uint32_t build_id_bytes;
    uint64_t name, build_id; /* addresses */
};

enum answer { NO, YES, UNKNOWN };

/* `name` may be NULL, and gets "" if it is too short. NO: there is no such mapping. UNKNOWN: the
 * kernel has no answer. */
static enum answer ask(int list, unsigned flags, uintptr_t address, char *name, size_t name_bytes,
                       struct query *query_out)
{
    static _Atomic bool is_unknown_here;
    if (list < 0 || atomic_load_explicit(&is_unknown_here, memory_order_relaxed))
        return UNKNOWN;
    *query_out = (struct query){.size = sizeof(*query_out),
                                .flags = flags,
                                .address = address,
                                .name_bytes = (uint32_t)name_bytes,
                                .name = (uintptr_t)name};
    if (name != NULL)
        memset(name, 0, name_bytes); /* tools do not know that the kernel sets it */
    if (syscall(SYS_ioctl, list, _IOWR('f', 17, struct query), query_out) == 0)
        return YES;
    if (errno == ENAMETOOLONG && name != NULL) {
        name[0] = '\0';
        return ask(list, flags, address, NULL, 0, query_out);
    }
    if (errno == ENOENT)
        return NO;
    if (errno == ENOTTY)
        atomic_store_explicit(&is_unknown_here, true, memory_order_relaxed);
    return UNKNOWN;
}

/* --- the mappings of files, one after the other */

static bool must_read; /* the kernel has not answered a query */

struct walk {
    int asked;      /* descriptor for queries */
    unsigned flags; /* which mappings; with OR_THE_NEXT also mappings behind `at` */
    uintptr_t at;   /* the next query is about this address */
    /* For a kernel without queries: the list of all mappings. Each walk opens its own list, because
     * a walk may begin within another. */
    int list; /* -1: not yet */
    size_t lines;
    const char *path; /* of the last mapping */
    char *line;
    bool is_cut; /* the rest of a line comes next */
    char text[MAPS_CHUNK + 1];
};

static void walk_begin(struct walk *walk, unsigned flags, uintptr_t at)
{
    walk->asked = open_own(&maps);
    walk->flags = flags;
    walk->at = at;
    walk->list = -1;
    walk->lines = 0;
    walk->line = walk->text;
    walk->is_cut = false;
    walk->text[0] = '\0';
}

static void walk_end(const struct walk *walk)
{
    close_own(&maps, walk->asked);
    if (walk->list >= 0)
        ms_descriptor_close(walk->list);
}

/* A read may end within a line, whose beginning is kept. NO: behind the last line. */
static enum answer read_more(struct walk *walk)
{
    const size_t kept = strlen(walk->line);
    memmove(walk->text, walk->line, kept);
    const ssize_t got = syscall(SYS_read, walk->list, walk->text + kept, MAPS_CHUNK - kept);
    walk->line = walk->text;
    walk->text[kept + (got > 0 ? (size_t)got : 0)] = '\0';
    if (got == 0)
        return NO;
    return got > 0 || errno == EINTR ? YES : UNKNOWN;
}

static bool is_full(const struct walk *walk)
{
    return walk->line == walk->text && strlen(walk->text) == MAPS_CHUNK;
}

/* A line that does not fit is cut within its path. The rest is no line: who names folders could
 * make it look like another mapping. */
static enum answer next_line(struct walk *walk, char **line_out)
{
    bool is_rest;
    do {
        char *end;
        while ((end = strchr(walk->line, '\n')) == NULL && !is_full(walk)) {
            const enum answer answer = read_more(walk);
            if (answer != YES)
                return answer;
        }
        is_rest = walk->is_cut;
        walk->is_cut = end == NULL;
        *line_out = walk->line;
        walk->line = end != NULL ? end + 1 : walk->text + MAPS_CHUNK;
        if (end != NULL)
            *end = '\0';
    } while (is_rest);
    return YES;
}

/* False if the line is of no wanted mapping. */
static bool parse_line(struct walk *walk, const char *text, struct query *found_out)
{
    char permissions[5] = "";
    int path_at = 0;
    *found_out = (struct query){.size = 0};
    /* The kernel writes no number that is too large. NOLINTNEXTLINE(cert-err34-c) */
    if (sscanf(text, "%lx-%lx %4s %lx %x:%x %lu %n", &found_out->begin, &found_out->end,
               permissions, &found_out->offset, &found_out->major_number, &found_out->minor_number,
               &found_out->inode, &path_at) != 7 ||
        found_out->inode == 0)
        return false;
    found_out->is = (permissions[1] == 'w' ? THAT_ARE_WRITABLE : 0u) |
                    (permissions[3] == 's' ? THAT_ARE_SHARED : 0u);
    walk->path = text + path_at;
    return permissions[3] == 's' || (walk->flags & THAT_ARE_SHARED) == 0;
}

static dev_t device_of(const struct query *found)
{
    return makedev(found->major_number, found->minor_number);
}

/* UNKNOWN: the list cannot be read. */
static enum answer walk_next(struct walk *walk, struct query *found_out)
{
    enum answer answer = UNKNOWN;
    while (walk->list < 0 &&
           (answer = ask(walk->asked, walk->flags, walk->at, NULL, 0, found_out)) == YES) {
        walk->at = found_out->end;
        if (found_out->inode != 0)
            return YES;
    }
    if (walk->list < 0 && answer != NO) {
        must_read = true;
        walk->list = ms_descriptor_open(maps.path, O_RDONLY);
    }
    if (walk->list < 0)
        return answer;
    char *line;
    do
        answer = next_line(walk, &line);
    while (answer == YES && ++walk->lines > 0 && !parse_line(walk, line, found_out));
    return answer;
}

/* Sets all members but the path. */
static void convert(const struct query *found, size_t lines, struct ms_mapping *mapping_out)
{
    mapping_out->begin = found->begin;
    mapping_out->end = found->end;
    mapping_out->file_offset = found->offset;
    mapping_out->device = device_of(found);
    mapping_out->inode = found->inode;
    mapping_out->shared = (found->is & THAT_ARE_SHARED) != 0;
    mapping_out->lines_read = lines;
    mapping_out->is_read = false;
}

/* Gets the path of the last mapping that was found, by a second query if the kernel has queries. A
 * path that is too long counts as absent. */
static bool get_path(const struct walk *walk, const struct query *found, char path[MS_PATH_BYTES])
{
    struct query named;
    if (walk->list >= 0)
        return snprintf(path, MS_PATH_BYTES, "%s", walk->path) < MS_PATH_BYTES;
    return ask(walk->asked, OF_FILES, found->begin, path, MS_PATH_BYTES, &named) == YES &&
           named.inode == found->inode;
}

/* Converts the last mapping that was found, with its path. */
static void convert_last(const struct walk *walk, const struct query *found,
                         struct ms_mapping *mapping_out)
{
    convert(found, walk->lines, mapping_out);
    if (!get_path(walk, found, mapping_out->path))
        mapping_out->path[0] = '\0';
}

/* The link of a mapping has the rights of the descriptor that was mapped (proc(5), map_files). */
static enum answer was_opened_for_writing(const struct query *found)
{
    char link[96];
    struct stat stat;
    snprintf(link, sizeof(link), "/proc/self/map_files/%lx-%lx", (unsigned long)found->begin,
             (unsigned long)found->end);
    if (syscall(SYS_newfstatat, AT_FDCWD, link, &stat, AT_SYMLINK_NOFOLLOW) != 0)
        return UNKNOWN;
    return (stat.st_mode & S_IWUSR) != 0 ? YES : NO;
}

bool ms_mapping_is_stored_to(dev_t device, ino_t inode, bool *lasts_out)
{
    struct walk walk;
    struct query found;
    enum answer answer;
    bool is_stored_to = false;
    *lasts_out = true;
    walk_begin(&walk, OF_FILES | THAT_ARE_SHARED | OR_THE_NEXT, 0);
    while (!is_stored_to && (answer = walk_next(&walk, &found)) == YES) {
        if (found.inode != inode || device_of(&found) != device)
            continue;
        const enum answer writes =
            (found.is & THAT_ARE_WRITABLE) != 0 ? YES : was_opened_for_writing(&found);
        is_stored_to = writes == YES;
        *lasts_out &= writes == NO;
    }
    walk_end(&walk);
    return is_stored_to || answer == UNKNOWN;
}

bool ms_mapping_visit(ms_mapping_visitor *visit, void *context)
{
    struct walk walk;
    struct query found;
    struct ms_mapping mapping;
    enum answer answer;
    walk_begin(&walk, OF_FILES | OR_THE_NEXT, 0);
    while ((answer = walk_next(&walk, &found)) == YES) {
        if (found.offset != 0)
            continue;
        convert_last(&walk, &found, &mapping);
        visit(context, &mapping);
    }
    walk_end(&walk);
    return answer != UNKNOWN;
}

/* Finds the first mapping that ends behind `begin`: the list ascends. */
static enum answer find_by_line(uintptr_t begin, struct query *found_out,
                                struct ms_mapping *mapping_out)
{
    struct walk walk;
    enum answer answer;
    walk_begin(&walk, OF_FILES, begin);
    do
        answer = walk_next(&walk, found_out);
    while (answer == YES && found_out->end <= begin);
    if (answer == YES)
        convert_last(&walk, found_out, mapping_out);
    walk_end(&walk);
    return answer;
}

/* Finds the mapping of a file that has all of [begin, end), by one query. The kernel need not look
 * behind `begin` to find that there is none. */
static bool find(uintptr_t begin, uintptr_t end, struct ms_mapping *mapping_out)
{
    struct query found;
    const int asked = open_own(&maps);
    enum answer answer =
        ask(asked, OF_FILES, begin, mapping_out->path, sizeof(mapping_out->path), &found);
    close_own(&maps, asked);
    if (answer == YES)
        convert(&found, 0, mapping_out);
    else if (answer == UNKNOWN)
        answer = find_by_line(begin, &found, mapping_out);
    if (answer != YES || found.inode == 0 || found.begin > begin || end > found.end)
        return false;
    mapping_out->file_offset += begin - found.begin;
    return true;
}

bool ms_mapping_find_at(uintptr_t address, struct ms_mapping *mapping_out)
{
    return find(address, address + 1, mapping_out);
}

/* --- pages */

/* struct pm_scan_arg of <linux/fs.h>, Linux 6.7 and newer. */
struct scan {
    uint64_t size, flags, begin, end;
    uint64_t walk_end; /* the answer: where it stopped */
    uint64_t found, found_places, most_pages;
    uint64_t inverted, all_of, any_of, told; /* categories */
};
enum scan_categories { IS_FILE = 1 << 2, IS_PRESENT = 1 << 3, IS_SWAPPED = 1 << 4 };

/* Asks at once for pages that are there, or swapped out, and not a file's. YES: there are none. */
static enum answer scan_pages(int descriptor, uintptr_t begin, uintptr_t end)
{
    static _Atomic bool is_unknown_here;
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint64_t place[3]; /* of the first such page */
    struct scan scan = {.size = sizeof(scan),
                        .begin = ms_round_down(begin, page_bytes),
                        .end = ms_round_up(end, page_bytes),
                        .found = (uintptr_t)place,
                        .found_places = 1,
                        .most_pages = 1,
                        .inverted = IS_FILE,
                        .all_of = IS_FILE,
                        .any_of = IS_PRESENT | IS_SWAPPED,
                        .told = IS_FILE | IS_PRESENT | IS_SWAPPED};
    if (descriptor < 0 || atomic_load_explicit(&is_unknown_here, memory_order_relaxed))
        return UNKNOWN;
    const long count = syscall(SYS_ioctl, descriptor, _IOWR('f', 16, struct scan), &scan);
    if (count < 0 && errno != EINTR)
        atomic_store_explicit(&is_unknown_here, true, memory_order_relaxed);
    if (count == 0 && scan.walk_end == scan.end)
        return YES;
    return count > 0 ? NO : UNKNOWN;
}

bool ms_mapping_has_pages(uintptr_t begin, uintptr_t end, size_t count)
{
    uint64_t places[128][3] = {{0}}; /* begin, end, categories */
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    const int descriptor = open_own(&pages);
    struct scan scan = {.size = sizeof(scan),
                        .walk_end = begin,
                        .end = end,
                        .found = (uintptr_t)places,
                        .found_places = sizeof(places) / sizeof(places[0]),
                        .all_of = IS_PRESENT,
                        .told = IS_PRESENT};
    size_t seen = 0;
    while (seen < count && scan.walk_end < end) {
        scan.begin = scan.walk_end;
        const long found = syscall(SYS_ioctl, descriptor, _IOWR('f', 16, struct scan), &scan);
        for (long i = 0; i < found; i++)
            seen += (places[i][1] - places[i][0]) / page_bytes;
        if (found < 0)
            seen = count;
    }
    close_own(&pages, descriptor);
    return seen >= count;
}

/* NO: a page is not a file's: it has no file, or is private and was written, or is swapped out. */
static enum answer read_pages(int descriptor, uintptr_t begin, uintptr_t end, bool *are_present_out)
{
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    enum answer answer = YES;
    bool are_present = true;
    uint64_t entries[512];
    const uintptr_t last = (end - 1) / page_bytes;
    for (uintptr_t page = begin / page_bytes; answer == YES && page <= last;) {
        const size_t wanted = ms_least((last - page + 1) * sizeof(entries[0]), sizeof(entries));
        const ssize_t got =
            ms_descriptor_read(descriptor, entries, wanted, page * sizeof(entries[0]));
        if (got < (ssize_t)sizeof(entries[0])) {
            answer = UNKNOWN;
            break;
        }
        const size_t count = (size_t)got / sizeof(entries[0]);
        for (size_t i = 0; i < count; i++) {
            const bool is_there = (entries[i] & (PAGE_PRESENT | PAGE_SWAPPED)) != 0;
            if (is_there && (entries[i] & PAGE_OF_FILE) == 0)
                answer = NO;
            are_present &= (entries[i] & PAGE_PRESENT) != 0;
        }
        page += count;
    }
    *are_present_out = are_present && answer == YES;
    return answer;
}

static enum answer ask_for_pages(uintptr_t begin, uintptr_t end)
{
    bool are_present;
    const int descriptor = open_own(&pages);
    enum answer answer = scan_pages(descriptor, begin, end);
    if (answer == UNKNOWN && descriptor >= 0)
        answer = read_pages(descriptor, begin, end, &are_present);
    close_own(&pages, descriptor);
    return answer;
}

bool ms_mapping_is_present(const void *address, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)address;
    bool are_present = false;
    const int descriptor = open_own(&pages);
    if (descriptor >= 0)
        read_pages(descriptor, begin, begin + bytes, &are_present);
    close_own(&pages, descriptor);
    return are_present;
}

/* Asks for the pages first where the whole list must be read. Most copies are of the program's own
 * memory, whose pages are no file's: they need no list. */
bool ms_mapping_find(const void *address, size_t bytes, struct ms_mapping *mapping_out)
{
    const uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    enum answer are_unwritten = must_read ? ask_for_pages(begin, end) : UNKNOWN;
    if (are_unwritten == NO || !find(begin, end, mapping_out))
        return false;
    if (are_unwritten == UNKNOWN && !mapping_out->shared)
        are_unwritten = ask_for_pages(begin, end);
    return mapping_out->shared || are_unwritten == YES;
}

/*
 * On overlay and btrfs, fstat returns another device number than the kernel shows for a mapping. So
 * a new mapping is compared with the old one, which costs another search.
 */
static bool map(int descriptor, struct ms_mapping *own_out)
{
    const long page = syscall(SYS_mmap, NULL, 1UL, PROT_READ, MAP_PRIVATE, descriptor, 0L);
    if (page == -1)
        return false;
    const uintptr_t begin = (uintptr_t)page;
    const bool is_found = ms_mapping_find_at(begin, own_out);
    munmap((void *)begin, 1);
    return is_found;
}

static bool maps_like(int descriptor, const struct ms_mapping *mapping)
{
    struct ms_mapping own;
    return map(descriptor, &own) && own.device == mapping->device && own.inode == mapping->inode;
}

/* True if a load could read there. The kernel reads the set of signals, then refuses NOTHING. */
static bool may_be_read(uintptr_t address)
{
    enum { NOTHING = -1, SET_BYTES = 8 };
    return syscall(SYS_rt_sigprocmask, NOTHING, address & ~(uintptr_t)(SET_BYTES - 1), NULL,
                   SET_BYTES) != 0 &&
           errno != EFAULT;
}

/* Checks each page, because /proc/self/mem also gives bytes that a load may not read. */
static bool peek_by_file(const void *address, void *buffer, size_t bytes)
{
    const int memory = ms_descriptor_open("/proc/self/mem", O_RDONLY);
    if (memory < 0)
        return false;
    bool is_read = ms_descriptor_read(memory, buffer, bytes, (uintptr_t)address) == (ssize_t)bytes;
    ms_descriptor_close(memory);
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)address;
    for (uintptr_t at = begin; at < begin + bytes && is_read; at += page_bytes - at % page_bytes)
        is_read = may_be_read(at);
    return is_read;
}

/* Some containers deny the first call. /proc/self/mem reads devices, too: callers check the
 * file. */
bool ms_mapping_peek(const void *address, void *buffer, size_t bytes)
{
    const struct iovec to = {buffer, bytes}, from = {(void *)(uintptr_t)address, bytes};
    const long got = syscall(SYS_process_vm_readv, getpid(), &to, 1UL, &from, 1UL, 0UL);
    if (got < 0 && (errno == EPERM || errno == ENOSYS))
        return peek_by_file(address, buffer, bytes);
    return got == (long)bytes;
}

size_t ms_mapping_count_anonymous(const void *address, size_t bytes)
{
    static const char shared[] = "/dev/zero (deleted)";
    const uintptr_t end = (uintptr_t)address + bytes;
    const int asked = open_own(&maps);
    char name[128];
    struct query query = {.end = (uintptr_t)address};
    bool is_anonymous = true;
    size_t count = 0;
    for (; is_anonymous && query.end < end; count++)
        is_anonymous = ask(asked, 0, query.end, name, sizeof(name), &query) == YES &&
                       (query.inode == 0 || strcmp(name, shared) == 0);
    close_own(&maps, asked);
    return is_anonymous ? count : 0;
}

static bool populate(const void *address, size_t bytes)
{
    enum { POPULATE_READ = 22 }; /* older headers lack it */
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ms_round_down((uintptr_t)address, page_bytes);
    return syscall(SYS_madvise, begin, (uintptr_t)address + bytes - begin, POPULATE_READ) == 0;
}

/* True if all pages are there. */
static bool are_resident(uintptr_t begin, uintptr_t end)
{
    unsigned char states[1024];
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    bool are_resident = true;
    for (uintptr_t at = begin / page_bytes * page_bytes, next; at < end && are_resident;
         at = next) {
        const size_t count = ms_least((end - at + page_bytes - 1) / page_bytes, sizeof(states));
        next = at + count * page_bytes;
        are_resident = mincore((void *)at, next - at, states) == 0;
        for (size_t i = 0; i < count && are_resident; i++)
            are_resident = (states[i] & 1) != 0;
    }
    return are_resident;
}

/* Looks for present pages first: bringing them in takes a quarter as long as comparing them. */
bool ms_mapping_may_load(const void *address, size_t bytes, bool is_one)
{
    const uintptr_t begin = (uintptr_t)address;
    return (is_one && populate(address, 1) && are_resident(begin, begin + bytes)) ||
           populate(address, bytes);
}

struct ms_mapping_new ms_mapping_new;

static bool ends_locks(int descriptor)
{
    return !ms_file_thread_has_own_table() &&
           ms_descriptor_ask_for_locks(descriptor) != MS_DESCRIPTOR_UNLOCKED;
}

/* True if the descriptor has the flags that ms_mapping_open sets. A file that dup2 put in its place
 * does not have them. */
static bool is_ours(int descriptor)
{
    return (syscall(SYS_fcntl, descriptor, F_GETFD) & FD_CLOEXEC) != 0 &&
           (syscall(SYS_fcntl, descriptor, F_GETFL) & O_NONBLOCK) != 0;
}

void ms_mapping_close(int descriptor)
{
    if (ms_file_thread_has_own_table() ||
        (is_ours(descriptor) && ms_descriptor_ask_for_locks(descriptor) == MS_DESCRIPTOR_UNLOCKED))
        ms_descriptor_close(descriptor);
}

/* Files with a write lease of the program, now or before. They are never taken out: their bytes are
 * copied at once. Beyond MAX_LEASED, the bytes of all files are. */
enum { MAX_LEASED = 16 };
static struct {
    _Atomic uint64_t device, inode;
} leased[MAX_LEASED];
static _Atomic uint32_t leased_count;

static bool is_leased(dev_t device, ino_t inode)
{
    const uint32_t count = atomic_load(&leased_count);
    bool is_found = count > MAX_LEASED;
    for (uint32_t i = 0; i < count && i < MAX_LEASED; i++)
        is_found |=
            atomic_load(&leased[i].device) == device && atomic_load(&leased[i].inode) == inode;
    return is_found;
}

void ms_mapping_note_lease(dev_t device, ino_t inode)
{
    if (is_leased(device, inode))
        return;
    const uint32_t place = atomic_fetch_add(&leased_count, 1);
    if (place >= MAX_LEASED)
        return;
    atomic_store(&leased[place].device, device);
    atomic_store(&leased[place].inode, inode);
}

/* For the program's table. The descriptor of a locked file stays where it is, and the file is not
 * opened again. */
static int move_up(int descriptor, const struct stat *stat)
{
    enum { HIGH = 512 };
    if (ends_locks(descriptor)) {
        held[held_count].device = stat->st_dev;
        held[held_count++].inode = stat->st_ino;
        return -1;
    }
    const int high = (int)syscall(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, HIGH);
    if (high < 0)
        return descriptor;
    ms_descriptor_close(descriptor);
    return high;
}

static bool may_be_opened(const struct stat *stat)
{
    size_t i = 0;
    if (is_leased(stat->st_dev, stat->st_ino))
        return false;
    while (i < held_count && (held[i].device != stat->st_dev || held[i].inode != stat->st_ino))
        i++;
    return i == held_count && held_count < MAX_KEPT;
}

/* Checks the path's file before opening it: opening a device or a pipe has side effects. */
static int open_regular(const char *path, struct stat *stat_out)
{
    char link[40];
    int descriptor = -1;
    const int found = ms_descriptor_open(path, O_PATH);
    if (found < 0)
        return -1;
    if (ms_descriptor_stat_cached(found, stat_out) && S_ISREG(stat_out->st_mode) &&
        may_be_opened(stat_out)) {
        snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", found);
        descriptor = ms_descriptor_open(link, O_RDONLY | O_NONBLOCK);
        if (descriptor >= 0) /* reading a tensor in pieces looks sequential */
            ms_descriptor_read_ahead(descriptor, POSIX_FADV_RANDOM);
        if (descriptor >= 0 && !ms_file_thread_has_own_table())
            descriptor = move_up(descriptor, stat_out);
    }
    ms_descriptor_close(found);
    return descriptor;
}

static int open_verified(const char *path, const struct ms_mapping *mapping)
{
    struct stat stat;
    const int descriptor = open_regular(path, &stat);
    if (descriptor < 0)
        return -1;
    if ((stat.st_ino == mapping->inode && stat.st_dev == mapping->device) ||
        maps_like(descriptor, mapping))
        return descriptor;
    ms_mapping_close(descriptor);
    return -1;
}

int ms_mapping_open_again(const char *path, const struct stat *wanted, struct stat *stat_out)
{
    const int descriptor = open_regular(path, stat_out);
    if (descriptor < 0 ||
        (stat_out->st_ino == wanted->st_ino && stat_out->st_dev == wanted->st_dev))
        return descriptor;
    ms_mapping_close(descriptor);
    errno = 0;
    return -1;
}

static bool learn(int descriptor, struct ms_mapping *place)
{
    struct ms_mapping own;
    const bool is_known = map(descriptor, &own);
    if (is_known) {
        place->device = own.device;
        place->inode = own.inode;
    } else {
        ms_mapping_close(descriptor);
    }
    return is_known;
}

/*
 * Opens by name first. A file that was unlinked or renamed since is opened through the kernel's
 * link for the mapping, which needs privileges (proc(5), map_files). Without them this fails, and
 * the caller takes a snapshot.
 */
int ms_mapping_open(struct ms_mapping *mapping)
{
    const int descriptor = open_verified(mapping->path, mapping);
    if (mapping->is_read)
        return descriptor < 0 || learn(descriptor, mapping) ? descriptor : -1;
    if (descriptor >= 0)
        return descriptor;
    char link[96];
    snprintf(link, sizeof(link), "/proc/self/map_files/%lx-%lx", (unsigned long)mapping->begin,
             (unsigned long)mapping->end);
    return open_verified(link, mapping);
}
