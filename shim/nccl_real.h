/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real NCCL: there may be several in a process. A communicator belongs to the one that made it; calls
 * without a communicator go to that of their caller.
 */
#ifndef METASHARD_SHIM_NCCL_REAL_H
#define METASHARD_SHIM_NCCL_REAL_H

#include <stdbool.h>

#include "shim/nccl_api.h"

enum ms_nccl_id {
#define MS_NCCL(name, parameters, arguments) MS_NCCL_##name,
#include "shim/nccl.def"
#undef MS_NCCL
    MS_NCCL_COUNT
};
extern const char *const ms_nccl_names[MS_NCCL_COUNT];

#define MS_NCCL(name, parameters, arguments) ncclResult_t name parameters;
#include "shim/nccl.def"
#undef MS_NCCL

/* One copy of NCCL; never forgotten. */
struct ms_nccl {
    const void *begin, *end;        /* of its mapping */
    void *functions[MS_NCCL_COUNT]; /* NULL: it has none */
    void *comm_count, *comm_user_rank;
};

/* The copy that made a communicator; that failing, that of the caller. NULL: there is none. */
const struct ms_nccl *ms_nccl_of(ncclComm_t comm, const void *return_address);

/* The copy whose code holds the address; NULL: none. */
const struct ms_nccl *ms_nccl_at(const void *address);

/* The copy that a function belongs to, which was found by other means; the first one that was known. */
const struct ms_nccl *ms_nccl_detect(const void *function);
bool ms_nccl_is_first(const struct ms_nccl *nccl);

void ms_nccl_add_comm(ncclComm_t comm, const struct ms_nccl *nccl);
void ms_nccl_forget_comm(ncclComm_t comm);

#endif
