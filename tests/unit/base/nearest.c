/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/nearest.h"

#include <string.h>

#include "tools/simcuda/harness/test.h"

/* The nearest of some words, or "none". */
static const char *nearest_to(const char *text)
{
    static const char *const words[] = {"make",  "check", "explain",   "fit", "send",     "fsdp2",
                                        "fsdp1", "zero3", "replicate", "tp",  "MIN_BYTES"};
    struct ms_nearest nearest = {.text = text};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        ms_nearest_try(&nearest, words[i]);
    return nearest.word != NULL ? nearest.word : "none";
}

MS_TEST(a_word_with_few_wrong_letters_is_found)
{
    static const char *const rows[][2] = {{"mkae", "make"},       {"maek", "make"},
                                          {"mak", "make"},        {"chekc", "check"},
                                          {"expalin", "explain"}, {"fits", "fit"},
                                          {"FIT", "fit"},         {"snd", "send"},
                                          {"zero2", "zero3"},     {"minbytes", "MIN_BYTES"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK(strcmp(nearest_to(rows[i][0]), rows[i][1]) == 0);
}

MS_TEST(the_first_of_two_words_that_are_as_near_counts)
{
    CHECK(strcmp(nearest_to("fsdp"), "fsdp2") == 0);
    CHECK(strcmp(nearest_to("fsdp3"), "fsdp2") == 0);
    CHECK(strcmp(nearest_to("fsdp1"), "fsdp1") == 0);
}

MS_TEST(the_start_of_a_word_is_near)
{
    CHECK(strcmp(nearest_to("rep"), "replicate") == 0);
    CHECK(strcmp(nearest_to("re"), "none") == 0);
}

MS_TEST(other_words_are_not_near)
{
    static const char *const rows[] = {"", "x", "ddp", "frobnicate", "shards", "listing"};
    char longest[200];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK(strcmp(nearest_to(rows[i]), "none") == 0);
    memset(longest, 'm', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    CHECK(strcmp(nearest_to(longest), "none") == 0);
}

/* Distances are counted in a table of 48 letters. */
MS_TEST(a_word_of_more_than_48_letters_is_near_to_none)
{
    for (size_t letters = 47; letters <= 49; letters++) {
        for (size_t word_letters = 47; word_letters <= 49; word_letters++) {
            char text[64] = "", word[64] = "";
            memset(text, 'm', letters);
            memset(word, 'm', word_letters);
            struct ms_nearest nearest = {.text = text};
            ms_nearest_try(&nearest, word);
            CHECK_EQ(nearest.word != NULL, letters <= 48 && word_letters <= 48);
        }
    }
}
