/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports and cuGetProcAddress of the simulated driver. The libraries are opened by path, as a
 * program that is linked with none; they are named by SIM_LIBRARY, SIM_LIBRARY_12,
 * SIM_LIBRARY_12_4 and SIM_LIBRARY_13_5.
 */
#include "tools/simcuda/harness/test.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef cuGetProcAddress

typedef CUresult get_v1(const char *, void **, int, cuuint64_t);
typedef CUresult get_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s is not set; run this with meson test", name);
    return value;
}

static void *open_driver(const char *variable)
{
    void *driver = dlopen(environment(variable), RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", dlerror());
    return driver;
}

static FILE *open_data(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", environment("SIM_DATA"), name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        ms_test_fail(__FILE__, __LINE__, "cannot open %s", path);
    return file;
}

static void *look_up(void *driver, const char *name, int version, cuuint64_t flags)
{
    get_v2 *get = (get_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status;
    void *found = driver;
    CHECK_EQ(get(name, &found, version, flags, &status), CUDA_SUCCESS);
    CHECK_EQ(status == CU_GET_PROC_ADDRESS_SUCCESS, found != NULL);
    return found;
}

static void check_exports(const char *list, int wanted)
{
    void *driver = open_driver("SIM_LIBRARY");
    FILE *names = open_data(list);
    char name[256];
    int count = 0;
    while (fscanf(names, "%255s", name) == 1) {
        count++;
        if (dlsym(driver, name) == NULL)
            ms_test_fail(__FILE__, __LINE__, "%s is not exported", name);
    }
    fclose(names);
    CHECK_EQ(count, wanted);
}

MS_TEST(all_names_of_the_toolkit_are_exported)
{
    check_exports("cuda13-stub-exports.txt", 637);
}

/* Names of other headers than cuda.h, and of no header. */
MS_TEST(all_names_of_a_driver_are_exported)
{
    check_exports("driver-580-more-exports.txt", 37);
}

MS_TEST(names_that_ffmpeg_wants_are_exported)
{
    void *driver = open_driver("SIM_LIBRARY");
    FILE *names = open_data("ffmpeg-names.txt");
    char name[256];
    int missing = 0;
    while (fscanf(names, "%255s", name) == 1) {
        missing += dlsym(driver, name) == NULL;
    }
    fclose(names);
    CHECK_EQ(missing, 0);
}

/*
 * The expected export of one request of the runtime: the newest ABI whose suffix fits. Written down
 * apart from the entry table, from cudaTypedefs.h of CUDA 13.0: the names with several versions.
 */
struct expected {
    const char *name;
    int version;
    int flags;
    const char *symbol;
};
static const struct expected known[] = {
    {"cuMemAlloc", 2000, 0, "cuMemAlloc"},
    {"cuMemAlloc", 3010, 0, "cuMemAlloc"},
    {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
    {"cuMemAlloc", 13000, 0, "cuMemAlloc_v2"},
    {"cuMemAlloc", 13000, 2, "cuMemAlloc_v2"},
    {"cuMemcpyHtoD", 3020, 0, "cuMemcpyHtoD_v2"},
    {"cuMemcpyHtoD", 7000, 0, "cuMemcpyHtoD_v2"},
    {"cuMemcpyHtoD", 7000, 1, "cuMemcpyHtoD_v2"},
    {"cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"},
    {"cuLaunchKernel", 4000, 0, "cuLaunchKernel"},
    {"cuLaunchKernel", 7000, 2, "cuLaunchKernel_ptsz"},
    {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
    {"cuCtxGetDevice", 2000, 0, "cuCtxGetDevice"},
    {"cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"},
    {"cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"},
    {"cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"},
    {"cuCtxCreate", 2000, 0, "cuCtxCreate"},
    {"cuCtxCreate", 3020, 0, "cuCtxCreate_v2"},
    {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3"},
    {"cuCtxCreate", 12050, 0, "cuCtxCreate_v4"},
    {"cuEventElapsedTime", 2000, 0, "cuEventElapsedTime"},
    {"cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2"},
    {"cuMemAdvise", 8000, 0, "cuMemAdvise"},
    {"cuMemAdvise", 12020, 0, "cuMemAdvise_v2"},
    {"cuMemPrefetchAsync", 8000, 2, "cuMemPrefetchAsync_ptsz"},
    {"cuMemPrefetchAsync", 12020, 2, "cuMemPrefetchAsync_v2_ptsz"},
    {"cuMemcpyBatchAsync", 12080, 0, "cuMemcpyBatchAsync"},
    {"cuMemcpyBatchAsync", 13000, 0, "cuMemcpyBatchAsync_v2"},
    {"cuMemcpyBatchAsync", 13000, 2, "cuMemcpyBatchAsync_v2_ptsz"},
    {"cuIpcOpenMemHandle", 4010, 0, "cuIpcOpenMemHandle"},
    {"cuIpcOpenMemHandle", 11000, 0, "cuIpcOpenMemHandle_v2"},
    {"cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture"},
    {"cuStreamBeginCapture", 10010, 0, "cuStreamBeginCapture_v2"},
    {"cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"},
    {"cuStreamGetCaptureInfo", 10010, 0, "cuStreamGetCaptureInfo"},
    {"cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 12030, 0, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 12030, 2, "cuStreamGetCaptureInfo_v3_ptsz"},
    {"cuStreamUpdateCaptureDependencies", 11030, 0, "cuStreamUpdateCaptureDependencies"},
    {"cuStreamUpdateCaptureDependencies", 12030, 0, "cuStreamUpdateCaptureDependencies_v2"},
    {"cuGraphInstantiate", 10000, 0, "cuGraphInstantiate"},
    {"cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2"},
    {"cuGraphAddNode", 12020, 0, "cuGraphAddNode"},
    {"cuGraphAddNode", 12030, 0, "cuGraphAddNode_v2"},
    {"cuGraphAddKernelNode", 10000, 0, "cuGraphAddKernelNode"},
    {"cuGraphAddKernelNode", 12000, 0, "cuGraphAddKernelNode_v2"},
    {"cuStreamWaitValue32", 8000, 0, "cuStreamWaitValue32"},
    {"cuStreamWaitValue32", 11070, 2, "cuStreamWaitValue32_v2_ptsz"},
    {"cuStreamGetCtx", 12050, 2, "cuStreamGetCtx_v2_ptsz"},
};

MS_TEST(names_with_several_versions)
{
    void *driver = open_driver("SIM_LIBRARY");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct expected *row = &known[i];
        if (look_up(driver, row->name, row->version, (cuuint64_t)row->flags) !=
            dlsym(driver, row->symbol))
            ms_test_fail(__FILE__, __LINE__, "%s version %d flags %d is not %s", row->name,
                         row->version, row->flags, row->symbol);
    }
}

/* The export that carries this address. */
static const char *name_of(const void *address)
{
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_sname == NULL)
        return "?";
    return info.dli_sname;
}

MS_TEST(all_requests_of_the_runtime)
{
    void *driver = open_driver("SIM_LIBRARY");
    FILE *requests = open_data("cudart-13.0-getprocaddress-names.txt");
    char line[256];
    int count = 0;
    while (fgets(line, sizeof line, requests) != NULL) {
        char name[128] = "";
        int version = -1;
        int flags = -1;
        if (sscanf(line, "%127s ver=%d flags=%d", name, &version, &flags) != 3) {
            CHECK(sscanf(line, " ver=%d flags=%d", &version, &flags) == 2);
            name[0] = '\0';
        }
        count++;
        const void *found = look_up(driver, name, version, (cuuint64_t)flags);
        if (found == NULL && name[0] == '\0')
            continue;
        if (found == NULL)
            ms_test_fail(__FILE__, __LINE__, "%s version %d: not found", name, version);
        const char *symbol = name_of(found);
        if (strncmp(symbol, name, strlen(name)) != 0)
            ms_test_fail(__FILE__, __LINE__, "%s version %d gives %s", name, version, symbol);
        if (flags == 2)
            CHECK(strstr(symbol, "_ptsz") != NULL || strstr(symbol, "_ptds") != NULL);
        else
            CHECK(strstr(symbol, "_ptsz") == NULL && strstr(symbol, "_ptds") == NULL);
    }
    fclose(requests);
    CHECK_EQ(count, 440);
}

MS_TEST(failed_lookups)
{
    void *driver = open_driver("SIM_LIBRARY");
    get_v1 *old = (get_v1 *)dlsym(driver, "cuGetProcAddress");
    get_v2 *get = (get_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status;
    void *found = &found;

    CHECK_EQ(get("", &found, 0, 0, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(found == NULL);
    found = &found;
    CHECK_EQ(get("cuMemAlloc_v2", &found, 13000, 0, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(found == NULL);
    found = &found;
    CHECK_EQ(get("cuMemCreate", &found, 10010, 0, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(found == NULL);
    found = &found;
    /* The name has a per-thread twin, which is of a later version. */
    CHECK_EQ(get("cuMemcpyHtoD", &found, 3020, 2, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(found == NULL);
    CHECK_EQ(get("cuInit", &found, 13010, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(get("cuInit", &found, 13000, 4, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(get("cuInit", NULL, 13000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(get(NULL, &found, 13000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(get("cuInit", &found, 13000, 0, NULL), CUDA_SUCCESS);
    CHECK(found == dlsym(driver, "cuInit"));

    found = &found;
    CHECK_EQ(old("cuNothing", &found, 13000, 0), CUDA_ERROR_NOT_FOUND);
    CHECK(found != NULL); /* as it was */
    CHECK_EQ(old("cuGetProcAddress", &found, 11030, 0), CUDA_SUCCESS);
    CHECK(found == (void *)old);
}

MS_TEST(calls_that_nobody_simulates_are_refused)
{
    void *driver = open_driver("SIM_LIBRARY");
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    CUresult (*refused)(void) = (CUresult(*)(void))dlsym(driver, "cuCheckpointProcessLock");
    CHECK_EQ(refused(), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQ(init(0), CUDA_SUCCESS);
    CHECK_EQ(refused(), CUDA_ERROR_NOT_SUPPORTED);
}

static void check_profile_12(void *driver)
{
    int (*version)(int *) = (int (*)(int *))dlsym(driver, "cuDriverGetVersion");
    int seen = 0;
    CHECK_EQ(version(&seen), 0);
    CHECK_EQ(seen, 12090);
    CHECK(look_up(driver, "cuCtxGetDevice", 12090, 0) == dlsym(driver, "cuCtxGetDevice"));
    CHECK(look_up(driver, "cuMemGetMemPool", 12090, 0) == NULL);
    CHECK(look_up(driver, "cuMemcpyBatchAsync", 12090, 0) == dlsym(driver, "cuMemcpyBatchAsync"));
}

MS_TEST(the_older_library)
{
    void *driver = open_driver("SIM_LIBRARY_12");
    CHECK(dlsym(driver, "cuCtxGetDevice_v2") == NULL);
    CHECK(dlsym(driver, "cuCtxSynchronize_v2") == NULL);
    CHECK(dlsym(driver, "cuMemcpyBatchAsync_v2_ptsz") == NULL);
    check_profile_12(driver);
}

MS_TEST(the_older_profile_by_environment)
{
    setenv("SIMCUDA_PROFILE", "12", 1);
    check_profile_12(open_driver("SIM_LIBRARY"));
}

static int version_of(void *driver)
{
    int (*version)(int *) = (int (*)(int *))dlsym(driver, "cuDriverGetVersion");
    int seen = 0;
    CHECK_EQ(version(&seen), 0);
    return seen;
}

/* cuCtxRecordEvent came with 12.5. */
MS_TEST(the_oldest_library)
{
    void *driver = open_driver("SIM_LIBRARY_12_4");
    CHECK_EQ(version_of(driver), 12040);
    CHECK(dlsym(driver, "cuCtxRecordEvent") == NULL);
    CHECK(dlsym(driver, "cuMemcpyBatchAsync") == NULL);
    CHECK(look_up(driver, "cuCtxRecordEvent", 12040, 0) == NULL);
    CHECK(look_up(driver, "cuMemCreate", 12040, 0) == dlsym(driver, "cuMemCreate"));
}

MS_TEST(the_oldest_profile_by_environment)
{
    setenv("SIMCUDA_PROFILE", "12.4", 1);
    void *driver = open_driver("SIM_LIBRARY");
    CHECK_EQ(version_of(driver), 12040);
    CHECK(look_up(driver, "cuCtxRecordEvent", 12040, 0) == NULL);
}

MS_TEST(an_older_library_stays_older)
{
    setenv("SIMCUDA_PROFILE", "13.1", 1);
    CHECK_EQ(version_of(open_driver("SIM_LIBRARY_12")), 12090);
}

MS_TEST(the_newer_profile_by_environment)
{
    setenv("SIMCUDA_PROFILE", "13.1", 1);
    void *driver = open_driver("SIM_LIBRARY");
    CHECK_EQ(version_of(driver), 13010);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    CHECK_EQ(init(0), CUDA_SUCCESS);
    CUresult (*added)(void) = (CUresult(*)(void))look_up(driver, "cuGraphGetId", 13010, 0);
    CHECK_EQ(added(), CUDA_ERROR_NOT_SUPPORTED);
    CHECK(look_up(driver, "cuGraphGetId", 13000, 0) == NULL);
    CHECK(look_up(driver, "cuMulticastBindMem", 13000, 0) == dlsym(driver, "cuMulticastBindMem"));
    CHECK(look_up(driver, "cuMulticastBindMem", 13010, 0) != dlsym(driver, "cuMulticastBindMem"));
}

/* A symbol that a version brought, and not the version before; profile13.5/ exports all. */
static void check_version(const char *profile, int version, const char *base, const char *symbol)
{
    setenv("SIMCUDA_PROFILE", profile, 1);
    void *driver = open_driver("SIM_LIBRARY_13_5");
    CHECK_EQ(version_of(driver), version);
    CHECK(look_up(driver, base, version, 0) == dlsym(driver, symbol));
    CHECK(look_up(driver, base, version - 10, 0) != dlsym(driver, symbol));
}

MS_TEST(the_driver_of_13_1)
{
    check_version("13.1", 13010, "cuLaunchHostFunc", "cuLaunchHostFunc_v2");
}

MS_TEST(the_driver_of_13_2)
{
    check_version("13.2", 13020, "cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync");
}

MS_TEST(the_driver_of_13_4)
{
    check_version("13.4", 13040, "cuGraphAddNode", "cuGraphAddNode_v3");
}

MS_TEST(the_newest_library)
{
    void *driver = open_driver("SIM_LIBRARY_13_5");
    FILE *names = open_data("cuda-13.5-added.txt");
    char name[256];
    CHECK_EQ(version_of(driver), 13050);
    while (fscanf(names, "%255s", name) == 1) {
        if (dlsym(driver, name) == NULL || dlsym(open_driver("SIM_LIBRARY"), name) != NULL)
            ms_test_fail(__FILE__, __LINE__, "%s is not exported, or by the driver of 13.0", name);
    }
    fclose(names);
}

MS_TEST(the_newest_functions_are_not_in_older_drivers)
{
    CHECK(look_up(open_driver("SIM_LIBRARY"), "cuGraphGetId", 13000, 0) == NULL);
}
