/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in: what dlsym and cuGetProcAddress answer under the shim. Not linked with a driver. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

static void *driver(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(handle != NULL);
    return handle;
}

/* "shim", "driver" or the file that holds the address. */
static const char *home_of(const void *address)
{
    Dl_info info;
    CHECK(address != NULL && dladdr(address, &info) != 0);
    if (strstr(info.dli_fname, "libmetashard") != NULL)
        return "shim";
    return strstr(info.dli_fname, "libcuda.so") != NULL ? "driver" : info.dli_fname;
}

static void check_home(const void *address, const char *wanted)
{
    if (strcmp(home_of(address), wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "the address is in %s, expected %s", home_of(address),
                     wanted);
}

static bool is_off(void)
{
    const char *value = getenv("METASHARD");
    return value != NULL && strcmp(value, "off") == 0;
}

static const char *shim_or_driver(void)
{
    return is_off() ? "driver" : "shim";
}

MS_TEST(dlsym_replaces_what_the_table_wraps)
{
    void *handle = driver();
    check_home(dlsym(handle, "cuMemAlloc_v2"), shim_or_driver());
    check_home(dlsym(handle, "cuGetProcAddress_v2"), shim_or_driver());
    check_home(dlsym(handle, "cuLaunchKernel"), shim_or_driver());
    check_home(dlsym(handle, "cuLaunchKernel_ptsz"), shim_or_driver());
    check_home(dlsym(handle, "cuDeviceGetCount"), "driver");
    check_home(dlsym(handle, "cuGetExportTable"), "driver");
    check_home(dlsym(handle, "cuMemAlloc"), "driver"); /* the ABI with 32-bit addresses */
}

MS_TEST(dlsym_leaves_other_names_alone)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(dlsym(libc, "strlen") != NULL);
    CHECK(strstr(home_of(dlsym(libc, "strlen")), "libc.so") != NULL);
    CHECK(dlsym(libc, "cuMemAlloc_v2") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlsym(driver(), "cuNoSuchFunction") == NULL);
    CHECK(strstr(dlerror(), "cuNoSuchFunction") != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "curl_easy_init") == NULL);
}

MS_TEST(a_probe_for_cuda_finds_none_where_there_is_none)
{
    CHECK(dlsym(RTLD_DEFAULT, "cuInit") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlsym(dlopen(NULL, RTLD_NOW), "cuInit") == NULL);
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);
}

MS_TEST(global_searches_find_the_wrapper_once_the_driver_is_loaded)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(handle != NULL);
    check_home(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), "shim");
    CHECK(dlsym(RTLD_DEFAULT, "cuInit") != NULL);
}

typedef __typeof__(&cuGetProcAddress_v2) resolver;
typedef __typeof__(&cuGetProcAddress) old_resolver;

static void *ask(resolver resolve, const char *name, int version, cuuint64_t flags)
{
    void *found = (void *)1;
    CUdriverProcAddressQueryResult status;
    CHECK_EQ(resolve(name, &found, version, flags, &status), CUDA_SUCCESS);
    CHECK_EQ(status == CU_GET_PROC_ADDRESS_SUCCESS, found != NULL);
    return found;
}

MS_TEST(the_resolver_is_wrapped_again_and_again)
{
    void *address = dlsym(driver(), "cuGetProcAddress_v2");
    for (int depth = 0; depth < 3; depth++) {
        check_home(address, shim_or_driver());
        check_home(ask((resolver)address, "cuMemAlloc", 3020, 0), shim_or_driver());
        address = ask((resolver)address, "cuGetProcAddress", 12000, 0);
    }
    void *old = ask((resolver)address, "cuGetProcAddress", 11030, 0);
    CHECK(old != address);
    check_home(old, shim_or_driver());
    void *found = NULL;
    CHECK_EQ(((old_resolver)old)("cuMemFree", &found, 12000, 0), CUDA_SUCCESS);
    check_home(found, shim_or_driver());
}

MS_TEST(the_resolver_keeps_abis_apart)
{
    void *handle = driver();
    const resolver resolve = (resolver)dlsym(handle, "cuGetProcAddress_v2");
    CHECK(ask(resolve, "", 0, 0) == NULL);
    CHECK(ask(resolve, "cuNoSuchFunction", 13000, 0) == NULL);
    check_home(ask(resolve, "cuMemAlloc", 2000, 0), "driver");
    CHECK(ask(resolve, "cuMemAlloc", 3020, 0) == dlsym(handle, "cuMemAlloc_v2"));
    CHECK(ask(resolve, "cuMemcpyHtoD", 7000, 0) == dlsym(handle, "cuMemcpyHtoD_v2"));
    CHECK(ask(resolve, "cuMemcpyHtoD", 7000, 2) == dlsym(handle, "cuMemcpyHtoD_v2_ptds"));
    CHECK(ask(resolve, "cuLaunchKernel", 7000, 2) == dlsym(handle, "cuLaunchKernel_ptsz"));
    CHECK(ask(resolve, "cuStreamBeginCapture", 10000, 0) == dlsym(handle, "cuStreamBeginCapture"));
    CHECK(ask(resolve, "cuStreamBeginCapture", 13000, 0) ==
          dlsym(handle, "cuStreamBeginCapture_v2"));
}

/* Under the shim a program finds no function that the driver does not find, by the same answers;
 * and no function of the driver gets past the shim that way. */
MS_TEST(the_resolver_finds_no_more_than_the_driver)
{
    void *handle = driver();
    void *untouched = &untouched;
    const resolver resolve = (resolver)dlsym(handle, "cuGetProcAddress_v2");
    const old_resolver old = (old_resolver)dlsym(handle, "cuGetProcAddress");
    CHECK(ask(resolve, "cuMemAlloc_v2", 13000, 0) == NULL);
    CHECK(ask(resolve, "cuMemcpyHtoD_v2_ptds", 13000, 2) == NULL);
    CHECK(ask(resolve, "cuMemCreate", 10010, 0) == NULL);
    CHECK(ask(resolve, "cuMemcpyHtoD", 3020, 2) == NULL);
    check_home(ask(resolve, "cuMemcpyHtoD", 3020, 1), shim_or_driver());
    check_home(ask(resolve, "cuMemAlloc", 3020, 2), shim_or_driver()); /* it has no twin */
    CHECK_EQ(old("cuMemAlloc_v2", &untouched, 13000, 0), CUDA_ERROR_NOT_FOUND);
    CHECK(untouched == &untouched);
}

MS_TEST(a_function_of_another_library_is_left_alone)
{
    Dl_info info;
    CHECK(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit") != NULL);
    void *handle = dlopen(getenv("CHAIN_LIBRARY"), RTLD_NOW);
    void *found = dlsym(handle, "cuChain");
    CHECK(found != NULL && dladdr(found, &info) != 0);
    CHECK(strstr(info.dli_fname, "chain") != NULL);
}

/* The library under test asks past itself; see chain.c. */
MS_TEST(searches_behind_the_caller_see_the_real_caller)
{
    void *handle = dlopen(getenv("CHAIN_LIBRARY"), RTLD_NOW);
    CHECK(handle != NULL);
    int (*count)(void) = (int (*)(void))dlsym(handle, "chain_count");
    CHECK(count != NULL);
    CHECK_EQ(count(), 1); /* itself, and nothing behind it */
}
