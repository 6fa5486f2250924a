/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/entries.h"

/* The text of all names, one behind the other. */
struct names {
#define MS_ENTRY(class_, symbol_, base, version, per_thread, reason) char symbol_[sizeof(#symbol_)];
#include "shim/entries.def"
#undef MS_ENTRY
};

static const struct names names = {
#define MS_ENTRY(class_, symbol_, base, version, per_thread, reason) #symbol_,
#include "shim/entries.def"
#undef MS_ENTRY
};

_Static_assert(sizeof(struct names) <= UINT16_MAX, "a place in it has 16 bits");

const struct ms_entry_facts ms_entries[MS_ENTRY_COUNT] = {
#define MS_ENTRY(class_, symbol_, base_, version_, per_thread_, reason) \
    {.name = offsetof(struct names, symbol_),                           \
     .version = version_,                                               \
     .symbol_length = sizeof(#symbol_) - 1,                             \
     .base_length = sizeof(#base_) - 1,                                 \
     .per_thread = per_thread_},
#include "shim/entries.def"
#undef MS_ENTRY
};

const char *ms_entry_symbol(enum ms_entry entry)
{
    return (const char *)&names + ms_entries[entry].name;
}
