/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that waits in NCCL for a rank which has died can be cancelled, as without the shim. */
#include <pthread.h>
#include <unistd.h>

#include "tools/simcuda/harness/device.h"

struct nccl_id {
    char internal[128];
};

int ncclCommInitRank(void **comm, int ranks, struct nccl_id id, int rank);

static void *join_the_others(void *unused)
{
    void *comm;
    ncclCommInitRank(&comm, 2, (struct nccl_id){""}, 0);
    return unused;
}

MS_TEST(a_thread_that_waits_for_other_ranks_can_be_cancelled)
{
    pthread_t thread;
    void *result;
    alarm(30);
    device_start();
    CHECK_EQ(pthread_create(&thread, NULL, join_the_others, NULL), 0);
    usleep(100000);
    CHECK_EQ(pthread_cancel(thread), 0);
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
}
