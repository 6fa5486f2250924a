/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/document/utf8.h"

#include <string.h>

/* Returns the length of the character at `at`, where `rest` bytes are left; 0 if invalid. */
static size_t character_bytes(const unsigned char *at, size_t rest)
{
    const unsigned char first = at[0];
    if (first < 0x80)
        return first != 0;
    const size_t bytes = first < 0xc2   ? 0
                         : first < 0xe0 ? 2
                         : first < 0xf0 ? 3
                         : first < 0xf5 ? 4
                                        : 0;
    if (bytes == 0 || bytes > rest)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    }
    /* Overlong, a surrogate, or beyond U+10FFFF. */
    const bool is_outside = (first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] >= 0xa0) ||
                            (first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] >= 0x90);
    return is_outside ? 0 : bytes;
}

bool ms_utf8_is_valid(const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        const size_t bytes = character_bytes((const unsigned char *)text + at, length - at);
        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

void ms_utf8_repair(char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        const size_t bytes = character_bytes((const unsigned char *)text, left);
        if (bytes == 0)
            *text = '?';
        text += bytes > 0 ? bytes : 1;
        left -= bytes > 0 ? bytes : 1;
    }
}
