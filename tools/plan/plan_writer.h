/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the text of a plan: its head, then entry by entry. */
#pragma once

#include "runtime/plan/plan.h"
#include "tools/json_writer.h"

struct plan_writer {
    char *text;
    size_t bytes;
    bool is_short; /* of memory */
    struct writer plan, entries;
};

/* The names and the sizes of the mesh are used. Call plan_writer_end() if the result is true; it is
 * false if out of memory. */
bool plan_writer_begin(struct plan_writer *writer, const struct ms_mesh *mesh);

/* The text of the plan; free(). NULL: out of memory. */
char *plan_writer_end(struct plan_writer *writer);

/* Frees the text. If that is NULL, for want of memory, there will be no plan. */
void plan_writer_text(struct plan_writer *writer, struct writer *object, const char *key,
                      char *text);

void plan_writer_shape(struct writer *object, const struct ms_tensor *tensor);
