/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that this process hands out to other processes of its user, who know a key. One
 * thread, with all signals blocked, listens on an abstract socket and answers one request after the
 * other. It starts with the first key that is asked for, and ends with the process. A forked child
 * hands out nothing.
 *
 * What a request and an answer say is the caller's own.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { MS_HANDOUT_KEY_BYTES = 16, MS_HANDOUT_TEXT_BYTES = 64 };

struct ms_handout_key {
    unsigned char place[MS_HANDOUT_KEY_BYTES];  /* of the socket: others can see it */
    unsigned char secret[MS_HANDOUT_KEY_BYTES]; /* that a request must know */
};

struct ms_handout_text {
    unsigned char bytes[MS_HANDOUT_TEXT_BYTES];
};

/* Answers a request, on the thread. The descriptor is sent, then closed. False: there is none. */
typedef bool ms_handout_finder(const struct ms_handout_text *request,
                               struct ms_handout_text *answer_out, int *descriptor_out);

/* The key of this process, after the thread has started. NULL if it cannot, which is logged once.
 * The finder is always the same. */
const struct ms_handout_key *ms_handout_key(ms_handout_finder *find);

/* True if the key is of this process. */
bool ms_handout_is_own(const struct ms_handout_key *key);

/* Asks the process whose key it is, which may take half a minute if it is stopped. Returns NULL, or
 * why there is no answer. The caller closes the descriptor. */
const char *ms_handout_ask(const struct ms_handout_key *key, const struct ms_handout_text *request,
                           struct ms_handout_text *answer_out, int *descriptor_out);
