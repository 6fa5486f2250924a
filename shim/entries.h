/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry table as the shim uses it: ids, names and versions, made from entries.def. Spare slots
 * follow the table's entries: the thunk of a spare slot seals a function of a newer driver that a
 * program looks up and the table lacks.
 */
#pragma once

/* Equal to SPARE_COUNT in trampoline.S. Enough even if the table lacks every function that a
 * process looks up (tests/static/check_entries.py). */
enum { MS_SPARE_COUNT = 1024 };

/* The table has all ABIs that cuda.h of this and older versions declares. A driver of this version
 * may have more, because cuda.h can be late: cuLaunchHostFunc_v2 is of 13.1, but cuda.h declares it
 * only since 13.2. */
enum { MS_TABLE_VERSION = 13050 };

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

enum ms_entry {
#define MS_ENTRY(class_, symbol, base, version, per_thread, reason) MS_ENTRY_##symbol,
#include "shim/entries.def"
#undef MS_ENTRY
    MS_ENTRY_COUNT
};

/* No pointers: they would be relocated in every process. The base is the beginning of the symbol
 * (tests/static/check_entries.py). */
struct ms_entry_facts {
    uint16_t name; /* the symbol's offset in the text of all names */
    uint16_t version;
    uint8_t symbol_length, base_length;
    uint8_t per_thread;
};

extern const struct ms_entry_facts ms_entries[MS_ENTRY_COUNT];

const char *ms_entry_symbol(enum ms_entry entry);
