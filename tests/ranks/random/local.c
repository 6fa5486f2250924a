/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a rank alone, by draws of its own. */
#include "tests/ranks/random/random.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/fast_hash.h"

enum { HOST_BYTES = 4 << 20 };

static CUmodule kernels;
static unsigned char *pinned, *plain, *seen;

void local_init(const char *path)
{
    void *memory;
    program_cuda(cuModuleLoad(&kernels, path), "cuModuleLoad");
    program_cuda(cuMemHostAlloc(&memory, HOST_BYTES, 0), "cuMemHostAlloc");
    pinned = memory;
    plain = malloc(HOST_BYTES);
    seen = malloc(HOST_BYTES);
    for (size_t i = 0; i < HOST_BYTES; i += 8) {
        const uint64_t a = random_own(UINT64_MAX), b = random_own(UINT64_MAX);
        memcpy(pinned + i, &a, 8);
        memcpy(plain + i, &b, 8);
    }
}

/* --- writing */

static void launch(const char *name, CUstream stream, void **params)
{
    CUfunction function;
    program_cuda(cuModuleGetFunction(&function, kernels, name), name);
    program_cuda(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, stream, params, NULL), name);
}

static void copy_in(const struct range *range, const unsigned char *bytes, CUstream stream)
{
    if (own_one_in(2)) {
        program_cuda(cuMemcpyHtoDAsync(range_address(range), bytes, range->bytes, stream),
                     "cuMemcpyHtoDAsync");
        return;
    }
    program_cuda(cuEventSynchronize(range->tensor->last), "cuEventSynchronize");
    program_cuda(cuMemcpyHtoD(range_address(range), bytes, range->bytes), "cuMemcpyHtoD");
}

static void fill_by_kernel(const struct range *range, CUstream stream)
{
    CUdeviceptr address = range_address(range);
    uint64_t count = range->bytes / 4, seed = random_own(1000), offset = 0;
    uint32_t value = (uint32_t)random_own(UINT32_MAX);
    void *fill[] = {&address, &value, &count};
    void *draw[] = {&address, &count, &seed, &offset};
    if (own_one_in(2))
        launch("fill32", stream, fill);
    else
        launch("uniform32", stream, draw);
}

/* Anywhere; but in a tensor of the checkpoint, the bytes of other tensors would be theirs, for a
 * plan. (In a gentle program no other tensor gets any.) */
static size_t place_in_file(const struct range *range, size_t file_size)
{
    const size_t anywhere = random_own(file_size - range->bytes + 1);
    return range->tensor->as != NULL ? range->tensor->as->begin + range->at : anywhere;
}

void local_fill(const struct range *range)
{
    const unsigned char *file;
    size_t file_size;
    if (range->bytes == 0)
        return;
    CUstream stream = stream_draw();
    file = tensors_file(&file_size);
    range_begin(range, stream);
    switch (random_own(5)) {
    case 0:
        if (range->bytes <= HOST_BYTES) {
            copy_in(range, plain + random_own(HOST_BYTES - range->bytes + 1), stream);
            break;
        }
        /* fall through */
    case 1:
        if (range->bytes <= HOST_BYTES) {
            copy_in(range, pinned + random_own(HOST_BYTES - range->bytes + 1), stream);
            break;
        }
        /* fall through */
    case 2:
        if (range->at % 4 == 0 && range->bytes % 4 == 0 && tensor_may_be_sent(range->tensor)) {
            fill_by_kernel(range, stream);
            break;
        }
        /* fall through */
    case 3:
        if (range->bytes <= file_size && (range->tensor->as != NULL || !program.is_gentle)) {
            copy_in(range, file + place_in_file(range, file_size), stream);
            break;
        }
        /* fall through */
    default:
        program_cuda(cuMemsetD8Async(range_address(range), (unsigned char)random_own(256),
                                     range->bytes, stream),
                     "cuMemsetD8Async");
    }
    range_end(range, stream);
}

void local_copy(const struct range *to, const struct range *from)
{
    CUstream stream = stream_draw();
    range_begin(to, stream);
    range_begin(from, stream);
    program_cuda(cuMemcpyDtoDAsync(range_address(to), range_address(from), from->bytes, stream),
                 "cuMemcpyDtoDAsync");
    range_end(to, stream);
    range_end(from, stream);
}

void local_load(const struct range *range, const struct stored *from)
{
    size_t size;
    CUstream stream = stream_draw();
    range_begin(range, stream);
    copy_in(range, tensors_file(&size) + from->begin, stream);
    range_end(range, stream);
}

/* Calls metashard_name of metashard.h, which a rank without the preload has not. */
void local_name(const struct tensor *tensor, const struct stored *as)
{
    typedef int name_call(uint64_t address, size_t bytes, const char *name, const char *dtype,
                          const uint64_t *shape, unsigned dims);
    void *found = dlsym(RTLD_DEFAULT, "metashard_name");
    if (found != NULL)
        ((name_call *)found)(tensor->address, tensor->bytes, as->name, as->dtype, as->shape, 2);
}

/* --- draws */

static struct tensor *own_tensor(void)
{
    struct tensor *tensor = &tensors[random_own(MAX_TENSORS)];
    return tensor->address != 0 ? tensor : NULL;
}

static struct range part_of(struct tensor *tensor, size_t begin, size_t end)
{
    const size_t most = end - begin;
    size_t bytes = 1 + random_own(most);
    if (own_one_in(4))
        bytes = most;
    else if (own_one_in(3))
        bytes = 1 + random_own(most < 64 ? most : 64);
    struct range range = {tensor, begin + random_own(most - bytes + 1), bytes};
    if (range.bytes > HOST_BYTES)
        range.bytes = HOST_BYTES;
    if (own_one_in(2) && range.bytes > 8) { /* whole words, for kernels */
        range.bytes -= (range.at % 4 > 0 ? 4 - range.at % 4 : 0);
        range.at += (4 - range.at % 4) % 4;
        range.bytes -= range.bytes % 4;
    }
    return range;
}

/* Draws a range that this rank has surely written. */
static bool own_known(struct range *range_out)
{
    struct tensor *tensor = own_tensor();
    if (tensor == NULL || tensor->mine.count == 0)
        return false;
    const int row = (int)random_own((uint64_t)tensor->mine.count);
    *range_out = part_of(tensor, tensor->mine.rows[row].begin, tensor->mine.rows[row].end);
    return range_out->bytes > 0;
}

static void note(const struct range *range)
{
    /* Only this rank knows of it. */
    struct spans common = range->tensor->known[program.rank];
    range_know(range, program.rank);
    range->tensor->known[program.rank] = common;
}

/* --- reading */

static CUresult copy_out(const struct range *range, CUstream stream)
{
    CUresult result;
    if (own_one_in(2)) {
        range_begin(range, stream);
        result = cuMemcpyDtoHAsync(seen, range_address(range), range->bytes, stream);
        program_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
        range_end(range, stream);
        return result;
    }
    program_cuda(cuEventSynchronize(range->tensor->last), "cuEventSynchronize");
    return cuMemcpyDtoH(seen, range_address(range), range->bytes);
}

/* The bytes that are read count only if nothing had failed by then. */
static void read_range(const struct range *range)
{
    memset(seen, 0xA5, range->bytes);
    const CUresult result = copy_out(range, stream_draw());
    families_expect_no_error();
    if (result != CUDA_ERROR_NOT_PERMITTED)
        program_cuda(result, "a copy to the host");
    printf("%d read tensor %d at %zu bytes %zu: ", program.operation,
           (int)(range->tensor - tensors), range->at, range->bytes);
    if (result == CUDA_SUCCESS)
        printf("%016llx\n", (unsigned long long)fast_hash(seen, range->bytes));
    else
        printf("refused\n");
}

/* As FSDP2 and as ZeRO-3 cut a tensor: what a plan gives to one rank. */
static size_t piece_bytes(const struct tensor *tensor, bool by_rows)
{
    const size_t rows = tensor->as->shape[0], ranks = (size_t)program.ranks;
    const size_t units = by_rows ? rows : rows * tensor->as->shape[1];
    return (units + ranks - 1) / ranks * (tensor->bytes / units);
}

static void read_piece(struct tensor *tensor, bool by_rows, size_t number)
{
    const size_t most = piece_bytes(tensor, by_rows), at = number * most;
    if (at >= tensor->bytes)
        return;
    const struct range range = {tensor, at, tensor->bytes - at < most ? tensor->bytes - at : most};
    if (range_is_known(&range, &tensor->mine))
        read_range(&range);
}

static void read_some_piece(void)
{
    struct tensor *tensor = own_tensor();
    if (tensor != NULL && tensor->as != NULL)
        read_piece(tensor, own_one_in(2), random_own((uint64_t)program.ranks));
}

static void read_some(void)
{
    struct range range;
    if (own_known(&range))
        read_range(&range);
}

void local_read_all(void)
{
    for (int i = 0; i < MAX_TENSORS; i++) {
        struct tensor *tensor = &tensors[i];
        for (int row = 0; tensor->address != 0 && row < tensor->mine.count; row++) {
            const size_t begin = tensor->mine.rows[row].begin;
            const size_t bytes = tensor->mine.rows[row].end - begin;
            const struct range range = {tensor, begin, bytes < HOST_BYTES ? bytes : HOST_BYTES};
            read_range(&range);
        }
        for (int piece = 0; tensor->as != NULL && piece < 2 * program.ranks; piece++)
            read_piece(tensor, piece % 2 == 0, (size_t)piece / 2);
    }
}

/* --- the rest */

static void write_some(void)
{
    struct tensor *tensor = own_tensor();
    if (tensor == NULL)
        return;
    const struct range range = part_of(tensor, 0, tensor->bytes);
    if (range.bytes == 0)
        return;
    local_fill(&range);
    note(&range);
}

static void copy_some(void)
{
    struct range from;
    struct tensor *tensor = own_tensor();
    if (tensor == NULL || !own_known(&from) || tensor == from.tensor ||
        !tensor_may_be_sent(from.tensor))
        return;
    struct range to = part_of(tensor, 0, tensor->bytes);
    to.bytes = from.bytes = to.bytes < from.bytes ? to.bytes : from.bytes;
    if (to.bytes == 0)
        return;
    local_copy(&to, &from);
    note(&to);
}

/* Words of what is there become others. */
static void change_some(void)
{
    struct range range;
    if (!own_known(&range) || range.at % 4 != 0 || range.bytes < 4 ||
        !tensor_may_be_sent(range.tensor))
        return;
    struct {
        CUdeviceptr address;
        uint64_t count;
        uint32_t value;
    } add = {range_address(&range), range.bytes / 4, (uint32_t)random_own(UINT32_MAX)};
    void *params[] = {&add};
    CUstream stream = stream_draw();
    range_begin(&range, stream);
    launch("add_in_place32", stream, params);
    range_end(&range, stream);
}

void local_burst(void)
{
    static void (*const ways[])(void) = {read_some, read_some, read_some_piece, write_some,
                                         copy_some, copy_some, change_some};
    for (uint64_t left = 1 + random_own(3); left > 0; left--)
        ways[random_own(sizeof(ways) / sizeof(ways[0]))]();
}
