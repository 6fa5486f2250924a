/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: the bytes behind deferred data, when they are not a simple pattern. A source is either
 * a *file* the program had mapped, or a *snapshot*: a host copy taken because the program may
 * change its buffer. Owned by reference count; immutable after creation; usable from any thread.
 *
 * A file source keeps a descriptor of its own, in the file thread's table (file_thread.h), so unlinking the file does no
 * harm, and the program's own descriptors and locks of that file are not touched. It is compared
 * at every read with what was recorded: other size, other times, other inode means that the bytes
 * are no longer those the program copied, and the read fails loudly.
 */
#ifndef METASHARD_RUNTIME_SOURCE_SOURCE_H
#define METASHARD_RUNTIME_SOURCE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "runtime/driver/driver.h"

struct ms_source;

/*
 * The file behind the host range [address, address + bytes), if these bytes are certainly the
 * file's: one mapping, within the file, private pages never written, and no writable shared mapping
 * or descriptor of that file in this process. NULL otherwise: then a snapshot is right. The caller
 * gets a reference.
 */
struct ms_source *ms_source_from_mapping(const void *address, size_t bytes, uint64_t *offset_out);

/* All of a mapped file, if it has at least `end` bytes. */
struct ms_mapping;
struct ms_source *ms_source_from_file(const struct ms_mapping *mapping, uint64_t end);

/* For whoever has got a source from the latter: it, or NULL when this thread's process has the file open for writing, of
 * which no call may tell; the reference is dropped then. Not in the file thread. */
struct ms_source *ms_source_unless_written(struct ms_source *file);

uint64_t ms_source_file_bytes(const struct ms_source *file);

/* The file as it was when the program copied from it. */
const struct stat *ms_source_stat(const struct ms_source *file);

/*
 * A host copy of [address, address + bytes). NULL when METASHARD_SNAPSHOT_BYTES would be exceeded
 * or memory is out.
 */
struct ms_source *ms_source_from_memory(const void *address, size_t bytes);

struct ms_source *ms_source_take(struct ms_source *source); /* one more reference; returns source */
void ms_source_drop(struct ms_source *source);

/*
 * The source's bytes [offset, offset + bytes): copied into buffer, or, where they are in memory
 * already, *bytes_out points at them and buffer is untouched. CUDA_ERROR_OPERATING_SYSTEM when the
 * file has changed or cannot be read; the reason is logged.
 */
CUresult ms_source_read(const struct ms_source *source, uint64_t offset, void *buffer, size_t bytes,
                        const void **bytes_out);

bool ms_source_is_file(const struct ms_source *source);

/* --- for the file thread, and those that it starts. Nothing is logged there: a failure is handed to whoever waits. */

struct ms_source_failure {
    const struct ms_source *file;
    enum {
        MS_SOURCE_LOST,
        MS_SOURCE_GIVEN_UP,
        MS_SOURCE_CHANGED,
        MS_SOURCE_WRITTEN,
        MS_SOURCE_UNREADABLE
    } kind;
    uint64_t offset; /* from there on it cannot be read */
    size_t bytes;
    int error; /* of the system; 0: the file ends before these bytes */
    struct stat now;
};

int ms_source_descriptor(const struct ms_source *file);

/* Bytes of a file as they are now, whatever was recorded. */
bool ms_source_read_now(const struct ms_source *file, uint64_t offset, void *buffer, size_t bytes,
                        struct ms_source_failure *failure_out);

/* Whether the file is unchanged: to be asked after each read. */
bool ms_source_check(const struct ms_source *file, struct ms_source_failure *failure_out);

/* One line. Not in the file thread. */
void ms_source_log_failure(const struct ms_source_failure *failure);

/* --- for all threads */

/* True while the bytes of a file are certainly what they were. */
bool ms_source_is_current(const struct ms_source *source);

/* True when the file was last changed before ms_source_start. */
bool ms_source_is_older(const struct ms_source *source);
void ms_source_start(void);

/*
 * A file that this process is about to change. ms_source_may_be_of: is it perhaps that of a source? Without a lock.
 * ms_source_close: from now on no new reference is given out, and ms_source_is_closed tells its sources; false when there
 * are none; path_out has room for MS_PATH_BYTES. ms_source_end_close: what still comes from them is lost, so that
 * reading fails from now on; or it is as before. One file is closed at a time.
 */
bool ms_source_may_be_of(dev_t device, ino_t inode);
bool ms_source_close(dev_t device, ino_t inode, char *path_out);
bool ms_source_is_closed(const struct ms_source *source);
void ms_source_end_close(dev_t device, ino_t inode, bool is_lost);

/*
 * Leases (lease.h). A file of which somebody waits for the lease, or has waited too long; giving back those of a file, and
 * all. A source without one is as good as its times. ms_source_end_close gives back those of a file that is lost.
 */
bool ms_source_find_broken(dev_t *device_out, ino_t *inode_out);
void ms_source_drop_leases_of(dev_t device, ino_t inode);
void ms_source_drop_leases(void);

/* A snapshot of [offset, offset + bytes) of a file; CUDA_ERROR_OUT_OF_MEMORY where ms_source_from_memory gives NULL, or
 * an error of ms_source_read. */
CUresult ms_source_copy(const struct ms_source *file, uint64_t offset, size_t bytes,
                        struct ms_source **copy_out);

const char *ms_source_path(const struct ms_source *source); /* "" for a snapshot */

void ms_source_set_snapshot_limit(uint64_t bytes);

#endif
