/* SPDX-License-Identifier: Apache-2.0 */
/* Writing JSON. The result is valid whatever a text holds: bytes that are no UTF-8 become '?'. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* An object or a list that is being written: whether a comma is due, and how deep it is. */
struct writer {
    FILE *file;
    unsigned depth;
    bool is_first, is_in_line; /* small objects stand in one line */
};

/* The whole document, which is an object. */
struct writer json_document(FILE *file);
void json_document_end(const struct writer *writer);

/* `bracket` is '{' or '[', and then '}' or ']'. In all functions `key` is NULL in a list. */
struct writer json_begin(struct writer *outer, const char *key, char bracket, bool is_in_line);
void json_end(const struct writer *writer, char bracket);

void put_number(struct writer *writer, const char *key, uint64_t value);
void put_string(struct writer *writer, const char *key, const char *text);

/* A value as the format makes it. */
void put_value(struct writer *writer, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A value of a document that was read (runtime/document/json.h), in one line. */
void put_json(struct writer *writer, const char *key, const char *value);

/* The text, with a backslash before characters of `special`; control characters as \u0007. */
void put_escaped(FILE *file, const char *text, const char *special);
