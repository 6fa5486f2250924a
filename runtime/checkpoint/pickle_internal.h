/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that reads a pickle: shared by pickle.c and the opcodes of pickle_opcodes.c. */
#ifndef METASHARD_RUNTIME_CHECKPOINT_PICKLE_INTERNAL_H
#define METASHARD_RUNTIME_CHECKPOINT_PICKLE_INTERNAL_H

#include "runtime/checkpoint/pickle.h"

/* What follows the byte of an opcode; numbers are little-endian. */
enum ms_argument_kind {
    NOTHING,
    NUMBER_8,
    NUMBER_16,
    NUMBER_32,
    NUMBER_64,
    SIGNED_32,
    BYTES_8, /* a length of this many bits, then that many bytes */
    BYTES_32,
    BYTES_64,
    TWO_LINES
};

struct ms_argument {
    unsigned char opcode;
    uint64_t number;
    uint32_t at, length; /* of the bytes, or of the first line */
    uint32_t second;     /* length of the second line */
};

/* Indices of values. */
struct ms_numbers {
    uint32_t *number;
    size_t count, capacity;
};

/*
 * The machine of Python's Lib/pickle.py. Each byte makes at most a few values, and each pushed
 * value becomes at most one cell, so memory is proportional to the text.
 */
struct ms_unpickler {
    const struct ms_fault_context *reading;
    struct ms_pickle pickle;
    size_t bytes, opcode, next;  /* size of the text; offset of the opcode; end of what was read */
    struct ms_argument argument; /* of the opcode */
    size_t value_capacity, cell_capacity;
    struct ms_numbers stack;
    struct ms_numbers marks; /* heights of the stack */
    struct ms_numbers memo;  /* value + 1; 0: not set */
    size_t memo_filled;
    bool is_done;
};

struct ms_opcode {
    const char *name; /* NULL: no such opcode */
    enum ms_argument_kind argument;
    /* NULL: torch.save does not write it. */
    bool (*run)(struct ms_unpickler *);
};

extern const struct ms_opcode ms_opcodes[256];

/* These return false, or NULL, with the fault set. */
bool ms_unpickler_fault(const struct ms_unpickler *machine, const char *text);
bool ms_unpickler_add(struct ms_unpickler *machine, struct ms_numbers *numbers, uint32_t number);

/* Adds a new value to the pickle, or also to the stack; valid until the next one is made. */
struct ms_value *ms_unpickler_make(struct ms_unpickler *machine, enum ms_value_kind kind);
struct ms_value *ms_unpickler_push(struct ms_unpickler *machine, enum ms_value_kind kind);

/* Adds a cell to the value `to`. */
bool ms_unpickler_add_item(struct ms_unpickler *machine, uint32_t to, uint32_t item);

#endif
