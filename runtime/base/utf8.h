/* SPDX-License-Identifier: Apache-2.0 */
/* Checks texts from outside, and filters what the log, faults and the tools show of them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if the text is UTF-8 by RFC 3629 (no overlong forms, no surrogates) without a zero in it. */
bool ms_utf8_is_valid(const char *text, size_t length);

/* The length of the character at the start of a text of `rest` bytes, or 0 if it is invalid. */
size_t ms_utf8_character_bytes(const char *text, size_t rest);

/* The code point of a valid character that is `bytes` long. */
uint32_t ms_utf8_code_point(const char *text, size_t bytes);

/* True for characters that a terminal or a browser obeys instead of showing: the control characters
 * of ASCII and ISO 6429 (C1), line separators, and characters that change the direction of text. */
bool ms_utf8_is_control(uint32_t character);

/* Replaces each byte of a control character, or that is not UTF-8, by '?'. The length stays. */
void ms_utf8_make_printable(char *text);
