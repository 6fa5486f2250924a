/* SPDX-License-Identifier: Apache-2.0 */
/* A library that looks for the next definition of its own function, as LLVM's OpenMP runtime does:
 * with a dlsym that hides the caller it would find itself for ever. */
#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int chain_count(void);
EXPORT int cuChain(void);

EXPORT int chain_count(void)
{
    static int depth;
    if (++depth > 10)
        return depth;
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "chain_count");
    return 1 + (next != NULL ? next() : 0);
}

/* No function of the driver, whatever its name says. */
EXPORT int cuChain(void)
{
    return 1;
}
