/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points of modules and libraries; image.c does their work. */
#include "tools/simcuda/driver/module.h"

static CUresult open_module(const char *path, const void *data, bool is_library, void **handle_out)
{
    CUdevice device;
    if (handle_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = is_library ? CUDA_SUCCESS : sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_module *module;
    result = path != NULL ? sim_module_open_file(path, is_library, &module)
                          : sim_module_open_data(data, is_library, &module);
    if (result == CUDA_SUCCESS)
        *handle_out = module;
    return result;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    SIM_ENTER(cuModuleLoad);
    if (fname == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return open_module(fname, NULL, false, (void **)module);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    SIM_ENTER(cuModuleLoadData);
    return open_module(NULL, image, false, (void **)module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                            CUjit_option *options, void **optionValues)
{
    SIM_ENTER(cuModuleLoadDataEx);
    if (numOptions > 0 && (options == NULL || optionValues == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return open_module(NULL, image, false, (void **)module);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    SIM_ENTER(cuModuleLoadFatBinary);
    return open_module(NULL, fatCubin, false, (void **)module);
}

/* Kernels that are queued keep what they need. */
CUresult cuModuleUnload(CUmodule hmod)
{
    SIM_ENTER(cuModuleUnload);
    return sim_module_close(hmod, false);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SIM_ENTER(cuModuleGetLoadingMode);
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

static CUresult get_function(const void *handle, bool is_library, const char *name,
                             void **function_out)
{
    if (function_out == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim_lock);
    struct sim_module *module = sim_module_find_locked(handle, is_library);
    if (module != NULL) {
        struct sim_function *function;
        result = sim_module_function_locked(module, name, &function);
        if (result == CUDA_SUCCESS)
            *function_out = function;
        if (result == CUDA_SUCCESS && !is_library) /* a kernel is loaded when it is used */
            function->is_loaded = true;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    SIM_ENTER(cuModuleGetFunction);
    return get_function(hmod, false, name, (void **)hfunc);
}

static CUresult list_functions(const void *handle, bool is_library, unsigned room, void **handles,
                               unsigned *count_out)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim_lock);
    struct sim_module *module = sim_module_find_locked(handle, is_library);
    if (module != NULL)
        result = sim_module_list_locked(module, room, handles, count_out);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    SIM_ENTER(cuModuleGetFunctionCount);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return list_functions(mod, false, 0, NULL, count);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    SIM_ENTER(cuModuleEnumerateFunctions);
    unsigned count;
    if (functions == NULL || numFunctions == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return list_functions(mod, false, numFunctions, (void **)functions, &count);
}

static CUresult get_global(const void *handle, bool is_library, const char *name,
                           CUdeviceptr *address_out, size_t *bytes_out)
{
    CUdevice device;
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    return sim_module_global(handle, is_library, name, address_out, bytes_out);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    SIM_ENTER(cuModuleGetGlobal_v2);
    return get_global(hmod, false, name, dptr, bytes);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                           void **jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    SIM_ENTER(cuLibraryLoadData);
    if (numJitOptions > 0 && (jitOptions == NULL || jitOptionsValues == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    if (numLibraryOptions > 0 && (libraryOptions == NULL || libraryOptionValues == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return open_module(NULL, code, true, (void **)library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    SIM_ENTER(cuLibraryLoadFromFile);
    if (fileName == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (numJitOptions > 0 && (jitOptions == NULL || jitOptionsValues == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    if (numLibraryOptions > 0 && (libraryOptions == NULL || libraryOptionValues == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return open_module(fileName, NULL, true, (void **)library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    SIM_ENTER(cuLibraryUnload);
    return sim_module_close(library, true);
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    SIM_ENTER(cuLibraryGetKernel);
    return get_function(library, true, name, (void **)pKernel);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    SIM_ENTER(cuLibraryGetKernelCount);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return list_functions(lib, true, 0, NULL, count);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    SIM_ENTER(cuLibraryEnumerateKernels);
    unsigned count;
    if (kernels == NULL || numKernels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return list_functions(lib, true, numKernels, (void **)kernels, &count);
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    SIM_ENTER(cuLibraryGetModule);
    CUdevice device;
    if (pMod == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim_lock);
    struct sim_module *module = sim_module_find_locked(library, true);
    if (module != NULL)
        *pMod = (CUmodule)sim_module_open_inner_locked(module);
    pthread_mutex_unlock(&sim_lock);
    return module != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    SIM_ENTER(cuLibraryGetGlobal);
    return get_global(library, true, name, dptr, bytes);
}

/* Found whether or not it is managed. */
CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    SIM_ENTER(cuLibraryGetManaged);
    return get_global(library, true, name, dptr, bytes);
}

/* No kernel library has unified functions. */

CUresult cuLibraryGetUnifiedFunction(void **fptr, CUlibrary library, const char *symbol)
{
    SIM_ENTER(cuLibraryGetUnifiedFunction);
    (void)fptr, (void)library, (void)symbol;
    return CUDA_ERROR_NOT_FOUND;
}
