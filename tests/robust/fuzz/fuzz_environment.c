/* SPDX-License-Identifier: Apache-2.0 */
/* Any lines as the environment. Whatever they hold, each setting has a value, which reads back as
 * it was written; a plain number that is taken is taken as it is; and what is not understood leaves
 * the default. */
#include <ctype.h>
#include <stdio.h>

#include "runtime/config/config.h"
#include "tests/robust/fuzz/fuzz.h"

enum { ENTRIES_MAX = 64, OPTIONS_MAX = 64, TEXT_BYTES = 2048 };

/* NAME=value, of every setting. */
struct settings {
    char text[OPTIONS_MAX][TEXT_BYTES];
    char *entries[OPTIONS_MAX + 1];
    int count;
};

static void add_setting(void *context, const char *variable, const char *value)
{
    struct settings *settings = context;
    require(settings->count < OPTIONS_MAX);
    char *text = settings->text[settings->count];
    require(snprintf(text, TEXT_BYTES, "%s=%s", variable, value) < TEXT_BYTES);
    settings->entries[settings->count++] = text;
    settings->entries[settings->count] = NULL;
}

static void read_settings(char **environment, struct settings *settings_out)
{
    struct ms_config config;
    memset(&config, 0x5a, sizeof(config));
    ms_config_read_quietly(&config, environment);
    require(config.excluded.count >= 0 && config.excluded.count <= MS_MAX_SIZES);
    require(memchr(config.runtime_dir, '\0', sizeof(config.runtime_dir)) != NULL);
    settings_out->count = 0;
    ms_config_visit(&config, add_setting, settings_out);
}

/* The lines are changed into strings. */
static void split(char *text, size_t size, char **entries)
{
    int count = 0;
    text[size] = '\0';
    for (char *line = text; line < text + size && count < ENTRIES_MAX;) {
        char *end = memchr(line, '\n', (size_t)(text + size - line));
        if (end == NULL)
            end = text + size;
        *end = '\0';
        entries[count++] = line;
        line = end + 1;
    }
    entries[count] = NULL;
}

static bool is_number(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (!isdigit((unsigned char)*at))
            return false;
    }
    return *text != '\0';
}

static const char *value_of(const struct settings *settings, const char *entry)
{
    const size_t length = strcspn(entry, "=") + 1;
    for (int i = 0; i < settings->count; i++) {
        if (strncmp(settings->text[i], entry, length) == 0)
            return settings->text[i] + length;
    }
    return NULL;
}

/* The first entry of a name decides. */
static bool is_first(char **entries, char **entry)
{
    const size_t length = strcspn(*entry, "=") + 1;
    while (strncmp(*entries, *entry, length) != 0)
        entries++;
    return entries == entry;
}

/* A switch is on at 1. */
static void check_numbers(char **entries, const struct settings *seen,
                          const struct settings *defaults)
{
    for (char **entry = entries; *entry != NULL; entry++) {
        const char *text = strchr(*entry, '=');
        const char *value = value_of(seen, *entry);
        if (text == NULL || value == NULL || !is_number(text + 1) || !is_first(entries, entry))
            continue;
        const char *plain = text + 1 + strspn(text + 1, "0");
        plain -= *plain == '\0';
        if (is_number(value)) /* a file name keeps its zeros */
            require(strcmp(value, plain) == 0 || strcmp(value, text + 1) == 0 ||
                    strcmp(value, value_of(defaults, *entry)) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct settings defaults, seen, again;
    char *entries[ENTRIES_MAX + 1];
    char *text = malloc(size + 1);
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    split(text, size, entries);
    read_settings(NULL, &defaults);
    read_settings(entries, &seen);
    check_numbers(entries, &seen, &defaults);
    read_settings(seen.entries, &again);
    require(again.count == seen.count);
    for (int i = 0; i < seen.count; i++)
        require(strcmp(seen.text[i], again.text[i]) == 0);
    free(text);
    return 0;
}
