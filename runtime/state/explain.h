/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons in words: short ones, and sentences on which a user can act. */
#ifndef METASHARD_RUNTIME_STATE_EXPLAIN_H
#define METASHARD_RUNTIME_STATE_EXPLAIN_H

#include <stdbool.h>

#include "runtime/state/format.h"

/* A clause: "a kernel without a rule". "?" for a number that is no reason, and no kind. */
const char *ms_reason_text(uint32_t reason);
const char *ms_event_kind_name(uint32_t kind);

/* The reason of an event: "" where the call needs the bytes and that goes without saying. */
const char *ms_event_reason_text(uint32_t kind, uint32_t reason);
extern const char *const ms_state_kind_names[MS_BYTES_KIND_COUNT];

/* The reason is one for which something could not stay deferred, and that ms_explain explains. */
bool ms_reason_is_fallback(enum ms_reason reason);

/*
 * What happened, and what can be done about it: one sentence or two. False when there is nothing to explain:
 * the reason is none of a fallback. `call` may be NULL; `text` is the kernel or the tensor, or NULL.
 */
bool ms_explain(enum ms_reason reason, const char *call, const char *text, char *sentence_out,
                size_t bytes);

#endif
