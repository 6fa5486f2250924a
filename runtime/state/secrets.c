/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/secrets.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const char mask[] = "***";

struct output {
    char *text;
    size_t used, bytes;
};

static void put(struct output *output, const char *text, size_t length)
{
    const size_t room = output->bytes - 1 - output->used;
    length = length < room ? length : room;
    memcpy(output->text + output->used, text, length);
    output->used += length;
}

static bool is_alphanumeric(char letter)
{
    return isalnum((unsigned char)letter) != 0;
}

static bool is_of_name(char letter)
{
    return is_alphanumeric(letter) || letter == '_' || letter == '-' || letter == '.';
}

/* --- names */

/* True if the name begins with the word, whatever is between its letters: "api_key" has apikey. */
static bool begins_with(const char *name, const char *end, const char *word)
{
    for (; name < end && *word != '\0'; name++) {
        if (!is_alphanumeric(*name))
            continue;
        if ((*name | 0x20) != *word++) /* a small letter, or the same digit */
            return false;
    }
    return *word == '\0';
}

static bool has_anywhere(const char *name, const char *end)
{
    static const char words[][16] = {"secret",     "password",      "passwd", "passphrase",
                                     "credential", "authorization", "apikey"};
    for (; name < end; name++) {
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && is_alphanumeric(*name); i++) {
            if (begins_with(name, end, words[i]))
                return true;
        }
    }
    return false;
}

/* True if a word of the name ends there, as "token" does in "hfToken", "HF_TOKEN" and "hftoken",
 * but not in "tokenizer" and "tokens". */
static bool is_end_of_word(const char *at, const char *end)
{
    return at == end || !isalpha((unsigned char)*at) ||
           (isupper((unsigned char)*at) && islower((unsigned char)at[-1]));
}

static bool has_at_end_of_word(const char *name, const char *end)
{
    static const char words[][8] = {"token", "auth"};
    for (; name < end; name++) {
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
            const size_t length = strlen(words[i]);
            if ((size_t)(end - name) >= length && strncasecmp(name, words[i], length) == 0 &&
                is_end_of_word(name + length, end))
                return true;
        }
    }
    return false;
}

static bool is_secret_name(const char *name, const char *end)
{
    return has_anywhere(name, end) || has_at_end_of_word(name, end);
}

static const char *end_of_name(const char *at, const char *end)
{
    while (at < end && is_of_name(*at))
        at++;
    return at;
}

/* Returns where the value of a secret name at `at` begins, or NULL: name=, name:, "name": and,
 * behind a space within an argument, --name. */
static const char *find_value(const char *at, const char *end)
{
    const char *name_end = end_of_name(at, end), *value;
    if (name_end == at || !is_secret_name(at, name_end))
        return NULL;
    for (value = name_end; value < end && strchr("\"' ", *value) != NULL; value++)
        ;
    if (value < end && (*value == '=' || *value == ':'))
        return value + 1;
    return *at == '-' && value > name_end ? value : NULL;
}

/* --- values */

/* The length of a token that begins like a service's tokens, or 0. */
static size_t token_bytes(const char *at, const char *end)
{
    static const char prefixes[][16] = {"hf_", "sk-", "ghp_", "github_pat_", "AKIA", "xox"};
    enum { LEAST = 8 };
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        const size_t length = strlen(prefixes[i]);
        size_t bytes = length;
        if ((size_t)(end - at) < length || memcmp(at, prefixes[i], length) != 0)
            continue;
        while (at + bytes < end && is_of_name(at[bytes]) && at[bytes] != '.')
            bytes++;
        if (bytes >= length + LEAST)
            return bytes;
    }
    return 0;
}

/* The length of "://" at `at` and the text before the "@" of a URL, or 0. */
static size_t user_bytes(const char *at, const char *end)
{
    size_t bytes = 0;
    if (end - at < 3 || memcmp(at, "://", 3) != 0)
        return 0;
    for (const char *next = at + 3; next < end && strchr("/?# \t\n\"'", *next) == NULL; next++) {
        if (*next == '@')
            bytes = (size_t)(next - at);
    }
    return bytes;
}

static void put_argument(struct output *output, const char *at, const char *end)
{
    char before = ' ';
    while (at < end) {
        const bool is_word = !is_alphanumeric(before) && before != '_';
        const char *value = is_of_name(before) ? NULL : find_value(at, end);
        const size_t user = user_bytes(at, end), token = is_word ? token_bytes(at, end) : 0;
        if (value != NULL) {
            put(output, at, (size_t)(value - at));
            put(output, mask, strlen(mask));
            return;
        }
        if (user > 0 || token > 0) {
            put(output, at, user > 0 ? 3 : 0);
            put(output, mask, strlen(mask));
            at += user > 0 ? user : token;
            before = at[-1];
            continue;
        }
        put(output, at, 1);
        before = *at++;
    }
}

/* An option whose value is the next argument. */
static bool is_secret_option(const char *at, const char *end)
{
    return *at == '-' && end_of_name(at, end) == end && is_secret_name(at, end);
}

void ms_secrets_mask(const char *arguments, size_t bytes, char *text_out, size_t text_bytes)
{
    struct output output = {text_out, 0, text_bytes};
    bool is_value = false;
    for (const char *at = arguments, *end; bytes > 0;
         bytes -= (size_t)(end + 1 - at), at = end + 1) {
        end = memchr(at, '\0', bytes);
        if (end == NULL)
            break;
        if (at > arguments)
            put(&output, " ", 1);
        if (is_value)
            put(&output, mask, strlen(mask));
        else
            put_argument(&output, at, end);
        is_value = is_secret_option(at, end);
    }
    text_out[output.used] = '\0';
}
