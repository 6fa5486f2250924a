/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary interface: this program takes the place of public functions, as a preloaded library
 * does, and must see the calls that the library makes to itself.
 */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <dlfcn.h>
#include <stdio.h>

static int broadcasts, questions, ids, registrations;

#define TAKES_PLACE __attribute__((visibility("default")))

TAKES_PLACE ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                                       ncclDataType_t datatype, int root, ncclComm_t comm,
                                       cudaStream_t stream)
{
    broadcasts++;
    return pncclBroadcast(sendbuff, recvbuff, count, datatype, root, comm, stream);
}

TAKES_PLACE ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    questions++;
    return pncclCommGetAsyncError(comm, asyncError);
}

TAKES_PLACE ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    ids++;
    return pncclGetUniqueId(uniqueId);
}

TAKES_PLACE ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size,
                                          void **handle)
{
    registrations++;
    return pncclCommRegister(comm, buff, size, handle);
}

static void run(__attribute__((unused)) struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclUniqueId id;
    ncclWindow_t window;
    void *memory;
    device_start();
    ids = 0;
    NCCL(ncclCommInitAll(&comm, 1, NULL));
    CHECK_EQ(ids, 1);
    const CUstream stream = rank_stream();
    NCCL(ncclMemAlloc(&memory, 16));
    NCCL(pncclBcast(memory, 16, ncclUint8, 0, comm, stream));
    CHECK_EQ(broadcasts, 1);
    NCCL(pncclBroadcast(memory, memory, 16, ncclUint8, 0, comm, stream));
    CHECK_EQ(broadcasts, 1);
    NCCL(pncclCommWindowRegister(comm, memory, 16, &window, NCCL_WIN_DEFAULT));
    CHECK_EQ(registrations, 1);
    NCCL(ncclCommDestroy(comm));
    NCCL(pncclGetUniqueId(&id));
    config.blocking = 0;
    questions = 0;
    pncclCommInitRankConfig(&comm, 1, id, 0, &config);
    CHECK(questions > 0);
    NCCL(pncclCommGetAsyncError(comm, &(ncclResult_t){ncclSuccess}));
    CHECK_EQ(async_result(comm), ncclSuccess);
    questions = 0;
    pncclCommRevoke(comm, 0);
    CHECK_EQ(questions, 1);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(calls_of_the_library_to_itself_are_seen)
{
    ranks_run(1, run, NULL);
}

/* Whether nm shows the symbol with this binding: W: weak, T: not. */
static bool is_bound(const char *table, char binding, const char *name)
{
    char wanted[160];
    snprintf(wanted, sizeof(wanted), " %c %s\n", binding, name);
    return strstr(table, wanted) != NULL;
}

static char *read_table(const char *library)
{
    enum { ROOM = 1 << 16 };
    char command[4200];
    char *table = malloc(ROOM);
    snprintf(command, sizeof(command), "nm -D --defined-only '%s'", library);
    FILE *output = popen(command, "r");
    CHECK(output != NULL);
    const size_t bytes = fread(table, 1, ROOM - 1, output);
    table[bytes] = '\0';
    CHECK_EQ(pclose(output), 0);
    return table;
}

/* All names of nccl.h, from the file that the build gives, in a private scope. */
MS_TEST(names)
{
    FILE *names = fopen(getenv("NCCL_NAMES"), "r");
    void *library = dlopen(getenv("NCCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    char *table = read_table(getenv("NCCL_LIBRARY"));
    char name[128] = "p";
    int count = 0;
    CHECK(names != NULL && library != NULL);
    for (; fscanf(names, "%100s", name + 1) == 1; count++) {
        void *found = dlsym(library, name + 1);
        if (found == NULL || found != dlsym(library, name) || !is_bound(table, 'W', name + 1) ||
            !is_bound(table, 'T', name))
            ms_test_fail(__FILE__, __LINE__, "%s", name + 1);
    }
    CHECK_EQ(count, 41);
    CHECK(strchr(table, '@') == NULL);
    free(table);
}
