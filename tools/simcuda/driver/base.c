/* SPDX-License-Identifier: Apache-2.0 */
/* The base of all files: the lock, settings, names, messages, memory, ids. */
#include "tools/simcuda/driver/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 512 };

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sim_progress = PTHREAD_COND_INITIALIZER;
struct sim_stats sim_stats;
struct sim_config sim_config = {
    .devices = 1, .memory_bytes = (size_t)8192 << 20, .capability = 90, .multiprocessors = 4};
_Thread_local struct sim_thread sim_thread;

const char *const sim_entry_names[SIM_ENTRY_COUNT] = {
#define SIM_FUNCTION(symbol, base, version, per_thread) #symbol,
#include "tools/simcuda/driver/functions.def"
#undef SIM_FUNCTION
};

void sim_complain(const char *format, ...)
{
    char line[LINE_MAX_BYTES] = "simcuda: ";
    const size_t prefix = strlen(line);
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(line + prefix, sizeof(line) - prefix - 1, format, args);
    va_end(args);
    size_t end = prefix + (length > 0 ? (size_t)length : 0);
    if (end > sizeof(line) - 2)
        end = sizeof(line) - 2;
    line[end] = '\n';
    if (write(STDERR_FILENO, line, end + 1) < 0)
        return;
}

void *sim_zalloc(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        sim_complain("out of host memory (%zu bytes)", bytes);
        abort();
    }
    return memory;
}

uint64_t sim_new_id_locked(void)
{
    static uint64_t last;
    return ++last;
}

uint64_t sim_draw_locked(uint64_t limit)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* MMIX */
    return (state >> 33) % limit;
}
