/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real NCCL. A process may have several copies. A communicator belongs to the copy that made
 * it; a call without a communicator goes to the copy that its caller would have found.
 */
#pragma once

#include <stdbool.h>

#include "shim/nccl_api.h"
#include "shim/real.h"

enum ms_nccl_id {
#define MS_NCCL(name, parameters, arguments) MS_NCCL_##name,
#include "shim/nccl.def"
#undef MS_NCCL
    MS_NCCL_COUNT
};

#define MS_NCCL(name, parameters, arguments) ncclResult_t name parameters;
#include "shim/nccl.def"
#undef MS_NCCL

/* One copy of NCCL; never removed. */
struct ms_nccl {
    struct ms_image image;
    void *functions[MS_NCCL_COUNT]; /* NULL: this copy lacks the function */
    void *comm_count, *comm_user_rank;
};

/* Returns the copy that made the communicator, else the caller's copy, else NULL. */
const struct ms_nccl *ms_nccl_of(ncclComm_t comm, const void *return_address);

/* Returns the copy whose code holds the address, or NULL. */
const struct ms_nccl *ms_nccl_at(const void *address);

/* Returns the copy that a function belongs to, and adds the copy if it is new. */
const struct ms_nccl *ms_nccl_detect(const void *function);
bool ms_nccl_is_first(const struct ms_nccl *nccl);

void ms_nccl_add_comm(ncclComm_t comm, const struct ms_nccl *nccl);
void ms_nccl_forget_comm(ncclComm_t comm);
