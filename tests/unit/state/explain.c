/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sentences of what happened. */
#include "runtime/state/explain.h"

#include <string.h>

#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

static void check_text(const char *seen, const char *wanted)
{
    if (strcmp(seen, wanted) != 0)
        ms_test_fail(__FILE__, __LINE__, "\"%s\", expected \"%s\"", seen, wanted);
}

/* A name for each, and none twice. */
static void check_names(const char *name(uint32_t number), uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(name(i)[0] != '\0' && name(i)[0] != '?');
        for (uint32_t k = 0; k < i; k++)
            CHECK(strcmp(name(i), name(k)) != 0);
    }
    check_text(name(count), "?");
    check_text(name(UINT32_MAX), "?");
}

STORY_ALONE(everything_has_a_name_of_its_own, check_names(ms_reason_text, MS_REASON_COUNT),
            check_names(ms_event_kind_name, MS_EVENT_KIND_COUNT),
            check_names(ms_check_state_name, MS_CHECK_STATE_COUNT),
            check_text(ms_event_kind_name(MS_EVENT_REMOTE_READ), "out-of-plan read"),
            check_text(ms_check_state_name(MS_CHECK_OFF), "off"),
            check_text(ms_reason_text(MS_REASON_SETTLE), "loading has ended"))

/* That a call needs the bytes is a reason to bring them into memory, and none for anything else. */
STORY_ALONE(an_event_without_a_reason_of_its_own_has_none,
            check_text(ms_event_reason_text(MS_EVENT_MATERIALISE, MS_REASON_CALL),
                       "the call needs the bytes"),
            check_text(ms_event_reason_text(MS_EVENT_RECORD, MS_REASON_CALL), ""),
            check_text(ms_event_reason_text(MS_EVENT_RECORD, MS_REASON_SETTLE),
                       "loading has ended"))

static char sentence[1024];

static bool explain(enum ms_reason reason, const char *call, const char *text)
{
    memset(sentence, 'x', sizeof(sentence));
    return ms_explain(reason, call, text, sentence, sizeof(sentence));
}

MS_TEST(a_reason_that_needs_no_explanation_has_no_sentence)
{
    static const enum ms_reason without[] = {MS_REASON_CALL,       MS_REASON_SETTLE,
                                             MS_REASON_PREFETCH,   MS_REASON_PRESSURE,
                                             MS_REASON_HANDED_OUT, MS_REASON_UNMATCHED,
                                             MS_REASON_AMBIGUOUS,  MS_REASON_COUNT};
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
        CHECK(!explain(without[i], "cuCall", "text"));
        CHECK_EQ(sentence[0], 'x');
    }
    CHECK(explain(MS_REASON_SEALED, "cuCall", "text"));
}

MS_TEST(a_sentence_names_the_call_and_the_kernel)
{
    CHECK(explain(MS_REASON_REMOTE_READ, "cuCall", "a.tensor"));
    check_text(sentence,
               "cuCall read tensor a.tensor, which the plan gives to other ranks; the read "
               "took memory. Change the program to use only its own part, or change the "
               "plan; METASHARD_PLAN_MODE=enforce makes such calls fail where they "
               "happen.");
    static const char *const empty[] = {NULL, ""};
    for (int i = 0; i < 2; i++) {
        CHECK(explain(MS_REASON_REMOTE_READ, empty[i], empty[i]));
        CHECK_EQ(strncmp(sentence, "a call read tensor whose name is not known, which",
                         strlen("a call read tensor whose name is not known, which")),
                 0);
    }
}

/* At most 140 bytes of it, and a sign that there were more. */
MS_TEST(a_name_that_is_too_long_is_cut)
{
    char call[160];
    memset(call, 'c', sizeof(call));
    for (size_t length = 139; length <= 141; length++) {
        call[length] = '\0';
        CHECK(explain(MS_REASON_SEALED, call, NULL));
        const size_t kept = length < 140 ? length : 140;
        CHECK_EQ(strspn(sentence, "c"), kept);
        const char *expected = length > 140 ? "... is not modelled" : " is not modelled";
        CHECK_EQ(strncmp(sentence + kept, expected, strlen(expected)), 0);
        call[length] = 'c';
    }
}

MS_TEST(a_sentence_fits_into_what_there_is_for_it)
{
    char text[1024];
    CHECK(explain(MS_REASON_EXPORT, "cuCall", NULL));
    const size_t length = strlen(sentence);
    for (size_t bytes = 1; bytes <= length + 2; bytes++) {
        memset(text, 'x', sizeof(text));
        CHECK(ms_explain(MS_REASON_EXPORT, "cuCall", NULL, text, bytes));
        const size_t kept = bytes - 1 < length ? bytes - 1 : length;
        CHECK_EQ(strlen(text), kept);
        CHECK_EQ(strncmp(text, sentence, kept), 0);
        for (size_t at = bytes; at < sizeof(text); at++)
            CHECK_EQ(text[at], 'x');
    }
}
