/* SPDX-License-Identifier: Apache-2.0 */
/* The one filter of what is shown. The expected characters are those of Unicode 15.1: categories
 * Cc, Zl and Zp, and property Bidi_Control. */
#include "runtime/base/utf8.h"

#include <string.h>

#include "tools/simcuda/harness/test.h"

/* The character in UTF-8. */
static size_t encode(uint32_t character, char *out)
{
    const size_t bytes = character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    static const unsigned char marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = bytes; i-- > 0; character >>= 6)
        out[i] = (char)(i > 0 ? 0x80 | (character & 0x3f) : marks[bytes] | character);
    out[bytes] = '\0';
    return bytes;
}

static bool is_expected(uint32_t character)
{
    static const uint32_t others[] = {0x061c, 0x200e, 0x200f, 0x2028, 0x2029, 0x202a, 0x202b,
                                      0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (character == others[i])
            return true;
    }
    return character < 0x20 || (character >= 0x7f && character < 0xa0);
}

MS_TEST(characters_that_a_terminal_obeys_are_replaced)
{
    char text[8], wanted[8];
    for (uint32_t character = 1; character < 0x110000; character++) {
        if (character >= 0xd800 && character < 0xe000)
            continue;
        const size_t bytes = encode(character, text);
        CHECK_EQ(ms_utf8_character_bytes(text, bytes), bytes);
        CHECK_EQ(ms_utf8_code_point(text, bytes), character);
        strcpy(wanted, is_expected(character) ? "????" : text);
        wanted[bytes] = '\0';
        ms_utf8_make_printable(text);
        if (strcmp(text, wanted) != 0)
            ms_test_fail(__FILE__, __LINE__, "U+%04X became \"%s\"", character, text);
    }
}

MS_TEST(bytes_that_are_no_utf8_are_replaced)
{
    static const char *const texts[][2] = {{"\x9b"
                                            "31m",
                                            "?31m"},
                                           {"a\xff\xc3", "a??"},
                                           {"\xe2\x80", "??"},
                                           {"\xed\xa0\x80", "???"},
                                           {"\xc0\x9b", "??"},
                                           {"\xc1\xbf", "??"},
                                           {"\xe0\x9f\xbf", "???"},
                                           {"\xf0\x8f\xbf\xbf", "????"},
                                           {"\xf4\x90\x80\x80", "????"},
                                           {"\xf5\x80\x80\x80", "????"},
                                           {"\xf8\x88\x80\x80", "????"},
                                           {"\xc3(", "?("},
                                           {"\xe2\x82(", "?\?("},
                                           {"\xf0\x9f\x90(", "?\?\?("},
                                           {"\xe2(\xac", "?(?"},
                                           {"\x80", "?"},
                                           {"\xbf", "?"},
                                           {"", ""}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char text[16];
        strcpy(text, texts[i][0]);
        ms_utf8_make_printable(text);
        if (strcmp(text, texts[i][1]) != 0)
            ms_test_fail(__FILE__, __LINE__, "%s, expected %s", text, texts[i][1]);
    }
}

MS_TEST(a_text_is_valid_as_a_whole)
{
    static const struct {
        const char *text;
        size_t length;
        bool is_valid;
    } rows[] = {
        {"", 0, true},
        {"a", 1, true},
        {"a\xc3\xa9z", 4, true},
        {"a\xc3\xa9", 2, false},
        {"\xc3\xa9\xff", 3, false},
        {"\xff", 1, false},
        {"\xff", 0, true},
        {"a\0b", 3, false},
        {"\xe2\x82\xac", 2, false},
        {"\xe2\x82\xac", 3, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (ms_utf8_is_valid(rows[i].text, rows[i].length) != rows[i].is_valid)
            ms_test_fail(__FILE__, __LINE__, "row %zu", i);
    }
}

MS_TEST(too_few_bytes_are_no_character)
{
    CHECK_EQ(ms_utf8_character_bytes("", 1), 0);
    CHECK_EQ(ms_utf8_character_bytes("a", 1), 1);
    CHECK_EQ(ms_utf8_character_bytes("\xc3\xa9", 1), 0);
    CHECK_EQ(ms_utf8_character_bytes("\xc3\xa9", 2), 2);
    CHECK_EQ(ms_utf8_character_bytes("\xc3\xa9", 9), 2);
    CHECK_EQ(ms_utf8_character_bytes("\xe2\x82\xac", 2), 0);
    CHECK_EQ(ms_utf8_character_bytes("\xf0\x9f\x90\x8d", 3), 0);
    CHECK_EQ(ms_utf8_character_bytes("\xf0\x9f\x90\x8d", 4), 4);
}
