/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the self-check about lookups: does cuGetProcAddress answer with functions of the
 * driver? If a tool in between answered with others, the shim would not see the program's calls.
 */
#include <stdio.h>

#include "runtime/selfcheck/selfcheck.h"
#include "shim/real.h"
#include "shim/substitute.h"

static void *ask(enum ms_entry entry)
{
    void *found = NULL;
    char base[UINT8_MAX + 1];
    const struct ms_entry_facts *facts = &ms_entries[entry];
    snprintf(base, sizeof(base), "%.*s", facts->base_length, ms_entry_symbol(entry));
    const cuuint64_t flags = facts->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                               : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    CUresult result = MS_REAL(cuGetProcAddress_v2)(base, &found, facts->version, flags, NULL);
    if (result == CUDA_ERROR_NOT_SUPPORTED) /* before CUDA 12 */
        result = MS_REAL(cuGetProcAddress)(base, &found, facts->version, flags);
    return result == CUDA_SUCCESS ? found : NULL;
}

/* Asks for each function that has a wrapper. */
static bool is_right(char *seen, size_t bytes)
{
    for (enum ms_entry entry = 0; entry < MS_ENTRY_COUNT; entry++) {
        const struct ms_entry_facts *facts = &ms_entries[entry];
        const char *symbol = ms_entry_symbol(entry);
        void *found = ms_has_wrapper(entry) ? ask(entry) : NULL;
        if (found == NULL || ms_is_driver(found) ||
            ms_substitute(found, symbol, facts->version, facts->per_thread) != found)
            continue;
        snprintf(seen, bytes, "%s is %p, which is not in the driver's library", symbol, found);
        return false;
    }
    return true;
}

/* A constructor, not a call from init.c: this file depends on the table of wrappers, which has
 * init.c's cuInit. */
__attribute__((constructor)) static void offer(void)
{
    ms_selfcheck_set_resolver(is_right);
}
