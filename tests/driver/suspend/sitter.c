/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sitter sits: a process as one that serves a model. With SITTER_FILE and SITTER_MIB it copies
 * weights from a mapped file, behind its first page, has a cache of as many bytes that no file has,
 * lets a kernel use both, says "ok", and obeys lines:
 *
 *     use     a kernel adds 1 to the cache and nothing to the weights, and all words are compared
 *     stop FUNCTION N  whoever calls this function of the driver's the Nth time from now on stops there
 *     stopped          waits for that
 *     end     ends
 *
 * The answer is "ok", "CUDA error N", or "no" where nobody has stopped.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/driver/differential/mappings.h"
#include "tools/simcuda/driver/hook.h"

enum { HEADER_BYTES = 4096 };

static struct {
    const uint32_t *mapped;
    CUdeviceptr weights, cache;
    size_t bytes;
    uint32_t added;
    CUfunction add;
} model;

static CUresult use(void)
{
    CUresult result = try_add(model.add, model.weights, model.bytes, 0, NULL);
    if (result == CUDA_SUCCESS)
        result = try_add(model.add, model.cache, model.bytes, 1, NULL);
    if (result == CUDA_SUCCESS)
        result = cuCtxSynchronize();
    if (result != CUDA_SUCCESS)
        return result;
    uint32_t *words = malloc(model.bytes);
    OK(cuMemcpyDtoH(words, model.weights, model.bytes));
    CHECK_EQ(memcmp(words, model.mapped, model.bytes), 0);
    free(words);
    check_words(model.cache, model.bytes, ++model.added);
    return CUDA_SUCCESS;
}

static void load(const char *path, size_t bytes)
{
    const int file = open(path, O_RDONLY);
    void *mapped = mmap(NULL, HEADER_BYTES + bytes, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(mapped != MAP_FAILED);
    model.mapped = (const uint32_t *)mapped + HEADER_BYTES / 4;
    model.bytes = bytes;
    OK(cuMemAlloc(&model.weights, bytes));
    OK(cuMemAlloc(&model.cache, bytes));
    OK(cuMemcpyHtoD(model.weights, model.mapped, bytes));
    put_words(model.cache, bytes, 0);
    model.add = kernel("add_in_place32");
}

static void answer(CUresult result)
{
    if (result == CUDA_SUCCESS)
        puts("ok");
    else
        printf("CUDA error %d\n", (int)result);
    fflush(stdout);
}

static bool stop(const char *line)
{
    char function[64];
    unsigned nth;
    return sscanf(line, "stop %63s %u", function, &nth) == 2 && simcuda_gate_close(function, nth);
}

static void obey(const char *line)
{
    enum { PATIENCE_MS = 1500 };
    if (strcmp(line, "use\n") == 0)
        answer(use());
    else if (strcmp(line, "stopped\n") == 0 ? simcuda_gate_wait(PATIENCE_MS) : stop(line))
        answer(CUDA_SUCCESS);
    else {
        puts("no");
        fflush(stdout);
    }
}

/* ThreadSanitizer holds signals back while a thread waits, but in poll(2). */
static bool hear(char *line, int bytes)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, -1) < 0 && errno == EINTR)
        ;
    return fgets(line, bytes, stdin) != NULL;
}

MS_TEST(sits)
{
    char line[64];
    if (getenv("SITTER_FILE") == NULL)
        ms_test_skip("for check_command.py");
    start();
    load(getenv("SITTER_FILE"), (size_t)atoi(getenv("SITTER_MIB")) * MIB);
    answer(use());
    while (hear(line, sizeof(line)) && strcmp(line, "end\n") != 0)
        obey(line);
}
