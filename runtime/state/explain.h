/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons in words: short clauses, and sentences that tell a user what to do. */
#pragma once

#include <stdbool.h>

#include "runtime/state/format.h"

/* A clause, such as "a kernel without a rule"; "?" for an unknown number. */
const char *ms_reason_text(uint32_t reason);
const char *ms_check_state_name(uint32_t state);
const char *ms_event_kind_name(uint32_t kind);

/* The reason of an event; "" if the call needs the bytes and they were not materialised. */
const char *ms_event_reason_text(uint32_t kind, uint32_t reason);
enum { MS_STATE_KIND_NAME_BYTES = 12 };
extern const char ms_state_kind_names[MS_BYTES_KIND_COUNT][MS_STATE_KIND_NAME_BYTES];

/* Writes one or two sentences: what happened, and what the user can do about it. Returns false if
 * the reason is no fallback, that is, does not say why something could not stay deferred. `call`
 * may be NULL; `text` is the kernel or the tensor, or NULL. With `bytes` 0 it only answers. */
bool ms_explain(enum ms_reason reason, const char *call, const char *text, char *sentence_out,
                size_t bytes);
