/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: the bytes behind deferred data that are not a simple pattern. A source is either a
 * *file* that the program had mapped, or a *snapshot*: a host copy, taken because the program may
 * change its buffer. Reference-counted; immutable after creation; usable from any thread.
 *
 * A file source has its own descriptor in the file thread's table (file_thread.h), so unlinking the
 * file loses no bytes, and the program's own descriptors and locks of that file are not touched.
 * Every read compares the file with its record: another size, time or inode means that the bytes
 * are no longer those that the program copied, and the read fails loudly.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "runtime/driver/driver.h"

struct ms_source;

/*
 * Returns a reference to the file behind the host range [address, address + bytes), if these bytes
 * are certainly the file's: one mapping, within the file, private pages never written, and no
 * writable shared mapping or descriptor of that file in this process. NULL: take a snapshot.
 */
struct ms_source *ms_source_from_mapping(const void *address, size_t bytes, uint64_t *offset_out);

/* Returns all of a mapped file, if it has at least `end` bytes, or NULL. */
struct ms_mapping;
struct ms_source *ms_source_from_file(const struct ms_mapping *mapping, uint64_t end);

/* For a source from ms_source_from_file (may be NULL), not in the file thread. If this process has
 * the file open for writing, which no call may have shown, drops it and returns NULL. */
struct ms_source *ms_source_unless_written(struct ms_source *file);

/*
 * A name finds the file of a source again, when the source is long gone: ms_source_by_name returns
 * the file as it is now, which may have other bytes, or NULL as ms_source_from_mapping. A name that
 * is made (NULL if out of memory) is the caller's, for ms_heap_free.
 */
struct ms_source_name;
struct ms_source_name *ms_source_make_name(const struct ms_source *file);
struct ms_source_name *ms_source_copy_name(const struct ms_source_name *name);
bool ms_source_has_name(const struct ms_source *file, const struct ms_source_name *name);
struct ms_source *ms_source_by_name(const struct ms_source_name *name);

uint64_t ms_source_file_bytes(const struct ms_source *file);

/* The record of the file, from when the program copied from it. */
const struct stat *ms_source_stat(const struct ms_source *file);

/*
 * Returns a snapshot whose bytes the caller sets before anybody else has it (ms_source_data), or
 * NULL if it would exceed METASHARD_SNAPSHOT_BYTES or out of memory.
 */
struct ms_source *ms_source_create_snapshot(size_t bytes);

/* The same without that limit, for bytes that would be lost. */
struct ms_source *ms_source_create_only_copy(size_t bytes);
void *ms_source_data(struct ms_source *snapshot);

struct ms_source *ms_source_take(struct ms_source *source); /* one more reference; returns source */
void ms_source_drop(struct ms_source *source);

/*
 * Reads the source's bytes [offset, offset + bytes) into buffer. A snapshot's bytes are in memory:
 * *bytes_out points at them, and buffer is untouched. Fails with CUDA_ERROR_OPERATING_SYSTEM if the
 * file has changed or cannot be read; the reason is logged.
 */
CUresult ms_source_read(const struct ms_source *source, uint64_t offset, void *buffer, size_t bytes,
                        const void **bytes_out);

bool ms_source_is_file(const struct ms_source *source);

/* --- for the file thread and those that it starts: these log nothing, but return a failure */

struct ms_source_failure {
    const struct ms_source *file;
    enum {
        MS_SOURCE_LOST,
        MS_SOURCE_GIVEN_UP,
        MS_SOURCE_CHANGED,
        MS_SOURCE_WRITTEN,
        MS_SOURCE_STORED_TO,
        MS_SOURCE_UNREADABLE
    } kind;
    uint64_t offset; /* where reading failed */
    size_t bytes;
    int error; /* errno; 0: the file ends before these bytes */
    struct stat now;
};

int ms_source_descriptor(const struct ms_source *file);

/* pread by a descriptor of the file, which need not be ms_source_descriptor; of the copy instead,
 * once there is one (ms_source_keep). */
ssize_t ms_source_read_by(const struct ms_source *file, int descriptor, void *buffer, size_t bytes,
                          uint64_t offset);

/* Reads bytes of a file as they are now, without a check. */
bool ms_source_read_now(const struct ms_source *file, uint64_t offset, void *buffer, size_t bytes,
                        struct ms_source_failure *failure_out);

/* True if the file is unchanged; to be called after each read. */
bool ms_source_check(const struct ms_source *file, struct ms_source_failure *failure_out);

/* True unless this process has it mapped so that a store may have changed it unseen; to be called
 * once all bytes were read, in the file thread itself: it may look at all mappings. */
bool ms_source_check_mappings(const struct ms_source *file, struct ms_source_failure *failure_out);

/* Logs one line. Not in the file thread. */
void ms_source_log_failure(const struct ms_source_failure *failure);

/* --- for all threads */

/* True if the bytes of a file are certainly what they were; for a snapshot, always. */
bool ms_source_is_current(const struct ms_source *source);

/* True if the file was last changed before ms_source_start. */
bool ms_source_is_older(const struct ms_source *source);
void ms_source_start(void);

/*
 * For a file that this process is about to change; one file is closed at a time.
 * ms_source_may_be_of: false if no source has this file, or it was let go; almost always without a
 * lock. ms_source_close: from now on no reference is given out, and ms_source_is_closed is true of
 * its sources; returns false if there are none; path_out has MS_PATH_BYTES. ms_source_end_close: if
 * is_lost, the bytes are lost, reading fails from now on, and the file is let go: no lease and no
 * descriptor is left, so its inode may be another file's. Otherwise the sources are as before.
 */
bool ms_source_may_be_of(dev_t device, ino_t inode);
bool ms_source_close(dev_t device, ino_t inode, char *path_out);
bool ms_source_is_closed(const struct ms_source *source);
bool ms_source_is_open(const struct ms_source *source); /* neither closed nor lost */
void ms_source_end_close(dev_t device, ino_t inode, bool is_lost);

/*
 * For a closed file whose bytes cannot be brought into memory: copies all of it, within
 * METASHARD_SNAPSHOT_BYTES. From then on its sources are read from the copy, and the file may
 * change. Needs no driver and no claim. Returns false if that cannot be done for all its sources.
 */
bool ms_source_keep(dev_t device, ino_t inode);

/*
 * Leases (lease.h): finds a file whose lease a process waits for, or has waited for too long; gives
 * back the leases of a file, or all. Without a lease only the file's times show a change.
 */
bool ms_source_find_broken(dev_t *device_out, ino_t *inode_out);
void ms_source_drop_leases_of(dev_t device, ino_t inode);
void ms_source_drop_leases(void);

/*
 * Finds a file that has lost its last link, and whose deletion nobody has answered: of files with a
 * lease by asking the file system, of others if a check has shown it. ms_source_close_deleted: as
 * ms_source_close, but only sources without a link, because the inode of a file that is gone may be
 * a new one's; they are not found again, whatever becomes of them.
 */
bool ms_source_find_deleted(dev_t *device_out, ino_t *inode_out);
bool ms_source_close_deleted(dev_t device, ino_t inode, char *path_out);

/* Makes a snapshot of [offset, offset + bytes) of a file. Fails with CUDA_ERROR_OUT_OF_MEMORY where
 * ms_source_create_snapshot returns NULL, or as ms_source_read. */
CUresult ms_source_copy(const struct ms_source *file, uint64_t offset, size_t bytes,
                        struct ms_source **copy_out);

const char *ms_source_path(const struct ms_source *source); /* "" for a snapshot */

void ms_source_set_snapshot_limit(uint64_t bytes);
