/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python's pickle, read and not executed: what would be a class, a function or the result of a call is a
 * value that stands for it, and nothing is imported, called or built. Protocols 2 to 5, in what
 * torch.save writes of them; another opcode is a fault that names it and where it is. This knows nothing
 * of tensors; torch_state.h does.
 */
#ifndef METASHARD_RUNTIME_CHECKPOINT_PICKLE_H
#define METASHARD_RUNTIME_CHECKPOINT_PICKLE_H

#include <stdint.h>

#include "runtime/document/fault.h"

enum { MS_PICKLE_MAX_BYTES = 100000000 };

enum ms_value_kind {
    MS_VALUE_OTHER, /* None, bool, float, bytes, set, an integer of more than 64 bits */
    MS_VALUE_INT,
    MS_VALUE_TEXT,
    MS_VALUE_GLOBAL,
    MS_VALUE_TUPLE,
    MS_VALUE_LIST,
    MS_VALUE_DICT,
    MS_VALUE_CALL,      /* what a call of a function or a class would return */
    MS_VALUE_PERSISTENT /* what the writer's persistent_id was given for */
};

/* Values and cells are known by their index; they may refer to each other in cycles. */
struct ms_value {
    enum ms_value_kind kind;
    bool is_marked; /* for who reads the values; false at first */
    union {
        int64_t number;
        struct {
            uint32_t at, length; /* in ms_pickle.text; any bytes */
        } text;
        struct {
            uint32_t module, name; /* values; texts, or in a file by no writer anything */
        } global;
        struct {
            uint32_t function, arguments; /* values, of any kind */
        } call;
        uint32_t id; /* a value */
    };
    /* Cells; 0: none. Of a tuple and a list, the items; of a dict, key, value, key, value..; of a call,
     * what was set in the object as in a dict. */
    uint32_t first, last;
};

struct ms_cell {
    uint32_t value, next; /* next 0: the last */
};

struct ms_pickle {
    const char *text; /* the caller's, kept as long as this */
    struct ms_value *values;
    struct ms_cell *cells;
    uint32_t value_count, cell_count;
    uint32_t top; /* the value that was pickled */
};

/* Memory and time are in proportion to `bytes`, which is at most MS_PICKLE_MAX_BYTES. */
bool ms_pickle_read(const struct ms_reading *reading, const char *text, size_t bytes,
                    struct ms_pickle *pickle_out);
void ms_pickle_cleanup(struct ms_pickle *pickle);

bool ms_pickle_is_text(const struct ms_pickle *pickle, uint32_t value, const char *text);
bool ms_pickle_is_global(const struct ms_pickle *pickle, uint32_t value, const char *module,
                         const char *name);

/* The items of a tuple: the first `count`, if it has as many. */
bool ms_pickle_items(const struct ms_pickle *pickle, uint32_t tuple, uint32_t *items, int count);

#endif
