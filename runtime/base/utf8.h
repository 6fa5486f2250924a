/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of others: whether they are valid, and the one filter of what is shown of them, in the log,
 * in faults, and by the tools.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if the text is UTF-8 by RFC 3629 (no overlong forms, no surrogates) without a zero in it. */
bool ms_utf8_is_valid(const char *text, size_t length);

/* The length of the character at the start of a text of `rest` bytes, or 0 if it is invalid. */
size_t ms_utf8_character_bytes(const char *text, size_t rest);

/* The number of a valid character of so many bytes. */
uint32_t ms_utf8_code_point(const char *text, size_t bytes);

/* True for what a terminal or a browser obeys instead of showing it: control characters of ASCII
 * and of ISO 6429 (C1), separators of lines, and what changes the direction of text around it. */
bool ms_utf8_is_control(uint32_t character);

/* Puts '?' for each byte of these, and for each that is no UTF-8. The length stays. */
void ms_utf8_make_printable(char *text);
