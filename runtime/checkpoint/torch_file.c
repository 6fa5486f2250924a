/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/torch_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/checkpoint/pickle.h"
#include "runtime/checkpoint/torch_state.h"
#include "runtime/checkpoint/zip.h"

enum { RECORD_NAME_MAX = 1024 };

struct torch_file {
    const struct ms_fault_context *reading;
    int file;
    struct ms_zip zip;
    int folder_bytes; /* of the first record's name, up to its '/' */
};

/* The zip mark, and the pickled number that older files begin with. */
static const unsigned char zip_mark[] = {'P', 'K', 3, 4}, legacy_mark[] = {0x80, 2, 0x8a, 10};

/* A safetensors file with a header of 67,324,752 bytes also begins with the zip mark, but its byte
 * 8 is '{', which is not a compression method of zip. */
bool ms_torch_file_is(const unsigned char *begin, size_t bytes)
{
    if (bytes < 4 || (bytes > 8 && begin[8] == '{'))
        return false;
    return memcmp(begin, zip_mark, 4) == 0 || memcmp(begin, legacy_mark, 4) == 0;
}

/* All records are in one folder, named "archive", or after the file when it was written. */
static const struct ms_zip_record *find_record(const struct torch_file *file, const char *part,
                                               const char *name)
{
    char path[RECORD_NAME_MAX];
    if (snprintf(path, sizeof(path), "%.*s/%s%s", file->folder_bytes, file->zip.first, part,
                 name) >= (int)sizeof(path))
        return NULL;
    return ms_zip_find(&file->zip, path);
}

static bool find_folder(struct torch_file *file)
{
    const char *slash = file->zip.first != NULL ? strchr(file->zip.first, '/') : NULL;
    if (slash == NULL || slash - file->zip.first > RECORD_NAME_MAX)
        return ms_fault_at(file->reading, NULL, "expected the records of torch.save");
    file->folder_bytes = (int)(slash - file->zip.first);
    if (find_record(file, "", "constants.pkl") != NULL)
        return ms_fault_at(file->reading, NULL,
                           "expected a file of torch.save, found one of TorchScript");
    return true;
}

static bool check_byte_order(const struct torch_file *file)
{
    char order[6];
    const struct ms_zip_record *record = find_record(file, "", "byteorder");
    if (record == NULL) /* PyTorch before 2.1 */
        return true;
    return (record->bytes == 6 && pread(file->file, order, 6, (off_t)record->offset) == 6 &&
            memcmp(order, "little", 6) == 0) ||
           ms_fault_at(file->reading, NULL, "byteorder: expected little");
}

static bool read_state(const struct torch_file *file, struct ms_arena *arena,
                       struct ms_torch_state *state)
{
    const struct ms_zip_record *record = find_record(file, "", "data.pkl");
    if (record == NULL || record->bytes > MS_PICKLE_MAX_BYTES)
        return ms_fault_at(file->reading, NULL, "expected a record data.pkl of at most 100 MB");
    char *text = ms_heap_alloc(record->bytes + 1);
    if (text == NULL)
        return ms_fault_at(file->reading, NULL, "out of memory");
    const bool is_good =
        pread(file->file, text, record->bytes, (off_t)record->offset) == (ssize_t)record->bytes
            ? ms_torch_state_read(file->reading, text, record->bytes, arena, state)
            : ms_fault_at(file->reading, NULL, "data.pkl cannot be read");
    ms_heap_free(text);
    return is_good;
}

/* Converts the offset in the storage to an offset in the file. */
static bool place_tensor(const struct torch_file *file, const struct ms_torch_view *view,
                         struct ms_tensor *tensor)
{
    const struct ms_place place = {NULL, view->tensor.name, 0};
    const struct ms_zip_record *record = find_record(file, "data/", view->key);
    if (record == NULL)
        return ms_fault_at(file->reading, &place, "expected a record data/%.80s", view->key);
    if (record->bytes < view->storage_bytes)
        return ms_fault_at(file->reading, &place,
                           "expected %" PRIu64 " bytes in data/%.80s, found %" PRIu64,
                           view->storage_bytes, view->key, record->bytes);
    *tensor = view->tensor;
    tensor->offset += record->offset;
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ms_tensor *)a)->name, ((const struct ms_tensor *)b)->name);
}

/* Orders by offset, then empty tensors first, then by name. */
static int by_place(const void *a, const void *b)
{
    const struct ms_tensor *left = a, *right = b;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

static bool sort_tensors(const struct ms_fault_context *reading, struct ms_tensor *tensors,
                         size_t count)
{
    if (count > 0)
        qsort(tensors, count, sizeof(*tensors), by_name);
    for (size_t i = 1; i < count; i++) {
        const struct ms_place place = {NULL, tensors[i].name, 0};
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0)
            return ms_fault_at(reading, &place, "expected one tensor of this name");
    }
    if (count > 0)
        qsort(tensors, count, sizeof(*tensors), by_place);
    return true;
}

static bool place_tensors(const struct torch_file *file, const struct ms_torch_state *state,
                          struct ms_arena *arena, struct ms_torch_tensors *out)
{
    const char *name = ms_arena_string(arena, file->reading->file, strlen(file->reading->file));
    struct ms_tensor *tensors = ms_heap_alloc((state->count + 1) * sizeof(*tensors));
    bool is_good =
        (name != NULL && tensors != NULL) || ms_fault_at(file->reading, NULL, "out of memory");
    for (size_t i = 0; i < state->count && is_good; i++) {
        is_good = place_tensor(file, &state->views[i], &tensors[i]);
        tensors[i].file = name;
    }
    is_good = is_good && sort_tensors(file->reading, tensors, state->count);
    if (is_good)
        *out = (struct ms_torch_tensors){tensors, state->count, state->skipped};
    else
        ms_heap_free(tensors);
    return is_good;
}

bool ms_torch_file_read(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                        struct ms_arena *arena, struct ms_torch_tensors *tensors_out)
{
    struct torch_file torch_file = {.reading = reading, .file = file};
    struct ms_torch_state state = {0};
    unsigned char begin[4];
    if (file_bytes < 4 || pread(file, begin, 4, 0) != 4 || memcmp(begin, zip_mark, 4) != 0)
        return ms_fault_at(reading, NULL,
                           "expected a zip file, such as torch.save writes since PyTorch 1.6");
    if (!ms_zip_read(reading, file, file_bytes, &torch_file.zip))
        return false;
    const bool is_good = find_folder(&torch_file) && check_byte_order(&torch_file) &&
                         read_state(&torch_file, arena, &state) &&
                         place_tensors(&torch_file, &state, arena, tensors_out);
    ms_heap_free(state.views);
    ms_arena_cleanup(&torch_file.zip.arena);
    return is_good;
}
