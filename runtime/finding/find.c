/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/find.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/checksum.h"
#include "runtime/base/log.h"
#include "runtime/base/number.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/file.h"
#include "runtime/files/file_name.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/kept_files.h"
#include "runtime/files/lease_thread.h"
#include "runtime/files/mapping.h"
#include "runtime/files/own_writers.h"
#include "runtime/files/page_cache.h"
#include "runtime/files/read_ahead.h"
#include "runtime/files/trust.h"
#include "runtime/finding/file_compare.h"
#include "runtime/finding/find_internal.h"
#include "runtime/finding/held_files.h"
#include "runtime/finding/mapped_tensors.h"
#include "runtime/finding/reads.h"
#include "runtime/finding/uring.h"

/* Says, once, that file systems of other machines cannot be asked. */
static void log_old_attributes(void)
{
    static _Atomic bool is_logged;
    if (!atomic_exchange(&is_logged, true))
        ms_log(
            MS_WARN,
            "statx is not there, or a sandbox denies it, so changes of files on network file "
            "systems and FUSE would not be seen: copies from such files are kept in host memory; "
            "allow statx, or copy the checkpoint to a local disk");
}

/* Drops the file and returns NULL if this process may write to it. */
static struct ms_file *accept_file(struct ms_file *file)
{
    ms_lease_thread_serve(file != NULL);
    if (file == NULL && ms_trust_was_not_asked())
        log_old_attributes();
    if (file == NULL || !ms_own_writers_any(file))
        return file;
    ms_file_drop(file);
    return NULL;
}

/* --- files that were found before */

struct ms_file *ms_find_again(const struct ms_named_file *name)
{
    struct ms_mapping mapping = {.device = name->device, .inode = name->inode};
    snprintf(mapping.path, sizeof(mapping.path), "%s", name->path);
    return accept_file(ms_trust_open(&mapping, 0));
}

static unsigned char copied[64 << 10]; /* for the file thread */

/*
 * Counts the wanted bytes, from `done` on, that the memory still holds as the program has read them
 * from the file, past the page cache and while the file was held. Counts up to the end of one part
 * with a checksum (reads.h), which may begin before `done`.
 */
static size_t count_as_read(const struct ms_file *file, const struct ms_wanted_source *wanted,
                            size_t done)
{
    struct ms_reads_part part;
    const uintptr_t address = (uintptr_t)wanted->address + done;
    if (!ms_reads_find_part((const void *)address, &part) ||
        part.file_offset + (address - part.begin) != wanted->offset + done ||
        !ms_held_files_has(part.held, file) || part.bytes > sizeof(copied) ||
        !ms_mapping_peek((const void *)part.begin, copied, part.bytes) ||
        ms_checksum(copied, part.bytes) != part.checksum)
        return 0;
    return ms_least(part.begin + part.bytes - address, wanted->bytes - done);
}

static bool has_same_bytes(const struct ms_file *file, const struct ms_wanted_source *wanted)
{
    return ms_file_compare(file, wanted->offset, wanted->address, wanted->bytes, MS_COMPARING_ALL);
}

/* For bytes that were read past the page cache. Reads only the ends from a disk again, at most one
 * byte in SHARE: they may have come by small reads. */
static bool has_what_was_read_directly(const struct ms_file *file,
                                       const struct ms_wanted_source *wanted)
{
    enum { PAGE_BYTES = 4096, SHARE = 16 };
    size_t room = wanted->bytes / SHARE, now;
    for (size_t done = 0; done < wanted->bytes; done += now) {
        const uint64_t at = wanted->offset + done;
        if ((now = count_as_read(file, wanted, done)) > 0)
            continue;
        now = ms_least(wanted->bytes - done, PAGE_BYTES);
        const bool is_cached = ms_page_cache_has(ms_file_descriptor(file), at, at + now);
        if ((!is_cached && now > room) ||
            !ms_file_compare(file, at, (const char *)wanted->address + done, now, MS_COMPARING_ALL))
            return false;
        room -= is_cached ? 0 : now;
    }
    return true;
}

/* Reads nothing from a disk again, but for has_what_was_read_directly. */
static bool has_what_was_read(const struct ms_file *file, const struct ms_wanted_source *wanted)
{
    return count_as_read(file, wanted, wanted->bytes / 2) > 0
               ? has_what_was_read_directly(file, wanted)
               : ms_file_compare(file, wanted->offset, wanted->address, wanted->bytes,
                                 MS_COMPARING_CACHED);
}

/* True if the descriptor reads what lies at the mapped address. */
static bool is_mapped(const struct ms_file *file, const struct ms_wanted_source *wanted)
{
    struct ms_file_failure failure;
    return !ms_trust_may_be_copy(file) ||
           (has_same_bytes(file, wanted) && ms_trust_check(file, &failure));
}

/*
 * Places where files were mapped, for kernels that leave a list to read (files/mapping.h). A place
 * is no more than a guess, since anything may be mapped there by now. But bytes that equal the
 * file's are the file's, whatever is mapped. They are compared, even from a disk, where that is
 * less work than reading the list.
 */
enum { PLACES = 16, BYTES_FOR_LINE = 512 };
static struct place {
    uintptr_t begin, end;
    uint64_t file_offset; /* of begin */
    dev_t device;         /* of the file */
    ino_t inode;
    size_t lines; /* of the list that were read to find the mapping */
} places[PLACES];
static size_t next_place;

static void add_place(const struct ms_mapping *mapping, uintptr_t address,
                      const struct ms_file *file)
{
    places[next_place++ % PLACES] = (struct place){
        .begin = mapping->begin,
        .end = mapping->end,
        .file_offset = mapping->file_offset - (address - mapping->begin),
        .device = ms_file_stat(file)->st_dev,
        .inode = ms_file_stat(file)->st_ino,
        .lines = mapping->lines_read,
    };
}

static void find_by_place(struct ms_wanted_source *wanted, const struct place *place)
{
    const uintptr_t begin = (uintptr_t)wanted->address;
    if (begin < place->begin || begin + wanted->bytes > place->end ||
        wanted->bytes > place->lines * BYTES_FOR_LINE)
        return;
    wanted->offset = place->file_offset + (begin - place->begin);
    struct ms_file *file = ms_file_find_open(place->device, place->inode);
    if (file != NULL && has_same_bytes(file, wanted) && ms_trust_is_sure(file))
        wanted->found = file;
    else if (file != NULL)
        ms_file_drop(file);
}

/* --- files that were read */

/* The last file is kept, whether or not something is found: the next copy is likely from it. */
static struct ms_file *open_place(struct ms_mapping *place, uint64_t end)
{
    static struct ms_kept_file last;
    struct ms_file_failure failure;
    struct ms_file *file = ms_file_find_open(place->device, place->inode);
    if (file != NULL && !ms_trust_check(file, &failure)) { /* the source is outdated */
        ms_kept_files_set(&last, NULL);
        ms_file_drop(file);
        return NULL;
    }
    if (file == NULL)
        file = ms_trust_open(place, end);
    if (file == NULL)
        return NULL;
    ms_file_take(file);
    ms_kept_files_set(&last, file);
    return file;
}

/* Stops at a file that is not trusted: asking again would take long. */
static void find_by_note(struct ms_wanted_source *wanted)
{
    struct ms_file_failure failure;
    struct ms_file *file = NULL;
    struct ms_mapping place;
    bool is_there = false;
    for (size_t at = 0; !is_there && ms_reads_next(wanted->address, wanted->bytes, &at, &place);) {
        wanted->offset = place.file_offset;
        file = open_place(&place, wanted->offset + wanted->bytes);
        if (file == NULL)
            break;
        if (ms_file_begin_use(file, &failure)) {
            is_there = has_what_was_read(file, wanted) && ms_trust_is_sure(file);
            ms_file_end_use(file);
        }
        if (!is_there)
            ms_file_drop(file);
    }
    if (is_there)
        wanted->found = file;
}

/* --- files that are mapped */

static void find_by_range(struct ms_wanted_source *wanted)
{
    struct ms_mapping mapping;
    find_by_note(wanted);
    for (size_t i = 0; i < PLACES && wanted->found == NULL; i++)
        find_by_place(wanted, &places[i]);
    if (wanted->found != NULL)
        return;
    if (!ms_mapping_find(wanted->address, wanted->bytes, &mapping))
        return;
    wanted->offset = mapping.file_offset;
    wanted->found = ms_trust_open(&mapping, mapping.file_offset + wanted->bytes);
    if (wanted->found == NULL)
        return;
    wanted->is_absent = ms_trust_is_in_memory(wanted->found) && !mapping.shared &&
                        !ms_mapping_is_present(wanted->address, wanted->bytes);
    if (!wanted->is_absent && is_mapped(wanted->found, wanted)) {
        if (!ms_trust_may_be_copy(wanted->found))
            ms_read_ahead_note_copy(&mapping);
        if (mapping.lines_read > 0)
            add_place(&mapping, (uintptr_t)wanted->address, wanted->found);
        return;
    }
    ms_file_drop(wanted->found);
    wanted->found = NULL;
}

/* In the file thread. */
static void find(void *argument)
{
    struct ms_wanted_source *wanted = argument;
    ms_descriptor_was_short();
    if (!wanted->is_absent)
        find_by_range(wanted);
    if (wanted->found == NULL && (!wanted->is_absent || wanted->is_last))
        ms_mapped_tensors_find(wanted);
    if (wanted->found == NULL && (!wanted->is_absent || wanted->is_last))
        ms_uring_find(wanted);
    wanted->was_short = ms_descriptor_was_short();
}

/* Logs once, because later copies have the same cause. */
static void log_shortage(size_t bytes)
{
    static _Atomic bool is_logged;
    if (!atomic_exchange(&is_logged, true))
        ms_log(
            MS_WARN,
            "no descriptor is free to look whether a copy of %zu bytes is of a file (limit of open "
            "files): this copy, and others like it, are kept in host memory; raise the limit "
            "(ulimit -n)",
            bytes);
}

/* Reads a byte of each page, as the copy would: a handler of the program may answer
 * (userfaultfd(2)). On the thread that copies. Linux 5.14 has one call for all pages. */
static bool touch(const void *address, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = (uintptr_t)address + bytes;
    uintptr_t at = (uintptr_t)address & ~(page - 1);
    char byte;
    const struct iovec to = {&byte, 1};
    if (ms_mapping_may_load(address, bytes, false))
        return true;
    for (bool is_there = errno == EINVAL; at < end; at += page) {
        const struct iovec from = {(void *)at, 1};
        is_there =
            is_there && syscall(SYS_process_vm_readv, getpid(), &to, 1UL, &from, 1UL, 0UL) == 1;
        if (!is_there)
            return false;
    }
    return true;
}

static struct ms_file *find_wanted(struct ms_wanted_source *wanted)
{
    ms_file_thread_call(find, wanted);
    if (wanted->found == NULL && wanted->was_short)
        log_shortage(wanted->bytes);
    return accept_file(wanted->found);
}

struct ms_file *ms_find_file(const void *address, size_t bytes, uint64_t *offset_out)
{
    struct ms_wanted_source wanted = {.address = address, .bytes = bytes};
    struct ms_file *file = find_wanted(&wanted);
    if (wanted.is_absent) {
        wanted.is_last = true;
        wanted.is_absent = !touch(address, bytes);
        file = find_wanted(&wanted);
    }
    *offset_out = wanted.offset;
    return file;
}
