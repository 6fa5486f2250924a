/* SPDX-License-Identifier: Apache-2.0 */
/* Queries and settings of a CUfunction or CUkernel; occupancy. */
#include "tools/simcuda/driver/module.h"

/* As device.c answers for these attributes. */
enum { MAX_BLOCKS_PER_SM = 32, MAX_THREADS_PER_SM = 2048, SHARED_BYTES_PER_SM = 233472 };
enum { SM_COUNT = 4, WARP_THREADS = 32, PORTABLE_CLUSTER_BLOCKS = 8 };

/* Runs `answer` on the live function of that handle, with sim_lock held. */
typedef CUresult answer_locked(struct sim_function *function, void *argument);

static CUresult ask(const void *handle, answer_locked *answer, void *argument)
{
    if (handle == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim_lock);
    struct sim_function *function = sim_function_find_locked(handle);
    const CUresult result =
        function == NULL ? CUDA_ERROR_INVALID_HANDLE : answer(function, argument);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* The same for a CUfunction; a CUkernel is none. */
static CUresult ask_function(CUfunction handle, answer_locked *answer, void *argument)
{
    if (handle == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim_lock);
    struct sim_function *function = sim_function_find_locked(handle);
    const CUresult result = function == NULL || function->module->is_library
                                ? CUDA_ERROR_INVALID_HANDLE
                                : answer(function, argument);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

struct param_place {
    size_t index, offset, size;
};

static CUresult find_param_locked(struct sim_function *function, void *argument)
{
    struct param_place *place = argument;
    if (function->params == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (place->index >= function->params_count)
        return CUDA_ERROR_INVALID_VALUE;
    place->offset = function->params[place->index].offset;
    place->size = function->params[place->index].size;
    return CUDA_SUCCESS;
}

static CUresult answer_param(CUresult result, const struct param_place *place, size_t *offset_out,
                             size_t *size_out)
{
    if (result != CUDA_SUCCESS)
        return result;
    *offset_out = place->offset;
    if (size_out != NULL)
        *size_out = place->size;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                            size_t *paramSize)
{
    SIM_ENTER(cuFuncGetParamInfo);
    struct param_place place = {.index = paramIndex};
    return paramOffset == NULL ? CUDA_ERROR_INVALID_VALUE
                               : answer_param(ask_function(func, find_param_locked, &place), &place,
                                              paramOffset, paramSize);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                              size_t *paramSize)
{
    SIM_ENTER(cuKernelGetParamInfo);
    struct param_place place = {.index = paramIndex};
    return paramOffset == NULL ? CUDA_ERROR_INVALID_VALUE
                               : answer_param(ask(kernel, find_param_locked, &place), &place,
                                              paramOffset, paramSize);
}

static CUresult get_name_locked(struct sim_function *function, void *argument)
{
    *(const char **)argument = function->name;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetName);
    return name == NULL || hfunc == NULL ? CUDA_ERROR_INVALID_VALUE
                                         : ask_function(hfunc, get_name_locked, name);
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    SIM_ENTER(cuKernelGetName);
    return name == NULL || hfunc == NULL ? CUDA_ERROR_INVALID_VALUE
                                         : ask(hfunc, get_name_locked, name);
}

static CUresult get_module_locked(struct sim_function *function, void *argument)
{
    struct sim_module *module = function->module;
    if (module->is_library)
        module = sim_module_open_inner_locked(module);
    *(CUmodule *)argument = (CUmodule)module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetModule);
    return hmod == NULL ? CUDA_ERROR_INVALID_VALUE : ask(hfunc, get_module_locked, hmod);
}

static CUresult get_library_locked(struct sim_function *function, void *argument)
{
    if (!function->module->is_library)
        return CUDA_ERROR_INVALID_HANDLE;
    *(CUlibrary *)argument = (CUlibrary)function->module;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    SIM_ENTER(cuKernelGetLibrary);
    return pLib == NULL ? CUDA_ERROR_INVALID_VALUE : ask(kernel, get_library_locked, pLib);
}

static CUresult get_function_locked(struct sim_function *kernel, void *argument)
{
    if (!kernel->module->is_library)
        return CUDA_ERROR_INVALID_HANDLE;
    struct sim_function *function;
    const CUresult result = sim_module_function_locked(sim_module_open_inner_locked(kernel->module),
                                                       kernel->name, &function);
    if (result == CUDA_SUCCESS)
        *(CUfunction *)argument = (CUfunction)function;
    return result;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    SIM_ENTER(cuKernelGetFunction);
    return pFunc == NULL ? CUDA_ERROR_INVALID_VALUE : ask(kernel, get_function_locked, pFunc);
}

static CUresult get_loaded_locked(struct sim_function *function, void *argument)
{
    *(CUfunctionLoadingState *)argument =
        function->is_loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    SIM_ENTER(cuFuncIsLoaded);
    return state == NULL ? CUDA_ERROR_INVALID_VALUE : ask(function, get_loaded_locked, state);
}

static CUresult set_loaded_locked(struct sim_function *function, void *argument)
{
    (void)argument;
    function->is_loaded = true;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
    SIM_ENTER(cuFuncLoad);
    return ask(function, set_loaded_locked, NULL);
}

struct attribute {
    CUfunction_attribute id;
    int value;
};

static CUresult get_attribute_locked(struct sim_function *function, void *argument)
{
    struct attribute *attribute = argument;
    if ((unsigned)attribute->id >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    attribute->value = function->attributes[attribute->id];
    return CUDA_SUCCESS;
}

static CUresult set_attribute_locked(struct sim_function *function, void *argument)
{
    const struct attribute *attribute = argument;
    /* The attributes before this one describe the compiled code. */
    if (attribute->id < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
        attribute->id >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute->id == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
        (attribute->value < 0 || attribute->value > SIM_MAX_SHARED_BYTES))
        return CUDA_ERROR_INVALID_VALUE;
    function->attributes[attribute->id] = attribute->value;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(const void *handle, CUfunction_attribute id, int *value_out)
{
    struct attribute attribute = {id, 0};
    if (value_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = ask(handle, get_attribute_locked, &attribute);
    if (result == CUDA_SUCCESS)
        *value_out = attribute.value;
    return result;
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetAttribute);
    return get_attribute(hfunc, attrib, pi);
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    SIM_ENTER(cuKernelGetAttribute);
    (void)dev;
    return get_attribute(kernel, attrib, pi);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    SIM_ENTER(cuFuncSetAttribute);
    struct attribute attribute = {attrib, value};
    return ask(hfunc, set_attribute_locked, &attribute);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    SIM_ENTER(cuKernelSetAttribute);
    struct attribute attribute = {attrib, val};
    (void)dev;
    return ask(kernel, set_attribute_locked, &attribute);
}

static CUresult accept_locked(struct sim_function *function, void *argument)
{
    (void)function, (void)argument;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    SIM_ENTER(cuFuncSetCacheConfig);
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE
                                               : ask(hfunc, accept_locked, NULL);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    SIM_ENTER(cuKernelSetCacheConfig);
    (void)dev;
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE
                                               : ask(kernel, accept_locked, NULL);
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    SIM_ENTER(cuFuncSetSharedMemConfig);
    return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                              : ask(hfunc, accept_locked, NULL);
}

static int blocks_per_sm(int block_size, size_t shared_bytes)
{
    const int warps = (block_size + WARP_THREADS - 1) / WARP_THREADS;
    int blocks = MAX_THREADS_PER_SM / (warps * WARP_THREADS);
    if (blocks > MAX_BLOCKS_PER_SM)
        blocks = MAX_BLOCKS_PER_SM;
    if (shared_bytes > 0 && SHARED_BYTES_PER_SM / shared_bytes < (size_t)blocks)
        blocks = (int)(SHARED_BYTES_PER_SM / shared_bytes);
    return blocks;
}

static CUresult active_blocks(int *blocks_out, const void *handle, int block_size,
                              size_t shared_bytes)
{
    if (blocks_out == NULL || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = ask(handle, accept_locked, NULL);
    if (result == CUDA_SUCCESS)
        *blocks_out = block_size > SIM_MAX_THREADS ? 0 : blocks_per_sm(block_size, shared_bytes);
    return result;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize)
{
    SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    return active_blocks(numBlocks, func, blockSize, dynamicSMemSize);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags)
{
    SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    return active_blocks(numBlocks, func, blockSize, dynamicSMemSize);
}

static CUresult potential_block(int *grid_out, int *block_out, const void *handle,
                                CUoccupancyB2DSize shared_of_block, size_t shared_bytes, int limit)
{
    if (grid_out == NULL || block_out == NULL || limit < 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = ask(handle, accept_locked, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    const int block = limit == 0 || limit > SIM_MAX_THREADS ? SIM_MAX_THREADS : limit;
    if (shared_of_block != NULL)
        shared_bytes = shared_of_block(block);
    *block_out = block;
    *grid_out = SM_COUNT * blocks_per_sm(block, shared_bytes);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit)
{
    SIM_ENTER(cuOccupancyMaxPotentialBlockSize);
    return potential_block(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                           dynamicSMemSize, blockSizeLimit);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags)
{
    SIM_ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags);
    if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    return potential_block(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                           dynamicSMemSize, blockSizeLimit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize)
{
    SIM_ENTER(cuOccupancyAvailableDynamicSMemPerBlock);
    if (dynamicSmemSize == NULL || numBlocks <= 0 || blockSize <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = ask(func, accept_locked, NULL);
    if (result == CUDA_SUCCESS)
        *dynamicSmemSize = (size_t)(SIM_MAX_SHARED_BYTES / numBlocks);
    return result;
}

CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
                                            const CUlaunchConfig *config)
{
    SIM_ENTER(cuOccupancyMaxPotentialClusterSize);
    if (clusterSize == NULL || config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = ask(func, accept_locked, NULL);
    if (result == CUDA_SUCCESS)
        *clusterSize = PORTABLE_CLUSTER_BLOCKS;
    return result;
}

CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func,
                                      const CUlaunchConfig *config)
{
    SIM_ENTER(cuOccupancyMaxActiveClusters);
    if (numClusters == NULL || config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = ask(func, accept_locked, NULL);
    if (result == CUDA_SUCCESS)
        *numClusters = SM_COUNT / PORTABLE_CLUSTER_BLOCKS;
    return result;
}
