/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/document/json.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/hash_set.h"
#include "runtime/base/regular_file.h"

/* --- strings */

/* The bytes of a string, one after the other. */
struct decoder {
    const char *at;
    unsigned next, count; /* of an escape */
    unsigned char escaped[4];
};

static struct decoder decode(const char *string)
{
    return (struct decoder){.at = string + 1};
}

static uint32_t hex_of(const char *at)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value = value << 4 | (uint32_t)(at[i] <= '9' ? at[i] - '0' : (at[i] | 0x20) - 'a' + 10);
    return value;
}

static uint32_t character_of(const char **at)
{
    static const char kinds[] = "bfnrt", characters[] = "\b\f\n\r\t";
    const char kind = (*at)[1];
    if (kind != 'u') {
        const char *found = strchr(kinds, kind);
        *at += 2;
        return (unsigned char)(found != NULL ? characters[found - kinds] : kind);
    }
    const uint32_t unit = hex_of(*at + 2);
    *at += 6;
    if (unit < 0xd800 || unit >= 0xe000)
        return unit;
    const uint32_t low = hex_of(*at + 2);
    *at += 6;
    return 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
}

static void decode_escape(struct decoder *decoder)
{
    const uint32_t character = character_of(&decoder->at);
    unsigned char *out = decoder->escaped;
    const unsigned count = character < 0x80      ? 1
                           : character < 0x800   ? 2
                           : character < 0x10000 ? 3
                                                 : 4;
    static const unsigned char marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (unsigned i = count; i-- > 0;)
        out[i] = (unsigned char)((character >> 6 * (count - 1 - i) & (i > 0 ? 0x3f : 0xff)) |
                                 (i > 0 ? 0x80 : marks[count]));
    decoder->next = 0;
    decoder->count = count;
}

/* -1: there is none. */
static int next_byte(struct decoder *decoder)
{
    if (decoder->next == decoder->count) {
        if (*decoder->at == '"')
            return -1;
        if (*decoder->at != '\\')
            return (unsigned char)*decoder->at++;
        decode_escape(decoder);
    }
    return decoder->escaped[decoder->next++];
}

/* Most strings have no escape: their bytes lie between the quotes. NULL: this one has. */
static const char *end_of_plain(const char *string)
{
    const char *at = string + 1;
    while (*at != '"' && *at != '\\')
        at++;
    return *at == '"' ? at : NULL;
}

static size_t text_bytes(const char *string)
{
    const char *end = end_of_plain(string);
    if (end != NULL)
        return (size_t)(end - string - 1);
    struct decoder decoder = decode(string);
    size_t bytes = 0;
    while (next_byte(&decoder) >= 0)
        bytes++;
    return bytes;
}

char *ms_json_text(const char *string, struct ms_arena *arena)
{
    const char *end = end_of_plain(string);
    if (end != NULL)
        return ms_arena_string(arena, string + 1, (size_t)(end - string - 1));
    char *text = ms_arena_text(arena, text_bytes(string) + 1), *out = text;
    if (text == NULL)
        return NULL;
    struct decoder decoder = decode(string);
    for (int byte; (byte = next_byte(&decoder)) >= 0; out++)
        *out = (char)byte;
    *out = '\0';
    return text;
}

bool ms_json_is_text(const char *string, const char *text)
{
    if (!ms_json_is_string(string))
        return false;
    struct decoder decoder = decode(string);
    for (; *decoder.at != '\\'; decoder.at++, text++) {
        if (*decoder.at == '"')
            return *text == '\0';
        if (*decoder.at != *text)
            return false;
    }
    int byte;
    while ((byte = next_byte(&decoder)) > 0 && byte == (unsigned char)*text)
        text++;
    return byte < 0 && *text == '\0';
}

bool ms_json_is_same(const char *string, const char *other)
{
    struct decoder left = decode(string), right = decode(other);
    int byte, other_byte;
    do {
        byte = next_byte(&left);
        other_byte = next_byte(&right);
    } while (byte == other_byte && byte >= 0);
    return byte == other_byte;
}

uint64_t ms_json_hash(const char *string)
{
    const char *end = end_of_plain(string);
    if (end != NULL)
        return ms_hash_set_bytes(string + 1, (size_t)(end - string - 1));
    struct decoder decoder = decode(string);
    uint64_t hash = ms_hash_set_begin();
    for (int byte; (byte = next_byte(&decoder)) >= 0;)
        hash = ms_hash_add(hash, (unsigned char)byte);
    return ms_hash_end(hash);
}

/* --- containers */

static const char *behind_string(const char *at)
{
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

static const char *behind_value(const char *at)
{
    unsigned depth = 0;
    if (*at == '"')
        return behind_string(at);
    if (*at != '{' && *at != '[') {
        while (*at > ' ' && *at != ',' && *at != '}' && *at != ']')
            at++;
        return at;
    }
    do {
        if (*at == '"') {
            at = behind_string(at);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at++;
    } while (depth > 0);
    return at;
}

static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')
        at++;
    return at;
}

bool ms_json_next(struct ms_json_walk *walk)
{
    const bool is_object = ms_json_is_object(walk->in);
    if (!is_object && !ms_json_is_list(walk->in))
        return false;
    const char *at = skip_space(walk->value != NULL ? behind_value(walk->value) : walk->in + 1);
    if (*at == ',')
        at = skip_space(at + 1);
    if (*at == '}' || *at == ']')
        return false;
    if (is_object) {
        walk->key = at;
        at = skip_space(behind_string(at)) + 1;
    }
    walk->value = skip_space(at);
    return true;
}

size_t ms_json_size(const char *value)
{
    struct ms_json_walk walk = {.in = value};
    size_t count = 0;
    while (ms_json_next(&walk))
        count++;
    return count;
}

bool ms_json_fault_at(const struct ms_fault_context *reading, const struct ms_place *place,
                      const char *string, const char *reason, const char *expected)
{
    struct ms_arena arena = {0};
    const char *key = ms_json_text(string, &arena);
    const struct ms_place at = {place, key != NULL ? key : "...", 0};
    ms_fault_at(reading, &at, "%s%s", reason, expected);
    ms_arena_cleanup(&arena);
    return false;
}

bool ms_json_members(const struct ms_fault_context *reading, const struct ms_place *place,
                     const char *object, const char *const *keys, const char **values_out,
                     const char *expected)
{
    if (!ms_json_is_object(object))
        return ms_fault_at(reading, place, "expected an object%s%s",
                           expected != NULL ? " with " : "", expected != NULL ? expected : "");
    for (size_t i = 0; keys[i] != NULL; i++)
        values_out[i] = NULL;
    struct ms_json_walk walk = {.in = object};
    while (ms_json_next(&walk)) {
        size_t i = 0;
        while (keys[i] != NULL && !ms_json_is_text(walk.key, keys[i]))
            i++;
        if (keys[i] != NULL)
            values_out[i] = walk.value;
        else if (expected != NULL)
            return ms_json_fault_at(reading, place, walk.key, "unknown key; expected ", expected);
    }
    return true;
}

static bool is_digit(char character)
{
    return character >= '0' && character <= '9';
}

/* A number with neither a fraction nor an exponent fits. */
static bool read_integer(const char *value, int64_t *number_out)
{
    if (value == NULL || (*value != '-' && !is_digit(*value)))
        return false;
    const bool is_negative = *value == '-';
    const char *end = value + is_negative;
    while (is_digit(*end))
        end++;
    if (*end == '.' || *end == 'e' || *end == 'E')
        return false;
    int64_t number = 0;
    for (const char *at = value + is_negative; at < end; at++)
        number = number * 10 + (is_negative ? -(*at - '0') : *at - '0');
    *number_out = number;
    return true;
}

bool ms_json_count(const struct ms_fault_context *reading, const struct ms_place *place,
                   const char *value, uint64_t least, uint64_t most, uint64_t *count_out)
{
    int64_t number;
    if (!read_integer(value, &number))
        return ms_fault_at(reading, place, "expected an integer");
    if (number < 0 || (uint64_t)number < least || (uint64_t)number > most)
        return ms_fault_at(reading, place,
                           "expected an integer from %" PRIu64 " to %" PRIu64 ", found %" PRId64,
                           least, most, number);
    *count_out = (uint64_t)number;
    return true;
}

/* --- files */

static bool read_all(int file, char *text, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(file, text + done, bytes - done, (off_t)done);
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

bool ms_json_read_file(const char *path, size_t most, struct ms_pages *text_out, size_t *bytes_out,
                       struct ms_fault *fault)
{
    const struct ms_fault_context reading = {path, fault};
    struct stat stat;
    const int file = ms_regular_file_open(path, &stat);
    if (file < 0)
        return errno == 0 ? ms_fault_at(&reading, NULL, "expected a file")
                          : ms_fault_at(&reading, NULL, "cannot be opened: %s", strerror(errno));
    bool is_read = false;
    struct ms_pages text = {0};
    if ((uint64_t)stat.st_size > most)
        ms_fault_at(&reading, NULL, "expected at most %zu bytes, found %lld", most,
                    (long long)stat.st_size);
    else if (!ms_pages_grow(&text, (size_t)stat.st_size + 1))
        ms_fault_at(&reading, NULL, "out of memory");
    else if (!(is_read = read_all(file, text.memory, (size_t)stat.st_size)))
        ms_fault_at(&reading, NULL, "cannot be read to its end");
    close(file);
    if (!is_read) {
        ms_pages_cleanup(&text);
        return false;
    }
    *text_out = text;
    *bytes_out = (size_t)stat.st_size;
    return true;
}
