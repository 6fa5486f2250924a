/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/robust/hostile/job.h"

#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PART_AT = 1 << 20, PART_BYTES = 1 << 20, OWN_BYTES = 300000 };

void job_map(struct job *job, const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    void *bytes = mmap(NULL, JOB_FILE_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    if (file < 0 || bytes == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(file);
    *job = (struct job){.file = bytes};
}

static bool is_fine(struct job *job, CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        snprintf(job->why, sizeof(job->why), "%s failed with CUDA error %d", call, (int)result);
    return result == CUDA_SUCCESS;
}
#define FINE(call) is_fine(job, call, #call)

bool job_start(struct job *job)
{
    CUcontext context;
    return FINE(cuInit(0)) && FINE(cuDevicePrimaryCtxRetain(&context, 0)) &&
           FINE(cuCtxSetCurrent(context));
}

bool job_load(struct job *job)
{
    CUdeviceptr whole, part;
    if (!FINE(cuMemAlloc(&whole, JOB_FILE_BYTES)) ||
        !FINE(cuMemcpyHtoD(whole, job->file, JOB_FILE_BYTES)) ||
        !FINE(cuMemAlloc(&part, PART_BYTES)) ||
        !FINE(cuMemcpyDtoD(part, whole + PART_AT, PART_BYTES)))
        return false;
    job->whole = whole;
    job->part = part;
    return true;
}

/* True when these bytes are at the address. */
static bool holds(struct job *job, CUdeviceptr address, const unsigned char *wanted, size_t bytes,
                  const char *what)
{
    unsigned char *seen = malloc(bytes);
    bool is_right = seen != NULL && FINE(cuMemcpyDtoH(seen, address, bytes));
    if (is_right && memcmp(seen, wanted, bytes) != 0) {
        snprintf(job->why, sizeof(job->why), "wrong bytes: %s", what);
        is_right = false;
    }
    free(seen);
    return is_right;
}

static bool own_bytes(struct job *job)
{
    CUdeviceptr block;
    unsigned char *own = malloc(OWN_BYTES);
    for (size_t i = 0; own != NULL && i < OWN_BYTES; i++)
        own[i] = (unsigned char)(i * 31 + i / 1000);
    const bool is_right = own != NULL && FINE(cuMemAlloc(&block, OWN_BYTES)) &&
                          FINE(cuMemcpyHtoD(block, own, OWN_BYTES)) &&
                          FINE(cuMemsetD8(block, 0x42, 1000)) && memset(own, 0x42, 1000) != NULL &&
                          holds(job, block, own, OWN_BYTES, "own bytes") && FINE(cuMemFree(block));
    free(own);
    return is_right;
}

bool job_finish(struct job *job)
{
    return holds(job, job->part, job->file + PART_AT, PART_BYTES, "a part of the file") &&
           holds(job, job->whole + 77777, job->file + 77777, 500000, "the file") &&
           own_bytes(job) && FINE(cuMemFree(job->whole)) && FINE(cuMemFree(job->part));
}

int job_run(const char *path)
{
    struct job job;
    job_map(&job, path);
    const bool is_right = job_start(&job) && job_load(&job) && job_finish(&job);
    munmap((void *)(size_t)job.file, JOB_FILE_BYTES);
    puts(is_right ? "right" : job.why);
    fflush(stdout);
    return is_right ? 0 : 1;
}
