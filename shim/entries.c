/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/entries.h"

#include "shim/newer.h"

#define WRAPPER_OWN(symbol) (void *)symbol
#define WRAPPER_OBSERVE(symbol) (void *)symbol
#define WRAPPER_SEAL(symbol) (void *)symbol
#define WRAPPER_PASS(symbol) NULL

const struct ms_entry_facts ms_entries[MS_ENTRY_COUNT] = {
#define MS_ENTRY(class, symbol, base, version, per_thread, reason) \
    {#symbol, #base, version, per_thread, MS_CLASS_##class, WRAPPER_##class(symbol)},
#include "shim/entries.def"
#undef MS_ENTRY
};

void *ms_real[MS_ENTRY_COUNT + MS_SPARE_COUNT];
