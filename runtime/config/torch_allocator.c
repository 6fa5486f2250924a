/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/torch_allocator.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <sys/auxv.h>

#include "runtime/base/log.h"
#include "runtime/config/config.h"

/* PyTorch's names, the newer one first. */
static const char *const variables[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};

static const struct bad_setting {
    const char *key, *value, *why;
} settings[] = {
    {"expandable_segments", "True", "PyTorch maps its device memory itself"},
};

/* Skips spaces, as PyTorch does. */
static const char *skip_spaces(const char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

/* Returns the text after `word`, or NULL if it does not begin with it. */
static const char *skip_word(const char *text, const char *word)
{
    text = skip_spaces(text);
    const size_t length = strlen(word);
    return strncmp(text, word, length) == 0 ? skip_spaces(text + length) : NULL;
}

/* The last value of the key counts, as in PyTorch. Lists look like a:b,c:[d:1,e:2]. */
static bool has(const char *list, const struct bad_setting *setting)
{
    bool is_set = false;
    while (list != NULL) {
        const char *at = skip_word(list, setting->key);
        if (at != NULL && *at == ':') {
            at = skip_word(at + 1, setting->value);
            is_set = at != NULL && (*at == ',' || *at == '\0');
        }
        list = strchr(list, ',');
        list = list != NULL ? list + 1 : NULL;
    }
    return is_set;
}

static void warn_of(char **environment, const struct bad_setting *setting)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *list = ms_environment_find(environment, variables[i]);
        if (list == NULL || !has(list, setting))
            continue;
        ms_log(MS_WARN,
               "%s has %s:%s: with it, %s, and none of that is deferred or sharded; remove it from "
               "the variable",
               variables[i], setting->key, setting->value, setting->why);
        return;
    }
}

void ms_allocator_warn(char **environment)
{
    if (getauxval(AT_SECURE) != 0)
        return;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        warn_of(environment, &settings[i]);
}
