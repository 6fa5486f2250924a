/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/document/utf8.h"

#include <string.h>

size_t ms_utf8_character_bytes(const char *text, size_t rest)
{
    const unsigned char *at = (const unsigned char *)text;
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

/* Those of ASCII, U+0080 to U+009F, U+2028 and U+2029. */
size_t ms_utf8_control_bytes(const char *text)
{
    const unsigned char *bytes = (const unsigned char *)text;
    if (bytes[0] == 0xc2 && bytes[1] >= 0x80 && bytes[1] < 0xa0)
        return 2;
    if (bytes[0] == 0xe2 && bytes[1] == 0x80 && (bytes[2] & 0xfe) == 0xa8)
        return 3;
    return (bytes[0] > 0 && bytes[0] < 0x20) || bytes[0] == 0x7f;
}

bool ms_utf8_is_valid(const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        const size_t bytes = ms_utf8_character_bytes(text + at, length - at);
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
        const size_t bytes = ms_utf8_character_bytes(text, left);
        if (bytes == 0)
            *text = '?';
        text += bytes > 0 ? bytes : 1;
        left -= bytes > 0 ? bytes : 1;
    }
}
