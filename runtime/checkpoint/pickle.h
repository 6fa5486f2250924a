/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads Python's pickle without executing it: a value only represents a class, a function or the
 * result of a call; nothing is imported, called or built. Supports the opcodes of protocols 2 to 5
 * that torch.save writes; another opcode is a fault with its name and place. torch_state.h finds
 * the tensors in the values.
 */
#pragma once

#include <stdint.h>

#include "runtime/base/heap.h"
#include "runtime/document/fault.h"

enum {
    MS_PICKLE_MAX_BYTES = 100000000,
    MS_PICKLE_MAX_VALUES = 8000000 /* half a million tensors have fewer */
};

enum ms_value_kind {
    MS_VALUE_OTHER, /* None, bool, float, bytes, set, an integer of more than 64 bits */
    MS_VALUE_INT,
    MS_VALUE_TEXT,
    MS_VALUE_GLOBAL,
    MS_VALUE_TUPLE,
    MS_VALUE_LIST,
    MS_VALUE_DICT,
    MS_VALUE_CALL,      /* the result of a call of a function or a class */
    MS_VALUE_PERSISTENT /* an object that has a persistent_id */
};

/* Values and cells refer to each other by index, perhaps in cycles. */
struct ms_value {
    enum ms_value_kind kind;
    bool is_marked; /* for whoever walks the values; false at first */
    union {
        int64_t number;
        struct {
            uint32_t at, length; /* in ms_pickle.text; may be any bytes */
        } text;
        struct {
            uint32_t module, name; /* values: texts, but of any kind in an invalid file */
        } global;
        struct {
            uint32_t function, arguments; /* values, of any kind */
        } call;
        uint32_t id; /* a value */
    };
    /* The cells of a tuple's or list's items, or of a dict's key, value, key, value...; for a call,
     * the pairs that were set in the object as in a dict. 0: none. */
    uint32_t first, last;
};

struct ms_cell {
    uint32_t value, next; /* next is 0 in the last cell */
};

struct ms_pickle {
    const char *text; /* the caller owns the text, and keeps it until ms_pickle_cleanup */
    struct ms_value *values;
    struct ms_cell *cells;
    uint32_t value_count, cell_count;
    uint32_t top; /* the value that was pickled */
};

/* Memory and time are proportional to `bytes`, which is at most MS_PICKLE_MAX_BYTES; memory is
 * at most 600 MB. */
bool ms_pickle_read(const struct ms_fault_context *reading, const char *text, size_t bytes,
                    struct ms_pickle *pickle_out);

static inline void ms_pickle_cleanup(struct ms_pickle *pickle)
{
    ms_heap_free(pickle->values);
    ms_heap_free(pickle->cells);
}
