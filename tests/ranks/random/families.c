/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ranks/random/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct family families[MAX_FAMILIES];

/* --- the world */

/* Rank 0 leaves the id in a file, which then gets its name. */
static void write_id(const char *path)
{
    char part[1100];
    ncclUniqueId id;
    program_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    snprintf(part, sizeof(part), "%s.part", path);
    FILE *file = fopen(part, "wb");
    if (file == NULL || fwrite(&id, sizeof(id), 1, file) != 1 || fclose(file) != 0 ||
        rename(part, path) != 0) {
        perror(path);
        exit(2);
    }
}

static ncclUniqueId read_id(const char *path)
{
    const struct timespec pause = {0, 2000000};
    ncclUniqueId id;
    for (int i = 0; i < 30000 && access(path, R_OK) != 0; i++)
        nanosleep(&pause, NULL);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(&id, sizeof(id), 1, file) != 1) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return id;
}

void families_init(const char *id_path)
{
    struct family *world = &families[0];
    if (program.rank == 0)
        write_id(id_path);
    const ncclUniqueId id = read_id(id_path);
    world->is_there = true;
    for (int rank = 0; rank < program.ranks; rank++) {
        world->place[rank] = rank;
        world->size[rank] = program.ranks;
    }
    program_nccl(ncclCommInitRank(&world->comm, program.ranks, id, program.rank),
                 "ncclCommInitRank");
}

/* --- questions */

struct family *family_draw(void)
{
    struct family *family = &families[random_common(MAX_FAMILIES)];
    return family->is_there && common_one_in(2) ? family : &families[0];
}

int family_most(const struct family *family)
{
    int most = 0;
    for (int rank = 0; rank < program.ranks; rank++) {
        if (family->class[rank] >= 0 && family->size[rank] > most)
            most = family->size[rank];
    }
    return most;
}

int family_rank(const struct family *family, int of, int place)
{
    int rank = 0;
    while (family->class[rank] != family->class[of] || family->place[rank] != place)
        rank++;
    return rank;
}

/* --- splits */

struct colours {
    int colour[MAX_RANKS], key[MAX_RANKS];
};

/* The dimensions of a mesh, or any other way. */
static struct colours draw_colours(void)
{
    struct colours colours = {0};
    const uint64_t way = random_common(5);
    const int width = program.ranks >= 4 && common_one_in(2) ? program.ranks / 2 : 2;
    const bool is_reversed = common_one_in(3);
    for (int rank = 0; rank < program.ranks; rank++) {
        const int any = (int)random_common(4) - 1;
        colours.colour[rank] = way == 0   ? 0
                               : way <= 2 ? rank / width
                               : way == 3 ? rank % width
                                          : any;
        colours.key[rank] = is_reversed ? -rank : rank;
    }
    return colours;
}

static bool is_before(const struct family *parent, const struct colours *colours, int a, int b)
{
    return colours->key[a] < colours->key[b] ||
           (colours->key[a] == colours->key[b] && parent->place[a] < parent->place[b]);
}

static void place_ranks(struct family *family, const struct family *parent,
                        const struct colours *colours)
{
    for (int rank = 0; rank < program.ranks; rank++) {
        family->class[rank] = -1;
        if (parent->class[rank] < 0 || colours->colour[rank] < 0)
            continue;
        family->class[rank] = parent->class[rank] * MAX_RANKS + colours->colour[rank];
        for (int other = 0; other < program.ranks; other++) {
            if (parent->class[other] != parent->class[rank] ||
                colours->colour[other] != colours->colour[rank])
                continue;
            family->size[rank]++;
            family->place[rank] += is_before(parent, colours, other, rank);
        }
    }
}

void family_split(void)
{
    struct family *parent = family_draw();
    struct family *family = &families[1 + random_common(MAX_FAMILIES - 1)];
    const struct colours colours = draw_colours();
    const bool does_not_block = common_one_in(4);
    if (family->is_there || parent != &families[0])
        return;
    memset(family, 0, sizeof(*family));
    place_ranks(family, parent, &colours);
    const int colour = colours.colour[program.rank];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = does_not_block ? 0 : 1;
    family->does_not_block = does_not_block;
    program_nccl(ncclCommSplit(parent->comm, colour < 0 ? NCCL_SPLIT_NOCOLOR : colour,
                               colours.key[program.rank], &family->comm, &config),
                 "ncclCommSplit");
    family->is_there = family_most(family) > 0;
    family_wait(family);
    printf("%d split %d: %d of %d\n", program.operation, (int)(family - families),
           family->place[program.rank], family->size[program.rank]);
}

void family_wait(const struct family *family)
{
    const struct timespec pause = {0, 1000000};
    ncclResult_t state = ncclInProgress;
    while (family->does_not_block && family->comm != NULL && state == ncclInProgress) {
        program_nccl(ncclCommGetAsyncError(family->comm, &state), "ncclCommGetAsyncError");
        program_nccl(state, "a communicator that does not block");
        nanosleep(&pause, NULL);
    }
}

/* --- ends */

static void destroy(struct family *family)
{
    if (family->comm != NULL && family->does_not_block) {
        program_nccl(ncclCommFinalize(family->comm), "ncclCommFinalize");
        family_wait(family);
    }
    if (family->comm != NULL)
        program_nccl(ncclCommDestroy(family->comm), "ncclCommDestroy");
    family->comm = NULL;
    family->is_there = false;
}

void family_destroy_one(void)
{
    struct family *family = &families[1 + random_common(MAX_FAMILIES - 1)];
    if (!family->is_there)
        return;
    tensors_wait();
    destroy(family);
    printf("%d destroy %d\n", program.operation, (int)(family - families));
}

void families_destroy(void)
{
    for (int i = MAX_FAMILIES - 1; i >= 0; i--)
        destroy(&families[i]);
}

void families_expect_no_error(void)
{
    for (int i = 0; i < MAX_FAMILIES; i++) {
        ncclResult_t state = ncclSuccess;
        if (families[i].comm == NULL)
            continue;
        program_nccl(ncclCommGetAsyncError(families[i].comm, &state), "ncclCommGetAsyncError");
        program_nccl(state, "an operation");
    }
}

void families_abort(void)
{
    for (int i = 0; i < MAX_FAMILIES; i++) {
        if (families[i].comm != NULL)
            ncclCommAbort(families[i].comm);
        families[i].comm = NULL;
    }
}
