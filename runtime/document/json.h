/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON documents, with faults that name the place. */
#pragma once

#ifdef METASHARD_WITHOUT_JANSSON
#include "runtime/document/no_jansson.h"
#else
#include <jansson.h>
#endif
#include <stddef.h>
#include <stdint.h>

#include "runtime/document/fault.h"

/* Reads an integer from `least` to `most`; documents contain no other numbers. */
bool ms_json_count(const struct ms_fault_context *reading, const struct ms_place *place,
                   json_t *value, uint64_t least, uint64_t most, uint64_t *count_out);
bool ms_json_keys(const struct ms_fault_context *reading, const struct ms_place *place,
                  json_t *object, const char *const *keys, const char *expected);

/* Reads a whole file of at most `most` bytes. The caller frees the text with ms_heap_free. */
bool ms_file_read(const char *path, size_t most, char **text_out, size_t *bytes_out,
                  struct ms_fault *fault);
