/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor --name: prints the name of the first real GPU; status 1 when there is none.
 * monitor: prints "ready", samples the device's memory in use every millisecond until its standard
 * input ends, and prints the most that was in use beyond the start, in bytes. The one way to see
 * another process's device memory without its help.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

static __typeof__(&cuInit) init;
static __typeof__(&cuDeviceGetName) get_name;
static __typeof__(&cuDevicePrimaryCtxRetain) retain;
static __typeof__(&cuCtxSetCurrent) set_current;
static __typeof__(&cuMemGetInfo_v2) get_info;

static int open_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        return 0;
    init = (__typeof__(init))dlsym(driver, "cuInit");
    get_name = (__typeof__(get_name))dlsym(driver, "cuDeviceGetName");
    retain = (__typeof__(retain))dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = (__typeof__(set_current))dlsym(driver, "cuCtxSetCurrent");
    get_info = (__typeof__(get_info))dlsym(driver, "cuMemGetInfo_v2");
    return init != NULL && get_name != NULL && retain != NULL && set_current != NULL &&
           get_info != NULL && init(0) == CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
    char name[256];
    CUcontext context;
    size_t start, now, total, least;
    if (!open_driver() || get_name(name, sizeof(name), 0) != CUDA_SUCCESS)
        return 1;
    if (argc == 2 && strcmp(argv[1], "--name") == 0) {
        puts(name);
        return 0;
    }
    if (retain(&context, 0) != CUDA_SUCCESS || set_current(context) != CUDA_SUCCESS ||
        get_info(&start, &total) != CUDA_SUCCESS)
        return 1;
    least = start;
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0) {
        if (get_info(&now, &total) == CUDA_SUCCESS && now < least)
            least = now;
    }
    printf("%zu\n", start - least);
    return 0;
}
