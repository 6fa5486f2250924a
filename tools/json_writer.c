/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/json_writer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "runtime/base/utf8.h"
#include "runtime/document/json.h"

void put_escaped(FILE *file, const char *text, const char *special)
{
    for (size_t left = strlen(text), bytes; left > 0; left -= bytes, text += bytes) {
        bytes = ms_utf8_character_bytes(text, left);
        if (bytes == 0) {
            bytes = 1;
            putc('?', file);
        } else if (ms_utf8_is_control(ms_utf8_code_point(text, bytes))) {
            fprintf(file, "\\u%04x", ms_utf8_code_point(text, bytes));
        } else {
            if (strchr(special, *text) != NULL)
                putc('\\', file);
            fwrite(text, 1, bytes, file);
        }
    }
}

static void put_text(FILE *file, const char *text)
{
    putc('"', file);
    put_escaped(file, text, "\"\\");
    putc('"', file);
}

static void next(struct writer *writer, const char *key)
{
    FILE *file = writer->file;
    if (!writer->is_first)
        putc(',', file);
    if (writer->is_in_line)
        fputs(writer->is_first ? "" : " ", file);
    else
        fprintf(file, "\n%*s", (int)(2 * writer->depth), "");
    writer->is_first = false;
    if (key != NULL) {
        put_text(file, key);
        fputs(": ", file);
    }
}

struct writer json_document(FILE *file)
{
    putc('{', file);
    return (struct writer){file, 1, true, false};
}

void json_document_end(const struct writer *writer)
{
    json_end(writer, '}');
    putc('\n', writer->file);
}

struct writer json_begin(struct writer *outer, const char *key, char bracket, bool is_in_line)
{
    next(outer, key);
    putc(bracket, outer->file);
    return (struct writer){outer->file, outer->depth + 1, true, is_in_line};
}

void json_end(const struct writer *writer, char bracket)
{
    if (!writer->is_first && !writer->is_in_line)
        fprintf(writer->file, "\n%*s", (int)(2 * (writer->depth - 1)), "");
    putc(bracket, writer->file);
}

void put_number(struct writer *writer, const char *key, uint64_t value)
{
    put_value(writer, key, "%" PRIu64, value);
}

void put_string(struct writer *writer, const char *key, const char *text)
{
    next(writer, key);
    put_text(writer->file, text);
}

void put_value(struct writer *writer, const char *key, const char *format, ...)
{
    va_list args;
    next(writer, key);
    va_start(args, format);
    vfprintf(writer->file, format, args);
    va_end(args);
}

void put_json(struct writer *writer, const char *key, const char *value)
{
    FILE *file = writer->file;
    const char *const end = ms_json_end(value);
    next(writer, key);
    for (bool is_in_string = false; value < end; value++) {
        if (*value == '\\')
            putc(*value++, file);
        else if (*value == '"')
            is_in_string = !is_in_string;
        if (is_in_string || strchr(" \n\r\t", *value) == NULL)
            putc(*value, file);
        if (!is_in_string && (*value == ',' || *value == ':'))
            putc(' ', file);
    }
}
