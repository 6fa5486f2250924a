/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for the tests of the simulated driver and of what runs on it. */
#include <string.h>

#include "tools/simcuda/driver/simcuda.h"
#include "tools/simcuda/harness/range_access.h"

RANGE_ACCESS static void fill_words(uint32_t *words, uint32_t value, uint64_t count)
{
    range_write(words, count * 4);
    for (uint64_t i = 0; i < count; i++)
        words[i] = value;
}

/* fill32(address, value, count) */
SIMCUDA_KERNEL(fill32)
{
    const uint32_t value = SIMCUDA_ARG(args, 1, uint32_t);
    const uint64_t count = SIMCUDA_ARG(args, 2, uint64_t);
    uint32_t *words = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    if (words != NULL)
        fill_words(words, value, count);
}
SIMCUDA_PARAMS(fill32, {0, 8}, {8, 4}, {16, 8});

/* The words may overlap. */
RANGE_ACCESS static void copy_words(uint32_t *to, const uint32_t *from, uint64_t count)
{
    range_read(from, count * 4);
    range_write(to, count * 4);
    for (uint64_t i = 0; i < count; i++)
        to[i] = from[i];
}

/* copy32(to, from, count) */
SIMCUDA_KERNEL(copy32)
{
    const uint64_t count = SIMCUDA_ARG(args, 2, uint64_t);
    const uint32_t *from = launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr), count * 4);
    uint32_t *to =
        from == NULL ? NULL : launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    if (to != NULL)
        copy_words(to, from, count);
}
SIMCUDA_PARAMS(copy32, {0, 8}, {8, 8}, {16, 8});

/* send32(from, to, count): from the first to the last, as a transposition */
SIMCUDA_KERNEL(send32)
{
    const uint64_t count = SIMCUDA_ARG(args, 2, uint64_t);
    const uint32_t *from = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    uint32_t *to =
        from == NULL ? NULL : launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr), count * 4);
    for (uint64_t i = 0; to != NULL && i < count; i++)
        to[i] = from[count - 1 - i];
}
SIMCUDA_PARAMS(send32, {0, 8}, {8, 8}, {16, 8});

/* The parameters as one struct by value, which is how generated kernels often have them. */
struct add_args {
    CUdeviceptr address;
    uint64_t count;
    uint32_t value;
};

RANGE_ACCESS static void add_to_words(uint32_t *words, uint32_t value, uint64_t count)
{
    range_write(words, count * 4);
    for (uint64_t i = 0; i < count; i++)
        words[i] += value;
}

/* add_in_place32(struct add_args) */
SIMCUDA_KERNEL(add_in_place32)
{
    const struct add_args *add = args[0];
    uint32_t *words = launch->touch(launch, add->address, add->count * 4);
    if (words != NULL)
        add_to_words(words, add->value, add->count);
}
SIMCUDA_PARAMS(add_in_place32, {0, sizeof(struct add_args)});

/* One step of SplitMix64 (Vigna, public domain): mixes a counter into a random word. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/*
 * uniform32(address, count, seed, offset): floats in [0, 1). As with the counter-based generators
 * of frameworks, a value depends on seed, offset, thread and step, and so on the size of the grid;
 * launching the same grid again gives the same bytes.
 */
SIMCUDA_KERNEL(uniform32)
{
    const uint64_t count = SIMCUDA_ARG(args, 1, uint64_t);
    const uint64_t seed = SIMCUDA_ARG(args, 2, uint64_t);
    const uint64_t offset = SIMCUDA_ARG(args, 3, uint64_t);
    const uint64_t threads = (uint64_t)launch->grid[0] * launch->block[0];
    float *values = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    uint64_t thread = 0;
    uint64_t step = 0;
    for (uint64_t i = 0; values != NULL && i < count; i++) {
        const uint64_t word = mix(mix(seed ^ mix(thread)) + offset + step);
        values[i] = (float)(word >> 40) * 0x1p-24F;
        thread = thread + 1 < threads ? thread + 1 : 0;
        step += thread == 0;
    }
}
SIMCUDA_PARAMS(uniform32, {0, 8}, {8, 8}, {16, 8}, {24, 8});

/*
 * gather32(to, table, count): to[i] = *table[i], the table of addresses being in device memory. No
 * argument of the launch says which memory is read.
 */
SIMCUDA_KERNEL(gather32)
{
    const uint64_t count = SIMCUDA_ARG(args, 2, uint64_t);
    uint32_t *to = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    const CUdeviceptr *table =
        to == NULL ? NULL : launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr), count * 8);
    for (uint64_t i = 0; table != NULL && i < count; i++) {
        const uint32_t *word = launch->touch(launch, table[i], 4);
        if (word == NULL)
            return;
        to[i] = *word;
    }
}
SIMCUDA_PARAMS(gather32, {0, 8}, {8, 8}, {16, 8});

/* read_map32(to, map) and read_texture32(to, texture): the first word of what the descriptor
 * describes. */
static void read_hidden(const struct simcuda_launch *launch, CUdeviceptr to, uint64_t hidden)
{
    uint32_t *out = launch->touch(launch, to, 4);
    const uint32_t *in = out == NULL ? NULL : launch->touch(launch, simcuda_hide(hidden), 4);
    if (in != NULL)
        *out = *in;
}
SIMCUDA_KERNEL(read_map32)
{
    uint64_t first; /* the packed parameters are not aligned as the type is */
    memcpy(&first, args[1], sizeof(first));
    read_hidden(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), first);
}
SIMCUDA_PARAMS(read_map32, {0, 8}, {64, sizeof(CUtensorMap)});

/* sum_map32(to, map) and add_map32(map, value): all words of the map's tensor. */
static uint32_t *touch_map(const struct simcuda_launch *launch, const void *map,
                           uint64_t *count_out)
{
    uint64_t opaque[2];
    memcpy(opaque, map, sizeof(opaque));
    *count_out = opaque[1];
    return launch->touch(launch, simcuda_hide(opaque[0]), opaque[1] * 4);
}
SIMCUDA_KERNEL(sum_map32)
{
    uint64_t count;
    uint32_t *out = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), 4);
    const uint32_t *in = out == NULL ? NULL : touch_map(launch, args[1], &count);
    uint32_t sum = 0;
    for (uint64_t i = 0; in != NULL && i < count; i++)
        sum = sum * 31 + in[i];
    if (in != NULL)
        *out = sum;
}
SIMCUDA_PARAMS(sum_map32, {0, 8}, {64, sizeof(CUtensorMap)});
SIMCUDA_KERNEL(add_map32)
{
    uint64_t count;
    uint32_t *words = touch_map(launch, args[0], &count);
    for (uint64_t i = 0; words != NULL && i < count; i++)
        words[i] += SIMCUDA_ARG(args, 1, uint32_t);
}
SIMCUDA_PARAMS(add_map32, {0, sizeof(CUtensorMap)}, {sizeof(CUtensorMap), 4});
SIMCUDA_KERNEL(read_texture32)
{
    read_hidden(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), SIMCUDA_ARG(args, 1, CUtexObject));
}
SIMCUDA_PARAMS(read_texture32, {0, 8}, {8, 8});

/*
 * read_packed32(to, {tag, address}): one word at an address that lies at an odd offset.
 * read_records32(to, records, count): the same for records of 9 bytes in device memory.
 */
struct packed_record {
    char tag;
    CUdeviceptr address;
} __attribute__((packed));
static void read_records(const struct simcuda_launch *launch, CUdeviceptr out,
                         const struct packed_record *records, uint64_t count)
{
    uint32_t *to = launch->touch(launch, out, count * 4);
    for (uint64_t i = 0; to != NULL && i < count; i++) {
        const uint32_t *word = launch->touch(launch, records[i].address, 4);
        if (word == NULL)
            return;
        to[i] = *word + (uint32_t)records[i].tag;
    }
}
SIMCUDA_KERNEL(read_packed32)
{
    read_records(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), args[1], 1);
}
SIMCUDA_PARAMS(read_packed32, {0, 8}, {8, sizeof(struct packed_record)});
SIMCUDA_KERNEL(read_records32)
{
    const uint64_t count = SIMCUDA_ARG(args, 2, uint64_t);
    const struct packed_record *records =
        launch->touch(launch, SIMCUDA_ARG(args, 1, CUdeviceptr), count * sizeof(*records));
    if (records != NULL)
        read_records(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), records, count);
}
SIMCUDA_PARAMS(read_records32, {0, 8}, {8, 8}, {16, 8});

/* no_params(): does nothing. */
SIMCUDA_KERNEL(no_params)
{
}
SIMCUDA_PARAMS_NONE(no_params);

/* unknown_layout(address, value): stores one word; nothing tells the driver its parameters. */
struct unknown_args {
    CUdeviceptr address;
    uint32_t value;
};
SIMCUDA_KERNEL(unknown_layout)
{
    const struct unknown_args *packed = args[0];
    uint32_t *word = launch->touch(launch, packed->address, 4);
    if (word != NULL)
        *word = packed->value;
}

struct managed_table {
    CUdeviceptr addresses[8];
};

/* gather_managed32(to, count): as gather32, by the table in a variable that the host writes too. */
SIMCUDA_MANAGED(managed_table, struct managed_table, {{0}});
SIMCUDA_KERNEL(gather_managed32)
{
    const uint64_t count = SIMCUDA_ARG(args, 1, uint64_t);
    uint32_t *to = launch->touch(launch, SIMCUDA_ARG(args, 0, CUdeviceptr), count * 4);
    const CUdeviceptr *table = (const CUdeviceptr *)launch->global(launch, "managed_table");
    for (uint64_t i = 0; to != NULL && table != NULL && i < count; i++) {
        const uint32_t *word = launch->touch(launch, table[i], 4);
        if (word == NULL)
            return;
        to[i] = *word;
    }
}
SIMCUDA_PARAMS(gather_managed32, {0, 8}, {8, 8});

SIMCUDA_GLOBAL(answer, uint32_t, 42);

SIMCUDA_KERNEL_LIST("fill32", "copy32", "send32", "add_in_place32", "uniform32", "gather32",
                    "read_map32", "read_texture32", "read_packed32", "read_records32",
                    "gather_managed32", "no_params", "unknown_layout");
