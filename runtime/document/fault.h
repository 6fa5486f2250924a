/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reason for rejecting a plan or a checkpoint: one printable line, "FILE: PLACE: what was
 * expected". The function that finds the fault writes the line; its callers pass on the false.
 * Nothing is logged.
 *
 * Unprintable characters become '?' (base/utf8.h). A file's path is never shortened: the limit is
 * the kernel's. Other long parts get "..." in their middle, between two characters. The longest
 * part is usually a name inside the fault, so place and reason stay whole.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum {
    MS_FAULT_FILE_BYTES = 4096,  /* these sizes include the zero */
    MS_FAULT_PLACE_BYTES = 512,  /* "tensors[3].placements.dp.shard" */
    MS_FAULT_REASON_BYTES = 640, /* also the size of a fault without a file */
    MS_FAULT_NAME_BYTES = 200,   /* for ms_fault_name */
};

struct ms_fault {
    char text[MS_FAULT_FILE_BYTES + MS_FAULT_PLACE_BYTES + MS_FAULT_REASON_BYTES + 32];
};

/* The place of a value in a document; the places above it live in the callers' frames. */
struct ms_place {
    const struct ms_place *up; /* NULL: the document itself */
    const char *key;           /* NULL: an element of a list */
    size_t index;
};

/* The file being read, for the functions that find faults in it. */
struct ms_fault_context {
    const char *file;
    struct ms_fault *fault;
};

/* These return false, so that a function can "return ms_fault_set(...)". */
bool ms_fault_set(struct ms_fault *fault, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool ms_fault_at(const struct ms_fault_context *reading, const struct ms_place *place,
                 const char *format, ...) __attribute__((format(printf, 3, 4)));
/* "FILE:LINE:COLUMN: reason", for a text that is not JSON. */
bool ms_fault_at_line(const struct ms_fault_context *reading, int line, int column,
                      const char *reason);

#ifdef __clang_analyzer__ /* tells the analyzer the result */
#define ms_fault_set(...) (ms_fault_set(__VA_ARGS__), false)
#define ms_fault_at(...) (ms_fault_at(__VA_ARGS__), false)
#define ms_fault_at_line(...) (ms_fault_at_line(__VA_ARGS__), false)
#endif

/* For a reason with more than one name: shortens the name to the size of `buffer`. */
const char *ms_fault_name(char buffer[MS_FAULT_NAME_BYTES], const char *name);
