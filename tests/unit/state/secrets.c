/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts of a command line are masked, and which are not. */
#include "runtime/state/secrets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

/* '|' between arguments, of which each has an end. */
static const char *masked(const char *arguments, size_t text_bytes)
{
    static char text[4096];
    char joined[4096];
    const size_t bytes = strlen(arguments) + 1;
    CHECK(bytes <= sizeof(joined) && text_bytes <= sizeof(text));
    memcpy(joined, arguments, bytes);
    for (size_t i = 0; i < bytes; i++)
        joined[i] = (char)(joined[i] == '|' ? '\0' : joined[i]);
    ms_secrets_mask(joined, bytes, text, text_bytes);
    return text;
}

static void check_rows(const char *const rows[][2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *seen = masked(rows[i][0], 4096);
        if (strcmp(seen, rows[i][1]) != 0)
            ms_test_fail(__FILE__, __LINE__, "\"%s\" became \"%s\", expected \"%s\"", rows[i][0],
                         seen, rows[i][1]);
    }
}
#define CHECK_ROWS(rows) check_rows(rows, sizeof(rows) / sizeof((rows)[0]))

MS_TEST(options_and_variables_with_a_name_of_secrets_lose_their_values)
{
    static const char *const rows[][2] = {
        {"train.py|--hf-token=abc|--lr=1", "train.py --hf-token=*** --lr=1"},
        {"train.py|--hf-token|abc|--lr|1", "train.py --hf-token *** --lr 1"},
        {"-token|abc", "-token ***"},
        {"--token|--token|abc", "--token *** ***"}, /* a value, or an option: either way */
        {"--client_secret=a b c", "--client_secret=***"},
        {"--password|-x", "--password ***"},
        {"--db.passwd=abc", "--db.passwd=***"},
        {"--wandb-api-key|abc", "--wandb-api-key ***"},
        {"wandb.api_key=abc", "wandb.api_key=***"},
        {"--apikey=abc", "--apikey=***"},
        {"--APIKey=abc", "--APIKey=***"},
        {"--credential=abc|--gcs-credentials|abc", "--credential=*** --gcs-credentials ***"},
        {"--auth|abc|--basic-auth=me:abc", "--auth *** --basic-auth=***"},
        {"HF_TOKEN=abc|hfToken=abc|hftoken=abc", "HF_TOKEN=*** hfToken=*** hftoken=***"},
        {"tokenValue=abc|--hfTokenFile|abc", "tokenValue=*** --hfTokenFile ***"},
        {"AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=***"},
        {"--token=", "--token=***"},
        {"--token", "--token"},
    };
    CHECK_ROWS(rows);
}

MS_TEST(names_that_only_look_like_it_keep_their_values)
{
    static const char *const rows[][2] = {
        {"--tokenizer|/data/t|--max-tokens=5", "--tokenizer /data/t --max-tokens=5"},
        {"--author=me|--tokenizer_path=x", "--author=me --tokenizer_path=x"},
        {"MAX_TOKENS=5|AUTHORS=b", "MAX_TOKENS=5 AUTHORS=b"},
        {"--key=5|--monkey|b", "--key=5 --monkey b"},
        {"python|-m|secrets|x", "python -m secrets x"},
        {"", ""},
        {"a||b", "a  b"},
    };
    CHECK_ROWS(rows);
}

MS_TEST(tokens_of_services_are_masked_wherever_they_stand)
{
    static const char *const rows[][2] = {
        {"hf_abcdefghij", "***"},
        {"x|--key=hf_abcdefghij,5", "x --key=***,5"},
        {"sk-proj-abc_DEF123|a", "*** a"},
        {"f(\"ghp_0123456789\")", "f(\"***\")"},
        {"github_pat_0123456789", "***"},
        {"AKIAIOSFODNN7EXAMPLE", "***"},
        {"xoxb-1234-5678", "***"},
        {"/data/x.hf_abcdefghij", "/data/x.***"},
        {"sk-learn|hf_home|xoxo|risk-abcdefghijk|shf_abcdefghij",
         "sk-learn hf_home xoxo risk-abcdefghijk shf_abcdefghij"},
    };
    CHECK_ROWS(rows);
}

MS_TEST(users_of_addresses_are_masked)
{
    static const char *const rows[][2] = {
        {"https://me:abc@host/x?y=1", "https://***@host/x?y=1"},
        {"--store=s3://me:a@b@host:9000/x", "--store=s3://***@host:9000/x"},
        {"https://abc@host", "https://***@host"},
        {"https://host/x@y|tcp://host:29500", "https://host/x@y tcp://host:29500"},
    };
    CHECK_ROWS(rows);
}

/* A shell's or an interpreter's text is one argument; so is a title that a program gives itself. */
MS_TEST(the_rest_of_a_text_goes_with_its_first_secret)
{
    static const char *const rows[][2] = {
        {"bash|-c|HF_TOKEN=abc python x.py", "bash -c HF_TOKEN=***"},
        {"bash|-c|python x.py --token abc --lr 1", "bash -c python x.py --token ***"},
        {"python|-c|login(token = \"abc\")", "python -c login(token =***"},
        {"{\"password\": \"abc\", \"a\": 1}", "{\"password\":***"},
        {"--header|Authorization: Bearer abc", "--header Authorization:***"},
        {"https://host/?access_token=abc", "https://host/?access_token=***"},
    };
    CHECK_ROWS(rows);
}

/* Whatever is cut off: the end of the buffer, or an argument that is not there whole. */
MS_TEST(a_command_that_is_cut_off_shows_nothing_of_a_secret)
{
    static const char whole[] = "a --token *** https://***@host";
    char text[8];
    for (size_t bytes = 1; bytes < sizeof(whole); bytes++) {
        const char *seen = masked("a|--token|abc|https://me:abc@host", bytes);
        CHECK_EQ(strlen(seen), bytes - 1);
        CHECK(strncmp(seen, whole, bytes - 1) == 0);
    }
    ms_secrets_mask("a\0https://me:abc", 16 - 1, text, sizeof(text));
    CHECK(strcmp(text, "a") == 0);
    ms_secrets_mask("", 0, text, sizeof(text));
    CHECK(strcmp(text, "") == 0);
}
