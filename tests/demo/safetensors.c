/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/demo/safetensors.h"

#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Noreturn void damaged(const char *path, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static _Noreturn void damaged(const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "demo: %s: ", path);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

static const unsigned char *map_file(const char *path, uint64_t *bytes_out)
{
    struct stat stat;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &stat) != 0)
        damaged(path, "cannot be opened");
    if (stat.st_size < 8)
        damaged(path, "expected at least the 8 bytes of the header's length, found %lld",
                (long long)stat.st_size);
    void *mapping = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapping == MAP_FAILED)
        damaged(path, "cannot be mapped");
    *bytes_out = (uint64_t)stat.st_size;
    return mapping;
}

static uint64_t element_bytes(const char *path, const char *type)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } types[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F64", 8}, {"I8", 1},
                 {"U8", 1},   {"I32", 4}, {"I64", 8}, {"BOOL", 1}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].name, type) == 0)
            return types[i].bytes;
    }
    damaged(path, "unknown dtype %s", type);
}

/* The place in a header. The reader knows the JSON of safetensors and no more: no escapes,
 * no fractions. */
struct header {
    const char *path, *begin, *at, *end;
};

static _Noreturn void expected(const struct header *header, const char *what)
{
    damaged(header->path, "byte %zu: expected %s", 8 + (size_t)(header->at - header->begin), what);
}

static void skip_space(struct header *header)
{
    while (header->at < header->end && memchr(" \t\r\n", *header->at, 4) != NULL)
        header->at++;
}

static bool accept(struct header *header, char sign)
{
    skip_space(header);
    if (header->at == header->end || *header->at != sign)
        return false;
    header->at++;
    return true;
}

static void expect(struct header *header, char sign)
{
    if (!accept(header, sign))
        expected(header, (char[]){'\'', sign, '\'', '\0'});
}

/* The caller frees the text. */
static char *read_string(struct header *header)
{
    expect(header, '"');
    const char *const begin = header->at;
    while (header->at < header->end && *header->at != '"' && *header->at != '\\')
        header->at++;
    char *text = strndup(begin, (size_t)(header->at - begin));
    expect(header, '"');
    if (text == NULL)
        abort();
    return text;
}

/* The numbers of a list; returns how many. */
static size_t read_list(struct header *header, uint64_t *numbers, size_t most)
{
    size_t count = 0;
    expect(header, '[');
    if (accept(header, ']'))
        return 0;
    do {
        skip_space(header);
        const char *const begin = header->at;
        uint64_t number = 0;
        for (; header->at < header->end && *header->at >= '0' && *header->at <= '9'; header->at++)
            number = number * 10 + (uint64_t)(*header->at - '0');
        if (header->at == begin || header->at - begin > 18 || count == most)
            expected(header, "at most 8 integers");
        numbers[count++] = number;
    } while (accept(header, ','));
    expect(header, ']');
    return count;
}

enum { DIMENSIONS_MOST = 8 };

/* The header's entry for a tensor. */
struct entry {
    char *dtype;
    uint64_t shape[DIMENSIONS_MOST], offsets[2];
    size_t dimensions, offset_count;
};

static struct entry read_entry(struct header *header)
{
    struct entry entry = {0};
    expect(header, '{');
    do {
        char *key = read_string(header);
        expect(header, ':');
        if (strcmp(key, "dtype") == 0 && entry.dtype == NULL)
            entry.dtype = read_string(header);
        else if (strcmp(key, "shape") == 0)
            entry.dimensions = read_list(header, entry.shape, DIMENSIONS_MOST);
        else if (strcmp(key, "data_offsets") == 0)
            entry.offset_count = read_list(header, entry.offsets, 2);
        else
            expected(header, "dtype, shape or data_offsets before this");
        free(key);
    } while (accept(header, ','));
    expect(header, '}');
    if (entry.dtype == NULL || entry.offset_count != 2)
        expected(header, "dtype, shape and two data_offsets before this");
    return entry;
}

static void skip_metadata(struct header *header)
{
    expect(header, '{');
    if (accept(header, '}'))
        return;
    do {
        free(read_string(header));
        expect(header, ':');
        free(read_string(header));
    } while (accept(header, ','));
    expect(header, '}');
}

static struct tensor read_tensor(struct header *header, char *name, const unsigned char *data,
                                 uint64_t data_bytes)
{
    const struct entry entry = read_entry(header);
    const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    if (begin > end || end > data_bytes)
        damaged(header->path, "tensor %s: expected data_offsets within the %llu bytes of data",
                name, (unsigned long long)data_bytes);
    struct tensor tensor = {
        .name = name,
        .data = data + begin,
        .rows = entry.dimensions > 0 ? entry.shape[0] : 1,
        .row_bytes = element_bytes(header->path, entry.dtype),
    };
    for (size_t i = 1; i < entry.dimensions; i++)
        tensor.row_bytes *= entry.shape[i];
    if (tensor.rows * tensor.row_bytes != end - begin)
        damaged(header->path, "tensor %s: expected %llu bytes for its shape, found %llu", name,
                (unsigned long long)(tensor.rows * tensor.row_bytes),
                (unsigned long long)(end - begin));
    free(entry.dtype);
    return tensor;
}

static void add(struct checkpoint *checkpoint, const struct tensor *tensor)
{
    struct tensor *grown =
        realloc(checkpoint->tensors, (checkpoint->count + 1) * sizeof(*checkpoint->tensors));
    if (grown == NULL)
        abort();
    checkpoint->tensors = grown;
    checkpoint->tensors[checkpoint->count++] = *tensor;
    checkpoint->bytes += tensor->rows * tensor->row_bytes;
}

static void open_file(struct checkpoint *checkpoint, const char *path)
{
    uint64_t bytes;
    const unsigned char *mapping = map_file(path, &bytes);
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | mapping[i];
    if (header_bytes > bytes - 8)
        damaged(path, "byte 0: the header's length is %llu, expected at most %llu",
                (unsigned long long)header_bytes, (unsigned long long)(bytes - 8));
    const char *const text = (const char *)mapping + 8;
    struct header header = {path, text, text, text + header_bytes};
    expect(&header, '{');
    if (accept(&header, '}'))
        return;
    do {
        char *name = read_string(&header);
        expect(&header, ':');
        if (strcmp(name, "__metadata__") == 0) {
            skip_metadata(&header);
            free(name);
        } else {
            const struct tensor tensor =
                read_tensor(&header, name, mapping + 8 + header_bytes, bytes - 8 - header_bytes);
            add(checkpoint, &tensor);
        }
    } while (accept(&header, ','));
    expect(&header, '}');
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *left = a, *right = b;
    return left->data < right->data ? -1 : left->data > right->data;
}

void checkpoint_open(struct checkpoint *checkpoint, const char *folder)
{
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/*.safetensors", folder);
    if (glob(pattern, 0, NULL, &found) != 0)
        damaged(folder, "expected safetensors files in this folder");
    *checkpoint = (struct checkpoint){0};
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const size_t before = checkpoint->count;
        open_file(checkpoint, found.gl_pathv[i]);
        qsort(checkpoint->tensors + before, checkpoint->count - before,
              sizeof(*checkpoint->tensors), by_place);
    }
    globfree(&found);
}
