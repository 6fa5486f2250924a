/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim for tests: the entries that SIM_UNHOOK names, with commas between them, are not ours
 * when a program looks them up. Linked with --wrap=ms_substitute.
 */
#include <stdlib.h>
#include <string.h>

#include "shim/real.h"
#include "shim/substitute.h"
#include "tools/simcuda/harness/wraps.h"

WRAPS(ms_substitute);

static bool is_unhooked(const void *real)
{
    const char *at = getenv("SIM_UNHOOK");
    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ",");
        for (int i = 0; i < MS_ENTRY_COUNT; i++) {
            const char *symbol = ms_entry_symbol(i);
            if (strlen(symbol) == length && strncmp(symbol, at, length) == 0 && ms_real[i] == real)
                return true;
        }
        at += length + (at[length] == ',');
    }
    return false;
}

void *__wrap_ms_substitute(void *real, const char *base, int version, bool per_thread)
{
    void *given = __real_ms_substitute(real, base, version, per_thread);
    return is_unhooked(real) ? real : given;
}
