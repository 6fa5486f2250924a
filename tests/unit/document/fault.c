/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a fault: whole characters, a place and a reason that stay whole, printable. */
#include "runtime/document/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plans/plan/fuzz_check.h"
#include "tools/simcuda/harness/test.h"

static const char *const characters[] = {"a", "\xcf\x80", "\xe2\x82\xac", "\xf0\x9f\x90\x8d"};

/* `ahead` bytes of x, then `count` times the character. free(). */
static char *long_name(size_t ahead, const char *character, size_t count)
{
    char *name = malloc(ahead + count * strlen(character) + 1), *end = name + ahead;
    memset(name, 'x', ahead);
    for (size_t i = 0; i < count; i++, end += strlen(character))
        memcpy(end, character, strlen(character));
    *end = '\0';
    return name;
}

static void check_shortened(const char *text, const char *begin, const char *end, size_t most)
{
    const size_t length = strlen(text), end_length = strlen(end);
    if (strncmp(text, begin, strlen(begin)) != 0 || length < end_length ||
        strcmp(text + length - end_length, end) != 0 || strstr(text, "...") == NULL ||
        length >= most || length + 20 < most)
        ms_test_fail(__FILE__, __LINE__, "%zu bytes: %s", length, text);
}

/* Every way in which the middle can lie in a character. */
MS_TEST(a_long_name_is_shortened_between_characters)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {"plan.json", &fault};
    const struct ms_place list = {NULL, "tensors", 0}, at = {&list, NULL, 7};
    for (size_t i = 0; i < sizeof(characters) / sizeof(characters[0]); i++) {
        for (size_t ahead = 0; ahead < 9; ahead++) {
            char *name = long_name(ahead, characters[i], 900);
            ms_fault_set(&fault, "tensors[7]: tensor %s is not there", name);
            check_fault(&fault);
            check_shortened(fault.text, "tensors[7]: tensor ", " is not there",
                            MS_FAULT_REASON_BYTES);
            ms_fault_at(&reading, &at, "tensor %s is not there", name);
            check_fault(&fault);
            check_shortened(fault.text, "plan.json: tensors[7]: tensor ", " is not there",
                            MS_FAULT_REASON_BYTES + 23);
            char buffer[MS_FAULT_NAME_BYTES];
            ms_fault_set(&fault, "%s", ms_fault_name(buffer, name));
            check_fault(&fault);
            check_shortened(fault.text, "", "", MS_FAULT_NAME_BYTES);
            free(name);
        }
    }
}

/* Bytes that begin no character have no end of one: they are cut anywhere, and soon. */
MS_TEST(a_name_of_bytes_that_are_no_characters_is_shortened_too)
{
    struct ms_fault fault;
    char *name = long_name(0, "\x80", 900);
    ms_fault_set(&fault, "tensor %s is not there", name);
    check_shortened(fault.text, "tensor ", " is not there", MS_FAULT_REASON_BYTES);
    free(name);
}

MS_TEST(a_name_that_fits_is_not_changed)
{
    for (size_t bytes = MS_FAULT_NAME_BYTES - 3; bytes < MS_FAULT_NAME_BYTES + 3; bytes++) {
        char *name = long_name(bytes, "", 0), buffer[MS_FAULT_NAME_BYTES];
        const bool is_same = strcmp(ms_fault_name(buffer, name), name) == 0;
        CHECK_EQ(is_same, bytes < MS_FAULT_NAME_BYTES);
        free(name);
    }
}

MS_TEST(a_long_key_leaves_the_place_whole)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {"plan.json", &fault};
    for (size_t ahead = 0; ahead < 5; ahead++) {
        char *key = long_name(ahead, "\xf0\x9f\x90\x8d", 300);
        const struct ms_place list = {NULL, "tensors", 0}, entry = {&list, NULL, 3},
                              placements = {&entry, "placements", 0}, first = {&placements, key, 0},
                              second = {&first, key, 0}, at = {&second, NULL, 63};
        ms_fault_at(&reading, &at, "%s", "expected nothing");
        check_fault(&fault);
        check_shortened(fault.text, "plan.json: tensors[3].placements.", "[63]: expected nothing",
                        2 * 128 + 54);
        free(key);
    }
}

/* A path is what one needs to find the file. */
MS_TEST(a_long_path_stays_whole)
{
    struct ms_fault fault;
    char *path = long_name(4090, "", 0), *name = long_name(1, "\xcf\x80", 900), *wanted;
    const struct ms_fault_context reading = {path, &fault};
    const struct ms_place at = {NULL, name, 0};
    ms_fault_at(&reading, &at, "tensor %s is not there", name);
    CHECK(strncmp(fault.text, path, 4090) == 0 && fault.text[4090] == ':');
    CHECK(strcmp(fault.text + strlen(fault.text) - 13, " is not there") == 0);
    check_fault(&fault);
    ms_fault_at_line(&reading, 3, 14, "this");
    CHECK(asprintf(&wanted, "%s:3:14: this", path) > 0);
    CHECK(strcmp(fault.text, wanted) == 0);
    free(wanted);
    free(path);
    free(name);
    path = long_name(9000, "", 0);
    const struct ms_fault_context longer = {path, &fault};
    ms_fault_at(&longer, NULL, "%s", "File name too long");
    check_shortened(fault.text, "xxx", "xxx: File name too long", MS_FAULT_FILE_BYTES + 20);
    free(path);
}

MS_TEST(a_fault_is_one_printable_line)
{
    static const char *const names[][2] = {{"\n\t\x1b[2J\x7f", "??"
                                                               "?[2J?"},
                                           {"a\xc2\x9b"
                                            "2J\xc2\x80\xc2\xa0",
                                            "a??2J??\xc2\xa0"},
                                           {"\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\xe2\x80\xaf",
                                            "?????????\xe2\x80\xaf"},
                                           {"\xff\xc2", "??"}}; /* no UTF-8: as a path may be */
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct ms_fault fault;
        ms_fault_set(&fault, "%s", names[i][0]);
        if (strcmp(fault.text, names[i][1]) != 0)
            ms_test_fail(__FILE__, __LINE__, "%s, expected %s", fault.text, names[i][1]);
    }
}
