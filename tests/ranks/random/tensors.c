/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ranks/random/random.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STREAMS = 4 };

struct stored stored[MAX_STORED];
int stored_count;
struct tensor tensors[MAX_TENSORS];

static CUstream streams[STREAMS];
static const unsigned char *file_bytes;
static size_t file_size;

/* --- spans */

static bool spans_contain(const struct spans *spans, size_t begin, size_t end)
{
    for (int i = 0; i < spans->count; i++) {
        if (spans->rows[i].begin <= begin && end <= spans->rows[i].end)
            return true;
    }
    return false;
}

static void spans_add(struct spans *spans, size_t begin, size_t end)
{
    struct spans merged = {0};
    for (int i = 0; i < spans->count; i++) {
        const size_t other_begin = spans->rows[i].begin, other_end = spans->rows[i].end;
        if (other_end < begin || end < other_begin) {
            merged.rows[merged.count++] = spans->rows[i];
            continue;
        }
        begin = other_begin < begin ? other_begin : begin;
        end = other_end > end ? other_end : end;
    }
    if (merged.count == MAX_SPANS)
        return;
    int at = merged.count++;
    for (; at > 0 && merged.rows[at - 1].begin > begin; at--)
        merged.rows[at] = merged.rows[at - 1];
    merged.rows[at].begin = begin;
    merged.rows[at].end = end;
    *spans = merged;
}

bool range_is_known(const struct range *range, const struct spans *spans)
{
    return range->bytes == 0 || spans_contain(spans, range->at, range->at + range->bytes);
}

void range_know(const struct range *range, int rank)
{
    if (range->bytes == 0)
        return;
    spans_add(&range->tensor->known[rank], range->at, range->at + range->bytes);
    if (rank == program.rank)
        spans_add(&range->tensor->mine, range->at, range->at + range->bytes);
}

CUdeviceptr range_address(const struct range *range)
{
    return range->tensor->address + range->at;
}

/* --- the checkpoint */

static void map_file(const char *path)
{
    struct stat about;
    const int file = open(path, O_RDONLY);
    void *address = MAP_FAILED;
    if (file >= 0 && fstat(file, &about) == 0)
        address = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (address == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(file);
    file_bytes = address;
    file_size = (size_t)about.st_size;
}

/* First the path of the checkpoint, then a line for each tensor: name, dtype, begin, bytes, rows,
 * columns. */
static void read_layout(const char *path)
{
    char checkpoint[1024];
    FILE *layout = fopen(path, "r");
    if (layout == NULL || fscanf(layout, "%1023s", checkpoint) != 1) {
        perror(path);
        exit(2);
    }
    for (struct stored *at = stored;
         stored_count < MAX_STORED &&
         fscanf(layout, "%63s %7s %zu %zu %llu %llu", at->name, at->dtype, &at->begin, &at->bytes,
                (unsigned long long *)&at->shape[0], (unsigned long long *)&at->shape[1]) == 6;
         at++)
        stored_count++;
    fclose(layout);
    map_file(checkpoint);
}

const unsigned char *tensors_file(size_t *bytes_out)
{
    *bytes_out = file_size;
    return file_bytes;
}

/* --- tensors */

struct tensor *tensor_free_slot(void)
{
    struct tensor *tensor = &tensors[random_common(MAX_TENSORS)];
    return tensor->address == 0 ? tensor : NULL;
}

struct tensor *tensor_draw(void)
{
    for (int tries = 0; tries < 4; tries++) {
        struct tensor *tensor = &tensors[random_common(MAX_TENSORS)];
        if (tensor->address != 0 && !tensor->is_claimed)
            return tensor;
    }
    return NULL;
}

/* A plan may take what is as large as one of its tensors for that. */
static bool is_of_stored_size(size_t bytes)
{
    bool found = false;
    for (int i = 0; i < stored_count; i++)
        found |= stored[i].bytes == bytes;
    return found;
}

bool tensor_may_be_sent(const struct tensor *tensor)
{
    return !(program.is_gentle && tensor->is_loaded);
}

size_t tensor_random_bytes(void)
{
    switch (random_common(6)) {
    case 0:
        return 1 + random_common(300);
    case 1:
        return 1 + random_common(70000);
    case 2:
        return (1 + random_common(12)) << 16; /* whole small granules */
    case 3:
        return (1 + random_common(3)) << 20;
    case 4:
        return (size_t)2 << 20;
    default:
        return 65536 + random_common(400000);
    }
}

void tensor_create(struct tensor *tensor, size_t bytes)
{
    program_cuda(cuMemAlloc(&tensor->address, bytes), "cuMemAlloc");
    tensor->bytes = bytes;
    tensor->is_loaded = is_of_stored_size(bytes);
    program_cuda(cuEventCreate(&tensor->last, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

void tensor_destroy(struct tensor *tensor)
{
    program_cuda(cuMemFree(tensor->address), "cuMemFree");
    program_cuda(cuEventDestroy(tensor->last), "cuEventDestroy");
    memset(tensor, 0, sizeof(*tensor));
}

/* --- order */

CUstream stream_draw(void)
{
    return streams[random_own(STREAMS)];
}

void range_begin(const struct range *range, CUstream stream)
{
    program_cuda(cuStreamWaitEvent(stream, range->tensor->last, 0), "cuStreamWaitEvent");
}

void range_end(const struct range *range, CUstream stream)
{
    program_cuda(cuEventRecord(range->tensor->last, stream), "cuEventRecord");
}

void tensors_wait(void)
{
    program_cuda(cuCtxSynchronize(), "cuCtxSynchronize");
}

void tensors_init(const char *layout)
{
    read_layout(layout);
    streams[0] = NULL;
    program_cuda(cuStreamCreate(&streams[1], CU_STREAM_DEFAULT), "cuStreamCreate");
    for (int i = 2; i < STREAMS; i++)
        program_cuda(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}
