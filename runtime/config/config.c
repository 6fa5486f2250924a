/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/config/config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "runtime/base/launcher.h"
#include "runtime/base/nearest.h"

struct ms_config ms_config;

/* Each parser returns NULL, or what it expected. `value_out` is untouched on failure. */

static const char *parse_SWITCH(const char *text, ms_type_SWITCH *value_out)
{
    static const char *const words[][2] = {
        {"off", "on"}, {"0", "1"}, {"false", "true"}, {"no", "yes"}};
    for (size_t i = 0; i < 2 * sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(text, words[i / 2][i % 2]) == 0) {
            *value_out = i % 2 == 1;
            return NULL;
        }
    }
    return "on or off";
}

static const char *parse_MODE(const char *text, ms_type_MODE *value_out)
{
    bool is_on = false;
    if (strcasecmp(text, "verify") == 0)
        *value_out = MS_VERIFY;
    else if (parse_SWITCH(text, &is_on) == NULL)
        *value_out = is_on ? MS_ON : MS_OFF;
    else
        return "on, off or verify";
    return NULL;
}

/* Returns false if there are no digits, or the number is too large. */
static bool read_digits(const char *text, char **end_out, unsigned long long *number_out)
{
    if (!isdigit((unsigned char)*text))
        return false;
    const int before = errno;
    errno = 0;
    *number_out = strtoull(text, end_out, 10);
    const bool fits = errno == 0;
    errno = before;
    return fits;
}

bool ms_config_read_bytes(const char **text, uint64_t *bytes_out)
{
    static const char units[] = "KMGT";
    unsigned long long number;
    char *end;
    if (!read_digits(*text, &end, &number))
        return false;
    const char *unit = *end != '\0' ? strchr(units, toupper((unsigned char)*end)) : NULL;
    const int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    if (number > UINT64_MAX >> shift)
        return false;
    if (unit != NULL)
        end += tolower((unsigned char)end[1]) == 'i' ? 2 : 1;
    end += toupper((unsigned char)*end) == 'B';
    *bytes_out = (uint64_t)number << shift;
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
    unsigned long long number;
    char *end;
    if (!read_digits(text, &end, &number) || *end != '\0' || number > 100)
        return "a whole number from 0 to 100";
    *value_out = number;
    return NULL;
}

static const char *parse_NUMBER(const char *text, ms_type_NUMBER *value_out)
{
    unsigned long long number;
    char *end;
    if (!read_digits(text, &end, &number) || *end != '\0')
        return "a whole number such as 0 or 16";
    *value_out = number;
    return NULL;
}

/* What a name has for a letter behind '%': process id, rank, host or job. False: it is no such
 * letter. What is not known is "none", and a slash would be another folder. */
static bool expand(char letter, char *text, size_t bytes)
{
    const struct ms_launched launched = ms_launcher_read();
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

/* Copies a file name. */
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
    memcpy(*value_out, path, used + 1);
    return NULL;
}

static const char *parse_PLAN_MODE(const char *text, ms_type_PLAN_MODE *value_out)
{
    if (strcasecmp(text, "advise") == 0)
        *value_out = MS_ADVISE;
    else if (strcasecmp(text, "enforce") == 0)
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
        if (strcasecmp(text, self_check_names[i]) == 0) {
            *value_out = (enum ms_self_check)i;
            return NULL;
        }
    }
    return "on, off or fresh";
}

static const char *parse_LOG(const char *text, ms_type_LOG *value_out)
{
    const char *colon = strchr(text, ':');
    const size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    for (int level = 0; level < MS_LOG_LEVEL_COUNT; level++) {
        if (strlen(ms_log_level_names[level]) != length ||
            strncasecmp(text, ms_log_level_names[level], length) != 0)
            continue;
        value_out->path[0] = '\0';
        if (colon != NULL && parse_PATH(colon + 1, &value_out->path) != NULL)
            break;
        value_out->level = (enum ms_log_level)level;
        return NULL;
    }
    return "error, warn, info, debug or trace, optionally followed by :file";
}

const char *ms_environment_find(char **environment, const char *name)
{
    const size_t length = strlen(name);
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
            return *entry + length + 1;
    }
    return NULL;
}

static const char prefix[] = "METASHARD";

/* The variable that is nearest to a name, or the same; NULL if none is near. */
static const char *find_option(const char *name)
{
    static const char names[][32] = {
#define MS_OPTION(type, field, variable, default_, unit, description) #variable,
#include "runtime/config/options.def"
#undef MS_OPTION
    };
    struct ms_nearest nearest = {.text = name + sizeof(prefix)};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], name) == 0)
            return names[i];
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i]) > sizeof(prefix))
            ms_nearest_try(&nearest, names[i] + sizeof(prefix));
    }
    return nearest.word != NULL ? nearest.word - sizeof(prefix) : NULL;
}

/* The settings in the environment, so that each is not looked for among everything else. */
struct settings {
    char *entries[128];
};

static char **select_settings(char **environment, struct settings *settings)
{
    size_t count = 0;
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, prefix, sizeof(prefix) - 1) != 0)
            continue;
        if (count == sizeof(settings->entries) / sizeof(settings->entries[0]) - 1)
            return environment;
        settings->entries[count++] = *entry;
    }
    settings->entries[count] = NULL;
    return settings->entries;
}

/* What people type that no variable is near to, and what was one: what there is instead. */
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

static void warn_about_unknown_names(char **environment)
{
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        const char *end = strchr(*entry, '=');
        if (end == NULL || strncmp(*entry, prefix, sizeof(prefix) - 1) != 0 ||
            (*entry)[sizeof(prefix) - 1] != '_')
            continue;
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)(end - *entry), *entry);
        const char *known = find_option(name), *instead = find_instead(name);
        if (instead != NULL)
            ms_log(MS_WARN, "%s is not a variable of MetaShard and is ignored: %s", name, instead);
        else if (known == NULL)
            ms_log(MS_WARN, "%.*s is not a variable of MetaShard and is ignored",
                   (int)(end - *entry), *entry);
        else if (strcmp(known, name) != 0)
            ms_log(MS_WARN, "%s is not a variable of MetaShard and is ignored; did you mean %s?",
                   name, known);
    }
}

/* META_SHARD_LOG. */
static void warn_about_other_prefix(char **environment)
{
    static const char other[] = "META_SHARD";
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, other, sizeof(other) - 1) == 0)
            ms_log(MS_WARN,
                   "%.*s is not a variable of MetaShard and is ignored: they begin with %s",
                   (int)strcspn(*entry, "="), *entry, prefix);
    }
}

static void read_runtime_dir(struct ms_config *config, char **environment)
{
    const char *text = ms_environment_find(environment, "XDG_RUNTIME_DIR");
    if (text != NULL && strlen(text) < sizeof(config->runtime_dir))
        memcpy(config->runtime_dir, text, strlen(text) + 1);
}

static void read_cache_dir(struct ms_config *config, char **environment)
{
    const char *cache = ms_environment_find(environment, "XDG_CACHE_HOME"),
               *home = ms_environment_find(environment, "HOME");
    const bool is_own = cache != NULL && cache[0] == '/';
    const char *text = is_own ? cache : home;
    const int length = text != NULL && text[0] == '/'
                           ? snprintf(config->cache_dir, sizeof(config->cache_dir), "%s%s", text,
                                      is_own ? "" : "/.cache")
                           : 0;
    if (length < 0 || (size_t)length >= sizeof(config->cache_dir))
        config->cache_dir[0] = '\0';
}

/* A few lines for each option. NOLINTNEXTLINE(readability-function-size) */
static void read_variables(struct ms_config *config, char **environment, bool is_logged)
{
#define MS_OPTION(type, field, variable, default_, unit, description)                              \
    parse_##type(default_, &config->field);                                                        \
    const char *text_##field = ms_environment_find(environment, #variable);                        \
    const char *expected_##field =                                                                 \
        text_##field == NULL ? NULL : parse_##type(text_##field, &config->field);                  \
    if (expected_##field != NULL && is_logged)                                                     \
        ms_log(MS_WARN, "%s=%s is not understood: expected %s; using %s", #variable, text_##field, \
               expected_##field, default_[0] != '\0' ? default_ : "none");
#include "runtime/config/options.def"
#undef MS_OPTION
}

void ms_config_read_quietly(struct ms_config *config, char **environment)
{
    if (getauxval(AT_SECURE) != 0)
        environment = NULL;
    *config = (struct ms_config){0};
    struct settings settings;
    read_runtime_dir(config, environment);
    read_cache_dir(config, environment);
    read_variables(config, select_settings(environment, &settings), false);
}

/* Reads again, to log warnings: the log was not open before. */
void ms_config_read(struct ms_config *config, char **environment)
{
    ms_config_read_quietly(config, environment);
    ms_log_open(config->log.level, config->log.path[0] != '\0' ? config->log.path : NULL);
    if (getauxval(AT_SECURE) != 0)
        return;
    struct settings settings;
    char **selected = select_settings(environment, &settings);
    warn_about_other_prefix(environment);
    if (*selected == NULL)
        return;
    read_variables(config, selected, true);
    warn_about_unknown_names(selected);
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
