/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/checkpoint/torch_file.h"
#include "runtime/checkpoint/tensor_json.h"

enum { HEADER_MAX_BYTES = 100000000, INDEX_MAX_BYTES = 100000000 };

struct ms_checkpoint {
    struct ms_arena arena;
    struct ms_tensor *tensors;
    size_t count, capacity;
    size_t skipped;
};

/* File names, sorted by bytes. */
struct names {
    char **name;
    size_t count, capacity;
};

static struct ms_tensor *add_tensor(struct ms_checkpoint *checkpoint)
{
    if (!MS_ARRAY_GROW(checkpoint->tensors, checkpoint->count, checkpoint->capacity))
        return NULL;
    struct ms_tensor *tensor = &checkpoint->tensors[checkpoint->count++];
    *tensor = (struct ms_tensor){0};
    return tensor;
}

static bool parse_tensor(const struct ms_fault_context *reading, const char *name, json_t *entry,
                         uint64_t data_bytes, struct ms_tensor *tensor)
{
    const struct ms_place place = {NULL, name, 0}, at = {&place, "data_offsets", 0};
    if (!json_is_object(entry))
        return ms_fault_at(reading, &place, "expected an object");
    if (!ms_json_tensor(reading, &place, entry, tensor))
        return false;
    json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t end;
    if (json_array_size(offsets) != 2)
        return ms_fault_at(reading, &at, "expected [begin, end]");
    if (!ms_json_count(reading, &at, json_array_get(offsets, 0), 0, data_bytes, &tensor->offset) ||
        !ms_json_count(reading, &at, json_array_get(offsets, 1), tensor->offset, data_bytes, &end))
        return false;
    return end - tensor->offset == tensor->bytes ||
           ms_fault_at(reading, &at,
                       "expected %" PRIu64 " bytes for dtype and shape, found %" PRIu64,
                       tensor->bytes, end - tensor->offset);
}

/* Checks that the data is the tensors without gaps. Makes offsets relative to the file. */
static bool check_places(const struct ms_fault_context *reading, struct ms_tensor *tensors,
                         size_t count, uint64_t data_offset, uint64_t data_bytes)
{
    uint64_t end = 0;
    if (count > 0)
        qsort(tensors, count, sizeof(*tensors), ms_tensor_by_place);
    for (size_t i = 0; i < count; i++) {
        const struct ms_place at = {NULL, tensors[i].name, 0};
        if (tensors[i].offset != end)
            return ms_fault_at(reading, &at,
                               "expected data_offsets to begin at %" PRIu64
                               ", where the tensor before ends, found %" PRIu64,
                               end, tensors[i].offset);
        end += tensors[i].bytes;
        tensors[i].offset += data_offset;
    }
    return end == data_bytes ||
           ms_fault_at(reading, NULL, "expected %" PRIu64 " bytes of data, found %" PRIu64, end,
                       data_bytes);
}

static bool parse_tensors(const struct ms_fault_context *reading, json_t *header,
                          uint64_t data_offset, uint64_t data_bytes,
                          struct ms_checkpoint *checkpoint)
{
    const size_t first = checkpoint->count;
    const char *file = ms_arena_string(&checkpoint->arena, reading->file, strlen(reading->file));
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct ms_tensor *tensor = add_tensor(checkpoint);
        if (tensor != NULL)
            tensor->name = ms_arena_string(&checkpoint->arena, name, strlen(name));
        if (file == NULL || tensor == NULL || tensor->name == NULL)
            return ms_fault_at(reading, NULL, "out of memory");
        tensor->file = file;
        if (!parse_tensor(reading, name, entry, data_bytes, tensor))
            return false;
    }
    /* There is no list if this file and all before it have no tensors. */
    const size_t count = checkpoint->count - first;
    return check_places(reading, count > 0 ? &checkpoint->tensors[first] : NULL, count, data_offset,
                        data_bytes);
}

static bool parse_header(const struct ms_fault_context *reading, const char *text, size_t bytes,
                         uint64_t data_bytes, struct ms_checkpoint *checkpoint)
{
    json_error_t error;
    json_t *header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (header == NULL)
        return ms_fault_at_line(reading, error.line, error.column, error.text);
    const bool is_good =
        json_is_object(header)
            ? parse_tensors(reading, header, 8 + (uint64_t)bytes, data_bytes, checkpoint)
            : ms_fault_at(reading, NULL, "expected an object of tensors as header");
    json_decref(header);
    return is_good;
}

static bool read_header(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                        struct ms_checkpoint *checkpoint)
{
    unsigned char length[8];
    if (file_bytes < 8 || pread(file, length, 8, 0) != 8)
        return ms_fault_at(reading, NULL, "expected at least the 8 bytes of the header's length");
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | length[i];
    if (bytes > HEADER_MAX_BYTES || bytes > file_bytes - 8)
        return ms_fault_at(reading, NULL,
                           "expected a header of at most %" PRIu64 " bytes, found %" PRIu64,
                           file_bytes - 8 < HEADER_MAX_BYTES ? file_bytes - 8 : HEADER_MAX_BYTES,
                           bytes);
    char *text = ms_heap_alloc(bytes + 1);
    if (text == NULL)
        return ms_fault_at(reading, NULL, "out of memory");
    const bool is_good =
        pread(file, text, bytes, 8) == (ssize_t)bytes
            ? parse_header(reading, text, bytes, file_bytes - 8 - bytes, checkpoint)
            : ms_fault_at(reading, NULL, "the header cannot be read");
    ms_heap_free(text);
    return is_good;
}

static bool read_torch_file(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                            struct ms_checkpoint *checkpoint)
{
    struct ms_torch_tensors torch;
    if (!ms_torch_read(reading, file, file_bytes, &checkpoint->arena, &torch))
        return false;
    bool is_good = true;
    for (size_t i = 0; i < torch.count && is_good; i++) {
        struct ms_tensor *tensor = add_tensor(checkpoint);
        is_good = tensor != NULL || ms_fault_at(reading, NULL, "out of memory");
        if (is_good)
            *tensor = torch.tensors[i];
    }
    checkpoint->skipped += torch.skipped;
    ms_heap_free(torch.tensors);
    return is_good;
}

/* Reads a file of either format, by its first bytes. */
static bool read_any(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                     struct ms_checkpoint *checkpoint)
{
    unsigned char begin[16];
    const ssize_t bytes = pread(file, begin, sizeof(begin), 0);
    return bytes > 0 && ms_torch_is_file(begin, (size_t)bytes)
               ? read_torch_file(reading, file, file_bytes, checkpoint)
               : read_header(reading, file, file_bytes, checkpoint);
}

static bool read_file(const char *path, struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    const struct ms_fault_context reading = {path, fault};
    struct stat stat;
    /* Opening a pipe must not block. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return ms_fault_at(&reading, NULL, "cannot be opened: %s", strerror(errno));
    const bool is_good = fstat(file, &stat) == 0 && S_ISREG(stat.st_mode)
                             ? read_any(&reading, file, (uint64_t)stat.st_size, checkpoint)
                             : ms_fault_at(&reading, NULL, "expected a file");
    close(file);
    return is_good;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_name(struct ms_checkpoint *checkpoint, struct names *names, const char *name)
{
    char *copy = ms_arena_string(&checkpoint->arena, name, strlen(name));
    if (copy == NULL || !MS_ARRAY_GROW(names->name, names->count, names->capacity))
        return false;
    names->name[names->count++] = copy;
    return true;
}

static bool read_files(const char *folder, const struct names *names,
                       struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    const struct ms_fault_context reading = {folder, fault};
    for (size_t i = 0; i < names->count; i++) {
        char path[4096];
        if (i > 0 && strcmp(names->name[i - 1], names->name[i]) == 0)
            continue;
        if (snprintf(path, sizeof(path), "%s/%s", folder, names->name[i]) >= (int)sizeof(path))
            return ms_fault_at(&reading, NULL, "the path of %s is too long", names->name[i]);
        if (!read_file(path, checkpoint, fault))
            return false;
    }
    return true;
}

/* The name of the tensor's file, which was read as FOLDER/NAME. */
static const char *name_in_folder(const struct ms_tensor *tensor)
{
    return strrchr(tensor->file, '/') + 1;
}

/* Checks that the index agrees with the files: `map` has exactly their tensors. */
static bool check_index(const struct ms_fault_context *reading, json_t *map,
                        const struct ms_checkpoint *checkpoint)
{
    const struct ms_place at = {NULL, "weight_map", 0};
    for (size_t i = 0; i < checkpoint->count; i++) {
        const struct ms_tensor *tensor = &checkpoint->tensors[i];
        const char *file = json_string_value(json_object_get(map, tensor->name));
        char name[MS_FAULT_NAME_BYTES];
        if (file == NULL || strcmp(file, name_in_folder(tensor)) != 0)
            return ms_fault_at(reading, &at, "expected tensor %s of %s",
                               ms_fault_name(name, tensor->name), name_in_folder(tensor));
    }
    /* Names are unique, so equal counts mean equal sets. Tensors that are skipped may be listed. */
    return json_object_size(map) - checkpoint->count <= checkpoint->skipped ||
           ms_fault_at(reading, &at, "expected the %zu tensors of the files, found %zu",
                       checkpoint->count, json_object_size(map));
}

static int by_name_and_file(const void *a, const void *b)
{
    const struct ms_tensor *left = *(const struct ms_tensor *const *)a;
    const struct ms_tensor *right = *(const struct ms_tensor *const *)b;
    const int order = strcmp(left->name, right->name);
    return order != 0 ? order : strcmp(left->file, right->file);
}

/* A header has no duplicate keys, so equal names are in two files. */
static bool check_duplicates(const struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    const struct ms_tensor **sorted = ms_heap_alloc((checkpoint->count + 1) * sizeof(*sorted));
    if (sorted == NULL)
        return ms_fault_set(fault, "out of memory");
    for (size_t i = 0; i < checkpoint->count; i++)
        sorted[i] = &checkpoint->tensors[i];
    qsort(sorted, checkpoint->count, sizeof(*sorted), by_name_and_file);
    bool is_good = true;
    for (size_t i = 1; i < checkpoint->count && is_good; i++) {
        const struct ms_fault_context reading = {sorted[i - 1]->file, fault};
        char name[MS_FAULT_NAME_BYTES];
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            is_good = ms_fault_at(&reading, NULL, "tensor %s is in %s too",
                                  ms_fault_name(name, sorted[i]->name), name_in_folder(sorted[i]));
    }
    ms_heap_free(sorted);
    return is_good;
}

static bool collect_indexed(const struct ms_fault_context *reading, json_t *map,
                            struct ms_checkpoint *checkpoint, struct names *names)
{
    const struct ms_place place = {NULL, "weight_map", 0};
    if (!json_is_object(map))
        return ms_fault_at(reading, &place, "expected an object of file names");
    char last[256] = "";
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        const struct ms_place at = {&place, key, 0};
        const char *file = json_string_value(value);
        if (file == NULL || file[0] == '\0' || file[0] == '.' || strchr(file, '/') != NULL ||
            strlen(file) >= sizeof(last))
            return ms_fault_at(reading, &at, "expected the name of a file in this folder");
        if (strcmp(last, file) == 0) /* an index repeats each file many times in a row */
            continue;
        strcpy(last, file);
        if (!add_name(checkpoint, names, file))
            return ms_fault_at(reading, &at, "out of memory");
    }
    if (names->count > 0)
        qsort(names->name, names->count, sizeof(*names->name), by_text);
    return true;
}

static bool read_index(const char *path, struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    const struct ms_fault_context reading = {path, fault};
    char *text, folder[4096];
    size_t bytes;
    if (!ms_file_read(path, INDEX_MAX_BYTES, &text, &bytes, fault))
        return false;
    json_error_t error;
    json_t *index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    ms_heap_free(text);
    if (index == NULL)
        return ms_fault_at_line(&reading, error.line, error.column, error.text);
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash != NULL ? (int)(slash - path) : 1,
             slash != NULL ? path : ".");
    json_t *map = json_object_get(index, "weight_map");
    struct names names = {0};
    const bool is_good = collect_indexed(&reading, map, checkpoint, &names) &&
                         read_files(folder, &names, checkpoint, fault) &&
                         check_duplicates(checkpoint, fault) &&
                         check_index(&reading, map, checkpoint);
    ms_heap_free(names.name);
    json_decref(index);
    return is_good;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_torch_name(const char *name)
{
    return ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".pth");
}

static bool is_safetensors_name(const char *name)
{
    return ends_with(name, ".safetensors");
}

static bool collect_folder(DIR *folder, bool (*is_wanted)(const char *),
                           struct ms_checkpoint *checkpoint, struct names *names)
{
    rewinddir(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.' && is_wanted(entry->d_name) &&
            !add_name(checkpoint, names, entry->d_name))
            return false;
    }
    if (names->count > 0)
        qsort(names->name, names->count, sizeof(*names->name), by_text);
    return true;
}

static bool has_index(const char *path, const char *name, char index[4096])
{
    return snprintf(index, 4096, "%s/%s", path, name) < 4096 && access(index, F_OK) == 0;
}

static bool read_folder(const char *path, struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    const struct ms_fault_context reading = {path, fault};
    char index[4096];
    if (strlen(path) > 4000)
        return ms_fault_at(&reading, NULL, "the path is too long");
    if (has_index(path, "model.safetensors.index.json", index))
        return read_index(index, checkpoint, fault);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return ms_fault_at(&reading, NULL, "cannot be opened: %s", strerror(errno));
    struct names names = {0};
    bool is_good = collect_folder(folder, is_safetensors_name, checkpoint, &names);
    /* Files of torch.save beside safetensors have the same tensors, or none of the model. */
    const bool is_indexed =
        names.count == 0 && has_index(path, "pytorch_model.bin.index.json", index);
    if (is_good && names.count == 0 && !is_indexed)
        is_good = collect_folder(folder, is_torch_name, checkpoint, &names);
    closedir(folder);
    if (!is_good)
        ms_fault_at(&reading, NULL, "out of memory");
    else if (is_indexed)
        is_good = read_index(index, checkpoint, fault);
    else if (names.count == 0)
        is_good = ms_fault_at(&reading, NULL,
                              "expected safetensors files, or files of torch.save, in this folder");
    else
        is_good =
            read_files(path, &names, checkpoint, fault) && check_duplicates(checkpoint, fault);
    ms_heap_free(names.name);
    return is_good;
}

bool ms_checkpoint_open(const char *path, struct ms_checkpoint **checkpoint_out,
                        struct ms_fault *fault)
{
    const struct ms_fault_context reading = {path, fault};
    struct stat stat_;
    struct ms_checkpoint *checkpoint = ms_heap_zalloc(sizeof(*checkpoint));
    if (checkpoint == NULL)
        return ms_fault_at(&reading, NULL, "out of memory");
    bool is_good;
    if (stat(path, &stat_) != 0)
        is_good = ms_fault_at(&reading, NULL, "cannot be opened: %s", strerror(errno));
    else if (S_ISDIR(stat_.st_mode))
        is_good = read_folder(path, checkpoint, fault);
    else if (ends_with(path, ".index.json"))
        is_good = read_index(path, checkpoint, fault);
    else
        is_good = read_file(path, checkpoint, fault);
    if (!is_good) {
        ms_checkpoint_close(checkpoint);
        return false;
    }
    *checkpoint_out = checkpoint;
    return true;
}

void ms_checkpoint_close(struct ms_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    ms_arena_cleanup(&checkpoint->arena);
    ms_heap_free(checkpoint->tensors);
    ms_heap_free(checkpoint);
}

size_t ms_checkpoint_count(const struct ms_checkpoint *checkpoint)
{
    return checkpoint->count;
}

const struct ms_tensor *ms_checkpoint_tensors(const struct ms_checkpoint *checkpoint)
{
    return checkpoint->tensors;
}

size_t ms_checkpoint_skipped(const struct ms_checkpoint *checkpoint)
{
    return checkpoint->skipped;
}
