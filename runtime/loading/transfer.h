/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills device memory from files, as fast as disk and bus allow: a few threads make large reads
 * (loading/reader.h) into pinned memory (pinned_pool.h), at most METASHARD_STAGING_BYTES of it,
 * while asynchronous copies run from there.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/files/file.h"

/* A range of a file, and its destination. */
struct ms_read_request {
    const struct ms_file *file; /* the caller holds a reference */
    uint64_t offset;
    size_t bytes;
    CUdeviceptr address;
};

/*
 * Copies all requests to their addresses, which do not overlap, in the order of stream, which is of
 * `context`. Returns when the bytes are in device memory, or with an error, with nothing left
 * queued: CUDA_ERROR_OPERATING_SYSTEM if a file has changed or cannot be read (logged); then only
 * some requests are copied. May reorder requests. Bytes that several requests want are read once.
 * Neighbours are read together, over gaps of a page, which count as read but are not copied. Holds
 * no lock. Any number of threads may call this at once.
 */
CUresult ms_transfer(struct ms_read_request *requests, size_t count, CUcontext context,
                     CUstream stream);

/* Lets transfers of the calling thread, which is not the program's, be cancelled. */
void ms_transfer_let_cancel(void);

/* Makes transfers that may be cancelled, current and later ones, fail soon with
 * CUDA_ERROR_DEINITIALIZED. For the end of the process; safe at any time from any thread. */
void ms_transfer_cancel(void);
