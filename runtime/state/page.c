/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/page.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/state/counters.h"
#include "runtime/state/process.h"

enum { KEPT_DAYS = 7, RUN_MINUTES = 10, MAX_PAGES = 4096, MAX_NAMES = 9 };
enum { DEVICES = 64, FILES = 128, HIDDEN_HOURS = 1 };

/* --- layout */

static void add_section(struct ms_state_header *header, enum ms_state_section section,
                        uint64_t count)
{
    const uint64_t bytes = ms_format_record_bytes(section);
    header->sections[section] = (struct ms_state_span){header->total_bytes, count, bytes};
    header->total_bytes += (count * bytes + 63) / 64 * 64;
}

static void count_option(void *context, __attribute__((unused)) const char *variable,
                         __attribute__((unused)) const char *value)
{
    ++*(uint64_t *)context;
}

/* Beside the fixed sections, causes and samples get an eighth each, blocks and events the rest. */
static struct ms_state_header lay_out(const struct ms_config *config)
{
    enum { MOST_CAUSES = 512 };
    uint64_t options = 0, bytes = config->state_bytes;
    bytes = bytes < MS_STATE_LEAST_BYTES ? MS_STATE_LEAST_BYTES : bytes;
    bytes = bytes > MS_STATE_MOST_BYTES ? MS_STATE_MOST_BYTES : bytes / 4096 * 4096;
    if (bytes / 4096 != config->state_bytes / 4096)
        ms_log(MS_WARN, "METASHARD_STATE_BYTES=%llu is not from 512K to 1G: using %llu",
               (unsigned long long)config->state_bytes, (unsigned long long)bytes);
    ms_config_visit(config, count_option, &options);
    struct ms_state_header header = {.version = MS_STATE_VERSION,
                                     .mark = MS_STATE_MARK,
                                     .section_count = MS_SECTION_COUNT};
    memcpy(header.magic, MS_STATE_MAGIC, sizeof(header.magic));
    header.total_bytes = (sizeof(header) + 63) / 64 * 64;
    add_section(&header, MS_SECTION_PROCESS, 2);
    add_section(&header, MS_SECTION_PLAN, 2);
    add_section(&header, MS_SECTION_OPTIONS, options);
    add_section(&header, MS_SECTION_FIGURES, MS_FIGURE_COUNT);
    add_section(&header, MS_SECTION_FIGURE_NAMES, MS_FIGURE_COUNT);
    add_section(&header, MS_SECTION_DEVICES, DEVICES);
    add_section(&header, MS_SECTION_FILES, FILES);
    const uint64_t eighth = (bytes - header.total_bytes) / 8;
    const uint64_t causes = eighth / sizeof(struct ms_state_cause);
    add_section(&header, MS_SECTION_CAUSES, causes < MOST_CAUSES ? causes : MOST_CAUSES);
    add_section(&header, MS_SECTION_SAMPLES, eighth / sizeof(struct ms_state_sample));
    const uint64_t half = (bytes - header.total_bytes) / 2;
    add_section(&header, MS_SECTION_BLOCKS, half / sizeof(struct ms_state_block));
    add_section(&header, MS_SECTION_EVENTS,
                (bytes - header.total_bytes - 63) / sizeof(struct ms_state_event));
    header.total_bytes = bytes;
    return header;
}

/* --- the folder */

bool ms_page_folder(const struct ms_config *config, unsigned index, char path_out[MS_PATH_BYTES])
{
    int length = -1;
    if (config->state_dir[0] == '\0')
        return false;
    if (strcmp(config->state_dir, "auto") != 0)
        length = index == 0 ? snprintf(path_out, MS_PATH_BYTES, "%s", config->state_dir) : -1;
    else if (index == 0 && config->runtime_dir[0] == '/')
        length = snprintf(path_out, MS_PATH_BYTES, "%s/metashard", config->runtime_dir);
    else if (index <= 1)
        length = snprintf(path_out, MS_PATH_BYTES, "/run/user/%u/metashard", (unsigned)geteuid());
    else if (index == 2)
        length = snprintf(path_out, MS_PATH_BYTES, "/tmp/metashard-%u", (unsigned)geteuid());
    return length > 0 && length < MS_PATH_BYTES;
}

bool ms_page_is_name(const char *name)
{
    const size_t length = strlen(name), prefix = strlen(MS_STATE_PREFIX);
    const size_t suffix = strlen(MS_STATE_SUFFIX);
    return length > prefix + suffix && strncmp(name, MS_STATE_PREFIX, prefix) == 0 &&
           strcmp(name + length - suffix, MS_STATE_SUFFIX) == 0;
}

static bool fail(char text[256], const char *format, const char *what, int error)
{
    snprintf(text, 256, format, what, strerror(error));
    return false;
}

/* Makes the folder if it does not exist. Refuses a link at the path's end, and a folder in which
 * others may create or rename files: -1, with the reason in `text`. */
static int open_folder(const char *path, char text[256])
{
    struct stat stat;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        fail(text, "cannot create %.160s: %s", path, errno);
        return -1;
    }
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) {
        fail(text, "cannot open %.160s: %s", path, errno);
        return -1;
    }
    if (fstat(folder, &stat) != 0 || stat.st_uid != geteuid() || (stat.st_mode & 022) != 0) {
        snprintf(text, 256, "%.160s belongs to another user, or others can write there", path);
        close(folder);
        return -1;
    }
    return folder;
}

int ms_page_open_folder(const struct ms_config *config)
{
    char path[MS_PATH_BYTES], why[256];
    int folder = -1;
    if (getauxval(AT_SECURE) != 0)
        return -1;
    for (unsigned i = 0; folder < 0 && ms_page_folder(config, i, path); i++)
        folder = open_folder(path, why);
    return folder;
}

/* --- the file */

/* Reserves the bytes: a mapped page without space on the disk would raise a SIGBUS. Beyond the
 * limit of a file's size, even the request raises a signal. */
static bool reserve(int file, uint64_t bytes, char text[256])
{
    struct rlimit limit;
    const bool is_limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes;
    int error = is_limited ? EFBIG : EINTR;
    while (error == EINTR)
        error = posix_fallocate(file, 0, (off_t)bytes);
    return error == 0 || fail(text, "cannot reserve %s: %s", "its size", error);
}

static bool map(struct ms_page *page, int file, char text[256])
{
    void *bytes = mmap(NULL, page->total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED)
        return fail(text, "cannot map %s: %s", "it", errno);
    page->bytes = bytes;
    return true;
}

static bool make_in(struct ms_page *page, const char *folder, const struct ms_state_header *header,
                    char text[256])
{
    *page = (struct ms_page){.total_bytes = header->total_bytes};
    page->folder = open_folder(folder, text);
    if (page->folder < 0)
        return false;
    snprintf(page->path, sizeof(page->path), "%s", folder);
    snprintf(page->hidden_name, sizeof(page->hidden_name), MS_STATE_HIDDEN_PREFIX "%d-%lx",
             (int)getpid(), (unsigned long)ms_clock_ns(CLOCK_MONOTONIC));
    const int file = openat(page->folder, page->hidden_name,
                            O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool is_good = file >= 0 || fail(text, "cannot create a file in %.160s: %s", folder, errno);
    is_good = is_good && reserve(file, page->total_bytes, text) && map(page, file, text);
    if (is_good)
        memcpy(page->bytes, header, sizeof(*header));
    const bool was_made = file >= 0;
    if (was_made)
        close(file);
    if (!is_good) {
        if (was_made)
            unlinkat(page->folder, page->hidden_name, 0);
        close(page->folder);
    }
    return is_good;
}

static bool make_in_memory(struct ms_page *page, const struct ms_state_header *header)
{
    void *bytes =
        mmap(NULL, header->total_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *page = (struct ms_page){.bytes = bytes, .total_bytes = header->total_bytes, .folder = -1};
    if (bytes != MAP_FAILED)
        memcpy(bytes, header, sizeof(*header));
    return bytes != MAP_FAILED;
}

static bool make(struct ms_page *page, const struct ms_config *config, bool is_file, char text[256])
{
    const struct ms_state_header header = lay_out(config);
    char folder[MS_PATH_BYTES];
    bool is_made = false;
    if (!is_file)
        return make_in_memory(page, &header);
    for (unsigned i = 0; !is_made && ms_page_folder(config, i, folder); i++)
        is_made = make_in(page, folder, &header, text);
    return is_made;
}

/* --- whose page is it */

bool ms_page_process(int folder, const char *name, struct ms_state_process *process_out,
                     uint64_t *ran_ns_out)
{
    uint64_t changed_ns;
    struct ms_state_header header;
    struct ms_state_process process[2];
    struct stat stat;
    const struct ms_state_span *sections = header.sections;
    if (!ms_page_is_name(name))
        return false;
    const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return false;
    bool is_good = fstat(file, &stat) == 0 && S_ISREG(stat.st_mode) &&
                   pread(file, &header, sizeof(header), 0) == (ssize_t)sizeof(header) &&
                   memcmp(header.magic, MS_STATE_MAGIC, sizeof(header.magic)) == 0 &&
                   header.version == MS_STATE_VERSION;
    is_good = is_good &&
              pread(file, process, sizeof(process), (off_t)sections[MS_SECTION_PROCESS].offset) ==
                  (ssize_t)sizeof(process);
    if (!is_good || sections[MS_SECTION_FIGURES].count != MS_FIGURE_COUNT ||
        pread(file, &changed_ns, sizeof(uint64_t),
              (off_t)sections[MS_SECTION_FIGURES].offset +
                  (off_t)(MS_GAUGE_CHANGED_NS * sizeof(uint64_t))) != (ssize_t)sizeof(uint64_t))
        changed_ns = 0;
    close(file);
    *process_out = process[is_good && process[0].sequence < process[1].sequence];
    *ran_ns_out = process_out->ended_ns > changed_ns ? process_out->ended_ns : changed_ns;
    return is_good;
}

/* True for a page of this very process, before it called exec, or of a process that has ended. */
static bool may_be_replaced(int folder, const char *name, const struct ms_process_identity *own)
{
    struct ms_state_process process;
    uint64_t ran_ns;
    if (!ms_page_process(folder, name, &process, &ran_ns))
        return false;
    return ms_process_life(own, &process) == MS_LIFE_GONE ||
           (process.pid == own->pid && process.start_ticks == own->start_ticks &&
            process.pid_namespace == own->pid_namespace &&
            strncmp(own->boot, process.boot, sizeof(process.boot)) == 0);
}

/* --- cleaning */

struct old_page {
    char name[64];
    uint64_t bytes;
    int64_t started, ended; /* seconds */
    uint32_t rank, world;
};

static int newest_first(const void *a, const void *b)
{
    const struct old_page *left = a, *right = b;
    return left->ended < right->ended ? 1 : left->ended > right->ended ? -1 : 0;
}

/* Removes the hidden file of a process that was killed while it made its page. */
static void clean_hidden(int folder, const char *name, time_t now)
{
    struct stat stat;
    if (fstatat(folder, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
        stat.st_mtime < now - HIDDEN_HOURS * 3600L)
        unlinkat(folder, name, 0);
}

/* Lists all pages, at most MAX_PAGES, with their sizes. Until a page is read, `ended` is the time
 * of its file. */
static size_t list_pages(int folder, struct old_page *pages, time_t now)
{
    const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again >= 0 ? fdopendir(again) : NULL;
    size_t count = 0;
    struct stat stat;
    if (list == NULL) {
        if (again >= 0)
            close(again);
        return 0;
    }
    for (const struct dirent *entry; count < MAX_PAGES && (entry = readdir(list)) != NULL;) {
        if (strncmp(entry->d_name, MS_STATE_HIDDEN_PREFIX, strlen(MS_STATE_HIDDEN_PREFIX)) == 0)
            clean_hidden(folder, entry->d_name, now);
        if (!ms_page_is_name(entry->d_name) || strlen(entry->d_name) >= sizeof(pages->name) ||
            fstatat(folder, entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(stat.st_mode))
            continue;
        pages[count] = (struct old_page){.bytes = (uint64_t)stat.st_size, .ended = stat.st_mtime};
        strcpy(pages[count++].name, entry->d_name);
    }
    closedir(list);
    return count;
}

static uint64_t sum_bytes(const struct old_page *pages, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += pages[i].bytes;
    return bytes;
}

/* Usually false: the times of files then show that there is nothing to remove. */
static bool may_be_too_many(const struct old_page *pages, size_t count, uint64_t kept_bytes,
                            int64_t oldest)
{
    bool is_old = false;
    for (size_t i = 0; i < count; i++)
        is_old |= pages[i].ended < oldest;
    return is_old || sum_bytes(pages, count) > kept_bytes;
}

/* Keeps the pages whose processes have ended, with times from the page: a store to a mapped page
 * does not always change the time of its file. */
static size_t keep_ended(int folder, const struct ms_process_identity *own, struct old_page *pages,
                         size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct ms_state_process process;
        uint64_t ran_ns;
        if (!ms_page_process(folder, pages[i].name, &process, &ran_ns) ||
            ms_process_life(own, &process) != MS_LIFE_GONE)
            continue;
        pages[kept] = pages[i];
        pages[kept].started = (int64_t)(process.started_ns / MS_NS_PER_S);
        pages[kept].ended = pages[kept].started + (int64_t)(ran_ns / MS_NS_PER_S);
        pages[kept].rank = process.rank;
        pages[kept++].world = process.world;
    }
    return kept;
}

/* True if the page is of the run that begins with the first page and has `length` pages so far. */
static bool is_of_run(const struct old_page *pages, size_t length, const struct old_page *page)
{
    const int64_t apart = page->started - pages->started;
    bool is_of_run = pages->rank != MS_STATE_NO_RANK && page->world == pages->world &&
                     apart <= RUN_MINUTES * 60L && -apart <= RUN_MINUTES * 60L;
    for (size_t i = 0; i < length; i++)
        is_of_run &= pages[i].rank != page->rank;
    return is_of_run;
}

/* Moves the pages of the first page's run behind it, and returns how many the run has. Pages of
 * other runs at the same time lie between them. */
static size_t gather_run(struct old_page *pages, size_t count)
{
    size_t length = 1;
    for (size_t i = 1; i < count; i++) {
        const struct old_page page = pages[i];
        if (!is_of_run(pages, length, &page))
            continue;
        memmove(&pages[length + 1], &pages[length], (i - length) * sizeof(page));
        pages[length++] = page;
    }
    return length;
}

/* Removes runs that are too old or too many; the newest comes first. */
static void remove_runs(int folder, struct old_page *pages, size_t count, uint64_t kept_bytes,
                        int64_t oldest)
{
    uint64_t bytes = 0;
    for (size_t first = 0, end; first < count; first = end) {
        end = first + gather_run(pages + first, count - first);
        bytes += sum_bytes(pages + first, end - first);
        const bool is_kept = pages[first].ended >= oldest && (first == 0 || bytes <= kept_bytes);
        for (size_t i = first; i < end && !is_kept; i++)
            unlinkat(folder, pages[i].name, 0);
    }
}

static void clean(int folder, const struct ms_process_identity *own, uint64_t kept_bytes)
{
    struct old_page *pages = ms_heap_alloc(MAX_PAGES * sizeof(*pages));
    const time_t now = time(NULL);
    const int64_t oldest = now - (int64_t)KEPT_DAYS * 86400;
    if (pages == NULL)
        return;
    size_t count = list_pages(folder, pages, now);
    if (may_be_too_many(pages, count, kept_bytes, oldest)) {
        count = keep_ended(folder, own, pages, count);
        qsort(pages, count, sizeof(*pages), newest_first);
        remove_runs(folder, pages, count, kept_bytes, oldest);
    }
    ms_heap_free(pages);
}

/* --- showing */

/* Gives the complete file its name, and closes the folder. */
static bool show(struct ms_page *page, uint64_t kept_bytes, char text[256])
{
    char name[64] = "";
    int error = EEXIST;
    struct ms_process_identity own;
    ms_process_identify(&own);
    for (int i = 1; i <= MAX_NAMES && error == EEXIST; i++) {
        char number[24] = "";
        if (i > 1) /* another container that shares the folder has this process id as well */
            snprintf(number, sizeof(number), "-%d", i);
        snprintf(name, sizeof(name), MS_STATE_PREFIX "%d%s" MS_STATE_SUFFIX, (int)getpid(), number);
        if (may_be_replaced(page->folder, name, &own))
            unlinkat(page->folder, name, 0);
        error = linkat(page->folder, page->hidden_name, page->folder, name, 0) == 0 ? 0 : errno;
    }
    unlinkat(page->folder, page->hidden_name, 0);
    if (error == 0) {
        const size_t used = strlen(page->path);
        snprintf(page->path + used, sizeof(page->path) - used, "/%s", name);
        clean(page->folder, &own, kept_bytes);
    } else {
        fail(text, "%s cannot be made: %s", name, error);
        munmap(page->bytes, page->total_bytes);
    }
    close(page->folder);
    return error == 0;
}

bool ms_page_make(struct ms_page *page, const struct ms_config *config, bool is_file,
                  ms_page_filler *fill, char text[256])
{
    if (!make(page, config, is_file, text))
        return false;
    if (fill(page, config))
        return !is_file || show(page, config->state_kept_bytes, text);
    munmap(page->bytes, page->total_bytes);
    if (is_file) {
        unlinkat(page->folder, page->hidden_name, 0);
        close(page->folder);
    }
    return false;
}
