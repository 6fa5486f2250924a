/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/document/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/utf8.h"

/* Defined here as functions (fault.h). */
#undef ms_fault_set
#undef ms_fault_at
#undef ms_fault_at_line

enum { PLACES_MAX = 16, KEY_BYTES = 128 };

/* True if the byte is not the first of its character. UTF-8 has at most three such in a row. */
static bool is_inside(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* The length of the whole characters that lie behind `at` (step 1) or before `at` (step -1): at
 * most `most` bytes. The text is longer in that direction. */
static size_t whole_bytes(const char *at, ptrdiff_t step, size_t most)
{
    size_t bytes = most;
    while (bytes > 0 && most - bytes < 3 && is_inside(at[step * (ptrdiff_t)bytes]))
        bytes--;
    return bytes;
}

static void shorten(char *out, size_t out_bytes, const char *text)
{
    static const char gap[] = "...";
    const size_t length = strlen(text), room = out_bytes - sizeof(gap);
    if (length < out_bytes) {
        memcpy(out, text, length + 1);
        return;
    }
    const size_t head = whole_bytes(text, 1, room / 2);
    const size_t tail = whole_bytes(text + length, -1, room - room / 2);
    memcpy(out, text, head);
    memcpy(out + head, gap, sizeof(gap) - 1);
    memcpy(out + head + sizeof(gap) - 1, text + length - tail, tail + 1);
}

/* If out of memory, cuts off the end of the text. */
static void __attribute__((format(printf, 3, 0)))
write_reason(char *out, size_t out_bytes, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int length = vsnprintf(out, out_bytes, format, args);
    if (length >= 0 && (size_t)length >= out_bytes) {
        char *whole = ms_heap_alloc((size_t)length + 1);
        out[whole_bytes(out, 1, out_bytes - 2)] = '\0';
        if (whole != NULL && vsnprintf(whole, (size_t)length + 1, format, again) >= 0)
            shorten(out, out_bytes, whole);
        ms_heap_free(whole);
    }
    va_end(again);
}

bool ms_fault_set(struct ms_fault *fault, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_reason(fault->text, MS_FAULT_REASON_BYTES, format, args);
    va_end(args);
    ms_utf8_make_printable(fault->text);
    return false;
}

static void write_place(char *out, const struct ms_place *place)
{
    const struct ms_place *places[PLACES_MAX];
    size_t count = 0, used = 0;
    for (; place != NULL && count < PLACES_MAX; place = place->up)
        places[count++] = place;
    out[0] = '\0';
    while (count-- > 0 && used < MS_FAULT_PLACE_BYTES) {
        const struct ms_place *one = places[count];
        char text[KEY_BYTES];
        if (one->key != NULL)
            shorten(text, sizeof(text), one->key);
        else
            snprintf(text, sizeof(text), "[%zu]", one->index);
        const int length = snprintf(out + used, MS_FAULT_PLACE_BYTES - used, "%s%s",
                                    used > 0 && one->key != NULL ? "." : "", text);
        used += length > 0 ? (size_t)length : 0;
    }
}

/* `where` may be empty. */
static bool write_fault(const struct ms_fault_context *reading, const char *where,
                        const char *reason)
{
    struct ms_fault *fault = reading->fault;
    shorten(fault->text, MS_FAULT_FILE_BYTES, reading->file);
    const size_t used = strlen(fault->text);
    snprintf(fault->text + used, sizeof(fault->text) - used, "%s: %s", where, reason);
    ms_utf8_make_printable(fault->text);
    return false;
}

bool ms_fault_at(const struct ms_fault_context *reading, const struct ms_place *place,
                 const char *format, ...)
{
    char where[MS_FAULT_PLACE_BYTES + 2] = ": ", reason[MS_FAULT_REASON_BYTES];
    va_list args;
    va_start(args, format);
    write_reason(reason, sizeof(reason), format, args);
    va_end(args);
    write_place(where + 2, place);
    return write_fault(reading, where[2] != '\0' ? where : "", reason);
}

bool ms_fault_at_line(const struct ms_fault_context *reading, int line, int column,
                      const char *reason)
{
    char where[32];
    snprintf(where, sizeof(where), ":%d:%d", line, column);
    return write_fault(reading, where, reason);
}

const char *ms_fault_name(char buffer[MS_FAULT_NAME_BYTES], const char *name)
{
    shorten(buffer, MS_FAULT_NAME_BYTES, name);
    return buffer;
}
