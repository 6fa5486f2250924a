/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/utf8.h"

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

uint32_t ms_utf8_code_point(const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    uint32_t character = bytes < 2 ? at[0] : at[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++)
        character = character << 6 | (at[i] & 0x3fu);
    return character;
}

/* Unicode's general category Cc, Zl and Zp, and its property Bidi_Control. */
bool ms_utf8_is_control(uint32_t character)
{
    static const struct {
        uint16_t first, last;
    } controls[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},
                    {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
    for (size_t i = 0; i < sizeof(controls) / sizeof(controls[0]); i++) {
        if (character >= controls[i].first && character <= controls[i].last)
            return true;
    }
    return false;
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

void ms_utf8_make_printable(char *text)
{
    for (size_t left = strlen(text), length; left > 0; left -= length, text += length) {
        const size_t bytes = ms_utf8_character_bytes(text, left);
        length = bytes > 0 ? bytes : 1;
        if (bytes == 0 || ms_utf8_is_control(ms_utf8_code_point(text, bytes)))
            memset(text, '?', length);
    }
}
