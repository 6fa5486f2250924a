/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/thread.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/heap.h"

/* Ample for the readers' buffers. More would cost address space, which may be limited. */
enum { STACK_BYTES = 2 << 20 };

int ms_thread_create(pthread_t *thread_out, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return error;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread_out, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* --- memory of a thread */

struct memory {
    void *parts[MS_THREAD_MEMORY_COUNT];
};

static pthread_key_t key;
static bool has_key;

static void free_memory(void *value)
{
    struct memory *memory = value;
    for (int i = 0; i < MS_THREAD_MEMORY_COUNT; i++)
        ms_heap_free(memory->parts[i]);
    ms_heap_free(memory);
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, free_memory) == 0;
}

/* The memory of this thread, or NULL. */
static struct memory *get_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    struct memory *memory = has_key ? pthread_getspecific(key) : NULL;
    if (memory != NULL || !has_key)
        return memory;
    memory = ms_heap_zalloc(sizeof(*memory));
    if (memory != NULL && pthread_setspecific(key, memory) != 0) {
        ms_heap_free(memory);
        memory = NULL;
    }
    return memory;
}

void *ms_thread_memory(enum ms_thread_memory which, size_t bytes)
{
    struct memory *memory = get_memory();
    if (memory != NULL && memory->parts[which] == NULL)
        memory->parts[which] = ms_heap_zalloc(bytes);
    return memory != NULL ? memory->parts[which] : NULL;
}
