/* SPDX-License-Identifier: Apache-2.0 */
/* The command line without what looks like a secret, for the state page: that page is read, copied
 * and sent by people who do not think of what is in it. */
#pragma once

#include <stddef.h>

/*
 * Joins arguments with spaces. They are `bytes` bytes, each argument ended by a zero as in
 * /proc/PID/cmdline; one without its end is left out. These become "***":
 *
 * - the value of a name with token or auth at the end of a word, or with secret, password, passwd,
 *   passphrase, credential, authorization, apikey, api-key or api_key anywhere: the argument behind
 *   an option, and what is behind "=" or ":" to the end of the argument;
 * - what begins with hf_, sk-, ghp_, github_pat_, AKIA or xox, if 8 characters or more follow;
 * - what is between "://" and "@" of a URL.
 *
 * So an option that takes no value may cost the argument behind it. What does not fit is cut off.
 */
void ms_secrets_mask(const char *arguments, size_t bytes, char *text_out, size_t text_bytes);
