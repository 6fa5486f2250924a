/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that names are valid text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* True if the text is UTF-8 by RFC 3629 (no overlong forms, no surrogates) without a zero in it. */
bool ms_utf8_is_valid(const char *text, size_t length);

/* The length of the character at the start of a text of `rest` bytes, or 0 if it is invalid. */
size_t ms_utf8_character_bytes(const char *text, size_t rest);

/* The length of the control character or line separator at the start of a text, or 0. */
size_t ms_utf8_control_bytes(const char *text);

/* Replaces bytes that are not valid by '?'. */
void ms_utf8_repair(char *text);
