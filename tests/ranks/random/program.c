/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ranks/random/random.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct program program;

static uint64_t common_state, own_state;

/* splitmix64, Steele, Lea and Flood 2014 */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t random_common(uint64_t limit)
{
    return next(&common_state) % limit;
}

uint64_t random_own(uint64_t limit)
{
    return next(&own_state) % limit;
}

bool common_one_in(unsigned chances)
{
    return random_common(chances) == 0;
}

bool own_one_in(unsigned chances)
{
    return random_own(chances) == 0;
}

static void stop(const char *api, int error, const char *what)
{
    static bool is_stopping;
    if (is_stopping)
        return;
    is_stopping = true;
    printf("stopped %s %d\n", api, error);
    fprintf(stderr, "rank %d stops at operation %d: %s: %s error %d\n", program.rank,
            program.operation, what, api, error);
    families_abort();
    exit(0);
}

void program_cuda(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        stop("cuda", (int)result, what);
}

void program_nccl(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess && result != ncclInProgress)
        stop("nccl", (int)result, what);
}

/* --- operations that all ranks do */

static void allocate(void)
{
    struct tensor *tensor = tensor_free_slot();
    const size_t bytes = tensor_random_bytes();
    const bool is_written = common_one_in(2);
    if (tensor == NULL)
        return;
    tensor_create(tensor, bytes);
    printf("%d allocate %d: %zu\n", program.operation, (int)(tensor - tensors), bytes);
    if (!is_written)
        return;
    const struct range whole = {tensor, 0, bytes};
    local_fill(&whole);
    for (int rank = 0; rank < program.ranks; rank++)
        range_know(&whole, rank);
}

static void release(void)
{
    struct tensor *tensor = tensor_draw();
    if (tensor == NULL)
        return;
    printf("%d free %d\n", program.operation, (int)(tensor - tensors));
    if (tensor->registered != NULL) {
        tensors_wait();
        program_nccl(ncclCommDeregister(families[0].comm, tensor->registered),
                     "ncclCommDeregister");
    }
    tensor_destroy(tensor);
}

/* A tensor of the checkpoint: every rank reads it, or one does, and the others get it from
 * there. */
static void load(void)
{
    struct tensor *tensor = tensor_free_slot();
    const int number = stored_count > 0 ? (int)random_common((uint64_t)stored_count) : -1;
    const int root = (int)random_common((uint64_t)program.ranks);
    const uint64_t way = random_common(4); /* 0: all of them; 3: the others wait */
    if (tensor == NULL || number < 0)
        return;
    tensor_create(tensor, stored[number].bytes);
    tensor->as = &stored[number];
    printf("%d load %d: %s, %s %d\n", program.operation, (int)(tensor - tensors),
           stored[number].name, way == 0 ? "not only" : "by", root);
    const struct range whole = {tensor, 0, tensor->bytes};
    for (int rank = 0; rank < program.ranks; rank++) {
        if (way == 0 || rank == root)
            range_know(&whole, rank);
    }
    if (way == 0 || program.rank == root)
        local_load(&whole, &stored[number]);
    else
        local_name(tensor, &stored[number]);
    if (way == 1 || way == 2)
        wire_broadcast_whole(tensor, root);
}

static const struct {
    void (*run)(void);
    unsigned weight;
} operations[] = {
    {allocate, 12},
    {release, 6},
    {load, 12},
    {wire_one, 24},
    {wire_group, 10},
    {wire_coalesced, 4},
    {wire_captured, 3},
    {wire_register, 2},
    {local_burst, 24},
    {family_split, 4},
    {family_destroy_one, 1},
};

static void run_one(void)
{
    unsigned total = 0;
    size_t i = 0;
    for (size_t k = 0; k < sizeof(operations) / sizeof(operations[0]); k++)
        total += operations[k].weight;
    unsigned left = (unsigned)random_common(total);
    while (left >= operations[i].weight)
        left -= operations[i++].weight;
    operations[i].run();
}

static void start(char **argv)
{
    CUdevice device;
    CUcontext context;
    common_state = strtoull(argv[1], NULL, 10);
    program.ranks = atoi(argv[3]);
    program.rank = atoi(argv[4]);
    own_state = common_state * 64 + (uint64_t)program.rank + 1;
    program.is_careful = strchr(argv[9], 'c') != NULL;
    program.is_gentle = strchr(argv[9], 'g') != NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    program_cuda(cuInit(0), "cuInit");
    program_cuda(cuDeviceGet(&device, 0), "cuDeviceGet");
    program_cuda(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    program_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    tensors_init(argv[6]);
    local_init(argv[7]);
    families_init(argv[5]);
}

int main(int argc, char **argv)
{
    if (argc != 10) {
        fprintf(stderr,
                "usage: %s SEED OPERATIONS RANKS RANK ID-FILE LAYOUT KERNELS KILLED-AT MANNERS\n",
                argv[0]);
        return 2;
    }
    const int count = atoi(argv[2]), killed_at = atoi(argv[8]);
    start(argv);
    for (program.operation = 1; program.operation <= count; program.operation++) {
        if (program.operation == killed_at)
            raise(SIGKILL);
        run_one();
    }
    wire_barrier();
    local_read_all();
    families_destroy();
    printf("done\n");
    return 0;
}
