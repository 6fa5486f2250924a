/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loading/source_read.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/files/file.h"
#include "runtime/files/file_read.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/sums.h"
#include "runtime/files/trust.h"
#include "runtime/state/counters.h"

/* --- bytes that were taken for the file's (files/sums.h) */

enum { PART = MS_SUMS_PART };

struct read_range {
    const unsigned char *bytes;
    uint64_t offset;
    size_t count;
};

/* Sums the part as it was read, or reads the whole part again if the range has only a piece. */
static bool sum_part(const struct ms_file *file, uint64_t begin, const struct read_range *range,
                     uint64_t *sum_out, struct ms_file_failure *failure_out)
{
    const bool is_whole = begin >= range->offset && begin + PART <= range->offset + range->count;
    void *again = is_whole ? NULL : ms_heap_alloc(PART);
    if (!is_whole && again == NULL)
        ms_file_read_explain(file, begin, PART, ENOMEM, failure_out);
    const bool is_read =
        is_whole || (again != NULL && ms_file_read_now(file, begin, again, PART, failure_out));
    if (is_read)
        *sum_out = ms_sums_make(is_whole ? range->bytes + (begin - range->offset) : again);
    ms_heap_free(again);
    return is_read;
}

/* Reports a change of the file instead, if there was one: the copy need not have differed. */
static void explain_difference(const struct ms_file *file, uint64_t begin,
                               struct ms_file_failure *failure_out)
{
    if (ms_trust_check(file, failure_out))
        *failure_out = (struct ms_file_failure){
            .file = file, .kind = MS_FAILURE_DIFFERS, .offset = begin, .bytes = PART};
}

bool ms_source_read_check(const struct ms_file *file, uint64_t offset, const void *bytes,
                          size_t count, struct ms_file_failure *failure_out)
{
    const struct read_range range = {bytes, offset, count};
    if (!ms_sums_any(file))
        return true;
    for (uint64_t number = offset / PART; number * PART < offset + count; number++) {
        bool is_seen;
        const uint64_t copied = ms_sums_get(file, number, &is_seen);
        uint64_t found;
        if (copied == 0 || is_seen)
            continue;
        if (!sum_part(file, number * PART, &range, &found, failure_out))
            return false;
        if (found != copied) {
            explain_difference(file, number * PART, failure_out);
            return false;
        }
        ms_sums_set_seen(file, number);
    }
    return true;
}

static int format_time(char *text, size_t bytes, const char *what, struct timespec now,
                       struct timespec then)
{
    return now.tv_sec == then.tv_sec && now.tv_nsec == then.tv_nsec
               ? 0
               : snprintf(text, bytes, ", %s %lld.%09ld, was %lld.%09ld", what,
                          (long long)now.tv_sec, now.tv_nsec, (long long)then.tv_sec, then.tv_nsec);
}

static int format_number(char *text, size_t bytes, const char *what, uint64_t now, uint64_t then)
{
    return now == then ? 0
                       : snprintf(text, bytes, ", %s %llu, was %llu", what, (unsigned long long)now,
                                  (unsigned long long)then);
}

static void log_change(const struct ms_file_failure *failure)
{
    const struct ms_file *file = failure->file;
    const struct stat *now = &failure->now;
    const struct stat *then = ms_file_stat(file);
    char text[320] = "";
    const size_t bytes = sizeof(text) / 4; /* for each */
    char *end = text;
    end += format_number(end, bytes, "size", (uint64_t)now->st_size, (uint64_t)then->st_size);
    end += format_number(end, bytes, "links", now->st_nlink, then->st_nlink);
    end += format_time(end, bytes, "mtime", now->st_mtim, then->st_mtim);
    format_time(end, bytes, "ctime", now->st_ctim, then->st_ctim);
    const char *what = text[0] != '\0' ? text + 2 : "another file";
    if (failure->kind == MS_FAILURE_UNANSWERED)
        ms_log(MS_ERROR,
               "%s: changed by another process (%s), after the kernel had let it wait for "
               "lease-break-time (/proc/sys/fs/lease-break-time): until then this process did not "
               "bring the copied bytes into memory, since it was stopped, or the machine or the "
               "disk too slow; they are lost: call metashard_materialise() before it changes",
               ms_file_path(file), what);
    else
        ms_log(MS_ERROR,
               "%s: changed after the program copied it to the device and before it was needed "
               "(%s); the copied bytes are lost: write another file and rename it over this one, "
               "or call metashard_materialise() before it changes",
               ms_file_path(file), what);
}

static void log_loss(const struct ms_file *file, int error)
{
    if (error == EBADF)
        ms_log(MS_ERROR, "%s: the shim's descriptor of it is gone (%s), but its bytes are needed",
               ms_file_path(file), strerror(error));
    else if (!ms_file_stays_open(file))
        ms_log(MS_ERROR,
               "%s: cannot be opened again (%s), but its bytes are needed; the limit of open files "
               "leaves no descriptor to keep it open: raise the limit (ulimit -n), or let the file "
               "be until metashard_materialise() was called",
               ms_file_path(file), strerror(error));
    else
        ms_log(MS_ERROR,
               "%s: its file system does not have it any more (%s), but its bytes are needed; the "
               "copied bytes are lost: let the file be where it comes from, or call "
               "metashard_materialise() before it is deleted there",
               ms_file_path(file), strerror(error));
}

static void log_unreadable(const struct ms_file_failure *failure)
{
    const bool is_deleted = failure->error == ESTALE || failure->error == ENOENT;
    ms_log(MS_ERROR, "%s: cannot read %zu bytes at %llu: %s%s", ms_file_path(failure->file),
           failure->bytes, (unsigned long long)failure->offset,
           failure->error != 0 ? strerror(failure->error) : "the file ends before them",
           is_deleted ? "; it was deleted where it comes from, and the copied bytes are lost" : "");
}

void ms_source_read_log_failure(const struct ms_file_failure *failure)
{
    const struct ms_file *file = failure->file;
    switch (failure->kind) {
    case MS_FAILURE_GIVEN_UP:
        ms_log(MS_ERROR,
               "%s: it was opened for writing, or deleted, after the program copied it to the "
               "device; bytes that got no memory then, because the plan gives them to other ranks, "
               "are lost",
               ms_file_path(file));
        return;
    case MS_FAILURE_LOST:
        log_loss(file, failure->error);
        return;
    case MS_FAILURE_CHANGED:
    case MS_FAILURE_UNANSWERED:
        log_change(failure);
        return;
    case MS_FAILURE_WRITTEN:
        ms_log(MS_ERROR,
               "%s: open for writing somewhere after the program copied it to the device and "
               "before it was needed, on a file system that does not show stores; the copied bytes "
               "may be lost",
               ms_file_path(file));
        return;
    case MS_FAILURE_STORED_TO:
        ms_log(MS_ERROR,
               "%s: mapped shared and writable in this process after it was copied to the device "
               "and before it was needed, and the kernel does not tell whether it was stored to; "
               "the copied bytes may be lost: open the file for writing by functions of the C "
               "library, or call metashard_materialise() before it is mapped",
               ms_file_path(file));
        return;
    case MS_FAILURE_DIFFERS:
        ms_log(MS_ERROR,
               "%s: what the program copied to the device was taken for bytes of this file by a "
               "sample, but was not the same within the %zu bytes at %llu: it had changed them, or "
               "the file was changed before the copy; the copied bytes are lost: set "
               "METASHARD_UNSEEN_READS=off",
               ms_file_path(file), failure->bytes, (unsigned long long)failure->offset);
        return;
    case MS_FAILURE_UNREADABLE:
        log_unreadable(failure);
        return;
    }
}

struct wanted_bytes {
    const struct ms_file *file;
    uint64_t offset;
    void *buffer;
    size_t bytes;
    bool is_read;
    struct ms_file_failure failure;
};

static void read_bytes(void *argument)
{
    struct wanted_bytes *wanted = argument;
    if (!ms_file_begin_use(wanted->file, &wanted->failure))
        return;
    wanted->is_read =
        ms_file_read_now(wanted->file, wanted->offset, wanted->buffer, wanted->bytes,
                         &wanted->failure) &&
        ms_source_read_check(wanted->file, wanted->offset, wanted->buffer, wanted->bytes,
                             &wanted->failure) &&
        ms_trust_check(wanted->file, &wanted->failure) &&
        (wanted->bytes == 0 || ms_trust_check_mappings(wanted->file, &wanted->failure));
    ms_file_end_use(wanted->file);
}

static CUresult read_file(const struct ms_file *file, uint64_t offset, void *buffer, size_t bytes,
                          bool logs)
{
    struct wanted_bytes wanted = {file, offset, buffer, bytes,
                                  .failure = {.file = file, .kind = MS_FAILURE_LOST}};
    ms_file_thread_call(read_bytes, &wanted);
    if (!wanted.is_read && logs)
        ms_source_read_log_failure(&wanted.failure);
    if (!wanted.is_read)
        return CUDA_ERROR_OPERATING_SYSTEM;
    ms_counter_add(MS_COUNT_FILE_READ_BYTES, bytes);
    return CUDA_SUCCESS;
}

CUresult ms_source_read(const struct ms_source *source, uint64_t offset, void *buffer, size_t bytes,
                        const void **bytes_out)
{
    const struct ms_file *file = ms_source_file(source);
    if (file == NULL) {
        const unsigned char *data = ms_host_snapshot_data(ms_source_snapshot(source));
        if (data == NULL) /* forgotten, because nothing wanted the bytes any more */
            return CUDA_ERROR_OPERATING_SYSTEM;
        *bytes_out = data + offset;
        return CUDA_SUCCESS;
    }
    if (bytes_out != NULL)
        *bytes_out = buffer;
    return read_file(file, offset, buffer, bytes, bytes_out != NULL);
}

bool ms_source_read_is_current(const struct ms_source *source)
{
    struct wanted_bytes none = {.file = ms_source_file(source)};
    if (none.file == NULL)
        return true;
    ms_file_thread_call(read_bytes, &none);
    return none.is_read;
}
