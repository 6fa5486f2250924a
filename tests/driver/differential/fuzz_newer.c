/* SPDX-License-Identifier: Apache-2.0 */
/* Functions as cuGetProcAddress gives them to programs that were built for drivers of 13.1 and
 * later, and called as these programs call them. */
#include "tests/driver/differential/fuzz.h"

enum { NEW_ABIS = 13010, NUMBERS = 3 };

/* What 13.1 made of cuLaunchHostFunc; an older ABI does not see the last argument. */
typedef CUresult launch_host_function(CUstream stream, CUhostFn function, void *data,
                                      unsigned mode);

static int driver_version(void)
{
    int version = 0;
    CALL(cuDriverGetVersion)(&version);
    return version;
}

/* The function of that name; NULL: the driver has none. */
static void *newest(const char *base)
{
    static const int versions[] = {NEW_ABIS, 13020, 13040};
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *found = NULL;
    const int version = versions[fuzz_below(sizeof(versions) / sizeof(versions[0]))];
    const cuuint64_t flags = fuzz_one_in(2) ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                            : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    fuzz_say("  %s of version %d\n", base, version);
    SEE(CALL(cuGetProcAddress_v2)(base, &found, version, flags, &status));
    fuzz_see((uint64_t)status);
    fuzz_see(found != NULL);
    return found;
}

static void CUDA_CB count(void *number)
{
    ++*(int *)number;
}

static void host_functions(void)
{
    int number = 0;
    fuzz_wait();
    launch_host_function *launch = (launch_host_function *)newest("cuLaunchHostFunc");
    for (unsigned mode = 0; launch != NULL && mode < NUMBERS; mode++) {
        /* An unknown mode is refused where there are modes. */
        if (mode < 2 || driver_version() >= NEW_ABIS)
            SEE(launch(CU_STREAM_PER_THREAD, count, &number, mode));
    }
    SEE(CALL(cuStreamSynchronize)(CU_STREAM_PER_THREAD));
    fuzz_see((uint64_t)number);
}

/* Functions that the newer versions left as they were. */
static void copies(void)
{
    const struct fuzz_block *block = fuzz_new_block(4096);
    const CUstream stream = fuzz_stream(false) == NULL ? CU_STREAM_LEGACY : fuzz_stream(false);
    __typeof__(&cuMemcpyHtoDAsync_v2) copy = newest("cuMemcpyHtoDAsync");
    __typeof__(&cuMemsetD8Async) set = newest("cuMemsetD8Async");
    __typeof__(&cuMemcpyAsync) copy_any = newest("cuMemcpyAsync");
    if (copy == NULL || set == NULL || copy_any == NULL)
        return;
    SEE(copy(block->at, fuzz_source(2048), 1 + fuzz_below(2048), stream));
    SEE(set(block->at + 1024, 9, 1 + fuzz_below(1024), stream));
    SEE(copy_any(block->at + 3072, block->at + fuzz_below(1024), 1 + fuzz_below(1024), stream));
    fuzz_read(block->at, block->bytes);
}

const struct fuzz_operation fuzz_newer[] = {
    {"host functions of a newer ABI", host_functions, 2},
    {"copies of a newer version", copies, 2},
    {NULL, NULL, 0},
};
