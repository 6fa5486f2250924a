/* SPDX-License-Identifier: Apache-2.0 */
/* What programs built with a later NCCL find: its functions, and configs of another length. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <dlfcn.h>
#include <stdlib.h>

/* Of functions that an older header does not declare. */
typedef ncclResult_t suspend_function(ncclComm_t comm, int flags);
typedef ncclResult_t resume_function(ncclComm_t comm);
typedef ncclResult_t stats_function(ncclComm_t comm, int stat, uint64_t *value);
typedef ncclResult_t pointer_function(ncclComm_t comm, ncclWindow_t window, void **address);

#define FIND(type, name) ((type *)find(name))

static void *find(const char *name)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    void *found = dlsym(library, name);
    if (found == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s is not there", name);
    dlclose(library);
    return found;
}

/* What libtorch_cuda.so of PyTorch 2.15 imports besides the names of 2.28.9. */
MS_TEST(names_that_programs_import)
{
    static const char *const names[] = {"ncclCommGetUniqueId",
                                        "ncclCommGrow",
                                        "ncclCommMemStats",
                                        "ncclCommResume",
                                        "ncclCommSuspend",
                                        "ncclDevCommCreate",
                                        "ncclDevCommDestroy",
                                        "ncclGetLsaMultimemDevicePointer",
                                        "ncclGetPeerDevicePointer",
                                        "ncclPutSignal",
                                        "ncclSignal",
                                        "ncclWaitSignal",
                                        "ncclWinGetUserPtr"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK(find(names[i]) != NULL);
}

static void run_suspended(struct rank *rank)
{
    static const uint32_t word = 7;
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    void *buffer = (void *)device_with(&word, sizeof(word));
    uint64_t value = 99;
    CHECK_EQ(FIND(resume_function, "ncclCommResume")(comm), ncclInvalidUsage);
    CHECK_EQ(FIND(suspend_function, "ncclCommSuspend")(comm, 2), ncclInvalidArgument);
    NCCL(FIND(suspend_function, "ncclCommSuspend")(comm, 1));
    NCCL(FIND(stats_function, "ncclCommMemStats")(comm, 1, &value));
    CHECK_EQ(value, 1);
    CHECK_EQ(ncclBroadcast(buffer, buffer, 1, ncclUint32, 0, comm, stream), ncclInvalidUsage);
    NCCL(FIND(resume_function, "ncclCommResume")(comm));
    for (int stat = 0; stat < 4; stat++) { /* it takes no memory of the device */
        NCCL(FIND(stats_function, "ncclCommMemStats")(comm, stat, &value));
        CHECK_EQ(value, 0);
    }
    NCCL(ncclBroadcast(buffer, buffer, 1, ncclUint32, 0, comm, stream));
    sync_stream(stream);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(nothing_is_sent_while_suspended)
{
    ranks_run(2, run_suspended, NULL);
}

static void run_window(struct rank *rank)
{
    const ncclComm_t comm = rank_start(rank);
    ncclWindow_t window;
    void *memory, *found = NULL;
    NCCL(ncclMemAlloc(&memory, 4096));
    NCCL(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_DEFAULT));
    NCCL(FIND(pointer_function, "ncclWinGetUserPtr")(comm, window, &found));
    CHECK(found == memory);
    NCCL(ncclCommWindowDeregister(comm, window));
    CHECK_EQ(FIND(pointer_function, "ncclWinGetUserPtr")(comm, window, &found),
             ncclInvalidArgument);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(a_window_tells_its_address)
{
    ranks_run(2, run_window, NULL);
}

/* On the heap, so that a sanitizer sees who reads beyond its end. */
static ncclConfig_t *config_of(size_t bytes)
{
    const ncclConfig_t whole = NCCL_CONFIG_INITIALIZER;
    ncclConfig_t *config = calloc(1, bytes);
    memcpy(config, &whole, bytes < sizeof(whole) ? bytes : sizeof(whole));
    config->size = bytes;
    return config;
}

static void run_configs(struct rank *rank)
{
    static const size_t lengths[] = {offsetof(ncclConfig_t, netName), sizeof(ncclConfig_t) + 64};
    const ncclComm_t comm = rank_start(rank);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ncclConfig_t *config = config_of(lengths[i]);
        ncclComm_t child;
        int count = 0;
        NCCL(ncclCommSplit(comm, 0, rank->rank, &child, config));
        free(config);
        NCCL(ncclCommCount(child, &count));
        CHECK_EQ(count, 2);
        NCCL(ncclCommDestroy(child));
    }
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(configs_of_an_older_and_of_a_newer_header)
{
    ranks_run(2, run_configs, NULL);
}
