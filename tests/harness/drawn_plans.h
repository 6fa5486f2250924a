/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random plans of all forms, for random programs: by rows, columns, ranges and flat pieces, on
 * meshes of one and two dimensions; for tensors of a checkpoint by their names, and for blocks that
 * nothing names by size and order. And a checkpoint whose tensors are larger than the driver's
 * granules, so that a plan gives away whole ones.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { DRAWN_PLAN_BYTES = 16384, DRAWN_TENSORS_MOST = 8 };

struct drawn_tensor {
    const char *name; /* one letter and ".weight" */
    const char *dtype;
    size_t element, rows, columns;
};
struct drawn_program {
    /* The tensors of its checkpoints, as a plan sees them; those of drawn_file_make are last. */
    struct drawn_tensor tensors[DRAWN_TENSORS_MOST];
    size_t tensor_count;
    const size_t *sizes; /* of its blocks, where nothing has a name; else NULL */
    size_t size_count;
    bool keeps_all; /* what other ranks keep may not be read: there is one rank */
};

size_t drawn_tensor_bytes(const struct drawn_tensor *tensor);

/* The length of a plan that is valid for the program. below(n): a number of 0 .. n - 1. */
size_t drawn_plan(const struct drawn_program *program, size_t (*below)(size_t limit),
                  char text[DRAWN_PLAN_BYTES]);

/* How a plan arrives, other than by a call. False: it does not. */
bool drawn_plan_to_file(const char *folder, const char *text); /* plan.json, at once as a whole */
bool drawn_plan_to_socket(const char *path, const char *text, size_t bytes);
/* Sends a request and waits for the answer. */
bool drawn_request(const char *path, const char *request, size_t bytes);

/* --- the checkpoint of large tensors */

enum { DRAWN_LARGE = 2 };
struct drawn_file {
    struct drawn_tensor tensors[DRAWN_LARGE];
    size_t begins[DRAWN_LARGE]; /* in the file */
    size_t bytes;
    const unsigned char *content; /* a private mapping; without a header, memory of no file */
};

/* Writes large.safetensors and maps it. Tensors are of 3 granules and of 1.25, as the simulated
 * driver is set (SIMCUDA_GRANULE_KIB). Without a header no name is known of what comes from there,
 * and what comes from a file is no block of a size. Exits if it cannot. */
struct drawn_file drawn_file_make(const char *folder, bool has_header);
/* Another mapping; munmap, bytes. NULL: there is none. */
const unsigned char *drawn_file_map(const char *folder, size_t bytes);
