/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a plan or a checkpoint was rejected: one printable line, "FILE: PLACE: what was expected". The
 * function that finds the fault writes it; those above pass the false on. Nothing is logged here.
 */
#ifndef METASHARD_RUNTIME_PLAN_FAULT_H
#define METASHARD_RUNTIME_PLAN_FAULT_H

#include <stdbool.h>
#include <stddef.h>

struct ms_fault {
    char text[640];
};

/* Where in a document a value stands; the places above it live in the callers' frames. */
struct ms_place {
    const struct ms_place *up; /* NULL: the document itself */
    const char *key;           /* NULL: an element of a list */
    size_t index;
};

/* What is read, for the functions that find faults in it. */
struct ms_reading {
    const char *file;
    struct ms_fault *fault;
};

/* Both return false, so that "return ms_fault_set(...)" reads as what it does. What is not printable
 * in the text becomes '?', and what is too long is cut. */
bool ms_fault_set(struct ms_fault *fault, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool ms_fault_at(const struct ms_reading *reading, const struct ms_place *place, const char *format,
                 ...) __attribute__((format(printf, 3, 4)));

#endif
