/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/config.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "runtime/base/launcher.h"
#include "runtime/base/nearest.h"

struct ms_config ms_config;

/* Text functions of our own: looking up libc's would take longer than reading the environment. */

static char lower(char letter)
{
    return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

/* The text behind the word; NULL if the text does not begin with the word. */
static const char *skip_word(const char *text, const char *word)
{
    for (; *word != '\0'; text++, word++) {
        if (*text != *word)
            return NULL;
    }
    return text;
}

/* The word's length if the text begins with the word, in either case; else 0. */
static size_t match_word(const char *text, const char *word)
{
    size_t length = 0;
    while (word[length] != '\0' && lower(text[length]) == word[length])
        length++;
    return word[length] == '\0' ? length : 0;
}

static bool is_word(const char *text, const char *word)
{
    const size_t length = match_word(text, word);
    return length > 0 && text[length] == '\0';
}

/* Copies the text and its ending, or "" if both together do not fit. */
static void copy_text(char *to, size_t bytes, const char *text, const char *ending)
{
    size_t used = 0;
    for (; *text != '\0' && used < bytes; text++)
        to[used++] = *text;
    for (; *ending != '\0' && used < bytes; ending++)
        to[used++] = *ending;
    to[used < bytes ? used : 0] = '\0';
}

/* Each parser returns NULL, or the values that it expects; then `value_out` is untouched. */

static const char *parse_SWITCH(const char *text, ms_type_SWITCH *value_out)
{
    static const char *const words[][2] = {
        {"off", "on"}, {"0", "1"}, {"false", "true"}, {"no", "yes"}};
    for (size_t i = 0; i < 2 * sizeof(words) / sizeof(words[0]); i++) {
        if (is_word(text, words[i / 2][i % 2])) {
            *value_out = i % 2 == 1;
            return NULL;
        }
    }
    return "on or off";
}

static const char *parse_MODE(const char *text, ms_type_MODE *value_out)
{
    bool is_on = false;
    if (is_word(text, "verify"))
        *value_out = MS_VERIFY;
    else if (parse_SWITCH(text, &is_on) == NULL)
        *value_out = is_on ? MS_ON : MS_OFF;
    else
        return "on, off or verify";
    return NULL;
}

/* False: no digit, or the number is too large. */
static bool read_digits(const char *text, const char **end_out, uint64_t *number_out)
{
    const char *at = text;
    uint64_t number = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        const uint64_t digit = (uint64_t)(*at - '0');
        if (number > (UINT64_MAX - digit) / 10)
            return false;
        number = 10 * number + digit;
    }
    *end_out = at;
    *number_out = number;
    return at != text;
}

/* The bits to shift by for a unit; 0: no unit. */
static int read_unit(char letter)
{
    static const char units[] = "kmgt";
    for (int i = 0; units[i] != '\0'; i++) {
        if (lower(letter) == units[i])
            return 10 * (i + 1);
    }
    return 0;
}

bool ms_config_read_bytes(const char **text, uint64_t *bytes_out)
{
    const char *end;
    uint64_t number;
    if (!read_digits(*text, &end, &number))
        return false;
    const int shift = read_unit(*end);
    if (number > UINT64_MAX >> shift)
        return false;
    if (shift > 0)
        end += lower(end[1]) == 'i' ? 2 : 1;
    end += lower(*end) == 'b';
    *bytes_out = number << shift;
    *text = end;
    return true;
}

static const char *parse_BYTES(const char *text, ms_type_BYTES *value_out)
{
    uint64_t value;
    if (!ms_config_read_bytes(&text, &value) || *text != '\0')
        return "a number of bytes such as 65536, 512K, 2M or 1G";
    *value_out = value;
    return NULL;
}

static const char *parse_SIZES(const char *text, ms_type_SIZES *value_out)
{
    static const char expected[] =
        "at most 16 sizes or ranges of sizes, such as 20M or 2M-20M, with commas between them";
    struct ms_size_list sizes = {0};
    for (const char *at = text; *at != '\0'; at += *at == ',') {
        uint64_t first, last;
        if (sizes.count == MS_MAX_SIZES || !ms_config_read_bytes(&at, &first))
            return expected;
        last = first;
        if (*at == '-' && (at++, !ms_config_read_bytes(&at, &last)))
            return expected;
        if ((*at != ',' && *at != '\0') || last < first)
            return expected;
        sizes.ranges[sizes.count].first = first;
        sizes.ranges[sizes.count++].last = last;
    }
    *value_out = sizes;
    return NULL;
}

static const char *parse_PERCENT(const char *text, ms_type_PERCENT *value_out)
{
    const char *end;
    uint64_t number;
    if (!read_digits(text, &end, &number) || *end != '\0' || number > 100)
        return "a whole number from 0 to 100";
    *value_out = number;
    return NULL;
}

static const char *parse_NUMBER(const char *text, ms_type_NUMBER *value_out)
{
    const char *end;
    uint64_t number;
    if (!read_digits(text, &end, &number) || *end != '\0')
        return "a whole number such as 0 or 16";
    *value_out = number;
    return NULL;
}

/* Writes the text that replaces '%' and this letter: process id, rank, host or job, or "none" if
 * unknown. Slashes, which would mean another folder, become '_'. False: no such letter. */
static bool expand(char letter, char *text, size_t bytes)
{
    const struct ms_launched launched = ms_launcher_read(true);
    const char *job = secure_getenv("METASHARD_JOB");
    job = job != NULL && job[0] != '\0' ? job : launched.job;
    snprintf(text, bytes, "none");
    if (letter == 'p')
        snprintf(text, bytes, "%d", (int)getpid());
    else if (letter == 'r' && launched.has_rank)
        snprintf(text, bytes, "%" PRIu32, launched.rank);
    else if (letter == 'j' && job[0] != '\0')
        snprintf(text, bytes, "%s", job);
    else if (letter == 'h' && gethostname(text, bytes) == 0)
        text[bytes - 1] = '\0';
    for (char *slash = text; (slash = strchr(slash, '/')) != NULL;)
        *slash = '_';
    return letter != '\0' && strchr("prjh", letter) != NULL;
}

/* Copies a file name and expands its %p, %r, %j and %h. */
static const char *parse_PATH(const char *text, ms_type_PATH *value_out)
{
    static const char expected[] = "a file name of less than 512 bytes";
    char path[MS_PATH_BYTES];
    size_t used = 0;
    for (; *text != '\0'; text++) {
        char name[HOST_NAME_MAX + 1];
        int added = 1;
        if (text[0] == '%' && expand(text[1], name, sizeof(name))) {
            added = snprintf(path + used, sizeof(path) - used, "%s", name);
            text++;
        } else {
            path[used] = *text;
        }
        used += (size_t)added;
        if (used >= sizeof(path) - 1)
            return expected;
    }
    path[used] = '\0';
    copy_text(*value_out, sizeof(path), path, "");
    return NULL;
}

static const char *parse_PLAN_MODE(const char *text, ms_type_PLAN_MODE *value_out)
{
    if (is_word(text, "advise"))
        *value_out = MS_ADVISE;
    else if (is_word(text, "enforce"))
        *value_out = MS_ENFORCE;
    else
        return "advise or enforce";
    return NULL;
}

static const char *const self_check_names[] = {
    [MS_SELF_CHECK_OFF] = "off", [MS_SELF_CHECK_ON] = "on", [MS_SELF_CHECK_FRESH] = "fresh"};

static const char *parse_SELF_CHECK(const char *text, ms_type_SELF_CHECK *value_out)
{
    for (int i = MS_SELF_CHECK_OFF; i <= MS_SELF_CHECK_FRESH; i++) {
        if (is_word(text, self_check_names[i])) {
            *value_out = (enum ms_self_check)i;
            return NULL;
        }
    }
    return "on, off or fresh";
}

static const char *parse_LOG(const char *text, ms_type_LOG *value_out)
{
    for (int level = 0; level < MS_LOG_LEVEL_COUNT; level++) {
        const size_t length = match_word(text, ms_log_level_names[level]);
        if (length == 0 || (text[length] != '\0' && text[length] != ':'))
            continue;
        value_out->path[0] = '\0';
        if (text[length] == ':' && parse_PATH(text + length + 1, &value_out->path) != NULL)
            break;
        value_out->level = (enum ms_log_level)level;
        return NULL;
    }
    return "error, warn, info, debug or trace, optionally followed by :file";
}

const char *ms_environment_find(char **environment, const char *name)
{
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        const char *end = skip_word(*entry, name);
        if (end != NULL && *end == '=')
            return end + 1;
    }
    return NULL;
}

static const char prefix[] = "METASHARD";

enum option {
#define MS_OPTION(type, field, variable, default_, unit, description) OPTION_##field,
#include "runtime/config/options.def"
#undef MS_OPTION
    OPTION_COUNT
};
enum { NAME_BYTES = 32 };

static const char option_names[OPTION_COUNT][NAME_BYTES] = {
#define MS_OPTION(type, field, variable, default_, unit, description) #variable,
#include "runtime/config/options.def"
#undef MS_OPTION
};

/* Finds the option of a setting, "NAME=value". OPTION_COUNT: no option has this name. */
static enum option find_option(const char *setting, const char **value_out)
{
    const size_t at = sizeof(prefix) - 1 + (setting[sizeof(prefix) - 1] == '_');
    const char first = setting[sizeof(prefix) - 1] == '=' ? '\0' : setting[at];
    for (int i = 0; i < OPTION_COUNT; i++) {
        const char *end =
            option_names[i][at] == first ? skip_word(setting + at, option_names[i] + at) : NULL;
        if (end == NULL || *end != '=')
            continue;
        *value_out = end + 1;
        return (enum option)i;
    }
    return OPTION_COUNT;
}

/* The variable with the most similar name; NULL if none is similar. */
static const char *find_nearest(const char *name)
{
    struct ms_nearest nearest = {.text = name + sizeof(prefix)};
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strlen(option_names[i]) > sizeof(prefix))
            ms_nearest_try(&nearest, option_names[i] + sizeof(prefix));
    }
    return nearest.word != NULL ? nearest.word - sizeof(prefix) : NULL;
}

static bool is_setting(const char *entry)
{
    return skip_word(entry, prefix) != NULL;
}

/* Misspellings that no variable is near to, and removed variables, with their replacements. */
static const char *find_instead(const char *name)
{
    static const char *const names[][2] = {
        {"_HASHES", "metashard verify -- COMMAND, or METASHARD=verify, compares what comes into "
                    "device memory"},
        {"_HASHES_LIKE", "metashard verify -- COMMAND, or METASHARD=verify, compares what comes "
                         "into device memory"},
        {"_DEBUG", "METASHARD_LOG=debug says what it does"},
        {"_VERBOSE", "METASHARD_LOG=info says what it does"},
        {"_ENABLE", "METASHARD=on, the default, or off"},
        {"_ENABLED", "METASHARD=on, the default, or off"},
        {"_DISABLE", "METASHARD=off"},
        {"_DISABLED", "METASHARD=off"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name + sizeof(prefix) - 1, names[i][0]) == 0)
            return names[i][1];
    }
    return NULL;
}

static void warn_about_unknown_name(const char *entry, size_t length)
{
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)length, entry);
    const char *instead = find_instead(name);
    const char *known = instead == NULL ? find_nearest(name) : NULL;
    if (instead != NULL)
        ms_log(MS_WARN, "%s is not a variable of MetaShard and is ignored: %s", name, instead);
    else if (known == NULL)
        ms_log(MS_WARN, "%.*s is not a variable of MetaShard and is ignored", (int)length, entry);
    else
        ms_log(MS_WARN, "%s is not a variable of MetaShard and is ignored; did you mean %s?", name,
               known);
}

static void warn_about_unknown_names(char **environment)
{
    const char *value;
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (!is_setting(*entry) || (*entry)[sizeof(prefix) - 1] != '_' ||
            find_option(*entry, &value) != OPTION_COUNT)
            continue;
        const char *end = strchr(*entry, '=');
        if (end != NULL)
            warn_about_unknown_name(*entry, (size_t)(end - *entry));
    }
}

/* Such as META_SHARD_LOG. */
static void warn_about_other_prefix(char **environment)
{
    static const char other[] = "META_SHARD";
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (skip_word(*entry, other) != NULL)
            ms_log(MS_WARN,
                   "%.*s is not a variable of MetaShard and is ignored: they begin with %s",
                   (int)strcspn(*entry, "="), *entry, prefix);
    }
}

/* Keeps the value of the first entry with the name, as getenv does. */
static void note_value(const char **value, const char *entry, const char *name)
{
    const char *end = *value == NULL ? skip_word(entry, name) : NULL;
    if (end != NULL && *end == '=')
        *value = end + 1;
}

static void read_folders(struct ms_config *config, char **environment)
{
    const char *runtime = NULL, *cache = NULL, *home = NULL;
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (**entry == 'X') {
            note_value(&runtime, *entry, "XDG_RUNTIME_DIR");
            note_value(&cache, *entry, "XDG_CACHE_HOME");
        } else if (**entry == 'H') {
            note_value(&home, *entry, "HOME");
        }
    }
    copy_text(config->runtime_dir, sizeof(config->runtime_dir), runtime != NULL ? runtime : "", "");
    if (cache != NULL && cache[0] == '/')
        copy_text(config->cache_dir, sizeof(config->cache_dir), cache, "");
    else if (home != NULL && home[0] == '/')
        copy_text(config->cache_dir, sizeof(config->cache_dir), home, "/.cache");
    else
        config->cache_dir[0] = '\0';
}

/* A line for each option. NOLINTNEXTLINE(readability-function-size) */
static const char *parse(struct ms_config *config, enum option option, const char *text)
{
    switch (option) {
#define MS_OPTION(type, field, variable, default_, unit, description) \
    case OPTION_##field:                                              \
        return parse_##type(text, &config->field);
#include "runtime/config/options.def"
#undef MS_OPTION
    default:
        return NULL;
    }
}

static const char *default_of(enum option option)
{
    static const char defaults[OPTION_COUNT][8] = {
#define MS_OPTION(type, field, variable, default_, unit, description) default_,
#include "runtime/config/options.def"
#undef MS_OPTION
    };
    return defaults[option];
}

/* Uses the first of several entries with one name, as getenv does. Returns true if there is nothing
 * to warn about. */
static bool read_variables(struct ms_config *config, char **environment, bool is_logged)
{
    bool is_read[OPTION_COUNT + 1] = {false}, is_good = true;
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        const char *value;
        if (skip_word(*entry, "META") == NULL)
            continue;
        const enum option option = is_setting(*entry) ? find_option(*entry, &value) : OPTION_COUNT;
        is_good = is_good && option < OPTION_COUNT;
        if (option == OPTION_COUNT || is_read[option])
            continue;
        is_read[option] = true;
        const char *expected = parse(config, option, value);
        is_good = is_good && expected == NULL;
        if (expected != NULL && is_logged)
            ms_log(MS_WARN, "%s=%s is not understood: expected %s; using %s", option_names[option],
                   value, expected, default_of(option)[0] != '\0' ? default_of(option) : "none");
    }
    return is_good;
}

static bool read_all(struct ms_config *config, char **environment)
{
    read_folders(config, environment);
    for (int i = 0; i < OPTION_COUNT; i++)
        parse(config, (enum option)i, default_of((enum option)i));
    return read_variables(config, environment, false);
}

void ms_config_read_quietly(struct ms_config *config, char **environment)
{
    read_all(config, getauxval(AT_SECURE) != 0 ? NULL : environment);
}

/* Reads the variables a second time to log warnings: the first reading opens the log. */
void ms_config_read(struct ms_config *config, char **environment)
{
    const bool is_good = read_all(config, getauxval(AT_SECURE) != 0 ? NULL : environment);
    ms_log_open(config->log.level, config->log.path[0] != '\0' ? config->log.path : NULL);
    if (is_good)
        return;
    warn_about_other_prefix(environment);
    read_variables(config, environment, true);
    warn_about_unknown_names(environment);
}

/* --- as text */

enum { VALUE_BYTES = MS_PATH_BYTES + 16 };

static void format_SWITCH(char *text, const ms_type_SWITCH *value)
{
    snprintf(text, VALUE_BYTES, "%s", *value ? "on" : "off");
}

static void format_MODE(char *text, const ms_type_MODE *value)
{
    static const char *const names[] = {[MS_OFF] = "off", [MS_ON] = "on", [MS_VERIFY] = "verify"};
    snprintf(text, VALUE_BYTES, "%s", names[*value]);
}

static void format_BYTES(char *text, const ms_type_BYTES *value)
{
    snprintf(text, VALUE_BYTES, "%llu", (unsigned long long)*value);
}

static void format_NUMBER(char *text, const ms_type_NUMBER *value)
{
    format_BYTES(text, value);
}

static void format_PERCENT(char *text, const ms_type_PERCENT *value)
{
    format_BYTES(text, value);
}

static void format_SIZES(char *text, const ms_type_SIZES *value)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < value->count && used < VALUE_BYTES; i++)
        used += (size_t)snprintf(text + used, VALUE_BYTES - used, "%s%llu-%llu", i > 0 ? "," : "",
                                 (unsigned long long)value->ranges[i].first,
                                 (unsigned long long)value->ranges[i].last);
}

static void format_PATH(char *text, const ms_type_PATH *value)
{
    snprintf(text, VALUE_BYTES, "%s", *value);
}

static void format_PLAN_MODE(char *text, const ms_type_PLAN_MODE *value)
{
    snprintf(text, VALUE_BYTES, "%s", *value == MS_ENFORCE ? "enforce" : "advise");
}

static void format_SELF_CHECK(char *text, const ms_type_SELF_CHECK *value)
{
    snprintf(text, VALUE_BYTES, "%s", self_check_names[*value]);
}

static void format_LOG(char *text, const ms_type_LOG *value)
{
    snprintf(text, VALUE_BYTES, "%s%s%s", ms_log_level_names[value->level],
             value->path[0] != '\0' ? ":" : "", value->path);
}

void ms_config_visit(const struct ms_config *config, ms_config_visitor *visit, void *context)
{
    char text[VALUE_BYTES];
#define MS_OPTION(type, field, variable, default_, unit, description) \
    format_##type(text, &config->field);                              \
    visit(context, #variable, text);
#include "runtime/config/options.def"
#undef MS_OPTION
}

bool ms_config_holds_size(const struct ms_size_list *sizes, uint64_t bytes)
{
    for (int i = 0; i < sizes->count; i++) {
        if (bytes >= sizes->ranges[i].first && bytes <= sizes->ranges[i].last)
            return true;
    }
    return false;
}

bool ms_config_is_off(void)
{
    const char *text = secure_getenv("METASHARD");
    enum ms_mode mode = MS_ON;
    return text != NULL && parse_MODE(text, &mode) == NULL && mode == MS_OFF;
}
