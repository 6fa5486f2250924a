/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hands out descriptors of this process to processes of the same user that know its key. One
 * thread, with all signals blocked, listens on an abstract socket and answers requests one by one.
 * The first ms_handout_key starts the thread, which ends with the process. A forked child hands out
 * nothing.
 *
 * The caller defines the content of requests and answers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { MS_HANDOUT_KEY_BYTES = 16, MS_HANDOUT_TEXT_BYTES = 64 };

struct ms_handout_key {
    unsigned char place[MS_HANDOUT_KEY_BYTES];  /* names the socket; visible to others */
    unsigned char secret[MS_HANDOUT_KEY_BYTES]; /* a request must contain it */
};

struct ms_handout_text {
    unsigned char bytes[MS_HANDOUT_TEXT_BYTES];
};

/* Answers a request, on the thread, which sends the descriptor and closes it. False: no answer. */
typedef bool ms_handout_finder(const struct ms_handout_text *request,
                               struct ms_handout_text *answer_out, int *descriptor_out);

/* The key of this process. The first call starts the thread; NULL if it cannot start, which is
 * logged once. Every call must pass the same finder. */
const struct ms_handout_key *ms_handout_key(ms_handout_finder *find);

/* True if the key is of this process. */
bool ms_handout_is_own(const struct ms_handout_key *key);

/* Asks the process that made the key, for up to half a minute if that process is stopped. Returns
 * NULL, or the reason for no answer. The caller closes the descriptor. */
const char *ms_handout_ask(const struct ms_handout_key *key, const struct ms_handout_text *request,
                           struct ms_handout_text *answer_out, int *descriptor_out);
