/* SPDX-License-Identifier: Apache-2.0 */
/* As much of an NCCL as a rank needs that waits for one which has died. */
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct nccl_id {
    char internal[128];
};

EXPORT int ncclGroupStart(void);
EXPORT int ncclCommInitRank(void **comm, int ranks, struct nccl_id id, int rank);

EXPORT int ncclGroupStart(void)
{
    return 0;
}

EXPORT int ncclCommInitRank(void **comm, int ranks, struct nccl_id id, int rank)
{
    (void)comm, (void)ranks, (void)id, (void)rank;
    for (;;)
        usleep(1000);
}
