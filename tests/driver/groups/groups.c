/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/groups/groups.h"

#include <dlfcn.h>

#include "tests/harness/fast_hash.h"
#include "tests/harness/scrambled.h"

void must(CUresult result, const char *call, int line)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("line %d: %s is %d\n", line, call, (int)result);
    exit(3);
}

void seen(const char *what, CUresult result)
{
    printf("%s: %d\n", what, (int)result);
}

void print_host(const char *what, const void *bytes, size_t count)
{
    printf("%s: %016llx\n", what, (unsigned long long)fast_hash(bytes, count));
}

void print_device(const char *what, CUdeviceptr address, size_t bytes)
{
    unsigned char *host = calloc(1, bytes);
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(host, address, bytes));
    print_host(what, host, bytes);
    free(host);
}

unsigned char *make_bytes(size_t count, unsigned seed)
{
    unsigned char *bytes = malloc(count);
    scramble(bytes, count, seed, 11);
    return bytes;
}

CUdeviceptr make_block_of(size_t size, unsigned seed)
{
    CUdeviceptr block;
    unsigned char *bytes = make_bytes(size / 2, seed);
    MUST(cuMemAlloc_v2(&block, size));
    MUST(cuMemsetD8_v2(block, (unsigned char)seed, size));
    MUST(cuMemsetD32_v2(block, 0x01020304 + seed, size / 4));
    MUST(cuMemcpyHtoD_v2(block + size / 4, bytes, size / 2));
    MUST(cuCtxSynchronize());
    free(bytes);
    return block;
}

CUdeviceptr make_block(unsigned seed)
{
    return make_block_of(BLOCK_BYTES, seed);
}

static const char *kernels_path;

CUmodule get_module(void)
{
    static CUmodule module;
    if (module == NULL)
        MUST(cuModuleLoad(&module, kernels_path));
    return module;
}

CUfunction find_kernel(const char *name)
{
    CUfunction kernel;
    MUST(cuModuleGetFunction(&kernel, get_module(), name));
    return kernel;
}

void print_gathered(CUdeviceptr table, uint64_t count)
{
    CUdeviceptr out;
    uint32_t words[16] = {0};
    MUST(cuMemAlloc_v2(&out, sizeof(words)));
    void *params[] = {&out, &table, &count};
    MUST(cuLaunchKernel(find_kernel("gather32"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(words, out, count * sizeof(words[0])));
    for (uint64_t i = 0; i < count; i++)
        printf("gathered %08x\n", words[i]);
}

static const struct scenario *const chapters[] = {memory_scenarios, launch_scenarios,
                                                  stream_scenarios, hidden_scenarios,
                                                  device_scenarios, mapping_scenarios};
enum { CHAPTERS = sizeof(chapters) / sizeof(chapters[0]) };

static const struct scenario *find(const char *symbol)
{
    for (int i = 0; i < CHAPTERS; i++) {
        for (const struct scenario *scenario = chapters[i]; scenario->symbol != NULL; scenario++) {
            if (strcmp(scenario->symbol, symbol) == 0)
                return scenario;
        }
    }
    return NULL;
}

/* The per-thread twin of an entry of moves.def. */
static const char *twin_of(const char *symbol)
{
    if (strncmp(symbol, "cuGraph", strlen("cuGraph")) == 0)
        return "";
    return strstr(symbol, "Async") != NULL || strncmp(symbol, "cuStream", strlen("cuStream")) == 0
               ? "_ptsz"
               : "_ptds";
}

static const struct move *find_move(const char *symbol)
{
    for (const struct move *move = moves; move->symbol != NULL; move++) {
        const size_t length = strlen(move->symbol);
        if (strncmp(symbol, move->symbol, length) == 0 &&
            (symbol[length] == '\0' || strcmp(symbol + length, twin_of(move->symbol)) == 0))
            return move;
    }
    return NULL;
}

static void list(void)
{
    for (const struct move *move = moves; move->symbol != NULL; move++) {
        if (move != find_move(move->symbol))
            continue;
        printf("%s \n", move->symbol);
        if (twin_of(move->symbol)[0] != '\0')
            printf("%s%s \n", move->symbol, twin_of(move->symbol));
    }
    for (int i = 0; i < CHAPTERS; i++) {
        for (const struct scenario *scenario = chapters[i]; scenario->symbol != NULL; scenario++)
            printf("%s %s\n", scenario->symbol, scenario->with != NULL ? scenario->with : "");
    }
}

/* Any call seals, whatever comes of it: with nothing but zeroes, the driver refuses it. */
static void call_with_zeroes(void)
{
    typedef CUresult function(void *, void *, void *, void *, void *, void *, void *, void *,
                              void *, void *, void *, void *);
    static char zeroes[4096]; /* for arguments that are read before they are checked */
    CUdeviceptr block = make_block(1);
    ((function *)tested)(zeroes, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    (void)block;
}

/* groups list | groups KERNELS SYMBOL | groups KERNELS SYMBOL seal */
int main(int count, char **arguments)
{
    CUcontext context;
    if (count == 2 && strcmp(arguments[1], "list") == 0) {
        list();
        return 0;
    }
    const struct scenario *scenario = count >= 3 ? find(arguments[2]) : NULL;
    const struct move *move = count >= 3 ? find_move(arguments[2]) : NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (driver == NULL || count < 3 || (count == 3 && scenario == NULL && move == NULL))
        return 2;
    kernels_path = arguments[1];
    char symbol[128];
    snprintf(symbol, sizeof(symbol), "%.*s", (int)strcspn(arguments[2], ":"), arguments[2]);
    tested = dlsym(driver, symbol);
    if (tested == NULL)
        return 4; /* an older driver */
    if (strcmp(symbol, "cuInit") == 0)
        MUST(TESTED(cuInit)(0));
    else
        MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    if (count == 4)
        call_with_zeroes();
    else if (move != NULL)
        run_moves(move);
    else
        scenario->run();
    return 0;
}
