/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/kernel_name.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The letters of mangled names. */
#define LETTERS "_$.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

/* A name in the mangled text: its length in digits, and so many letters. */
struct name {
    const char *text;
    int length; /* 0: none */
};

/* Reads a name, and moves *at behind it. A name that was cut gives what is left of it. */
static struct name read_name(const char **at)
{
    char *text;
    const unsigned long length = strtoul(*at, &text, 10);
    const size_t rest = strlen(text);
    *at = text + (length < rest ? length : rest);
    return (struct name){text, (int)(*at - text)};
}

/* False for a namespace of a library, which says nothing about a kernel. */
static bool is_telling(struct name name)
{
    static const char *const others[] = {"at",      "c10",    "cub",       "cuda",
                                         "cutlass", "detail", "internal",  "native",
                                         "std",     "thrust", "templates", "vllm"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strncmp(name.text, others[i], (size_t)name.length) == 0 &&
            others[i][name.length] == '\0')
            return false;
    }
    return (isalpha((unsigned char)name.text[0]) || name.text[0] == '_') &&
           strncmp(name.text, "_GLOBAL_", 8) != 0;
}

/* Skips digits that are no length, as in an argument (Li512E), _Float16, substitutions (S1_,
 * T0_). */
static const char *skip_digits(const char *at)
{
    const bool is_number = at[0] == 'L' && islower((unsigned char)at[1]);
    const bool is_type = at[0] == 'D' && at[1] == 'F';
    const bool is_substitution = (at[0] == 'S' || at[0] == 'T') && at[1] != 't';
    if (is_number || is_type)
        return at + 2 + strspn(at + 2, "n0123456789");
    return is_substitution ? at + 1 + strspn(at + 1, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
                           : at + 1;
}

/* Reads the function, the last name before the template arguments, and moves *at to these. */
static struct name read_function(const char **at)
{
    struct name last = {0};
    *at += strspn(*at, "_ZNLrVK");
    if (**at == 'S') {
        *at = skip_digits(*at);
        *at += **at != '\0'; /* of "St", "Sa" and "S1_" the last letter */
    }
    for (struct name name; isdigit((unsigned char)**at) && (name = read_name(at)).length > 0;)
        last = name;
    return last;
}

static struct name read_argument(const char *at)
{
    while (*at != '\0') {
        if (!isdigit((unsigned char)*at)) {
            at = skip_digits(at);
            continue;
        }
        const struct name name = read_name(&at);
        if (name.length == 0)
            break;
        if (is_telling(name))
            return name;
    }
    return (struct name){0};
}

/* Returns how much was written, as snprintf; 0 if the word cannot be read. */
static size_t shorten_word(const char *word, size_t length, char *out, size_t bytes)
{
    char text[1024];
    if (strncmp(word, "_Z", 2) != 0 || length >= sizeof(text))
        return 0;
    memcpy(text, word, length);
    text[length] = '\0';
    const char *at = text;
    const struct name function = read_function(&at);
    const struct name argument = *at == 'I' ? read_argument(at) : (struct name){0};
    if (function.length == 0)
        return 0;
    return (size_t)snprintf(out, bytes, argument.length > 0 ? "%.*s<%.*s>" : "%.*s",
                            function.length, function.text, argument.length, argument.text);
}

void ms_kernel_name_shorten(const char *text, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    while (*text != '\0' && used + 1 < bytes) {
        size_t length = strspn(text, LETTERS), written = 0;
        if (length > 0)
            written = shorten_word(text, length, out + used, bytes - used);
        else
            length = 1;
        if (written == 0)
            written = (size_t)snprintf(out + used, bytes - used, "%.*s", (int)length, text);
        used += written;
        text += length;
    }
}
