/* SPDX-License-Identifier: Apache-2.0 */
/* Many pieces in one block, and many blocks: what searches, cuts and joins the records. */
#include "tests/driver/differential/fuzz.h"

/* A deferred block counts as a granule, of which a device with little memory has 256. */
enum { PIECES_MOST = 1500, BLOCKS_MOST = 60, SMALL = 512 };

/* Anywhere, so that some lie within others or over their borders. */
static void write_pieces(CUdeviceptr at, size_t bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t piece = 1 + fuzz_below(40);
        SEE(CALL(cuMemsetD8_v2)(at + fuzz_below(bytes - piece), (unsigned char)i, piece));
    }
}

static void write_row_of_pieces(CUdeviceptr at, size_t bytes, size_t count)
{
    const size_t step = bytes / count / 4 * 4;
    for (size_t i = 0; i < count; i++)
        SEE(CALL(cuMemsetD32_v2)(at + i * step, (unsigned)i, 1 + i % (step / 4)));
}

static void many_pieces(void)
{
    const struct fuzz_block *block = fuzz_new_block((size_t)64 << 10);
    const size_t count = 100 + fuzz_below(PIECES_MOST);
    fuzz_say("  %zu pieces\n", count);
    fuzz_default_stream(false);
    if (fuzz_one_in(2))
        write_row_of_pieces(block->at, block->bytes, count);
    else
        write_pieces(block->at, block->bytes, count);
    if (fuzz_one_in(2)) {
        const struct fuzz_block *copy = fuzz_new_block(block->bytes);
        if (block->at != 0 && block != copy)
            SEE(CALL(cuMemcpyDtoD_v2)(copy->at, block->at, block->bytes));
        fuzz_read(copy->at, copy->bytes);
    }
    if (block->at != 0)
        fuzz_read(block->at, 1 + fuzz_below(block->bytes));
}

/* Freed in an order of its own; some are read before. */
static void many_blocks(void)
{
    static CUdeviceptr small[BLOCKS_MOST];
    const size_t count = 1 + fuzz_below(BLOCKS_MOST);
    fuzz_say("  %zu blocks\n", count);
    fuzz_wait();
    fuzz_default_stream(false);
    for (size_t i = 0; i < count; i++) {
        SEE(CALL(cuMemAlloc_v2)(&small[i], SMALL));
        SEE(CALL(cuMemsetD8_v2)(small[i], (unsigned char)i, SMALL));
    }
    for (size_t left = count; left > 0; left--) {
        const size_t chosen = fuzz_below(left);
        if (fuzz_one_in(20))
            fuzz_read(small[chosen], SMALL);
        fuzz_wait();
        SEE(CALL(cuMemFree_v2)(small[chosen]));
        small[chosen] = small[left - 1];
    }
}

const struct fuzz_operation fuzz_many[] = {
    {"many pieces", many_pieces, 3},
    {"many blocks", many_blocks, 2},
    {NULL, NULL, 0},
};
