/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling device memory from files, as fast as the disk and the bus allow: large reads by a few threads
 * (source/reader.h) into pinned memory (pinned_pool.h), at most METASHARD_STAGING_BYTES of it, and
 * asynchronous copies from there, at the same time.
 */
#ifndef METASHARD_RUNTIME_SOURCE_TRANSFER_H
#define METASHARD_RUNTIME_SOURCE_TRANSFER_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/source/source.h"

/* A stretch of a file source and where it goes. */
struct ms_read_request {
    const struct ms_source *source; /* the caller holds a reference */
    uint64_t offset;
    size_t bytes;
    CUdeviceptr address;
};

/*
 * Copies all requests to their addresses, which do not overlap, in the order of stream, which is of
 * `context`. Returns when the bytes are in device memory, or with an error after which nothing is
 * queued any more: CUDA_ERROR_OPERATING_SYSTEM when a file has changed or cannot be read (logged);
 * some requests are then there and some are not. May reorder requests. Bytes that several requests want are read
 * once; neighbours are read together, over gaps of a page, which are counted as read but copied
 * nowhere. Holds no lock. Any number of threads may do this at once.
 */
CUresult ms_transfer(struct ms_read_request *requests, size_t count, CUcontext context,
                     CUstream stream);

/* Transfers of the calling thread, which is not the program's, may be cancelled. */
void ms_transfer_let_cancel(void);

/* Such transfers, those under way and all later ones, fail soon with CUDA_ERROR_DEINITIALIZED. For the
 * end of the process; safe at any time from any thread. */
void ms_transfer_cancel(void);

#endif
