/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/nccl/ranks.h"
static void body(struct rank *rank)
{
    ncclComm_t comm = rank_start(rank);
    CUstream stream = rank_stream();
    enum { N = 300000 };
    int *values = malloc(N * sizeof(int) * 8);
    for (int i = 0; i < N; i++)
        values[i] = rank->rank == 0 ? i : -1;
    CUdeviceptr buf = device_with(values, N * 4);
    NCCL(ncclBcast((void *)buf, N, ncclInt32, 0, comm, stream));
    sync_stream(stream);
    for (int i = 0; i < N; i++)
        values[i] = i;
    device_expect(buf, values, N * 4);
    CUdeviceptr all = device_allocate((size_t)N * 4 * (size_t)rank->nranks);
    NCCL(ncclAllGather((void *)buf, (void *)all, N, ncclInt32, comm, stream));
    sync_stream(stream);
    for (int k = 0; k < rank->nranks; k++)
        device_expect(all + (size_t)k * N * 4, values, N * 4);
    NCCL(ncclCommDestroy(comm));
}
MS_TEST(first)
{
    for (int n = 1; n <= 8; n *= 2)
        ranks_run(n, body, NULL);
}
