/* SPDX-License-Identifier: Apache-2.0 */
/* Which texts are JSON, where others stop to be, and what is found in those that are. */
#include "runtime/document/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/hash_set.h"
#include "tools/simcuda/harness/test.h"

static struct ms_fault fault;
static const struct ms_fault_context reading = {"f", &fault};

/* The text ends at the end of a page that nothing follows, so that no byte behind it is read. */
static const char *check_bytes(const char *text, size_t bytes)
{
    static char *copy;
    const char *root;
    free(copy);
    copy = malloc(bytes + 1);
    CHECK(copy != NULL);
    memcpy(copy, text, bytes);
    copy[bytes] = '"'; /* a zero would end a string */
    return ms_json_check(&reading, copy, bytes, &root) ? root : NULL;
}

static const char *good(const char *text)
{
    const char *root = check_bytes(text, strlen(text));
    if (root == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s: %s", text, fault.text);
    return root;
}

static void bad(const char *text, const char *wanted)
{
    if (check_bytes(text, strlen(text)) != NULL)
        ms_test_fail(__FILE__, __LINE__, "%s: expected %s", text, wanted);
    if (strcmp(fault.text, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "%s: %s, expected %s", text, fault.text, wanted);
}

MS_TEST(the_parser_accepts_json)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        " [ ] ",
        "\t\r\n{\n}\n",
        "[1, -1, 0, -0, 1.5, 1e5, 1E+5, 0.25e-10, 9223372036854775807, -9223372036854775808]",
        "[18446744073709551616.0, 18446744073709551616e0]",
        "[true, false, null, \"\", \"a\"]",
        "{\"a\": {\"b\": [{}, [], [[]]]}, \"c\": \"d\"}",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud834\\udd1e\"]",
        "[\"\x7f\xc3\xa9\xe2\x82\xac\xf0\x9d\x84\x9e\"]",
        "{\"a\": {\"a\": 1}, \"b\": [{\"a\": 1}, {\"a\": 1}]}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        good(texts[i]);
}

MS_TEST(the_parser_says_where_a_text_is_no_json)
{
    static const struct {
        const char *text, *fault;
    } rows[] = {
        {"", "f:1:1: expected '[' or '{' near end of file"},
        {"hello", "f:1:1: expected '[' or '{' near 'hello'"},
        {"\"a\"", "f:1:1: expected '[' or '{' near '\"a\"'"},
        {"[] []", "f:1:4: expected the end of the file near '['"},
        {"[1,]", "f:1:4: expected a value near ']'"},
        {"{\"a\": 1,}", "f:1:9: expected a key near '}'"},
        {"{a: 1}", "f:1:2: expected a key near 'a'"},
        {"{\"a\" 1}", "f:1:6: expected ':' near '1'"},
        {"{\"a\": }", "f:1:7: expected a value near '}'"},
        {"[1 \"name\"]", "f:1:4: expected ',' or ']' near '\"name\"'"},
        {"{\"a\": 1]", "f:1:8: expected ',' or '}' near ']'"},
        {"[1}", "f:1:3: expected ',' or ']' near '}'"},
        {"[1", "f:1:3: expected ',' or ']' near end of file"},
        {"{\"a\":", "f:1:6: expected a value near end of file"},
        {"[\n1,\n\n  tru]", "f:4:3: expected a value near 'tru'"},
        {"[\"a\n\"]", "f:1:4: expected no control character 0xa in a string near '?'"},
        {"[\"a", "f:1:2: expected a '\"' at the end of the string near '\"a'"},
        {"[\"\xc3\xa9\xe2\x82\xac\", x]", "f:1:8: expected a value near 'x'"},
        {"[\"\xff\"]", "f:1:3: expected UTF-8, found byte 0xff near '?'"},
        {"[\"\xc0\x80\"]", "f:1:3: expected UTF-8, found byte 0xc0 near '?"
                           "?'"},
        {"[\"\xed\xa0\x80\"]", "f:1:3: expected UTF-8, found byte 0xed near '?"
                               "?"
                               "?'"},
        {"[\"\\x\"]", "f:1:3: expected an escape near '\\x'"},
        {"[\"\\u12g4\"]", "f:1:3: expected \\u and four hexadecimal digits near '\\u12g4'"},
        {"[\"\\u0000\"]", "f:1:3: expected no NUL in a string near '\\u0000'"},
        {"[\"\\ud800\"]", "f:1:3: expected both halves of a surrogate pair near '\\ud800'"},
        {"[\"\\udc00\"]", "f:1:3: expected both halves of a surrogate pair near '\\udc00'"},
        {"[\"\\ud800\\u0041\"]",
         "f:1:3: expected both halves of a surrogate pair near '\\ud800\\u0041'"},
        {"[\"\\ud834\\xdd1e\"]",
         "f:1:3: expected both halves of a surrogate pair near '\\ud834\\xdd1e'"},
        {"[\"\\ud834/udd1e\"]",
         "f:1:3: expected both halves of a surrogate pair near '\\ud834/udd1e'"},
        {"[\"\\ud834\\ud834\"]",
         "f:1:3: expected both halves of a surrogate pair near '\\ud834\\ud834'"},
        {"[\"\\ud834\\ue000\"]",
         "f:1:3: expected both halves of a surrogate pair near '\\ud834\\ue000'"},
        {"[\"\\udbff\\udbff\"]",
         "f:1:3: expected both halves of a surrogate pair near '\\udbff\\udbff'"},
        {"[\"\\udfff\"]", "f:1:3: expected both halves of a surrogate pair near '\\udfff'"},
        {"[\"\\ud834\\udd1",
         "f:1:3: expected both halves of a surrogate pair near '\\ud834\\udd1'"},
        {"[\"\\u123", "f:1:3: expected \\u and four hexadecimal digits near '\\u123'"},
        {"[\"\\u123/\"]", "f:1:3: expected \\u and four hexadecimal digits near '\\u123/'"},
        {"[\"\\u123:\"]", "f:1:3: expected \\u and four hexadecimal digits near '\\u123'"},
        {"[\"\\u123`\"]", "f:1:3: expected \\u and four hexadecimal digits near '\\u123`'"},
        {"[\"\\", "f:1:3: expected an escape near '\\'"},
        {"[\"a\x1f\"]", "f:1:4: expected no control character 0x1f in a string near '?'"},
        {"[tru", "f:1:2: expected a value near 'tru'"},
        {"[nul", "f:1:2: expected a value near 'nul'"},
        {"[falsy]", "f:1:2: expected a value near 'falsy'"},
        {"[1.5.5]", "f:1:5: expected ',' or ']' near '.5'"},
        {"[1e+]", "f:1:2: expected a number near '1e+'"},
        {"[1e--5]", "f:1:2: expected a number near '1e--5'"},
        {"[00]", "f:1:2: expected a number near '00'"},
        {"[-01]", "f:1:2: expected a number near '-01'"},
        {"[/]", "f:1:2: expected a value near '/'"},
        {"[01]", "f:1:2: expected a number near '01'"},
        {"[-]", "f:1:2: expected a number near '-'"},
        {"[1.]", "f:1:2: expected a number near '1.'"},
        {"[1e]", "f:1:2: expected a number near '1e'"},
        {"[.5]", "f:1:2: expected a value near '.5'"},
        {"[9223372036854775808]",
         "f:1:2: expected an integer of 64 bits near '9223372036854775808'"},
        {"[-9223372036854775809]",
         "f:1:2: expected an integer of 64 bits near '-9223372036854775809'"},
        {"{\"a\": 1, \"a\": 2}", "f:1:10: expected each key once near '\"a\"'"},
        {"{\"a\": 1, \"\\u0061\": 2}", "f:1:10: expected each key once near '\"\\u0061\"'"},
        {"[{\"b\": {}, \"a\": [{\"a\": 1}], \"b\": 2}, x]",
         "f:1:29: expected each key once near '\"b\"'"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        bad(rows[i].text, rows[i].fault);
    CHECK(check_bytes("[1\0]", 4) == NULL);
    CHECK(strstr(fault.text, "f:1:3: ") == fault.text);
}

/* Every beginning of a good text is a bad one, and nothing behind it is read (sanitizers). */
MS_TEST(a_text_that_is_cut_off)
{
    static const char text[] = "{\"a\\u00e9\\ud834\\udd1e\": [1.5e-7, -3, true, null, "
                               "\"\xe2\x82\xac\\n\"], \"b\": {\"c\": {}}}";
    for (size_t bytes = 0; bytes + 1 < sizeof(text); bytes++)
        CHECK(check_bytes(text, bytes) == NULL);
    good(text);
}

/* As much of it as is one thing, and of a long one the first 20 bytes. */
MS_TEST(a_fault_shows_the_text_at_its_place)
{
    static const struct {
        const char *text, *shown;
    } rows[] = {
        {"12345678901234567890", "12345678901234567890"},
        {"123456789012345678901", "12345678901234567890"},
        {"\"345678901234567890\"x", "\"345678901234567890\""}, /* its end is the last of 20 */
        {"\"3456789012345678901\"", "\"3456789012345678901"},
        {"\"ab\ncd\"", "\"ab"},
        {"\"\" \"\"", "\"\""},
        {"ab\"cd", "ab"},
        {"ab cd", "ab"},
        {"ab\tcd", "ab"},
        {"ab\rcd", "ab"},
        {"ab\ncd", "ab"},
        {"ab,", "ab"},
        {"ab:", "ab"},
        {"ab{", "ab"},
        {"ab[", "ab"},
        {"ab}", "ab"},
        {"ab]", "ab"},
        {"{}", "{"},
        {":a", ":"},
        {",a", ","},
        {"a", "a"},
        {"\"", "\""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[64], wanted[96];
        snprintf(text, sizeof(text), "[] %s", rows[i].text);
        snprintf(wanted, sizeof(wanted), "f:1:4: expected the end of the file near '%s'",
                 rows[i].shown);
        bad(text, wanted);
    }
}

static char *nested(unsigned depth)
{
    char *text = malloc(2 * depth + 1);
    CHECK(text != NULL);
    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    text[2 * depth] = '\0';
    return text;
}

MS_TEST(nesting_is_bounded)
{
    char *text = nested(MS_JSON_DEPTH);
    good(text);
    free(text);
    text = nested(MS_JSON_DEPTH + 1);
    bad(text, "f:1:2049: expected nesting of at most 2048 near '['");
    free(text);
}

MS_TEST(the_size_is_bounded)
{
    const char *root;
    CHECK(!ms_json_check(&reading, "{}", (size_t)MS_JSON_MAX_BYTES + 1, &root));
    CHECK(strcmp(fault.text, "f: expected at most 268435456 bytes") == 0);
}

/* Up to eight keys are compared one with another, more are found by a set. */
MS_TEST(a_key_twice_among_few)
{
    for (int count = 1; count < 12; count++) {
        for (int twice = 0; twice <= count; twice++) {
            char text[256] = "[{\"other\": 1}, {";
            for (int i = 0; i < count; i++)
                sprintf(text + strlen(text), "\"%c\": {\"a\": 0}, ", 'a' + i);
            sprintf(text + strlen(text), "\"%c\": 1}]", 'a' + twice);
            CHECK_EQ(check_bytes(text, strlen(text)) != NULL, twice == count);
        }
    }
}

/* 1 to n with one key that is given twice; keys of other objects do not count. */
MS_TEST(a_key_twice_among_many)
{
    enum { KEYS = 5000 };
    for (unsigned twice = 0; twice <= KEYS; twice += 1250) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        CHECK(out != NULL);
        fputs("{\n", out);
        for (unsigned i = 0; i < KEYS; i++)
            fprintf(out, "\"key %u\": {\"key %u\": [], \"x\": 1},\n", i, i);
        fprintf(out, "\"key %u\": 1}", twice);
        fclose(out);
        CHECK((check_bytes(text, bytes) != NULL) == (twice >= KEYS));
        if (twice < KEYS)
            CHECK(strstr(fault.text, "f:5002:1: expected each key once") == fault.text);
        free(text);
    }
}

MS_TEST(texts_are_decoded)
{
    static const char text[] =
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud834\\udd1e z\", \"\"]";
    static const char wanted[] = "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9d\x84\x9e z";
    struct ms_json_walk walk = {.in = good(text)};
    struct ms_arena arena = {0};
    CHECK(ms_json_next(&walk));
    const char *seen = ms_json_text(walk.value, &arena);
    CHECK_EQ(strlen(seen), strlen(wanted));
    CHECK(strcmp(seen, wanted) == 0);
    ms_arena_cleanup(&arena);
    CHECK(ms_json_is_text(walk.value, wanted));
    CHECK(!ms_json_is_text(walk.value, "\"\\/\b"));
    CHECK(ms_json_hash(walk.value) == ms_hash_set_text(wanted));
    CHECK(ms_json_next(&walk));
    CHECK(ms_json_is_text(walk.value, ""));
    CHECK(!ms_json_next(&walk));
}

/* The first and the last character of each length in UTF-8, and the digits of both cases. */
MS_TEST(characters_of_each_length_are_decoded)
{
    static const struct {
        const char *text, *wanted;
    } rows[] = {
        {"\\u0001", "\1"},
        {"\\u007f", "\x7f"},
        {"\\u0080", "\xc2\x80"},
        {"\\u07FF", "\xdf\xbf"},
        {"\\u0800", "\xe0\xa0\x80"},
        {"\\ud7ff", "\xed\x9f\xbf"},
        {"\\ue000", "\xee\x80\x80"},
        {"\\uffff", "\xef\xbf\xbf"},
        {"\\ud800\\udc00", "\xf0\x90\x80\x80"},
        {"\\udbff\\udfff", "\xf4\x8f\xbf\xbf"},
        {"\\uabcd\\uABCD", "\xea\xaf\x8d\xea\xaf\x8d"},
        {"\\u0039\\u0030x", "90x"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[64];
        struct ms_arena arena = {0};
        snprintf(text, sizeof(text), "[\"%s\"]", rows[i].text);
        struct ms_json_walk walk = {.in = good(text)};
        CHECK(ms_json_next(&walk));
        if (strcmp(ms_json_text(walk.value, &arena), rows[i].wanted) != 0)
            ms_test_fail(__FILE__, __LINE__, "%s", text);
        CHECK(ms_json_is_text(walk.value, rows[i].wanted));
        CHECK(ms_json_hash(walk.value) == ms_hash_set_text(rows[i].wanted));
        ms_arena_cleanup(&arena);
    }
}

MS_TEST(a_string_is_a_text_as_a_whole)
{
    static const struct {
        const char *string, *text;
    } others[] = {
        {"[\"ab\"]", "a"},         {"[\"a\"]", "ab"},
        {"[\"a\\u0062\"]", "a"},   {"[\"a\\u0062\"]", "abc"},
        {"[\"a\\u0062c\"]", "ab"}, {"[\"a\\u0062\"]", "ac"},
        {"[ab\"]", "ab"},          {"[5]", "5"},
        {"[\"b\\u0062\"]", "ab"},
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        CHECK(!ms_json_is_text(others[i].string + 1, others[i].text));
    CHECK(!ms_json_is_text(NULL, ""));
    CHECK(ms_json_is_text("\"a\\u0062\"", "ab"));
}

/* Two members may not have the same key. */
MS_TEST(equal_texts_may_be_written_differently)
{
    static const char *const strings[] = {"ab", "\\u0061b", "a\\u0062", "a", "", "abc", "b"};
    enum { COUNT = sizeof(strings) / sizeof(strings[0]) };
    for (unsigned i = 0; i < COUNT; i++) {
        for (unsigned j = 0; j < COUNT; j++) {
            char text[64];
            snprintf(text, sizeof(text), "{\"%s\": 0, \"%s\": 0}", strings[i], strings[j]);
            CHECK_EQ(check_bytes(text, strlen(text)) == NULL, i == j || (i < 3 && j < 3));
        }
    }
}

MS_TEST(the_parser_finds_members_and_elements)
{
    static const char *const keys[] = {"a", "b", "c", NULL};
    const char *values[3];
    const char *root =
        good(" { \"b\" : [ 1 , {\"x\": \"]}\\\"\"}, [ ] ,4] ,\"a\":-7, \"d\": true}");
    CHECK_EQ(ms_json_size(root), 3);
    CHECK(ms_json_members(&reading, NULL, root, keys, values, NULL));
    CHECK(values[2] == NULL);
    CHECK_EQ(ms_json_size(values[1]), 4);
    CHECK_EQ(ms_json_size(values[0]), 0);
    CHECK(!ms_json_members(&reading, NULL, root, keys, values, "a, b and c"));
    CHECK(strcmp(fault.text, "f: d: unknown key; expected a, b and c") == 0);
    CHECK(!ms_json_members(&reading, NULL, values[1], keys, values, NULL));
}

MS_TEST(the_parser_accepts_integers_that_fit)
{
    struct ms_json_walk walk = {
        .in = good("[0, 9223372036854775807, 5, 5.0, 5e0, -1, \"5\", true, [5], "
                   "123456789012345678901234567890.5]")};
    static const bool is_good[] = {true,  true,  true,  false, false,
                                   false, false, false, false, false};
    uint64_t number;
    for (unsigned i = 0; ms_json_next(&walk); i++)
        CHECK_EQ(ms_json_count(&reading, NULL, walk.value, 0, INT64_MAX, &number), is_good[i]);
    CHECK(!ms_json_count(&reading, NULL, NULL, 0, 1, &number));
    CHECK(!ms_json_count(&reading, NULL, good("[7]") + 1, 8, 9, &number));
    CHECK(strcmp(fault.text, "f: expected an integer from 8 to 9, found 7") == 0);
}
