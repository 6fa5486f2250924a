/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PLACES_MAX = 16, PATH_MAX_BYTES = 256 };

/* Parts of UTF-8 characters are left as they are: names may hold them. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++) {
        const unsigned char byte = (unsigned char)*text;
        if (byte < 0x20 || byte == 0x7f)
            *text = '?';
    }
}

bool ms_fault_set(struct ms_fault *fault, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(fault->text, sizeof(fault->text), format, args);
    va_end(args);
    make_printable(fault->text);
    return false;
}

static void write_path(char *path, size_t bytes, const struct ms_place *place)
{
    const struct ms_place *places[PLACES_MAX];
    size_t count = 0, used = 0;
    for (; place != NULL && count < PLACES_MAX; place = place->up)
        places[count++] = place;
    path[0] = '\0';
    while (count-- > 0 && used < bytes) {
        const struct ms_place *one = places[count];
        const int length =
            one->key != NULL
                ? snprintf(path + used, bytes - used, "%s%.80s", used > 0 ? "." : "", one->key)
                : snprintf(path + used, bytes - used, "[%zu]", one->index);
        used += length > 0 ? (size_t)length : 0;
    }
}

bool ms_fault_at(const struct ms_reading *reading, const struct ms_place *place, const char *format,
                 ...)
{
    char path[PATH_MAX_BYTES], text[384];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    write_path(path, sizeof(path), place);
    return ms_fault_set(reading->fault, "%.200s: %s%s%s", reading->file, path,
                        path[0] != '\0' ? ": " : "", text);
}
