/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client RANK WORLD FOLDER [--wait | --by-hand]: one rank of a sharded load, as a plain CUDA
 * program that knows nothing of MetaShard. It builds the whole model: for each tensor of the
 * checkpoint it allocates memory and copies the tensor there. Then it shards it, tensor by tensor:
 * copies its rank's rows into an allocation of their own (torch.chunk's rule: ceil(rows / world)
 * each, the last ranks fewer or none) and frees the whole. Then it reads its shards back. With
 * --wait it prints "ready" once it has a context, and loads when its standard input ends. With
 * --by-hand it does what no library does for it: it allocates and copies its rows alone. That is
 * the least that a rank can do. Prints one JSON object: rank, tensors, checkpoint_bytes,
 * shard_bytes, copied_bytes (what it handed to the driver to copy to the device), small_bytes (the
 * part in tensors under 2 MiB), and two hashes that must agree: of its shards as read from the
 * device, and of the same rows in the files.
 */
#include "tests/demo/device.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/demo/safetensors.h"

/* The rows of a rank, by torch.chunk's rule. */
static void rows_of(const struct tensor *tensor, uint64_t rank, uint64_t world, uint64_t *first_out,
                    uint64_t *count_out)
{
    const uint64_t chunk = (tensor->rows + world - 1) / world;
    const uint64_t first = rank * chunk < tensor->rows ? rank * chunk : tensor->rows;
    *first_out = first;
    *count_out = tensor->rows - first < chunk ? tensor->rows - first : chunk;
}

static CUdeviceptr load_whole(const struct tensor *tensor)
{
    const uint64_t bytes = tensor->rows * tensor->row_bytes;
    CUdeviceptr whole;
    must(device.allocate(&whole, bytes), "cuMemAlloc of a tensor");
    must(device.to_device(whole, tensor->data, bytes), "cuMemcpyHtoD");
    return whole;
}

static CUdeviceptr keep_rows(const struct tensor *tensor, CUdeviceptr whole, uint64_t first,
                             uint64_t count)
{
    CUdeviceptr shard = 0;
    if (count > 0) {
        must(device.allocate(&shard, count * tensor->row_bytes), "cuMemAlloc of a shard");
        must(device.on_device(shard, whole + first * tensor->row_bytes, count * tensor->row_bytes),
             "cuMemcpyDtoD");
    }
    must(device.free(whole), "cuMemFree");
    return shard;
}

static CUdeviceptr load_rows(const struct tensor *tensor, uint64_t first, uint64_t count)
{
    CUdeviceptr shard = 0;
    if (count > 0) {
        must(device.allocate(&shard, count * tensor->row_bytes), "cuMemAlloc of a shard");
        must(device.to_device(shard, tensor->data + first * tensor->row_bytes,
                              count * tensor->row_bytes),
             "cuMemcpyHtoD of a shard");
    }
    return shard;
}

static uint64_t number(const char *text, const char *what)
{
    char *end;
    const unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0') {
        fprintf(stderr, "demo: %s is %s: expected a number\n", what, text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    const bool wait = argc == 5 && strcmp(argv[4], "--wait") == 0;
    const bool by_hand = argc == 5 && strcmp(argv[4], "--by-hand") == 0;
    if (argc != 4 && !wait && !by_hand) {
        fprintf(stderr, "usage: client RANK WORLD FOLDER [--wait | --by-hand]\n");
        return 2;
    }
    const uint64_t rank = number(argv[1], "RANK"), world = number(argv[2], "WORLD");
    if (rank >= world) {
        fprintf(stderr, "demo: RANK is %s: expected less than WORLD, which is %s\n", argv[1],
                argv[2]);
        return 2;
    }
    struct checkpoint checkpoint;
    checkpoint_open(&checkpoint, argv[3]);
    device_open();
    if (wait) {
        puts("ready");
        fflush(stdout);
        while (getchar() != EOF)
            ;
    }

    /* Loads each tensor whole, then keeps its rows. */
    CUdeviceptr *model = calloc(checkpoint.count, sizeof(*model));
    for (size_t i = 0; i < checkpoint.count && !by_hand; i++)
        model[i] = load_whole(&checkpoint.tensors[i]);
    uint64_t small_bytes = 0;
    for (size_t i = 0; i < checkpoint.count; i++) {
        uint64_t first, count;
        const struct tensor *tensor = &checkpoint.tensors[i];
        rows_of(tensor, rank, world, &first, &count);
        model[i] =
            by_hand ? load_rows(tensor, first, count) : keep_rows(tensor, model[i], first, count);
        if (tensor->rows * tensor->row_bytes < 2 << 20)
            small_bytes += tensor->rows * tensor->row_bytes;
    }

    uint64_t shard_bytes = 0, hash = 0, file_hash = 0;
    for (size_t i = 0; i < checkpoint.count; i++) {
        uint64_t first, count;
        const struct tensor *tensor = &checkpoint.tensors[i];
        rows_of(tensor, rank, world, &first, &count);
        const uint64_t bytes = count * tensor->row_bytes;
        unsigned char *seen = malloc(bytes + 1);
        if (count > 0)
            must(device.to_host(seen, model[i], bytes), "cuMemcpyDtoH");
        hash = hash_bytes(hash + i, seen, bytes);
        file_hash = hash_bytes(file_hash + i, tensor->data + first * tensor->row_bytes, bytes);
        free(seen);
        shard_bytes += bytes;
    }
    printf("{\"rank\": %llu, \"tensors\": %zu, \"checkpoint_bytes\": %llu, \"shard_bytes\": %llu, "
           "\"copied_bytes\": %llu, \"small_bytes\": %llu, \"hash\": \"%016llx\", "
           "\"file_hash\": \"%016llx\"}\n",
           (unsigned long long)rank, checkpoint.count, (unsigned long long)checkpoint.bytes,
           (unsigned long long)shard_bytes,
           (unsigned long long)(by_hand ? shard_bytes : checkpoint.bytes),
           (unsigned long long)small_bytes, (unsigned long long)hash,
           (unsigned long long)file_hash);
    return 0;
}
