/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/entries.h"

const struct ms_entry_facts ms_entries[MS_ENTRY_COUNT] = {
#define MS_ENTRY(class, symbol, base, version, per_thread, reason) \
    {#symbol, #base, version, per_thread},
#include "shim/entries.def"
#undef MS_ENTRY
};
