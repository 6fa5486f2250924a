/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests with ranks as processes: the test forks before it touches the driver. A rank that fails a
 * check ends with 1, and so does the test.
 */
#pragma once

#include "tools/simcuda/harness/device.h"
#include "tools/simcuda/nccl/simnccl.h"

struct rank {
    int rank, nranks;
    ncclUniqueId id;
    const void *extra; /* of the test */
};
/*
 * Runs body as ranks 0 to n - 1. Each must end with exit status 0; SIGKILL for the rank `killed`.
 *
 * Environment, for machines with a GPU: RANKS_MOST, more ranks than these are not run at all;
 * RANKS_HOSTS, each rank has an NCCL_HOSTID of its own.
 */
void ranks_run(int n, void (*body)(struct rank *), const void *extra);
void ranks_run_killed(int n, int killed, void (*body)(struct rank *), const void *extra);

/* Device 0, and a communicator of all ranks. */
ncclComm_t rank_start(struct rank *rank);
CUstream rank_stream(void);

/* Device memory with a copy of these bytes. */
CUdeviceptr device_with(const void *bytes, size_t count);
void device_expect(CUdeviceptr address, const void *wanted, size_t count);
void sync_stream(CUstream stream);

/* Polls until the communicator is not in progress any more. */
ncclResult_t async_result(ncclComm_t comm);
/* Polls until it has an error. */
ncclResult_t async_error(ncclComm_t comm);

#define NCCL(call) CHECK_EQ(call, ncclSuccess)
#define CU(call) CHECK_EQ(call, CUDA_SUCCESS)
