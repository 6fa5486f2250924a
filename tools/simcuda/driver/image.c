/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/simcuda/driver/module.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Magic words: of a fat binary, and of the wrapper that nvcc puts around it (fatbinary.h). */
static const uint32_t fatbin_magic = 0xba55ed50;
static const uint32_t fatbin_wrapper_magic = 0x466243b1;
static const char file_prefix[] = "SIMCUDA:";
static const char ptx_prefix[] = ".version";
enum { CUBIN_MACHINE = 190 }; /* EM_CUDA */

static struct sim_module *live_modules; /* guarded by sim_lock */

struct sim_module *sim_module_find_locked(const void *handle, bool is_library)
{
    for (struct sim_module *module = live_modules; module != NULL; module = module->next) {
        if (module == handle)
            return module->is_library == is_library ? module : NULL;
    }
    return NULL;
}

struct sim_function *sim_function_find_locked(const void *handle)
{
    for (struct sim_module *module = live_modules; module != NULL; module = module->next) {
        for (struct sim_function *function = module->functions; function != NULL;
             function = function->next) {
            if (function == handle)
                return function;
        }
    }
    return NULL;
}

static struct sim_module *open_module_locked(void *image, bool is_library)
{
    struct sim_module *module = sim_zalloc(sizeof *module);
    module->image = image;
    module->is_library = is_library;
    module->next = live_modules;
    live_modules = module;
    return module;
}

static struct sim_module *open_module(void *image, bool is_library)
{
    pthread_mutex_lock(&sim_lock);
    struct sim_module *module = open_module_locked(image, is_library);
    pthread_mutex_unlock(&sim_lock);
    return module;
}

/* Behind white space and comments of one line. */
static bool is_ptx(const char *text)
{
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (strncmp(text, "//", 2) != 0)
            return strncmp(text, ptx_prefix, strlen(ptx_prefix)) == 0;
        text += strcspn(text, "\n");
    }
}

/* Code that only a GPU runs: PTX, or an ELF image for a GPU. */
static bool is_device_code(const char *data)
{
    Elf64_Half machine;
    if (is_ptx(data))
        return true;
    if (strncmp(data, ELFMAG, SELFMAG) != 0)
        return false;
    memcpy(&machine, data + offsetof(Elf64_Ehdr, e_machine), sizeof machine);
    return machine == CUBIN_MACHINE;
}

CUresult sim_module_open_file(const char *path, bool is_library, struct sim_module **module_out)
{
    if (path == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    char first[4096] = "";
    const size_t bytes = fread(first, 1, sizeof first - 1, file);
    fclose(file);
    if (sim_is_dry() && bytes > 0 && is_device_code(first)) {
        *module_out = open_module(NULL, is_library);
        (*module_out)->is_fatbin = true;
        return CUDA_SUCCESS;
    }
    void *image = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (image == NULL) {
        sim_complain("not a kernel library: %s", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *module_out = open_module(image, is_library);
    return CUDA_SUCCESS;
}

CUresult sim_module_open_data(const void *data, bool is_library, struct sim_module **module_out)
{
    if (data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    if (magic == fatbin_magic || magic == fatbin_wrapper_magic ||
        (sim_is_dry() && is_device_code(data))) {
        *module_out = open_module(NULL, is_library);
        (*module_out)->is_fatbin = true;
        return CUDA_SUCCESS;
    }
    if (is_device_code(data) && getenv("SIMCUDA_PTX_KERNELS") != NULL)
        return sim_module_open_file(getenv("SIMCUDA_PTX_KERNELS"), is_library, module_out);
    if (strncmp(data, file_prefix, strlen(file_prefix)) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    return sim_module_open_file((const char *)data + strlen(file_prefix), is_library, module_out);
}

struct sim_module *sim_module_open_inner_locked(struct sim_module *library)
{
    if (library->inner == NULL) {
        library->inner = open_module_locked(library->image, false);
        library->inner->library = library;
        library->inner->is_fatbin = library->is_fatbin;
    }
    return library->inner;
}

static void unlink_locked(struct sim_module *module)
{
    struct sim_module **place = &live_modules;
    while (*place != module)
        place = &(*place)->next;
    *place = module->next;
    for (struct sim_function *function = module->functions; function != NULL;
         function = function->next)
        function->module = NULL;
}

static void destroy_module(struct sim_module *module)
{
    while (module->functions != NULL) {
        struct sim_function *function = module->functions;
        module->functions = function->next;
        sim_function_drop(function);
    }
    while (module->globals != NULL) {
        struct sim_global *global = module->globals;
        module->globals = global->next;
        sim_memory_release(global->address);
        free(global);
    }
    free(module);
}

CUresult sim_module_close(const void *handle, bool is_library)
{
    pthread_mutex_lock(&sim_lock);
    struct sim_module *module = sim_module_find_locked(handle, is_library);
    const bool is_inner = module != NULL && module->library != NULL;
    struct sim_module *inner = module != NULL ? module->inner : NULL;
    if (module != NULL && !is_inner)
        unlink_locked(module);
    if (inner != NULL)
        unlink_locked(inner);
    pthread_mutex_unlock(&sim_lock);

    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (is_inner)
        return CUDA_ERROR_NOT_PERMITTED;
    if (inner != NULL)
        destroy_module(inner);
    destroy_module(module);
    return CUDA_SUCCESS;
}

/* The symbol `prefix name suffix` of the kernel library, or NULL. */
static void *find_symbol(const struct sim_module *module, const char *prefix, const char *name,
                         const char *suffix)
{
    if (module->image == NULL)
        return NULL;
    char *symbol = NULL;
    if (asprintf(&symbol, "%s%s%s", prefix, name, suffix) < 0)
        return NULL;
    void *address = dlsym(module->image, symbol);
    free(symbol);
    return address;
}

static void set_layout(struct sim_function *function, const struct simcuda_param *params)
{
    function->params = params;
    while (params != NULL && params[function->params_count].size != 0) {
        const struct simcuda_param *param = &params[function->params_count++];
        if (param->offset + param->size > function->params_bytes)
            function->params_bytes = param->offset + param->size;
    }
}

/* The architecture of the image that is run: that of the device, or the one before it for which
 * programs are compiled (PyTorch's wheels have 7.5, 8.0, 8.6, 9.0, 10.0 and 12.0). */
static int code_of(int capability)
{
    if (capability == 87 || capability == 89)
        return 86;
    return capability >= 90 ? capability / 10 * 10 : capability;
}

/* Plausible values of a compiled kernel; only those that can be set have a meaning here. */
static void set_attributes(struct sim_function *function)
{
    function->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = SIM_MAX_THREADS;
    function->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    function->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = code_of(sim_capability());
    function->attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = code_of(sim_capability());
    function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] =
        SIM_DEFAULT_SHARED_BYTES;
    function->attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
}

static CUresult make_function_locked(struct sim_module *module, const char *name,
                                     struct sim_function **function_out)
{
    const struct simcuda_param *params;
    simcuda_kernel *run;
    if (module->is_fatbin) {
        run = sim_fatbin_find(name, &params);
    } else {
        run = (simcuda_kernel *)find_symbol(module, "", name, "");
        params = find_symbol(module, "", name, "_params");
    }
    if (run == NULL)
        return CUDA_ERROR_NOT_FOUND;
    struct sim_function *function = sim_zalloc(sizeof *function + strlen(name) + 1);
    strcpy(function->name, name);
    function->run = run;
    set_layout(function, params);
    set_attributes(function);
    function->module = module;
    function->references = 1;
    function->next = module->functions;
    module->functions = function;
    *function_out = function;
    return CUDA_SUCCESS;
}

CUresult sim_module_function_locked(struct sim_module *module, const char *name,
                                    struct sim_function **function_out)
{
    for (struct sim_function *function = module->functions; function != NULL;
         function = function->next) {
        if (strcmp(function->name, name) == 0) {
            *function_out = function;
            return CUDA_SUCCESS;
        }
    }
    return make_function_locked(module, name, function_out);
}

void sim_function_drop(struct sim_function *function)
{
    if (atomic_fetch_sub(&function->references, 1) == 1)
        free(function);
}

CUresult sim_module_list_locked(struct sim_module *module, unsigned room, void **handles,
                                unsigned *count_out)
{
    const char *const *names = find_symbol(module, "", "simcuda_kernels", "");
    unsigned count = 0;
    for (; names != NULL && names[count] != NULL; count++) {
        struct sim_function *function;
        const CUresult result = sim_module_function_locked(module, names[count], &function);
        if (result != CUDA_SUCCESS)
            return result;
        if (count < room)
            handles[count] = function;
    }
    *count_out = count;
    return CUDA_SUCCESS;
}

static struct sim_global *find_global_locked(const struct sim_module *module, const char *name)
{
    struct sim_global *global = module->globals;
    while (global != NULL && strcmp(global->name, name) != 0)
        global = global->next;
    return global;
}

/* The first content and size of a variable, or NULL. */
static const void *find_initial(const struct sim_module *module, const char *name,
                                size_t *bytes_out)
{
    const void *initial = find_symbol(module, "simcuda_global_", name, "");
    const size_t *bytes = find_symbol(module, "simcuda_global_", name, "_size");
    if (initial == NULL || bytes == NULL)
        return NULL;
    *bytes_out = *bytes;
    return initial;
}

/* Serialises the making of variables, which allocates device memory and so cannot hold sim_lock. */
static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult make_memory(size_t bytes, bool is_managed, CUdeviceptr *address_out)
{
    return is_managed ? sim_memory_create_managed(bytes, address_out)
                      : sim_memory_create(bytes, address_out);
}

static struct sim_global *make_global(const char *name, const void *initial, size_t bytes,
                                      bool is_managed, CUresult *result_out)
{
    struct sim_global *global = sim_zalloc(sizeof *global + strlen(name) + 1);
    *result_out = make_memory(bytes, is_managed, &global->address);
    if (*result_out != CUDA_SUCCESS) {
        free(global);
        return NULL;
    }
    memcpy((void *)(uintptr_t)global->address, initial, bytes);
    strcpy(global->name, name);
    global->bytes = bytes;
    return global;
}

static CUresult find_or_make_global(const void *handle, bool is_library, const char *name,
                                    struct sim_global **global_out)
{
    pthread_mutex_lock(&sim_lock);
    struct sim_module *module = sim_module_find_locked(handle, is_library);
    if (module != NULL && is_library)
        module = sim_module_open_inner_locked(module);
    struct sim_global *global = module != NULL ? find_global_locked(module, name) : NULL;
    size_t bytes = 0;
    const void *initial = module != NULL ? find_initial(module, name, &bytes) : NULL;
    const bool is_managed =
        module != NULL && find_symbol(module, "simcuda_global_", name, "_managed") != NULL;
    pthread_mutex_unlock(&sim_lock);

    CUresult result = CUDA_SUCCESS;
    if (module == NULL || initial == NULL)
        return module == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_FOUND;
    if (global == NULL) {
        global = make_global(name, initial, bytes, is_managed, &result);
        if (global == NULL)
            return result;
        pthread_mutex_lock(&sim_lock);
        global->next = module->globals;
        module->globals = global;
        pthread_mutex_unlock(&sim_lock);
    }
    *global_out = global;
    return CUDA_SUCCESS;
}

CUresult sim_module_global(const void *handle, bool is_library, const char *name,
                           CUdeviceptr *address_out, size_t *bytes_out)
{
    struct sim_global *global = NULL;
    pthread_mutex_lock(&global_lock);
    const CUresult result = find_or_make_global(handle, is_library, name, &global);
    if (global != NULL && address_out != NULL)
        *address_out = global->address;
    if (global != NULL && bytes_out != NULL)
        *bytes_out = global->bytes;
    pthread_mutex_unlock(&global_lock);
    return result;
}

CUdeviceptr sim_module_global_address(const void *handle, const char *name)
{
    CUdeviceptr address = 0;
    pthread_mutex_lock(&sim_lock);
    struct sim_module *module = sim_module_find_locked(handle, false);
    const struct sim_global *global = module != NULL ? find_global_locked(module, name) : NULL;
    if (global != NULL)
        address = global->address;
    pthread_mutex_unlock(&sim_lock);
    return address;
}
