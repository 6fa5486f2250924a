/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/regular_file.h"
#include "runtime/checkpoint/forms.h"
#include "runtime/checkpoint/torch_file.h"
#include "runtime/document/json.h"

enum { HEADER_MAX_BYTES = 100000000, INDEX_MAX_BYTES = 100000000 };

/* A tensor: 24 bytes and its name. */
struct record {
    const char *name;
    uint64_t offset;
    uint32_t form;
    uint32_t file; /* index in the checkpoint's `files` */
};

struct ms_checkpoint {
    struct ms_arena arena; /* names */
    struct ms_forms forms;
    struct ms_pages records;
    size_t count;
    const char **files;
    size_t file_count, file_capacity;
    size_t skipped;
};

/* File names, sorted by bytes. */
struct names {
    char **name;
    size_t count, capacity;
};

static struct record *records_of(const struct ms_checkpoint *checkpoint)
{
    return checkpoint->records.memory;
}

/* Names the file whose tensors are added next. */
static bool add_file_name(struct ms_checkpoint *checkpoint, const char *path)
{
    if (!MS_ARRAY_GROW(checkpoint->files, checkpoint->file_count, checkpoint->file_capacity))
        return false;
    const char *name = ms_arena_string(&checkpoint->arena, path, strlen(path));
    if (name != NULL)
        checkpoint->files[checkpoint->file_count++] = name;
    return name != NULL;
}

/* The checkpoint owns the tensor's name already. */
static bool add_tensor(struct ms_checkpoint *checkpoint, const struct ms_tensor *tensor)
{
    const uint32_t form = ms_forms_add(&checkpoint->forms, tensor);
    if (form == MS_NO_NUMBER || checkpoint->count >= MS_NO_NUMBER ||
        !ms_pages_grow(&checkpoint->records, (checkpoint->count + 1) * sizeof(struct record)))
        return false;
    records_of(checkpoint)[checkpoint->count++] =
        (struct record){tensor->name, tensor->offset, form, (uint32_t)checkpoint->file_count - 1};
    return true;
}

static bool parse_tensor(const struct ms_fault_context *reading, const char *entry,
                         uint64_t data_bytes, struct ms_tensor *tensor)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    enum { DTYPE, SHAPE, OFFSETS, KEYS };
    const char *values[KEYS];
    const struct ms_place place = {NULL, tensor->name, 0}, at = {&place, keys[OFFSETS], 0};
    if (!ms_json_members(reading, &place, entry, keys, values, NULL) ||
        !ms_tensor_parse(reading, &place, values[DTYPE], values[SHAPE], tensor))
        return false;
    uint64_t end;
    struct ms_json_walk walk = {.in = values[OFFSETS]};
    if (!ms_json_is_list(values[OFFSETS]) || ms_json_size(values[OFFSETS]) != 2)
        return ms_fault_at(reading, &at, "expected [begin, end]");
    ms_json_next(&walk);
    if (!ms_json_count(reading, &at, walk.value, 0, data_bytes, &tensor->offset))
        return false;
    ms_json_next(&walk);
    if (!ms_json_count(reading, &at, walk.value, tensor->offset, data_bytes, &end))
        return false;
    return end - tensor->offset == tensor->bytes ||
           ms_fault_at(reading, &at,
                       "expected %" PRIu64 " bytes for dtype and shape, found %" PRIu64,
                       tensor->bytes, end - tensor->offset);
}

static uint64_t bytes_of(const struct ms_checkpoint *checkpoint, const struct record *record)
{
    struct ms_tensor form;
    ms_forms_get(&checkpoint->forms, record->form, &form);
    return form.bytes;
}

struct placed {
    struct record record;
    uint64_t bytes;
};

static struct placed placed_of(const struct ms_checkpoint *checkpoint, size_t index)
{
    const struct record *record = &records_of(checkpoint)[index];
    return (struct placed){*record, bytes_of(checkpoint, record)};
}

/* The order of a file: by offset, then empty tensors first, then by name. */
static int by_place(const void *a, const void *b)
{
    const struct placed *left = a, *right = b;
    if (left->record.offset != right->record.offset)
        return left->record.offset < right->record.offset ? -1 : 1;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->record.name, right->record.name);
}

static bool is_sorted(const struct ms_checkpoint *checkpoint, size_t first)
{
    for (size_t i = first + 1; i < checkpoint->count; i++) {
        const struct placed before = placed_of(checkpoint, i - 1), now = placed_of(checkpoint, i);
        if (by_place(&before, &now) > 0)
            return false;
    }
    return true;
}

/* Most writers list tensors in this order already. */
static bool sort_records(struct ms_checkpoint *checkpoint, size_t first)
{
    struct ms_pages pages = {0};
    const size_t count = checkpoint->count - first;
    if (is_sorted(checkpoint, first))
        return true;
    if (!ms_pages_grow(&pages, count * sizeof(struct placed)))
        return false;
    struct placed *sorted = pages.memory;
    for (size_t i = 0; i < count; i++)
        sorted[i] = placed_of(checkpoint, first + i);
    qsort(sorted, count, sizeof(*sorted), by_place);
    for (size_t i = 0; i < count; i++)
        records_of(checkpoint)[first + i] = sorted[i].record;
    ms_pages_cleanup(&pages);
    return true;
}

/* Checks that the tensors fill the data without gaps. Makes offsets relative to the file. */
static bool check_places(const struct ms_fault_context *reading, struct ms_checkpoint *checkpoint,
                         size_t first, uint64_t data_offset, uint64_t data_bytes)
{
    uint64_t end = 0;
    if (!sort_records(checkpoint, first))
        return ms_fault_at(reading, NULL, "out of memory");
    for (size_t i = first; i < checkpoint->count; i++) {
        struct record *record = &records_of(checkpoint)[i];
        const struct ms_place at = {NULL, record->name, 0};
        if (record->offset != end)
            return ms_fault_at(reading, &at,
                               "expected data_offsets to begin at %" PRIu64
                               ", where the tensor before ends, found %" PRIu64,
                               end, record->offset);
        end += bytes_of(checkpoint, record);
        record->offset += data_offset;
    }
    return end == data_bytes ||
           ms_fault_at(reading, NULL, "expected %" PRIu64 " bytes of data, found %" PRIu64, end,
                       data_bytes);
}

static bool parse_tensors(const struct ms_fault_context *reading, const char *header,
                          uint64_t data_bytes, struct ms_checkpoint *checkpoint)
{
    struct ms_json_walk walk = {.in = header};
    if (!ms_json_is_object(header))
        return ms_fault_at(reading, NULL, "expected an object of tensors as header");
    if (!add_file_name(checkpoint, reading->file))
        return ms_fault_at(reading, NULL, "out of memory");
    while (ms_json_next(&walk)) {
        if (ms_json_is_text(walk.key, "__metadata__"))
            continue;
        const char *name = ms_json_text(walk.key, &checkpoint->arena);
        if (name == NULL)
            return ms_fault_at(reading, NULL, "out of memory");
        struct ms_tensor tensor = {.name = name};
        if (!parse_tensor(reading, walk.value, data_bytes, &tensor))
            return false;
        if (!add_tensor(checkpoint, &tensor))
            return ms_fault_at(reading, NULL, "out of memory");
    }
    return true;
}

/* Beginnings of files that people give instead of weights, and the advice for each. */
static const struct {
    const char *begin, *reason;
} not_weights[] = {
    {"version https://git-lfs", "expected a safetensors file, found a pointer of Git LFS: "
                                "`git lfs pull` fetches the file itself"},
    {"GGUF", "expected a safetensors file, found one of GGUF: take the model's safetensors files"},
    {"{", "expected a safetensors file, found JSON: give the folder of the weights"},
};

static bool refuse_other_file(const struct ms_fault_context *reading, int file)
{
    char begin[32] = "";
    if (pread(file, begin, sizeof(begin) - 1, 0) > 0)
        for (size_t i = 0; i < sizeof(not_weights) / sizeof(not_weights[0]); i++)
            if (strncmp(begin, not_weights[i].begin, strlen(not_weights[i].begin)) == 0)
                return ms_fault_at(reading, NULL, "%s", not_weights[i].reason);
    return true;
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
        return refuse_other_file(reading, file) &&
               ms_fault_at(reading, NULL,
                           "expected a safetensors file, with a header of at most %" PRIu64
                           " bytes, found %" PRIu64,
                           file_bytes - 8 < HEADER_MAX_BYTES ? file_bytes - 8 : HEADER_MAX_BYTES,
                           bytes);
    struct ms_pages text = {0};
    const size_t first = checkpoint->count;
    const char *header;
    if (!ms_pages_grow(&text, bytes + 1))
        return ms_fault_at(reading, NULL, "out of memory");
    const uint64_t data_bytes = file_bytes - 8 - bytes;
    const bool is_good = (pread(file, text.memory, bytes, 8) == (ssize_t)bytes ||
                          ms_fault_at(reading, NULL, "the header cannot be read")) &&
                         ms_json_check(reading, text.memory, bytes, &header) &&
                         parse_tensors(reading, header, data_bytes, checkpoint);
    ms_pages_cleanup(&text);
    return is_good && check_places(reading, checkpoint, first, 8 + bytes, data_bytes);
}

static bool read_torch_file(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                            struct ms_checkpoint *checkpoint)
{
    struct ms_torch_tensors torch;
    if (!ms_torch_file_read(reading, file, file_bytes, &checkpoint->arena, &torch))
        return false;
    bool is_good = add_file_name(checkpoint, reading->file);
    for (size_t i = 0; i < torch.count && is_good; i++)
        is_good = add_tensor(checkpoint, &torch.tensors[i]);
    if (!is_good)
        ms_fault_at(reading, NULL, "out of memory");
    checkpoint->skipped += torch.skipped;
    ms_heap_free(torch.tensors);
    return is_good;
}

/* Reads a file of either format, which the first bytes tell. */
static bool read_any(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                     struct ms_checkpoint *checkpoint)
{
    unsigned char begin[16];
    const ssize_t bytes = pread(file, begin, sizeof(begin), 0);
    return bytes > 0 && ms_torch_file_is(begin, (size_t)bytes)
               ? read_torch_file(reading, file, file_bytes, checkpoint)
               : read_header(reading, file, file_bytes, checkpoint);
}

static bool read_file(const char *path, struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    const struct ms_fault_context reading = {path, fault};
    struct stat stat;
    const int file = ms_regular_file_open(path, &stat);
    if (file < 0)
        return errno == 0 ? ms_fault_at(&reading, NULL, "expected a file")
                          : ms_fault_at(&reading, NULL, "cannot be opened: %s", strerror(errno));
    const bool is_good = read_any(&reading, file, (uint64_t)stat.st_size, checkpoint);
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

/* The name of the tensor's file in its folder. */
static const char *name_in_folder(const struct ms_checkpoint *checkpoint, size_t index)
{
    return strrchr(checkpoint->files[records_of(checkpoint)[index].file], '/') + 1;
}

/* A name to look for among the tensors, as a C string or a JSON string. */
struct wanted {
    const struct record *records;
    const char *name;
    const char *string; /* of JSON, or NULL: `name` */
};

static bool has_name(const void *context, uint32_t number)
{
    const struct wanted *wanted = context;
    const char *name = wanted->records[number].name;
    return wanted->string != NULL ? ms_json_is_text(wanted->string, name)
                                  : strcmp(wanted->name, name) == 0;
}

/* Lists the tensors by name. No file has a name twice, so equal names are in two files. */
static bool list_names(const struct ms_checkpoint *checkpoint, struct ms_hash_set *set,
                       struct ms_fault *fault)
{
    struct wanted wanted = {.records = records_of(checkpoint)};
    if (!ms_hash_set_reserve(set, checkpoint->count))
        return ms_fault_set(fault, "out of memory");
    for (uint32_t i = 0; i < checkpoint->count; i++) {
        wanted.name = wanted.records[i].name;
        const uint64_t hash = ms_hash_set_text(wanted.name);
        const uint32_t other = ms_hash_set_find(set, hash, has_name, &wanted);
        char name[MS_FAULT_NAME_BYTES];
        if (other != MS_NO_NUMBER) {
            const struct ms_fault_context reading = {checkpoint->files[wanted.records[other].file],
                                                     fault};
            return ms_fault_at(&reading, NULL, "tensor %s is in %s too",
                               ms_fault_name(name, wanted.name), name_in_folder(checkpoint, i));
        }
        ms_hash_set_add(set, hash, i);
    }
    return true;
}

static bool check_duplicates(const struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    struct ms_hash_set set = {0};
    const bool is_good = list_names(checkpoint, &set, fault);
    ms_hash_set_cleanup(&set);
    return is_good;
}

/* Marks the tensors that the map places in the right file. Returns the number of its names. */
static size_t mark_placed(const struct ms_checkpoint *checkpoint, const struct ms_hash_set *set,
                          const char *map, bool *is_placed)
{
    struct wanted wanted = {.records = records_of(checkpoint)};
    struct ms_json_walk walk = {.in = map};
    size_t count = 0;
    for (; ms_json_next(&walk); count++) {
        wanted.string = walk.key;
        const uint32_t found = ms_hash_set_find(set, ms_json_hash(walk.key), has_name, &wanted);
        if (found != MS_NO_NUMBER && ms_json_is_text(walk.value, name_in_folder(checkpoint, found)))
            is_placed[found] = true;
    }
    return count;
}

/* Checks that the index lists exactly the tensors of the files. */
static bool check_placed(const struct ms_fault_context *reading,
                         const struct ms_checkpoint *checkpoint, const bool *is_placed,
                         size_t placed)
{
    const struct ms_place at = {NULL, "weight_map", 0};
    for (size_t i = 0; i < checkpoint->count; i++) {
        char name[MS_FAULT_NAME_BYTES];
        if (!is_placed[i])
            return ms_fault_at(reading, &at, "expected tensor %s of %s",
                               ms_fault_name(name, records_of(checkpoint)[i].name),
                               name_in_folder(checkpoint, i));
    }
    /* Names are unique, so equal counts mean equal sets. The index may list skipped tensors. */
    return placed - checkpoint->count <= checkpoint->skipped ||
           ms_fault_at(reading, &at, "expected the %zu tensors of the files, found %zu",
                       checkpoint->count, placed);
}

static bool check_index(const struct ms_fault_context *reading, const char *map,
                        const struct ms_checkpoint *checkpoint)
{
    struct ms_hash_set set = {0};
    struct ms_pages is_placed = {0};
    bool is_good = list_names(checkpoint, &set, reading->fault);
    if (is_good && !ms_pages_grow(&is_placed, checkpoint->count + 1))
        is_good = ms_fault_at(reading, NULL, "out of memory");
    is_good = is_good && check_placed(reading, checkpoint, is_placed.memory,
                                      mark_placed(checkpoint, &set, map, is_placed.memory));
    ms_pages_cleanup(&is_placed);
    ms_hash_set_cleanup(&set);
    return is_good;
}

static bool collect_indexed(const struct ms_fault_context *reading, const char *map,
                            struct ms_checkpoint *checkpoint, struct names *names)
{
    const struct ms_place place = {NULL, "weight_map", 0};
    struct ms_arena texts = {0};
    struct ms_json_walk walk = {.in = map};
    const char *file = ""; /* entries of one file mostly follow each other */
    bool is_good =
        ms_json_is_object(map) || ms_fault_at(reading, &place, "expected an object of file names");
    while (is_good && ms_json_next(&walk)) {
        if (file[0] != '\0' && ms_json_is_text(walk.value, file))
            continue;
        file = ms_json_is_string(walk.value) ? ms_json_text(walk.value, &texts) : "";
        if (file == NULL)
            is_good = ms_fault_at(reading, &place, "out of memory");
        else if (file[0] == '\0' || file[0] == '.' || strlen(file) > NAME_MAX ||
                 strchr(file, '/') != NULL)
            is_good = ms_json_fault_at(reading, &place, walk.key,
                                       "expected the name of a file in this folder", "");
        else if (!add_name(checkpoint, names, file))
            is_good = ms_fault_at(reading, &place, "out of memory");
    }
    ms_arena_cleanup(&texts);
    if (names->count > 0)
        qsort(names->name, names->count, sizeof(*names->name), by_text);
    return is_good;
}

static bool read_index(const char *path, struct ms_checkpoint *checkpoint, struct ms_fault *fault)
{
    static const char *const keys[] = {"weight_map", NULL};
    const struct ms_fault_context reading = {path, fault};
    struct ms_pages text = {0};
    char folder[4096];
    const char *index, *map = NULL;
    size_t bytes;
    if (!ms_json_read_file(path, INDEX_MAX_BYTES, &text, &bytes, fault))
        return false;
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash != NULL ? (int)(slash - path) : 1,
             slash != NULL ? path : ".");
    struct names names = {0};
    const bool is_good = ms_json_check(&reading, text.memory, bytes, &index) &&
                         ms_json_members(&reading, NULL, index, keys, &map, NULL) &&
                         collect_indexed(&reading, map, checkpoint, &names) &&
                         read_files(folder, &names, checkpoint, fault) &&
                         check_index(&reading, map, checkpoint);
    ms_heap_free(names.name);
    ms_pages_cleanup(&text);
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

static bool refuse_distributed(const struct ms_fault_context *reading)
{
    return ms_fault_at(reading, NULL,
                       "expected safetensors files, or files of torch.save, found a checkpoint of "
                       "torch.distributed.checkpoint: `python -m "
                       "torch.distributed.checkpoint.format_utils dcp_to_torch` converts it");
}

static bool has_file_like(const char *path, const char *end)
{
    DIR *folder = opendir(path);
    bool found = false;
    if (folder == NULL)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;)
        found = ends_with(entry->d_name, end);
    closedir(folder);
    return found;
}

static bool refuse_folder(const struct ms_fault_context *reading)
{
    char name[4096];
    if (has_index(reading->file, ".metadata", name))
        return refuse_distributed(reading);
    const char *found = ", in this folder";
    if (has_file_like(reading->file, ".gguf"))
        found = ", found one of GGUF: take the model's safetensors files";
    else if (has_index(reading->file, "config.json", name))
        found = ", found config.json without them: are the weights downloaded?";
    return ms_fault_at(reading, NULL, "expected safetensors files, or files of torch.save%s",
                       found);
}

/* True for a model's name on a hub, OWNER/NAME, given in place of a path. */
static bool is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash != NULL && slash != path && slash[1] != '\0' && strchr(slash + 1, '/') == NULL &&
           path[0] != '.' && path[0] != '~' && !ends_with(path, ".safetensors") &&
           !ends_with(path, ".json");
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
    /* Files of torch.save beside safetensors repeat their tensors, or have none of the model's. */
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
        is_good = refuse_folder(&reading);
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
        is_good =
            ms_fault_at(&reading, NULL, "cannot be opened: %s%s", strerror(errno),
                        errno == ENOENT && is_hub_name(path)
                            ? "; of a model of a hub, give the folder that it was downloaded to"
                            : "");
    else if (S_ISDIR(stat_.st_mode))
        is_good = read_folder(path, checkpoint, fault);
    else if (ends_with(path, ".distcp"))
        is_good = refuse_distributed(&reading);
    else if (ends_with(path, ".index.json"))
        is_good = read_index(path, checkpoint, fault);
    else
        is_good = read_file(path, checkpoint, fault);
    ms_forms_end(&checkpoint->forms);
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
    ms_forms_cleanup(&checkpoint->forms);
    ms_pages_cleanup(&checkpoint->records);
    ms_heap_free(checkpoint->files);
    ms_heap_free(checkpoint);
}

size_t ms_checkpoint_count(const struct ms_checkpoint *checkpoint)
{
    return checkpoint->count;
}

struct ms_tensor ms_checkpoint_tensor(const struct ms_checkpoint *checkpoint, size_t index)
{
    const struct record *record = &records_of(checkpoint)[index];
    struct ms_tensor tensor = {.name = record->name,
                               .file = checkpoint->files[record->file],
                               .offset = record->offset};
    ms_forms_get(&checkpoint->forms, record->form, &tensor);
    return tensor;
}
