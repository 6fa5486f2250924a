/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/demo/safetensors.h"

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <stdarg.h>
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
        if (type != NULL && strcmp(types[i].name, type) == 0)
            return types[i].bytes;
    }
    damaged(path, "unknown dtype %s", type != NULL ? type : "(none)");
}

static struct tensor read_tensor(const char *path, const char *name, json_t *entry,
                                 const unsigned char *data, uint64_t data_bytes)
{
    json_t *offsets = json_object_get(entry, "data_offsets");
    json_t *shape = json_object_get(entry, "shape");
    const uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    const uint64_t end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    if (json_array_size(offsets) != 2 || begin > end || end > data_bytes)
        damaged(path, "tensor %s: expected data_offsets within the %llu bytes of data", name,
                (unsigned long long)data_bytes);
    struct tensor tensor = {
        .name = strdup(name),
        .data = data + begin,
        .rows =
            json_array_size(shape) > 0 ? (uint64_t)json_integer_value(json_array_get(shape, 0)) : 1,
        .row_bytes = element_bytes(path, json_string_value(json_object_get(entry, "dtype"))),
    };
    for (size_t i = 1; i < json_array_size(shape); i++)
        tensor.row_bytes *= (uint64_t)json_integer_value(json_array_get(shape, i));
    if (tensor.rows * tensor.row_bytes != end - begin)
        damaged(path, "tensor %s: expected %llu bytes for its shape, found %llu", name,
                (unsigned long long)(tensor.rows * tensor.row_bytes),
                (unsigned long long)(end - begin));
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
    json_error_t error;
    json_t *header = json_loadb((const char *)mapping + 8, header_bytes, 0, &error);
    if (!json_is_object(header))
        damaged(path, "byte %d: expected a JSON object as header: %s", 8 + error.position,
                error.text);
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        const struct tensor tensor =
            read_tensor(path, name, entry, mapping + 8 + header_bytes, bytes - 8 - header_bytes);
        add(checkpoint, &tensor);
    }
    json_decref(header);
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
