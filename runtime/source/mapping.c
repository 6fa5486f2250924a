/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/mapping.h"

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

#include "runtime/source/descriptor.h"
#include "runtime/source/file_thread.h"
#include "runtime/source/trust.h"

/* pagemap entry bits, Documentation/admin-guide/mm/pagemap.rst of the Linux kernel. */
#define PAGE_PRESENT (1ULL << 63)
#define PAGE_SWAPPED (1ULL << 62)
#define PAGE_OF_FILE (1ULL << 61)

enum { MAPS_CHUNK = 8192, MAX_SHARED_FILES = 64, MAX_KEPT = 64 };

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

/* struct procmap_query of <linux/fs.h>, version 1. */
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

static int open_maps(void)
{
    return ms_file_open("/proc/self/maps", O_RDONLY);
}

/* `name` may be NULL. NO: there is no such mapping. UNKNOWN: the kernel has no answer. */
static enum answer ask(int maps, unsigned flags, uintptr_t address, char *name, size_t name_bytes,
                       struct query *query_out)
{
    static _Atomic bool is_unknown_here;
    if (maps < 0 || atomic_load_explicit(&is_unknown_here, memory_order_relaxed))
        return UNKNOWN;
    *query_out = (struct query){.size = sizeof(*query_out),
                                .flags = flags,
                                .address = address,
                                .name_bytes = (uint32_t)name_bytes,
                                .name = (uintptr_t)name};
    if (syscall(SYS_ioctl, maps, _IOWR('f', 17, struct query), query_out) == 0)
        return YES;
    if (errno == ENOENT)
        return NO;
    if (errno == ENOTTY)
        atomic_store_explicit(&is_unknown_here, true, memory_order_relaxed);
    return UNKNOWN;
}

/* Converts an answer about a mapping. A second query gets the name, which is "" if too long. */
static void answer_query(int maps, const struct query *query, struct ms_mapping *mapping_out)
{
    struct query named;
    *mapping_out = (struct ms_mapping){
        .begin = query->begin,
        .end = query->end,
        .file_offset = query->offset,
        .device = makedev(query->major_number, query->minor_number),
        .inode = query->inode,
        .shared = (query->is & THAT_ARE_SHARED) != 0,
    };
    if (ask(maps, OF_FILES, query->begin, mapping_out->path, sizeof(mapping_out->path), &named) !=
            YES ||
        named.inode != query->inode)
        mapping_out->path[0] = '\0';
}

/* Finds the mapping of a file that has all of [begin, end). */
static enum answer ask_for_mapping(int maps, uintptr_t begin, uintptr_t end,
                                   struct ms_mapping *mapping_out)
{
    struct query query;
    const enum answer answer = ask(maps, OF_FILES, begin, NULL, 0, &query);
    if (answer != YES)
        return answer;
    if (query.inode == 0 || end > query.end)
        return NO;
    answer_query(maps, &query, mapping_out);
    mapping_out->file_offset += begin - query.begin;
    return YES;
}

static enum answer ask_for_all(int maps, ms_mapping_visitor *visit, void *context)
{
    struct query query = {0};
    enum answer answer;
    while ((answer = ask(maps, OF_FILES | OR_THE_NEXT, query.end, NULL, 0, &query)) == YES) {
        struct ms_mapping mapping;
        if (query.inode == 0 || query.offset != 0)
            continue;
        answer_query(maps, &query, &mapping);
        visit(context, &mapping);
    }
    return answer;
}

/* Finds out if that file is mapped shared and writable. The kernel skips all other mappings. */
static enum answer ask_for_stores(int maps, dev_t device, ino_t inode)
{
    struct query query = {0};
    enum answer answer;
    while ((answer = ask(maps, OF_FILES | THAT_ARE_SHARED | THAT_ARE_WRITABLE | OR_THE_NEXT,
                         query.end, NULL, 0, &query)) == YES) {
        if (query.inode == inode && makedev(query.major_number, query.minor_number) == device)
            return YES;
    }
    return answer;
}

/* --- reading the list of all mappings */

/* One line of /proc/self/maps. */
struct line {
    uintptr_t begin, end;
    uint64_t offset;
    dev_t device;
    ino_t inode;
    bool writable, shared;
    const char *path;
};

/* A search of /proc/self/maps. */
struct search {
    uintptr_t begin, end; /* the wanted range */
    struct ms_mapping *found;
    bool is_found;
    struct {
        dev_t device;
        ino_t inode;
    } shared[MAX_SHARED_FILES]; /* files mapped shared and writable */
    int shared_count;
    bool shared_overflow;
};

static bool parse_line(char *text, struct line *line_out)
{
    unsigned long begin, end, long_inode;
    unsigned long long offset;
    unsigned major_number, minor_number;
    char permissions[5];
    int path_at = 0;
    /* The kernel writes no number that is too large. NOLINTNEXTLINE(cert-err34-c) */
    if (sscanf(text, "%lx-%lx %4s %llx %x:%x %lu %n", &begin, &end, permissions, &offset,
               &major_number, &minor_number, &long_inode, &path_at) != 7)
        return false;
    *line_out = (struct line){
        .begin = begin,
        .end = end,
        .offset = offset,
        .device = makedev(major_number, minor_number),
        .inode = long_inode,
        .writable = permissions[1] == 'w',
        .shared = permissions[3] == 's',
        .path = text + path_at,
    };
    return true;
}

static void search_line(void *context, char *text)
{
    struct search *search = context;
    struct line line;
    if (!parse_line(text, &line) || line.inode == 0)
        return;
    if (line.shared && line.writable) {
        if (search->shared_count == MAX_SHARED_FILES) {
            search->shared_overflow = true;
        } else {
            search->shared[search->shared_count].device = line.device;
            search->shared[search->shared_count].inode = line.inode;
            search->shared_count++;
        }
    }
    if (line.begin > search->begin || line.end < search->end)
        return;
    struct ms_mapping *mapping = search->found;
    *mapping = (struct ms_mapping){
        .begin = line.begin,
        .end = line.end,
        .file_offset = line.offset + (search->begin - line.begin),
        .device = line.device,
        .inode = line.inode,
        .shared = line.shared,
    };
    snprintf(mapping->path, sizeof(mapping->path), "%s", line.path);
    search->is_found = true;
}

/* Calls visit for every line of /proc/self/maps. A read may end within a line, which is kept. */
static bool walk_maps(void (*visit)(void *context, char *text), void *context)
{
    const int descriptor = open_maps();
    if (descriptor < 0)
        return false;
    char text[MAPS_CHUNK + 1];
    size_t kept = 0;
    ssize_t got;
    while ((got = syscall(SYS_read, descriptor, text + kept, MAPS_CHUNK - kept)) > 0 ||
           (got < 0 && errno == EINTR)) {
        if (got < 0)
            continue;
        kept += (size_t)got;
        text[kept] = '\0';
        char *start = text;
        for (char *newline; (newline = strchr(start, '\n')) != NULL; start = newline + 1) {
            *newline = '\0';
            visit(context, start);
        }
        kept = (size_t)(text + kept - start);
        memmove(text, start, kept);
        if (kept == MAPS_CHUNK) /* a line longer than the buffer: not a mapping to find */
            kept = 0;
    }
    ms_file_close(descriptor);
    return got == 0;
}

/* A search for a file among those that are mapped shared and writable. */
struct stores {
    dev_t device;
    ino_t inode;
    bool is_found;
};

static void look_for_stores(void *context, char *text)
{
    struct stores *stores = context;
    struct line line;
    if (parse_line(text, &line) && line.shared && line.writable && line.inode == stores->inode &&
        line.device == stores->device)
        stores->is_found = true;
}

bool ms_mapping_is_stored_to(dev_t device, ino_t inode)
{
    const int maps = open_maps();
    const enum answer answer = ask_for_stores(maps, device, inode);
    if (maps >= 0)
        ms_file_close(maps);
    if (answer != UNKNOWN)
        return answer == YES;
    struct stores stores = {.device = device, .inode = inode};
    return !walk_maps(look_for_stores, &stores) || stores.is_found;
}

static bool is_stored_to(const struct search *search, dev_t device, ino_t inode)
{
    if (search->shared_overflow)
        return ms_mapping_is_stored_to(device, inode);
    for (int i = 0; i < search->shared_count; i++) {
        if (search->shared[i].device == device && search->shared[i].inode == inode)
            return true;
    }
    return false;
}

struct visitor {
    ms_mapping_visitor *visit;
    void *context;
};

static void visit_line(void *context, char *text)
{
    const struct visitor *visitor = context;
    struct line line;
    if (!parse_line(text, &line) || line.inode == 0 || line.offset != 0)
        return;
    struct ms_mapping mapping = {.begin = line.begin,
                                 .end = line.end,
                                 .device = line.device,
                                 .inode = line.inode,
                                 .shared = line.shared};
    snprintf(mapping.path, sizeof(mapping.path), "%s", line.path);
    visitor->visit(visitor->context, &mapping);
}

bool ms_mapping_visit(ms_mapping_visitor *visit, void *context)
{
    struct visitor visitor = {.visit = visit, .context = context};
    const int maps = open_maps();
    const enum answer answer = ask_for_all(maps, visit, context);
    if (maps >= 0)
        ms_file_close(maps);
    return answer != UNKNOWN || walk_maps(visit_line, &visitor);
}

/* False if a private page was written or swapped out: it is no longer the file's. */
static bool are_pages_clean(uintptr_t begin, uintptr_t end)
{
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    const int descriptor = ms_file_open("/proc/self/pagemap", O_RDONLY);
    if (descriptor < 0)
        return false;

    bool clean = true;
    uint64_t entries[512];
    const uintptr_t last = (end - 1) / page_bytes;
    for (uintptr_t page = begin / page_bytes; clean && page <= last;) {
        size_t wanted = last - page + 1;
        if (wanted > sizeof(entries) / sizeof(entries[0]))
            wanted = sizeof(entries) / sizeof(entries[0]);
        const ssize_t got = ms_file_read(descriptor, entries, wanted * sizeof(entries[0]),
                                         page * sizeof(entries[0]));
        if (got < (ssize_t)sizeof(entries[0])) {
            clean = false;
            break;
        }
        const size_t count = (size_t)got / sizeof(entries[0]);
        for (size_t i = 0; i < count; i++) {
            const bool present = (entries[i] & PAGE_PRESENT) != 0;
            if ((entries[i] & PAGE_SWAPPED) != 0 || (present && (entries[i] & PAGE_OF_FILE) == 0))
                clean = false;
        }
        page += count;
    }
    ms_file_close(descriptor);
    return clean;
}

/* Finds the mapping that has all of [begin, end); *search_out gets files that are stored to. */
static bool search_maps(uintptr_t begin, uintptr_t end, struct ms_mapping *mapping_out,
                        struct search *search_out)
{
    *search_out = (struct search){.begin = begin, .end = end, .found = mapping_out};
    return walk_maps(search_line, search_out) && search_out->is_found;
}

/* The same, if the file is nowhere mapped shared and writable. */
static bool find_trusted(uintptr_t begin, uintptr_t end, struct ms_mapping *mapping_out)
{
    const int maps = open_maps();
    enum answer stores = UNKNOWN;
    const enum answer found = ask_for_mapping(maps, begin, end, mapping_out);
    if (found == YES)
        stores = ask_for_stores(maps, mapping_out->device, mapping_out->inode);
    if (maps >= 0)
        ms_file_close(maps);
    if (found == NO || stores != UNKNOWN)
        return found == YES && stores == NO;
    struct search search;
    return search_maps(begin, end, mapping_out, &search) &&
           !is_stored_to(&search, mapping_out->device, mapping_out->inode);
}

bool ms_mapping_find(const void *address, size_t bytes, struct ms_mapping *mapping_out)
{
    const uintptr_t begin = (uintptr_t)address;
    return find_trusted(begin, begin + bytes, mapping_out) &&
           (mapping_out->shared || are_pages_clean(begin, begin + bytes));
}

static bool find_any(uintptr_t begin, uintptr_t end, struct ms_mapping *mapping_out)
{
    const int maps = open_maps();
    const enum answer found = ask_for_mapping(maps, begin, end, mapping_out);
    struct search search;
    if (maps >= 0)
        ms_file_close(maps);
    return found == UNKNOWN ? search_maps(begin, end, mapping_out, &search) : found == YES;
}

/*
 * On overlay and btrfs, fstat returns another device number than the kernel shows for a mapping. So
 * a new mapping is compared with the old one, which costs another search.
 */
static bool maps_like(int descriptor, const struct ms_mapping *mapping)
{
    const long page = syscall(SYS_mmap, NULL, 1, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (page == -1)
        return false;
    struct ms_mapping own;
    const uintptr_t begin = (uintptr_t)page;
    const bool same = find_any(begin, begin + 1, &own) && own.device == mapping->device &&
                      own.inode == mapping->inode;
    munmap((void *)begin, 1);
    return same;
}

static bool peek_by_file(const void *address, void *buffer, size_t bytes)
{
    const int memory = ms_file_open("/proc/self/mem", O_RDONLY);
    if (memory < 0)
        return false;
    const bool is_read = ms_file_read(memory, buffer, bytes, (uintptr_t)address) == (ssize_t)bytes;
    ms_file_close(memory);
    return is_read;
}

/* Some containers deny the call. /proc/self/mem reads devices, too, so callers check the file. */
bool ms_mapping_peek(const void *address, void *buffer, size_t bytes)
{
    const struct iovec to = {buffer, bytes}, from = {(void *)(uintptr_t)address, bytes};
    const long got = syscall(SYS_process_vm_readv, getpid(), &to, 1UL, &from, 1UL, 0UL);
    if (got < 0 && (errno == EPERM || errno == ENOSYS))
        return peek_by_file(address, buffer, bytes);
    return got == (long)bytes;
}

/* For the program's table. A locked file stays open where it is, and is not opened again. */
static int move_up(int descriptor, const struct stat *stat)
{
    enum { HIGH = 512 };
    if (ms_trust_is_locked(descriptor)) {
        held[held_count].device = stat->st_dev;
        held[held_count++].inode = stat->st_ino;
        return -1;
    }
    const int high = (int)syscall(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, HIGH);
    if (high < 0)
        return descriptor;
    ms_file_close(descriptor);
    return high;
}

static bool may_be_opened(const struct stat *stat)
{
    size_t i = 0;
    while (i < held_count && (held[i].device != stat->st_dev || held[i].inode != stat->st_ino))
        i++;
    return i == held_count && held_count < MAX_KEPT;
}

/* Checks the path's file before opening it: opening a device or a pipe has side effects. */
static int open_regular(const char *path, struct stat *stat_out)
{
    char link[40];
    int descriptor = -1;
    const int found = ms_file_open(path, O_PATH);
    if (found < 0)
        return -1;
    if (ms_file_stat(found, stat_out) && S_ISREG(stat_out->st_mode) && may_be_opened(stat_out)) {
        snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", found);
        descriptor = ms_file_open(link, O_RDONLY | O_NONBLOCK);
        if (descriptor >= 0 && !ms_file_thread_has_own_table())
            descriptor = move_up(descriptor, stat_out);
    }
    ms_file_close(found);
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
    ms_trust_close(descriptor);
    return -1;
}

/*
 * Opens by name first. A file that was unlinked or renamed since is opened through the kernel's
 * link for the mapping, which needs privileges (proc(5), map_files). Without them this fails, and
 * the caller takes a snapshot.
 */
int ms_mapping_open(const struct ms_mapping *mapping)
{
    const int descriptor = open_verified(mapping->path, mapping);
    if (descriptor >= 0)
        return descriptor;
    char link[96];
    snprintf(link, sizeof(link), "/proc/self/map_files/%lx-%lx", (unsigned long)mapping->begin,
             (unsigned long)mapping->end);
    return open_verified(link, mapping);
}
