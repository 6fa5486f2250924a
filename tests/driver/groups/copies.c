/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, sets and memory operations of every shape (moves.def): at odd places of deferred memory,
 * and then one element beyond the end. */
#include "tests/driver/groups/groups.h"

static const size_t odd_bytes = 4 * MIB + 5;

static void print_sides(void)
{
    unsigned char *seen = malloc(MOVES_BYTES);
    print_device("other", sides.other, MOVES_BYTES);
    print_host("host", sides.host, MOVES_BYTES);
    MUST(cuMemcpyAtoH_v2(seen, sides.array, 0, MOVES_BYTES));
    print_host("array", seen, MOVES_BYTES);
    free(seen);
}

static void run_move(const struct move *move, CUdeviceptr block)
{
    const struct {
        size_t at, bytes;
    } ranges[] = {{MIB + 5, 2 * MIB + 3000}, {2 * MIB, 2 * MIB + 6}};
    for (int i = 0; i < 2; i++) {
        seen(move->way, move->call(block + ranges[i].at, ranges[i].bytes));
        seen("synchronised", cuCtxSynchronize());
        printf("failed: %zd\n", (ssize_t)sides.failed);
        print_device("block", block, odd_bytes);
    }
    print_sides();
}

void run_moves(const struct move *first)
{
    for (const struct move *move = first;
         move->symbol != NULL && strcmp(move->symbol, first->symbol) == 0; move++) {
        moves_begin();
        const CUdeviceptr block = make_block_of(odd_bytes, 1);
        if (move->kind == MOVE_SEALED)
            print_device("before", block, odd_bytes);
        run_move(move, block);
    }
}
