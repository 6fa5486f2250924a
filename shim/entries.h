/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry table as the shim uses it: ids, names and real functions, made from entries.def. Spare
 * slots follow the table's entries: when a program looks up a function of a newer driver that the
 * table does not have, one of their thunks seals it.
 */
#pragma once

/* As in the thunks. Enough for a driver in which all that a process looks up is new to the table
 * (tests/static/check_entries.py). */
enum { MS_SPARE_COUNT = 1024 };

/* The table has all ABIs that cuda.h of this version and of older ones knows. A driver may have
 * more of this version, because cuda.h can be late: cuLaunchHostFunc_v2 is of 13.1, and cuda.h
 * declares it from 13.2 on. */
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

/* No pointers: a table of them would be relocated in every process. The base is the beginning of
 * the symbol (tests/static/check_entries.py). */
struct ms_entry_facts {
    uint16_t name; /* where the symbol begins in one text of all names */
    uint16_t version;
    uint8_t symbol_length, base_length;
    uint8_t per_thread;
};

extern const struct ms_entry_facts ms_entries[MS_ENTRY_COUNT];

const char *ms_entry_symbol(enum ms_entry entry);
