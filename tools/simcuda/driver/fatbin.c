/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of fat binaries, which nobody here can run: a kernel library of SIMCUDA_FATBIN_KERNELS
 * has host versions, found by the mangled name, and the file of SIMCUDA_FATBIN_LAYOUTS has what
 * cuFuncGetParamInfo says of them: lines "NAME OFFSET:SIZE OFFSET:SIZE ...", sorted by name
 * (strcmp).
 */
#include "tools/simcuda/driver/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static simcuda_find_kernel *find_kernel; /* the next three: immutable after once */
static const char *layouts;
static size_t layouts_bytes;

static void open_kernels(void)
{
    const char *path = getenv("SIMCUDA_FATBIN_KERNELS");
    if (path == NULL)
        return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library != NULL)
        find_kernel = (simcuda_find_kernel *)dlsym(library, "simcuda_find");
    if (find_kernel == NULL)
        sim_complain("SIMCUDA_FATBIN_KERNELS: %s", dlerror());
}

static void open_layouts(void)
{
    const char *path = getenv("SIMCUDA_FATBIN_LAYOUTS");
    struct stat status;
    const int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0 || fstat(file, &status) != 0)
        return;
    void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (bytes == MAP_FAILED)
        return;
    layouts = bytes;
    layouts_bytes = (size_t)status.st_size;
}

static void open_both(void)
{
    open_kernels();
    open_layouts();
}

/* Compares a name with the first word of a line. */
static int compare(const char *name, const char *line)
{
    const size_t length = strcspn(line, " \n");
    const int order = strncmp(name, line, length);
    return order != 0 ? order : name[length] != '\0';
}

/* The rest of the line that begins with the name, or NULL. */
static const char *find_line(const char *name)
{
    size_t low = 0;
    size_t high = layouts_bytes;
    while (low < high) {
        size_t begin = low + (high - low) / 2;
        while (begin > low && layouts[begin - 1] != '\n')
            begin--;
        const char *end = memchr(layouts + begin, '\n', layouts_bytes - begin);
        if (end == NULL)
            return NULL;
        const int order = compare(name, layouts + begin);
        if (order == 0)
            return layouts + begin + strlen(name);
        if (order < 0)
            high = begin;
        else
            low = (size_t)(end - layouts) + 1;
    }
    return NULL;
}

/* A list for as long as the process lives; functions of one name share it by being made once. */
static const struct simcuda_param *read_params(const char *text)
{
    size_t count = 0;
    struct simcuda_param *params = sim_zalloc(sizeof(*params));
    while (*text == ' ') {
        char *end;
        params = realloc(params, (count + 2) * sizeof(*params));
        if (params == NULL)
            abort();
        params[count].offset = strtoul(text + 1, &end, 10);
        params[count].size = strtoul(end + 1, &end, 10);
        params[++count] = (struct simcuda_param){0, 0};
        text = end;
    }
    return params;
}

simcuda_kernel *sim_fatbin_find(const char *name, const struct simcuda_param **params_out)
{
    pthread_once(&once, open_both);
    if (sim_is_dry()) {
        const char *known = find_line(name);
        *params_out = known != NULL ? read_params(known) : NULL;
        simcuda_kernel *computed =
            known != NULL && find_kernel != NULL && !sim_leaves_out() ? find_kernel(name) : NULL;
        return computed != NULL ? computed : sim_dry_kernel;
    }
    if (find_kernel == NULL)
        return NULL;
    simcuda_kernel *kernel = find_kernel(name);
    const char *line = kernel != NULL ? find_line(name) : NULL;
    *params_out = line != NULL ? read_params(line) : NULL;
    if (line == NULL)
        sim_complain(kernel == NULL ? "no host version of kernel %s" : "no layout of kernel %s",
                     name);
    return line != NULL ? kernel : NULL;
}
