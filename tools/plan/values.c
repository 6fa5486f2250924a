/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and printing of values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan/commands.h"

bool read_count(const char *text, uint64_t most, uint64_t *count_out)
{
    char *end;
    const unsigned long long count = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || count > most)
        return false;
    *count_out = count;
    return true;
}

/* The code point and length of a control character or line separator; 0 for others. */
static unsigned control(const char *text, size_t *bytes_out)
{
    const unsigned char *bytes = (const unsigned char *)text;
    *bytes_out = bytes[0] < 0x80 ? 1 : bytes[0] == 0xc2 ? 2 : 3;
    if (bytes[0] < 0x20 || bytes[0] == 0x7f)
        return bytes[0];
    if (bytes[0] == 0xc2 && bytes[1] < 0xa0)
        return bytes[1];
    return bytes[0] == 0xe2 && bytes[1] == 0x80 && (bytes[2] & 0xfe) == 0xa8
               ? 0x2000u + (bytes[2] & 0x3fu)
               : 0;
}

void print_escaped(const char *text, const char *special)
{
    size_t bytes;
    while (*text != '\0') {
        const unsigned character = control(text, &bytes);
        if (character != 0) {
            printf("\\u%04x", character);
            text += bytes;
            continue;
        }
        if (strchr(special, *text) != NULL)
            putchar('\\');
        putchar(*text++);
    }
}
