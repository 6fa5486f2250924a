/* SPDX-License-Identifier: Apache-2.0 */
/* Programs built with a later NCCL find its functions, and pass configs of another length. */
#include "tools/simcuda/tests/nccl/ranks.h"

#include <dlfcn.h>
#include <stdlib.h>

/* Types of functions that an older header does not declare. */
typedef ncclResult_t suspend_function(ncclComm_t comm, int flags);
typedef ncclResult_t resume_function(ncclComm_t comm);
typedef ncclResult_t stats_function(ncclComm_t comm, int stat, uint64_t *value);
typedef ncclResult_t pointer_function(ncclComm_t comm, ncclWindow_t window, void **address);
/* Collectives with a configuration: of all ranks, with an operator, with a root, with both. */
typedef ncclResult_t all_function(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, CUstream stream, const void *config);
typedef ncclResult_t op_function(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, CUstream stream,
                                 const void *config);
typedef ncclResult_t root_function(const void *from, void *to, size_t count, ncclDataType_t type,
                                   int root, ncclComm_t comm, CUstream stream, const void *config);
typedef ncclResult_t op_root_function(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream,
                                      const void *config);

typedef ncclResult_t peer_function(ncclWindow_t window, size_t offset, int peer, void **address);
typedef ncclResult_t multimem_function(ncclWindow_t window, size_t offset, void **address);

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

/* libtorch_cuda.so of PyTorch 2.15 imports these besides the names of 2.28.9. */
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

/* A rank gets the address of its own memory, none of others', and none of all together. */
static void check_pointers(const struct rank *rank, ncclWindow_t window, char *memory)
{
    void *found = &found;
    multimem_function *multimem = FIND(multimem_function, "ncclGetLsaMultimemDevicePointer");
    peer_function *of_peer = FIND(peer_function, "ncclGetPeerDevicePointer");
    NCCL(of_peer(window, 77, rank->rank, &found));
    CHECK(found == memory + 77);
    NCCL(of_peer(window, 77, 1 - rank->rank, &found));
    CHECK(found == NULL);
    CHECK_EQ(of_peer(window, 4096, 0, &found), ncclInvalidArgument);
    CHECK_EQ(of_peer(window, 0, 2, &found), ncclInvalidArgument);
    CHECK_EQ(of_peer(NULL, 0, 0, &found), ncclInvalidArgument);
    found = memory;
    NCCL(multimem(window, 77, &found));
    CHECK(found == NULL);
    CHECK_EQ(multimem(NULL, 77, &found), ncclInvalidArgument);
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
    check_pointers(rank, window, memory);
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

/* Each of two ranks has {10, 11} or {20, 21}, in memory of its own for each collective. */
struct buffers {
    CUdeviceptr from, to;
};

static struct buffers buffers_of(const struct rank *rank)
{
    const uint32_t own[] = {10 * (uint32_t)(rank->rank + 1), 10 * (uint32_t)(rank->rank + 1) + 1};
    const uint32_t empty[4] = {0};
    return (struct buffers){device_with(own, sizeof(own)), device_with(empty, sizeof(empty))};
}

static void expect(const struct buffers *buffers, CUstream stream, const uint32_t *wanted)
{
    sync_stream(stream);
    device_expect(buffers->to, wanted, 4 * sizeof(*wanted));
}

#define WORDS(...) ((const uint32_t[4]){__VA_ARGS__})
#define CONFIGURED(type, name, count, ...)                                                 \
    do {                                                                                   \
        buffers = buffers_of(rank);                                                        \
        NCCL(FIND(type, name)((void *)buffers.from, (void *)buffers.to, count, ncclUint32, \
                              __VA_ARGS__, comm, stream, config));                         \
    } while (0)

/* As in nccl.h of 2.32.3, as far as anything is looked at. */
struct coll_config {
    size_t size;
    unsigned int magic, version;
    char rest[256];
};

static void run_configured(struct rank *rank, const struct coll_config *config)
{
    struct buffers buffers;
    const ncclComm_t comm = rank_start(rank);
    const CUstream stream = rank_stream();
    const bool is_first = rank->rank == 0;
    CONFIGURED(op_function, "ncclAllReduceConfig", 2, ncclSum);
    expect(&buffers, stream, WORDS(30, 32));
    CONFIGURED(op_function, "ncclReduceScatterConfig", 1, ncclSum);
    expect(&buffers, stream, is_first ? WORDS(30) : WORDS(32));
    CONFIGURED(root_function, "ncclBroadcastConfig", 2, 1);
    expect(&buffers, stream, WORDS(20, 21));
    CONFIGURED(op_root_function, "ncclReduceConfig", 2, ncclMax, 0);
    expect(&buffers, stream, is_first ? WORDS(20, 21) : WORDS(0));
    CONFIGURED(root_function, "ncclGatherConfig", 2, 1);
    expect(&buffers, stream, is_first ? WORDS(0) : WORDS(10, 11, 20, 21));
    CONFIGURED(root_function, "ncclScatterConfig", 1, 0);
    expect(&buffers, stream, is_first ? WORDS(10) : WORDS(11));
    buffers = buffers_of(rank);
    NCCL(FIND(all_function, "ncclAllGatherConfig")((void *)buffers.from, (void *)buffers.to, 2,
                                                   ncclUint32, comm, stream, config));
    expect(&buffers, stream, WORDS(10, 11, 20, 21));
    buffers = buffers_of(rank);
    NCCL(FIND(all_function, "ncclAlltoAllConfig")((void *)buffers.from, (void *)buffers.to, 1,
                                                  ncclUint32, comm, stream, config));
    expect(&buffers, stream, is_first ? WORDS(10, 20) : WORDS(11, 21));
    NCCL(ncclCommDestroy(comm));
}

static void run_plain(struct rank *rank)
{
    run_configured(rank, NULL);
}

static void run_with_config(struct rank *rank)
{
    struct coll_config config = {sizeof(config), 0xcafebeef, 23203, {0}};
    run_configured(rank, &config);
}

static void run_without_magic(struct rank *rank)
{
    const struct coll_config config = {.size = sizeof(config)};
    const ncclComm_t comm = rank_start(rank);
    const struct buffers buffers = buffers_of(rank);
    CHECK_EQ(FIND(op_function, "ncclAllReduceConfig")((void *)buffers.from, (void *)buffers.to, 2,
                                                      ncclUint32, ncclSum, comm, NULL, &config),
             ncclInvalidArgument);
    NCCL(ncclCommDestroy(comm));
}

MS_TEST(collectives_with_a_configuration_are_the_collectives)
{
    ranks_run(2, run_plain, NULL);
    ranks_run(2, run_with_config, NULL);
}

MS_TEST(a_configuration_that_is_not_initialised_is_refused)
{
    ranks_run(2, run_without_magic, NULL);
}
