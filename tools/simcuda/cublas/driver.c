/* SPDX-License-Identifier: Apache-2.0 */
/* Reaching the driver: as cuBLAS, whose CUDA runtime asks cuGetProcAddress for everything. */
#include "tools/simcuda/cublas/product.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static struct {
    __typeof__(cuLibraryLoadData) *cuLibraryLoadData;
    __typeof__(cuLibraryGetKernel) *cuLibraryGetKernel;
    __typeof__(cuKernelGetFunction) *cuKernelGetFunction;
    __typeof__(cuLaunchKernel) *cuLaunchKernel;
} driver; /* complete when start has succeeded */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUkernel kernel; /* NULL: there is none */

typedef CUresult resolver(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static bool find_functions(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    resolver *get = library != NULL ? (resolver *)dlsym(library, "cuGetProcAddress_v2") : NULL;
    const struct {
        const char *name;
        int version;
        void **address;
    } functions[] = {{"cuLibraryLoadData", 12000, (void **)&driver.cuLibraryLoadData},
                     {"cuLibraryGetKernel", 12000, (void **)&driver.cuLibraryGetKernel},
                     {"cuKernelGetFunction", 12000, (void **)&driver.cuKernelGetFunction},
                     {"cuLaunchKernel", 7000, (void **)&driver.cuLaunchKernel}};
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        CUdriverProcAddressQueryResult status;
        if (get == NULL ||
            get(functions[i].name, functions[i].address, functions[i].version,
                CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS ||
            *functions[i].address == NULL) {
            fprintf(stderr, "cuBLAS stand-in: the driver has no %s\n", functions[i].name);
            return false;
        }
    }
    return true;
}

/* This library is the kernel's library, too. */
static void start(void)
{
    Dl_info here;
    char image[4096];
    CUlibrary library;
    if (!find_functions() || dladdr(&once, &here) == 0)
        return;
    snprintf(image, sizeof(image), "SIMCUDA:%s", here.dli_fname);
    CUresult result = driver.cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (result == CUDA_SUCCESS)
        result = driver.cuLibraryGetKernel(&kernel, library, "simcublas_product");
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "cuBLAS stand-in: no kernel in %s: CUDA error %d\n", image, (int)result);
}

static unsigned tiles(int64_t elements)
{
    const int64_t count = (elements + 127) / 128;
    return (unsigned)(count < 65535 ? count : 65535);
}

cublasStatus_t simcublas_enqueue(const struct simcublas_product *product, cudaStream_t stream)
{
    CUfunction function;
    if (product->m == 0 || product->n == 0 || product->batches == 0)
        return CUBLAS_STATUS_SUCCESS;
    pthread_once(&once, start);
    if (kernel == NULL)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    CUresult result = driver.cuKernelGetFunction(&function, kernel);
    if (result == CUDA_SUCCESS) {
        void *args[] = {(void *)product};
        result = driver.cuLaunchKernel(function, tiles(product->m), tiles(product->n), 1, 256, 1, 1,
                                       0, (CUstream)stream, args, NULL);
    }
    return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
