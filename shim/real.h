/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver: its functions, and where they are.
 *
 * The first libcuda that a program reaches is the driver. The shim leaves a second copy (another
 * path, another namespace) alone. Nothing here calls the driver; everything works before cuInit and
 * under the loader's lock.
 */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "shim/entries.h"

/* Marks code that may run before the constructors, when another library looks up a symbol.
 * Sanitizers are not ready then, and must not instrument such code. */
#define MS_EARLY \
    __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

/* libc's dlsym. */
typedef void *ms_dlsym(void *handle, const char *name);
ms_dlsym *ms_libc_dlsym(void) MS_EARLY;
extern void *ms_libc_dlsym_address; /* set by the first call of ms_libc_dlsym */

/* The dlsym that programs would have without the shim: libc's, or one in a library behind the shim
 * that answers lookups. ms_find_next_dlsym sets the address. */
extern void *ms_next_dlsym_address;
void ms_find_next_dlsym(void);

/* The dlvsym that programs would have without the shim. */
extern void *ms_next_dlvsym_address;
void ms_find_next_dlvsym(void);

/* Makes the library that holds `address`, if that is a libcuda, the driver; or the loaded libcuda
 * if address is NULL. Changes nothing if the driver is known. Returns true if it is known now. */
bool ms_real_load(const void *address);

/* The loader's handle of the driver. Requires that the driver is known. */
void *ms_real_handle(void);

/* True for an address in the driver's library. Requires that the driver is known. */
bool ms_is_driver(const void *address);

/* The range where the library that holds the address is mapped; empty if no library does. */
struct ms_image {
    uintptr_t begin, end;
};
struct ms_image ms_image_of(const void *address);

/* True if a library is loaded whose file's name begins so. Searches no files: for a library that is
 * not loaded, dlopen with RTLD_NOLOAD looks into each folder of the search path. */
bool ms_image_is_loaded(const char *name);

/* True if the last part of the path begins so. */
static inline bool ms_image_is_named(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    return strncmp(slash != NULL ? slash + 1 : path, name, strlen(name)) == 0;
}

/* True for an address in this library, such as an answer of a lookup. */
bool ms_is_own(const void *address);

/* Real functions by entry. NULL until ms_real_get looks the function up; then the driver's
 * function, or ms_missing. All threads that write a slot write the same value. */
extern void *ms_real[MS_ENTRY_COUNT + MS_SPARE_COUNT];

/* Returns the real function of an entry, and looks it up if necessary. Never NULL. */
void *ms_real_get(enum ms_entry entry);

/* Stands in for functions that the installed driver lacks. */
CUresult ms_missing(void);

#define MS_REAL(symbol) ((__typeof__(&symbol))ms_real_fast(MS_ENTRY_##symbol))

static inline void *ms_real_fast(enum ms_entry entry)
{
    void *real = __atomic_load_n(&ms_real[entry], __ATOMIC_ACQUIRE);
    return __builtin_expect(real != NULL, 1) ? real : ms_real_get(entry);
}
