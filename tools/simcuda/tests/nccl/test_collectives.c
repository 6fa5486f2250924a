/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation against plain arithmetic, for 1, 2, 4 and 8 ranks. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

enum { SIZES = 4 };
static const size_t sizes[SIZES] = {1, 7, 1000, 70001};

/* The element that a rank starts with, at this place. */
static uint32_t element(int rank, size_t place)
{
    return (uint32_t)(place * 2654435761u + (size_t)(rank + 1) * 40503u) >> 7;
}

static uint32_t sum(int nranks, size_t place)
{
    uint32_t result = 0;
    for (int rank = 0; rank < nranks; rank++)
        result += element(rank, place);
    return result;
}

struct run {
    ncclComm_t comm;
    CUstream stream;
    int rank, nranks, root;
    size_t count, all; /* elements of one rank, of all */
    CUdeviceptr in, out;
    uint32_t *host;
};

#define IN ((void *)run->in)
#define OUT ((void *)run->out)
#define AT(address, index) ((void *)((address) + (size_t)(index)*run->count * sizeof(uint32_t)))

/* in: this rank's elements for all places; out: a filler. */
static void reset(struct run *run)
{
    for (size_t i = 0; i < run->all; i++)
        run->host[i] = element(run->rank, i);
    CU(cuMemcpyHtoD(run->in, run->host, run->all * sizeof(uint32_t)));
    CU(cuMemsetD8(run->out, 0xEE, run->all * sizeof(uint32_t)));
    CU(cuCtxSynchronize());
}

static void expect(struct run *run, CUdeviceptr where, size_t count)
{
    sync_stream(run->stream);
    device_expect(where, run->host, count * sizeof(uint32_t));
}

static void fill_sum(struct run *run, size_t begin, size_t count)
{
    for (size_t i = 0; i < count; i++)
        run->host[i] = sum(run->nranks, begin + i);
}

static void fill_of(struct run *run, int rank, size_t begin, size_t count)
{
    for (size_t i = 0; i < count; i++)
        run->host[i] = element(rank, begin + i);
}

static void fill_rows(struct run *run, size_t begin)
{
    for (int rank = 0; rank < run->nranks; rank++) {
        for (size_t i = 0; i < run->count; i++)
            run->host[(size_t)rank * run->count + i] = element(rank, begin + i);
    }
}

static void fill_filler(struct run *run, size_t count)
{
    memset(run->host, 0xEE, count * sizeof(uint32_t));
}

static void all_reduce(struct run *run)
{
    NCCL(ncclAllReduce(IN, OUT, run->count, ncclUint32, ncclSum, run->comm, run->stream));
    fill_sum(run, 0, run->count);
    expect(run, run->out, run->count);
    reset(run);
    NCCL(ncclAllReduce(IN, IN, run->count, ncclUint32, ncclSum, run->comm, run->stream));
    fill_sum(run, 0, run->count);
    expect(run, run->in, run->count);
}

static void broadcast(struct run *run)
{
    /* A rank that is not the root may give any pointer to send from. */
    const void *from = run->rank == run->root ? IN : (void *)16;
    NCCL(ncclBroadcast(from, OUT, run->count, ncclUint32, run->root, run->comm, run->stream));
    fill_of(run, run->root, 0, run->count);
    expect(run, run->out, run->count);
    NCCL(ncclBroadcast(IN, IN, run->count, ncclUint32, run->root, run->comm, run->stream));
    expect(run, run->in, run->count);
}

static void bcast(struct run *run)
{
    NCCL(ncclBcast(IN, run->count, ncclUint32, run->root, run->comm, run->stream));
    fill_of(run, run->root, 0, run->count);
    expect(run, run->in, run->count);
}

static void reduce(struct run *run)
{
    const bool is_root = run->rank == run->root;
    NCCL(ncclReduce(IN, is_root ? OUT : NULL, run->count, ncclUint32, ncclSum, run->root, run->comm,
                    run->stream));
    fill_filler(run, run->count);
    if (is_root)
        fill_sum(run, 0, run->count);
    expect(run, run->out, run->count);
    NCCL(ncclReduce(IN, IN, run->count, ncclUint32, ncclSum, run->root, run->comm, run->stream));
    fill_of(run, run->rank, 0, run->count);
    if (is_root)
        fill_sum(run, 0, run->count);
    expect(run, run->in, run->count);
}

static void all_gather(struct run *run)
{
    NCCL(ncclAllGather(IN, OUT, run->count, ncclUint32, run->comm, run->stream));
    fill_rows(run, 0);
    expect(run, run->out, run->all);
    CU(cuMemcpyDtoD(run->out, run->in, run->all * sizeof(uint32_t)));
    CU(cuCtxSynchronize());
    NCCL(ncclAllGather(AT(run->out, run->rank), OUT, run->count, ncclUint32, run->comm,
                       run->stream));
    for (int rank = 0; rank < run->nranks; rank++) {
        for (size_t i = 0; i < run->count; i++)
            run->host[(size_t)rank * run->count + i] = element(rank, (size_t)rank * run->count + i);
    }
    expect(run, run->out, run->all);
}

static void reduce_scatter(struct run *run)
{
    const size_t begin = (size_t)run->rank * run->count;
    NCCL(ncclReduceScatter(IN, OUT, run->count, ncclUint32, ncclSum, run->comm, run->stream));
    fill_sum(run, begin, run->count);
    expect(run, run->out, run->count);
    NCCL(ncclReduceScatter(IN, AT(run->in, run->rank), run->count, ncclUint32, ncclSum, run->comm,
                           run->stream));
    expect(run, run->in + begin * sizeof(uint32_t), run->count);
}

static void all_to_all(struct run *run)
{
    NCCL(ncclAlltoAll(IN, OUT, run->count, ncclUint32, run->comm, run->stream));
    fill_rows(run, (size_t)run->rank * run->count);
    expect(run, run->out, run->all);
}

static void gather(struct run *run)
{
    const bool is_root = run->rank == run->root;
    NCCL(ncclGather(IN, is_root ? OUT : NULL, run->count, ncclUint32, run->root, run->comm,
                    run->stream));
    fill_filler(run, run->all);
    if (is_root)
        fill_rows(run, 0);
    expect(run, run->out, run->all);
}

static void scatter(struct run *run)
{
    NCCL(ncclScatter(run->rank == run->root ? IN : NULL, OUT, run->count, ncclUint32, run->root,
                     run->comm, run->stream));
    fill_of(run, run->root, (size_t)run->rank * run->count, run->count);
    expect(run, run->out, run->count);
}

/* To the next rank, from the one before; a single rank to itself. */
static void send_and_receive(struct run *run)
{
    const int next = (run->rank + 1) % run->nranks;
    const int before = (run->rank + run->nranks - 1) % run->nranks;
    NCCL(ncclGroupStart());
    NCCL(ncclSend(IN, run->count, ncclUint32, next, run->comm, run->stream));
    NCCL(ncclRecv(OUT, run->count, ncclUint32, before, run->comm, run->stream));
    NCCL(ncclGroupEnd());
    fill_of(run, before, 0, run->count);
    expect(run, run->out, run->count);
}

static void run_sizes(struct rank *rank, void (*operation)(struct run *))
{
    struct run run = {.rank = rank->rank, .nranks = rank->nranks};
    run.comm = rank_start(rank);
    run.stream = rank_stream();
    for (int i = 0; i < SIZES; i++) {
        run.count = sizes[i];
        run.all = run.count * (size_t)run.nranks;
        run.root = (i + 1) % run.nranks;
        run.in = device_allocate(run.all * sizeof(uint32_t));
        run.out = device_allocate(run.all * sizeof(uint32_t));
        run.host = malloc(run.all * sizeof(uint32_t));
        reset(&run);
        operation(&run);
        free(run.host);
        CU(cuMemFree(run.in));
        CU(cuMemFree(run.out));
    }
    NCCL(ncclCommDestroy(run.comm));
}

#define OPERATION(name)                                \
    static void run_##name(struct rank *rank)          \
    {                                                  \
        run_sizes(rank, name);                         \
    }                                                  \
    MS_TEST(name)                                      \
    {                                                  \
        for (int nranks = 1; nranks <= 8; nranks *= 2) \
            ranks_run(nranks, run_##name, NULL);       \
    }
OPERATION(all_reduce)
OPERATION(broadcast)
OPERATION(bcast)
OPERATION(reduce)
OPERATION(all_gather)
OPERATION(reduce_scatter)
OPERATION(all_to_all)
OPERATION(gather)
OPERATION(scatter)
OPERATION(send_and_receive)

static void run_without_elements(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    /* Nothing to do: local, so one rank may call and the others not. */
    if (rank->rank == 0)
        NCCL(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comm, stream));
    /* Sends without elements are matched like all others. */
    if (rank->rank == 0)
        NCCL(ncclSend(NULL, 0, ncclFloat, 1, comm, stream));
    else
        NCCL(ncclRecv(NULL, 0, ncclFloat, 0, comm, stream));
    /* The ranks still agree on which operation is which. */
    const CUdeviceptr buffer = device_with("a", 1);
    NCCL(ncclBcast((void *)buffer, 1, ncclUint8, 0, comm, stream));
    sync_stream(stream);
    ncclResult_t error;
    NCCL(ncclCommGetAsyncError(comm, &error));
    CHECK_EQ(error, ncclSuccess);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(calls_without_elements)
{
    ranks_run(2, run_without_elements, NULL);
}

/* The root's buffer is read when the stream gets there, not at the call. */
static void run_later(struct rank *rank)
{
    const uint32_t before = 1;
    const uint32_t after = 2;
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr gate = device_with((uint32_t[]){0}, sizeof(uint32_t));
    const CUdeviceptr value = device_with(&before, sizeof(before));
    /* With the first one ranks connect, which waits for the device. */
    NCCL(ncclBcast((void *)value, 1, ncclUint32, 0, comm, stream));
    sync_stream(stream);
    CU(cuStreamWaitValue32(stream, gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    NCCL(ncclBcast((void *)value, 1, ncclUint32, 0, comm, stream));
    CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    if (rank->rank == 0)
        CU(cuMemcpyHtoD(value, &after, sizeof(after)));
    CU(cuMemcpyHtoD(gate, (uint32_t[]){1}, sizeof(uint32_t)));
    sync_stream(stream);
    device_expect(value, &after, sizeof(after));
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(operations_run_in_stream_order)
{
    ranks_run(2, run_later, NULL);
}

static void run_links(struct rank *rank)
{
    enum { BYTES = 4000 };
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const CUdeviceptr buffer = device_allocate(BYTES);
    NCCL(ncclBcast((void *)buffer, BYTES, ncclUint8, 1, comm, stream));
    sync_stream(stream);
    /* All have ended when this has. */
    NCCL(ncclAllReduce((void *)buffer, (void *)buffer, 1, ncclUint8, ncclSum, comm, stream));
    sync_stream(stream);
    uint64_t bytes;
    NCCL(simncclLinkBytes(comm, 1, 2, &bytes));
    CHECK(bytes >= BYTES && bytes < BYTES + 16);
    NCCL(simncclLinkBytes(comm, 0, 1, &bytes));
    CHECK(bytes < 16);
    NCCL(simncclLinkBytes(comm, 1, 0, &bytes));
    CHECK_EQ(bytes, 0);
    NCCL(ncclCommDestroy(comm));
    /* The same in a file: two lines, to the other two ranks. */
    char path[64];
    int from;
    int to[2];
    long sent[2];
    snprintf(path, sizeof(path), "/tmp/simnccl-links.%d", (int)getpid());
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(fscanf(file, "comm 0 from %d to %d bytes %ld ", &from, &to[i], &sent[i]), 3);
        CHECK_EQ(from, rank->rank);
        CHECK_EQ(sent[i] >= BYTES, to[i] == (rank->rank + 1) % 3 && rank->rank != 0);
    }
    CHECK_EQ(fgetc(file), EOF);
    fclose(file);
    unlink(path);
}

MS_TEST(links_count_their_bytes)
{
    setenv("SIMNCCL_LINKS", "/tmp/simnccl-links.%p", 1);
    ranks_run(3, run_links, NULL);
}
