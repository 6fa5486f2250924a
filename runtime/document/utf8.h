/* SPDX-License-Identifier: Apache-2.0 */
/* Whether bytes are text that names may be made of. */
#ifndef METASHARD_RUNTIME_DOCUMENT_UTF8_H
#define METASHARD_RUNTIME_DOCUMENT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* UTF-8 as RFC 3629 has it (no overlong forms, no surrogates), and no zero in it. */
bool ms_utf8_is_valid(const char *text, size_t length);

/* Bytes of the character that begins a text of `rest` bytes; 0: it is none. */
size_t ms_utf8_character_bytes(const char *text, size_t rest);

/* Bytes of the control character, or separator of lines, that is there; 0: it is none. */
size_t ms_utf8_control_bytes(const char *text);

/* Bytes that are none of it become '?'. */
void ms_utf8_repair(char *text);

#endif
