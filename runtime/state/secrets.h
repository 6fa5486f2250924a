/* SPDX-License-Identifier: Apache-2.0 */
/* Masks in the command line what looks like a secret, for the state page: people read, copy and
 * send the page without a thought for its content. */
#pragma once

#include <stddef.h>

/*
 * Joins arguments, `bytes` bytes in all, with spaces. Each argument is ended by a zero as in
 * /proc/PID/cmdline; an argument without its end is left out. These become "***":
 *
 * - the value of a name with token or auth at the end of a word, or with secret, password, passwd,
 *   passphrase, credential, authorization, apikey, api-key or api_key anywhere: the argument behind
 *   an option, and the text behind "=" or ":" to the end of the argument;
 * - words that begin with hf_, sk-, ghp_, github_pat_, AKIA or xox, if 8 characters or more follow;
 * - the text between "://" and "@" of a URL.
 *
 * So an option that takes no value may cost the argument behind it. Text that does not fit is cut
 * off.
 */
void ms_secrets_mask(const char *arguments, size_t bytes, char *text_out, size_t text_bytes);
