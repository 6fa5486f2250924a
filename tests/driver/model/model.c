/* SPDX-License-Identifier: Apache-2.0 */
/* model --seed S [--ops N] [--seconds T] [--threads N] [--without OPERATION,...] [--print]
 * FOLDER KERNELS TORCH-KERNELS */
#include "tests/driver/model/model.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

CUcontext model_context, model_peer_context, model_other_context;
const char *model_folder;
bool model_prints;
bool model_reads_late, model_device_has_threads;
_Thread_local unsigned model_thread;

static uint64_t seed = 1, operations = 1000;
static double seconds = 1e9;
static unsigned threads = 2;
static atomic_bool is_over;
static _Atomic uint64_t total;
static _Thread_local uint64_t draws, number;
static _Thread_local const char *name = "the start";

/* --- random numbers and ends */

static uint64_t mix(uint64_t x)
{
    /* the output function of splitmix64, Steele, Lea and Flood 2014 */
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t model_random(void)
{
    return mix(draws += UINT64_C(0x9e3779b97f4a7c15));
}

size_t model_below(size_t limit)
{
    return (size_t)(model_random() % limit);
}

bool model_one_in(unsigned chances)
{
    return model_below(chances) == 0;
}

void model_fail(const char *format, ...)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    va_list arguments;
    pthread_mutex_lock(&once); /* for good: the first fault is the one to look at */
    printf("seed %llu, thread %u, operation %llu (%s): ", (unsigned long long)seed, model_thread,
           (unsigned long long)number, name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

void model_check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        model_fail("%s: CUDA error %d", what, (int)result);
}

/* --- operations */

static const struct model_operation *const chapters[] = {model_memory, model_copies, model_launches,
                                                         model_files, model_plans};
enum { CHAPTERS = sizeof(chapters) / sizeof(chapters[0]) };

static const char *without = "";

bool model_is_left_out(const char *operation)
{
    const size_t length = strlen(operation);
    for (const char *each = without; *each != '\0'; each += strcspn(each, ",")) {
        each += *each == ',';
        if (strcspn(each, ",") == length && strncmp(each, operation, length) == 0)
            return true;
    }
    return false;
}

static const struct model_operation *draw_operation(void)
{
    unsigned weight = 0;
    for (int i = 0; i < CHAPTERS; i++) {
        for (const struct model_operation *each = chapters[i]; each->name != NULL; each++)
            weight += each->weight;
    }
    size_t left = model_below(weight);
    for (int i = 0; i < CHAPTERS; i++) {
        for (const struct model_operation *each = chapters[i]; each->name != NULL; each++) {
            if (left < each->weight)
                return each;
            left -= each->weight;
        }
    }
    abort();
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *run_thread(void *argument)
{
    model_thread = (unsigned)(uintptr_t)argument;
    draws = mix(seed + mix(model_thread + 1));
    OK(cuCtxSetCurrent(model_context));
    model_host_begin();
    model_blocks_begin();
    model_launches_begin();
    for (number = 0; number < operations && !atomic_load(&is_over); number++) {
        draws = mix(mix(seed + mix(model_thread + 1)) + number);
        const struct model_operation *operation = draw_operation();
        if (model_is_left_out(operation->name))
            continue;
        name = operation->name;
        if (model_prints) {
            printf("thread %u, %llu: %s\n", model_thread, (unsigned long long)number, name);
            fflush(stdout);
        }
        model_breathe();
        operation->run();
    }
    atomic_fetch_add(&total, number);
    name = "the end";
    model_wait();
    model_read_all();
    model_free_all();
    return NULL;
}

static void read_options(int count, char **arguments)
{
    for (int i = 1; i + 1 < count; i++) {
        const char *value = arguments[i + 1];
        if (strcmp(arguments[i], "--seed") == 0)
            seed = strtoull(value, NULL, 10);
        else if (strcmp(arguments[i], "--ops") == 0)
            operations = strtoull(value, NULL, 10);
        else if (strcmp(arguments[i], "--seconds") == 0)
            seconds = strtod(value, NULL);
        else if (strcmp(arguments[i], "--threads") == 0)
            threads = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(arguments[i], "--without") == 0)
            without = value;
        else if (strcmp(arguments[i], "--print") == 0)
            model_prints = true;
    }
    const char *eager = getenv("SIMCUDA_EAGER");
    model_device_has_threads = eager != NULL && strcmp(eager, "0") == 0;
    const char *late = getenv("SIMCUDA_LATE");
    model_reads_late = late != NULL && strcmp(late, "1") == 0;
    if (count < 4 || threads == 0 || threads > MODEL_THREADS_MOST) {
        fprintf(stderr, "usage: model --seed S [--ops N] [--seconds T] [--threads N] "
                        "[--without OPERATION,...] [--print] FOLDER KERNELS TORCH-KERNELS\n");
        exit(2);
    }
}

int main(int count, char **arguments)
{
    pthread_t running[MODEL_THREADS_MOST];
    read_options(count, arguments);
    model_folder = arguments[count - 3];
    draws = mix(seed);
    model_plans_begin();
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&model_peer_context, 1));
    OK(cuDevicePrimaryCtxRetain(&model_context, 0));
    OK(cuCtxCreate(&model_other_context, NULL, 0, 0));
    OK(cuCtxSetCurrent(model_context));
    model_launches_init(arguments[count - 2], arguments[count - 1]);
    model_blocks_init();
    model_functions_init();
    const double end = now() + seconds;
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&running[i], NULL, run_thread, (void *)(uintptr_t)i);
    if (seconds < 1e9) {
        while (now() < end)
            usleep(10000);
        atomic_store(&is_over, true);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(running[i], NULL);
    printf("operations %llu\n", (unsigned long long)total);
    return 0;
}
