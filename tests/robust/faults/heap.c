/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's heap for builds with sanitizers, whose malloc cannot be interposed: libc's, of which
 * the n-th allocation fails, or that and all that follow. FAULTS_KIND (heap, heap-lasting),
 * FAULTS_NTH and FAULTS_REPORT as in interpose.c.
 */
#include "runtime/base/heap.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void report(void)
{
    const char *path = getenv("FAULTS_REPORT");
    FILE *file = path != NULL ? fopen(path, "a") : NULL;
    if (file == NULL)
        return;
    fputs("malloc\n", file);
    fclose(file);
}

static bool fails(void)
{
    static _Atomic unsigned long long seen;
    const char *kind = getenv("FAULTS_KIND"), *nth = getenv("FAULTS_NTH");
    if (kind == NULL || nth == NULL || strncmp(kind, "heap", 4) != 0)
        return false;
    const unsigned long long wanted = strtoull(nth, NULL, 10), number = ++seen;
    if (number == wanted)
        report();
    return number == wanted || (number > wanted && strcmp(kind, "heap-lasting") == 0);
}

void *ms_heap_alloc(size_t bytes)
{
    return ms_heap_checked(fails() ? NULL : malloc(bytes), bytes);
}

void *ms_heap_zalloc(size_t bytes)
{
    return ms_heap_checked(fails() ? NULL : calloc(1, bytes), bytes);
}

void *ms_heap_realloc(void *memory, size_t bytes)
{
    return ms_heap_checked(fails() ? NULL : realloc(memory, bytes), bytes);
}

void ms_heap_free(void *memory)
{
    free(memory);
}
