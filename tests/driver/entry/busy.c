/* SPDX-License-Identifier: Apache-2.0 */
/*
 * busy: a program that ends while another thread of it stands still in the driver, within a read of
 * deferred memory; as one does that waits for a collective whose peer has died. A second allocation
 * is free. busy PLAN: the same, after a plan has been written to PLAN (METASHARD_PLAN), which wants
 * to look at both. busy free: the read ends while the report waits for it, and its thread frees the
 * allocation at once.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/simcuda/driver/hook.h"

#define BYTES ((size_t)4 << 20)

static CUcontext context;
static CUdeviceptr address;
static bool is_freed;

static void must(bool is_good, const char *what)
{
    if (is_good)
        return;
    fprintf(stderr, "busy: %s\n", what);
    _exit(1);
}

static void *read_for_ever(void *unused)
{
    unsigned char byte;
    must(cuCtxSetCurrent(context) == CUDA_SUCCESS, "no context");
    cuMemcpyDtoH(&byte, address, 1);
    must(is_freed, "the read has returned");
    cuMemFree(address); /* refused when the driver has ended meanwhile */
    return unused;
}

static void *end_read(void *unused)
{
    usleep(300000);
    simcuda_gate_open();
    return unused;
}

static void free_behind_read(void)
{
    pthread_t thread;
    is_freed = true;
    must(pthread_create(&thread, NULL, end_read, NULL) == 0, "no thread");
    pthread_detach(thread); /* one that ends is no leak */
}

static void write_plan(const char *path)
{
    FILE *file = fopen(path, "w");
    must(file != NULL, "no plan");
    fputs("{\"format\": \"metashard-plan/1\", \"mesh\": {\"tp\": 2}, \"rank\": 0, \"tensors\": []}",
          file);
    must(fclose(file) == 0, "no plan");
    sleep(2); /* it is looked at four times a second, and read when it has stayed the same */
}

int main(int argc, char **argv)
{
    pthread_t thread;
    CUdeviceptr other;
    must(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
             cuCtxSetCurrent(context) == CUDA_SUCCESS,
         "no device");
    must(cuMemAlloc(&address, BYTES) == CUDA_SUCCESS && cuMemAlloc(&other, BYTES) == CUDA_SUCCESS &&
             cuMemsetD8(address, 1, BYTES) == CUDA_SUCCESS &&
             cuMemsetD8(other, 2, BYTES) == CUDA_SUCCESS,
         "no memory");
    must(simcuda_gate_close("cuMemCreate", 1), "no gate");
    must(pthread_create(&thread, NULL, read_for_ever, NULL) == 0, "no thread");
    pthread_detach(thread);
    must(simcuda_gate_wait(10000), "no read");
    if (argc == 2 && strcmp(argv[1], "free") == 0)
        free_behind_read();
    else if (argc == 2)
        write_plan(argv[1]);
    return 0;
}
