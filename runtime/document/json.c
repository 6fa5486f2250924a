/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/document/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/hash_set.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/utf8.h"

/* --- strings */

/* Decodes a string byte by byte. */
struct decoder {
    const char *at;
    unsigned next, count; /* of an escape */
    unsigned char escaped[4];
};

static struct decoder decode(const char *string)
{
    return (struct decoder){.at = string + 1};
}

static bool is_digit(char character)
{
    return character >= '0' && character <= '9';
}

/* Returns the value of four hexadecimal digits, or -1. */
static int read_hex(const char *at, const char *end)
{
    int value = 0;
    for (int i = 0; i < 4; i++, at++) {
        const char lower = at < end ? (char)(*at | 0x20) : '\0';
        if (lower >= 'a' && lower <= 'f')
            value = value * 16 + lower - 'a' + 10;
        else if (at < end && is_digit(*at))
            value = value * 16 + *at - '0';
        else
            return -1;
    }
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
    const uint32_t unit = (uint32_t)read_hex(*at + 2, *at + 6);
    *at += 6;
    if (unit < 0xd800 || unit >= 0xe000)
        return unit;
    const uint32_t low = (uint32_t)read_hex(*at + 2, *at + 6);
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

/* Returns -1 at the end of the string. */
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

/* The closing quote of a string without escapes, as most are; NULL: it has an escape. */
static const char *end_of_plain(const char *string)
{
    const char *at = string + 1;
    while (*at != '"' && *at != '\\')
        at++;
    return *at == '"' ? at : NULL;
}

char *ms_json_text(const char *string, struct ms_arena *arena)
{
    const char *end = end_of_plain(string);
    if (end != NULL)
        return ms_arena_string(arena, string + 1, (size_t)(end - string - 1));
    struct decoder decoder = decode(string);
    size_t bytes = 0;
    while (next_byte(&decoder) >= 0)
        bytes++;
    char *text = ms_arena_string(arena, NULL, bytes), *out = text;
    if (text == NULL)
        return NULL;
    decoder = decode(string);
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

/* Compares decoded texts, because strings may write one text differently. */
static bool is_same(const char *string, const char *other)
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

const char *ms_json_end(const char *value)
{
    const char *at = value;
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
    const char *at = skip_space(walk->value != NULL ? ms_json_end(walk->value) : walk->in + 1);
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

/* False: the number has more than 64 bits. */
static bool read_digits(const char *at, const char *end, bool is_negative, int64_t *number_out)
{
    int64_t number = 0;
    for (; at < end; at++) {
        const int digit = is_negative ? -(*at - '0') : *at - '0';
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, digit, &number))
            return false;
    }
    *number_out = number;
    return true;
}

/* Cannot overflow: ms_json_check accepts integers of 64 bits only. */
static bool read_integer(const char *value, int64_t *number_out)
{
    if (value == NULL || (*value != '-' && !is_digit(*value)))
        return false;
    const bool is_negative = *value == '-';
    const char *end = value + is_negative;
    while (is_digit(*end))
        end++;
    return *end != '.' && *end != 'e' && *end != 'E' &&
           read_digits(value + is_negative, end, is_negative, number_out);
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

/* --- checking that a text is JSON, or finding where it is not */

/* A key of an object that is still open. */
struct key {
    uint32_t at; /* in the text */
    uint32_t hash;
};

struct check {
    const struct ms_fault_context *reading;
    const char *text, *end, *at;
    unsigned depth;
    struct level {
        bool is_object;
        uint32_t first_key;
    } level[MS_JSON_DEPTH];
    struct ms_pages keys;
    size_t key_count;
};

/* --- where */

enum { NEAR_BYTES = 20 };

/* The length of the token at `at`, at most NEAR_BYTES, for a message. */
static int token_bytes(const char *at, const char *end)
{
    const char *behind = at + 1;
    const size_t left = (size_t)(end - at);
    const char *limit = left > NEAR_BYTES ? at + NEAR_BYTES : end;
    if (*at == '"') {
        while (behind < limit && *behind != '"' && *behind != '\n')
            behind++;
        behind += behind < limit && *behind == '"';
    } else if (strchr("{}[]:,", *at) == NULL) {
        while (behind < limit && strchr("{}[]:,\" \t\r\n", *behind) == NULL)
            behind++;
    }
    return (int)(behind - at);
}

/* Lines and columns are counted from 1, columns in characters. */
static bool __attribute__((format(printf, 3, 4)))
fault_at(const struct check *check, const char *at, const char *format, ...)
{
    char expected[80], reason[160];
    int line = 1, column = 1;
    va_list args;
    for (const char *before = check->text; before < at; before++) {
        column += ((unsigned char)*before & 0xc0) != 0x80;
        if (*before == '\n') {
            line++;
            column = 1;
        }
    }
    va_start(args, format);
    vsnprintf(expected, sizeof(expected), format, args);
    va_end(args);
    if (at == check->end)
        snprintf(reason, sizeof(reason), "%s near end of file", expected);
    else
        snprintf(reason, sizeof(reason), "%s near '%.*s'", expected, token_bytes(at, check->end),
                 at);
    return ms_fault_at_line(check->reading, line, column, reason);
}

#ifdef __clang_analyzer__ /* tells the analyzer the result */
#define fault_at(...) (fault_at(__VA_ARGS__), false)
#endif

/* --- scalars */

/* NUL at the end: JSON contains none. */
static char peek(const struct check *check)
{
    return check->at < check->end ? *check->at : '\0';
}

static void pass_space(struct check *check)
{
    while (check->at < check->end &&
           (*check->at == ' ' || *check->at == '\n' || *check->at == '\r' || *check->at == '\t'))
        check->at++;
}

static bool is_high(int unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}

static bool is_low(int unit)
{
    return unit >= 0xdc00 && unit < 0xe000;
}

/* Checks the escape at `at`, and moves behind it. */
static bool check_escape(struct check *check)
{
    const char *const at = check->at;
    const char kind = at + 1 < check->end ? at[1] : '\0';
    if (kind != 'u') {
        check->at += 2;
        return (kind != '\0' && strchr("\"\\/bfnrt", kind) != NULL) ||
               fault_at(check, at, "expected an escape");
    }
    const int unit = read_hex(at + 2, check->end);
    const bool is_pair = is_high(unit) && check->end - at >= 12 && at[6] == '\\' && at[7] == 'u' &&
                         is_low(read_hex(at + 8, check->end));
    check->at += is_pair ? 12 : 6;
    if (unit < 0)
        return fault_at(check, at, "expected \\u and four hexadecimal digits");
    if (unit == 0)
        return fault_at(check, at, "expected no NUL in a string");
    return (!is_high(unit) && !is_low(unit)) || is_pair ||
           fault_at(check, at, "expected both halves of a surrogate pair");
}

static bool check_string(struct check *check)
{
    const char *const begin = check->at++;
    while (check->at < check->end && *check->at != '"') {
        const unsigned char byte = (unsigned char)*check->at;
        if (byte < 0x20)
            return fault_at(check, check->at, "expected no control character 0x%x in a string",
                            byte);
        if (byte == '\\') {
            if (!check_escape(check))
                return false;
        } else if (byte < 0x80) {
            check->at++;
        } else {
            const size_t bytes =
                ms_utf8_character_bytes(check->at, (size_t)(check->end - check->at));
            if (bytes == 0)
                return fault_at(check, check->at, "expected UTF-8, found byte 0x%x", byte);
            check->at += bytes;
        }
    }
    if (check->at == check->end)
        return fault_at(check, begin, "expected a '\"' at the end of the string");
    check->at++;
    return true;
}

static bool skip_digits(struct check *check)
{
    const char *begin = check->at;
    while (is_digit(peek(check)))
        check->at++;
    return check->at > begin;
}

static bool check_number(struct check *check)
{
    const char *const begin = check->at;
    const bool is_negative = *begin == '-';
    int64_t unused;
    check->at += is_negative;
    const char *const digits = check->at;
    bool is_good = skip_digits(check) && (*digits != '0' || check->at == digits + 1);
    const char *const behind = check->at;
    if (is_good && peek(check) == '.') {
        check->at++;
        is_good = skip_digits(check);
    }
    if (is_good && (peek(check) == 'e' || peek(check) == 'E')) {
        check->at++;
        check->at += peek(check) == '+' || peek(check) == '-';
        is_good = skip_digits(check);
    }
    if (!is_good)
        return fault_at(check, begin, "expected a number");
    return check->at > behind || read_digits(digits, behind, is_negative, &unused) ||
           fault_at(check, begin, "expected an integer of 64 bits");
}

static bool check_word(struct check *check)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t length = strlen(words[i]);
        if ((size_t)(check->end - check->at) >= length &&
            memcmp(check->at, words[i], length) == 0) {
            check->at += length;
            return true;
        }
    }
    return fault_at(check, check->at, "expected a value");
}

static bool check_scalar(struct check *check)
{
    const char first = peek(check);
    return first == '"'                      ? check_string(check)
           : first == '-' || is_digit(first) ? check_number(check)
                                             : check_word(check);
}

/* --- keys */

/* Up to FEW_KEYS keys are compared in pairs; more keys go into a set. */
enum { FEW_KEYS = 8 };

struct same_key {
    const char *text;
    const struct key *keys;
    const struct key *one;
};

static bool is_same_key(const void *context, uint32_t number)
{
    const struct same_key *same = context;
    const struct key *other = &same->keys[number];
    return other->hash == same->one->hash &&
           is_same(same->text + other->at, same->text + same->one->at);
}

static bool fault_twice(const struct check *check, const struct key *key)
{
    return fault_at(check, check->text + key->at, "expected each key once");
}

static bool check_many_keys(const struct check *check, const struct key *keys, size_t count)
{
    struct ms_hash_set set = {0};
    struct same_key same = {check->text, keys, NULL};
    bool is_good = ms_hash_set_reserve(&set, count);
    if (!is_good)
        ms_fault_at(check->reading, NULL, "out of memory");
    for (size_t i = 0; i < count && is_good; i++) {
        same.one = &keys[i];
        is_good = ms_hash_set_find(&set, keys[i].hash, is_same_key, &same) == MS_NO_NUMBER
                      ? ms_hash_set_add(&set, keys[i].hash, (uint32_t)i)
                      : fault_twice(check, &keys[i]);
    }
    ms_hash_set_cleanup(&set);
    return is_good;
}

static bool check_keys(const struct check *check, const struct key *keys, size_t count)
{
    if (count > FEW_KEYS)
        return check_many_keys(check, keys, count);
    for (size_t i = 1; i < count; i++) {
        const struct same_key same = {check->text, keys, &keys[i]};
        for (uint32_t j = 0; j < i; j++) {
            if (is_same_key(&same, j))
                return fault_twice(check, &keys[i]);
        }
    }
    return true;
}

/* Checks a key and the ':' behind it. */
static bool check_key(struct check *check)
{
    const char *const key = check->at;
    if (peek(check) != '"')
        return fault_at(check, key, "expected a key");
    if (!check_string(check))
        return false;
    if (!ms_pages_grow(&check->keys, (check->key_count + 1) * sizeof(struct key)))
        return ms_fault_at(check->reading, NULL, "out of memory");
    struct key *keys = check->keys.memory;
    keys[check->key_count++] =
        (struct key){(uint32_t)(key - check->text), (uint32_t)ms_json_hash(key)};
    pass_space(check);
    if (peek(check) != ':')
        return fault_at(check, check->at, "expected ':'");
    check->at++;
    pass_space(check);
    return true;
}

/* --- the whole */

static bool open_level(struct check *check)
{
    if (check->depth == MS_JSON_DEPTH)
        return fault_at(check, check->at, "expected nesting of at most %d", MS_JSON_DEPTH);
    check->level[check->depth++] = (struct level){*check->at == '{', (uint32_t)check->key_count};
    check->at++;
    return true;
}

static bool close_level(struct check *check)
{
    const struct level *level = &check->level[--check->depth];
    const struct key *keys = check->keys.memory;
    const size_t count = check->key_count - level->first_key;
    check->at++;
    if (count > 1 && !check_keys(check, keys + level->first_key, count))
        return false;
    check->key_count = level->first_key;
    return true;
}

static char closing(const struct check *check)
{
    return check->level[check->depth - 1].is_object ? '}' : ']';
}

/* Moves behind a value and all containers that end with it, to the next value or the end. */
static bool leave_value(struct check *check)
{
    while (check->depth > 0) {
        pass_space(check);
        if (peek(check) == ',') {
            check->at++;
            return true;
        }
        if (peek(check) != closing(check))
            return fault_at(check, check->at, "expected ',' or '%c'", closing(check));
        if (!close_level(check))
            return false;
    }
    return true;
}

/* Checks value after value, and enters containers. */
static bool check_values(struct check *check)
{
    bool is_entered = false;
    do {
        pass_space(check);
        if (is_entered && peek(check) == closing(check)) {
            if (!close_level(check))
                return false;
        } else {
            if (check->depth > 0 && check->level[check->depth - 1].is_object && !check_key(check))
                return false;
            is_entered = peek(check) == '{' || peek(check) == '[';
            if (is_entered) {
                if (!open_level(check))
                    return false;
                continue;
            }
            if (!check_scalar(check))
                return false;
        }
        is_entered = false;
        if (!leave_value(check))
            return false;
    } while (check->depth > 0);
    return true;
}

static bool check_whole(struct check *check, const char **root_out)
{
    pass_space(check);
    *root_out = check->at;
    if (peek(check) != '{' && peek(check) != '[')
        return fault_at(check, check->at, "expected '[' or '{'");
    if (!check_values(check))
        return false;
    pass_space(check);
    return check->at == check->end || fault_at(check, check->at, "expected the end of the file");
}

bool ms_json_check(const struct ms_fault_context *reading, const char *text, size_t bytes,
                   const char **root_out)
{
    struct check check;
    check.reading = reading;
    check.text = check.at = text;
    check.end = text + bytes;
    check.depth = 0;
    check.keys = (struct ms_pages){0};
    check.key_count = 0;
    if (bytes > MS_JSON_MAX_BYTES)
        return ms_fault_at(reading, NULL, "expected at most %d bytes", MS_JSON_MAX_BYTES);
    const bool is_good = check_whole(&check, root_out);
    ms_pages_cleanup(&check.keys);
    return is_good;
}
