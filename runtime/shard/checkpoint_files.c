/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/checkpoint_files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/array.h"
#include "runtime/base/clock.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/base/pages.h"
#include "runtime/base/regular_file.h"
#include "runtime/files/file.h"
#include "runtime/files/file_thread.h"

size_t ms_checkpoint_files_most = 4096;

/* A file's tensors follow each other in the list of all, by offset, as in the format. */
struct file {
    struct stat stat;
    size_t first, count; /* of all tensors; none: not a checkpoint */
    /* By tensor: the greatest end up to it. NULL: no tensors overlap; those of torch.save may. */
    uint64_t *reach;
};

/* 8 bytes for each tensor, in addition to the checkpoint's record. */
struct known_tensor {
    uint32_t checkpoint, index;
};

struct known_checkpoint {
    const struct ms_checkpoint *checkpoint;
    size_t first; /* of all tensors */
};

static struct {
    struct ms_pages all;
    size_t count;
    struct known_checkpoint *checkpoint;
    size_t checkpoint_count, checkpoint_capacity;
    struct file *file;
    size_t file_count, file_capacity;
    size_t oldest; /* the file to replace next, once the list is full */
    size_t last;   /* the file of the last query */
} known;

static struct known_tensor *known_at(size_t index)
{
    return (struct known_tensor *)known.all.memory + index;
}

size_t ms_checkpoint_files_count(void)
{
    return known.count;
}

struct ms_tensor ms_checkpoint_files_at(size_t index)
{
    const struct known_tensor *one = known_at(index);
    return ms_checkpoint_tensor(known.checkpoint[one->checkpoint].checkpoint, one->index);
}

static uint64_t end_of(size_t index)
{
    const struct ms_tensor tensor = ms_checkpoint_files_at(index);
    return tensor.offset + tensor.bytes;
}

static struct file *find_file(const struct stat *stat)
{
    if (known.last < known.file_count &&
        ms_regular_file_is_same(&known.file[known.last].stat, stat))
        return &known.file[known.last];
    for (size_t i = 0; i < known.file_count; i++) {
        if (ms_regular_file_is_same(&known.file[i].stat, stat)) {
            known.last = i;
            return &known.file[i];
        }
    }
    return NULL;
}

/* Finds the file, or adds it, even if it is not a checkpoint, so that it is not read again. Forgets
 * the oldest file if the list is full. */
static struct file *take_file(const struct stat *stat)
{
    struct file *file = find_file(stat);
    if (file != NULL)
        return file;
    if (known.file_count < ms_checkpoint_files_most) {
        if (!MS_ARRAY_GROW(known.file, known.file_count, known.file_capacity))
            return NULL;
        file = &known.file[known.file_count++];
    } else {
        file = &known.file[known.oldest++ % ms_checkpoint_files_most];
        ms_heap_free(file->reach);
    }
    *file = (struct file){.stat = *stat};
    return file;
}

/* Gives the file the tensors [first, end) of the list of all. */
static bool add_tensors(struct file *file, size_t first, size_t end)
{
    uint64_t reach = 0;
    bool overlap = false;
    for (size_t i = first + 1; i < end; i++)
        overlap |= end_of(i) < end_of(i - 1);
    if (overlap) {
        file->reach = ms_heap_alloc((end - first) * sizeof(*file->reach));
        if (file->reach == NULL)
            return false;
        for (size_t i = first; i < end; i++) {
            reach = end_of(i) > reach ? end_of(i) : reach;
            file->reach[i - first] = reach;
        }
    }
    file->first = first;
    file->count = end - first;
    return true;
}

/* Lists all tensors of a checkpoint, which stays open to be asked for them. */
static bool list_tensors(const struct ms_checkpoint *checkpoint)
{
    const size_t count = ms_checkpoint_count(checkpoint);
    if (!MS_ARRAY_GROW(known.checkpoint, known.checkpoint_count, known.checkpoint_capacity) ||
        !ms_pages_grow(&known.all, (known.count + count) * sizeof(struct known_tensor)))
        return false;
    known.checkpoint[known.checkpoint_count] = (struct known_checkpoint){checkpoint, known.count};
    for (size_t i = 0; i < count; i++)
        *known_at(known.count++) =
            (struct known_tensor){(uint32_t)known.checkpoint_count, (uint32_t)i};
    known.checkpoint_count++;
    return true;
}

/* Adds all files of a checkpoint whose tensors begin at `first` in the list of all. */
static bool add_files(const struct ms_checkpoint *checkpoint, size_t first)
{
    const size_t count = ms_checkpoint_count(checkpoint);
    for (size_t i = 0; i < count;) {
        const char *path = ms_checkpoint_tensor(checkpoint, i).file;
        const size_t begin = i;
        struct stat now;
        while (i < count && ms_checkpoint_tensor(checkpoint, i).file == path)
            i++;
        if (stat(path, &now) != 0)
            continue;
        struct file *file = take_file(&now);
        if (file == NULL || (file->count == 0 && !add_tensors(file, first + begin, first + i)))
            return false;
    }
    return true;
}

/* True if `now` is `before`, saved again: the same tensors in the same places, in files of the same
 * names, or of others if the old files are gone. */
static bool is_saved_again(const struct ms_checkpoint *before, const struct ms_checkpoint *now)
{
    const char *file = NULL, *other_file = NULL;
    struct stat unused;
    if (ms_checkpoint_count(before) != ms_checkpoint_count(now))
        return false;
    for (size_t i = 0; i < ms_checkpoint_count(now); i++) {
        const struct ms_tensor one = ms_checkpoint_tensor(before, i);
        const struct ms_tensor other = ms_checkpoint_tensor(now, i);
        if (one.offset != other.offset || strcmp(one.name, other.name) != 0 ||
            !ms_tensor_is_alike(&one, &other) || (one.file == file) != (other.file == other_file))
            return false;
        if (one.file != file && strcmp(one.file, other.file) != 0 && stat(one.file, &unused) == 0)
            return false;
        file = one.file;
        other_file = other.file;
    }
    return true;
}

/* Takes ownership. Lists the tensors of a checkpoint that was saved again only once. */
static bool add_checkpoint(struct ms_checkpoint *checkpoint)
{
    for (size_t i = 0; i < known.checkpoint_count; i++) {
        const struct known_checkpoint before = known.checkpoint[i];
        if (!is_saved_again(before.checkpoint, checkpoint))
            continue;
        const bool is_added = add_files(checkpoint, before.first);
        ms_checkpoint_close(checkpoint);
        return is_added;
    }
    const size_t first = known.count;
    return list_tensors(checkpoint) && add_files(checkpoint, first);
}

/* "model-00001-of-00003" and "model" (.safetensors) may be in "model.safetensors.index.json". */
static bool find_index(const char *path, char *index, size_t bytes)
{
    struct stat stat_;
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    const char *end = strrchr(name, '.');
    const char *of = strstr(name, "-of-");
    const char *cut = of;
    if (end == NULL)
        return false;
    while (cut != NULL && cut > name && cut[-1] >= '0' && cut[-1] <= '9')
        cut--;
    if (cut == NULL || cut == of || cut == name || cut[-1] != '-')
        return false;
    return snprintf(index, bytes, "%.*s%s.index.json", (int)(cut - 1 - path), path, end) <
               (int)bytes &&
           stat(index, &stat_) == 0;
}

static bool holds_file(const struct ms_checkpoint *checkpoint, const struct stat *wanted)
{
    const char *before = NULL;
    struct stat now;
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++) {
        const char *file = ms_checkpoint_tensor(checkpoint, i).file;
        if (file != before && stat(file, &now) == 0 && ms_regular_file_is_same(&now, wanted))
            return true;
        before = file;
    }
    return false;
}

uint64_t ms_checkpoint_files_slow_ns = MS_NS_PER_S;

struct headers {
    const struct ms_file *source;
    const char *path;
    struct ms_checkpoint *checkpoint;
    struct ms_fault *fault;
    bool is_read;
};

static void read_headers_there(void *argument)
{
    struct headers *headers = argument;
    if (ms_file_ends_locks(headers->source))
        ms_fault_set(headers->fault, "%s: another process has a lock on it", headers->path);
    else
        headers->is_read = ms_checkpoint_open(headers->path, &headers->checkpoint, headers->fault);
}

/* Reads in the file thread: closing the file here would drop the program's locks on it. */
static bool read_headers(const struct ms_file *source, const char *path,
                         struct ms_checkpoint **checkpoint_out, struct ms_fault *fault)
{
    struct headers headers = {.source = source, .path = path, .fault = fault};
    const uint64_t began = ms_clock_ns(CLOCK_MONOTONIC);
    fault->text[0] = '\0';
    ms_file_thread_call(read_headers_there, &headers);
    const uint64_t spent = ms_clock_ns(CLOCK_MONOTONIC) - began;
    if (spent > ms_checkpoint_files_slow_ns)
        ms_log(MS_WARN, "%s: it took %.1f s to read the names and places of its tensors", path,
               (double)spent / MS_NS_PER_S);
    *checkpoint_out = headers.checkpoint;
    return headers.is_read;
}

/* Opens the checkpoint through its index if it has one, otherwise the file by itself. */
static struct ms_checkpoint *open_checkpoint(const struct ms_file *source)
{
    const char *path = ms_file_path(source);
    const struct stat *wanted = ms_file_stat(source);
    char index[4096];
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    if (find_index(path, index, sizeof(index))) {
        if (!read_headers(source, index, &checkpoint, &fault))
            ms_log(MS_INFO, "%s", fault.text);
        else if (holds_file(checkpoint, wanted))
            return checkpoint;
        else
            ms_checkpoint_close(checkpoint);
    }
    if (!read_headers(source, path, &checkpoint, &fault)) {
        ms_log(MS_DEBUG, "not a checkpoint: %s", fault.text);
        return NULL;
    }
    if (holds_file(checkpoint, wanted))
        return checkpoint;
    ms_log(MS_DEBUG, "%s is another file by now", path);
    ms_checkpoint_close(checkpoint);
    return NULL;
}

/* The file behind a source, or NULL if the file is not a checkpoint. Reads each file once. */
static const struct file *find(const struct ms_file *source)
{
    const struct stat *stat = ms_file_stat(source);
    const struct file *file = find_file(stat);
    if (file == NULL) {
        struct ms_checkpoint *checkpoint = open_checkpoint(source);
        if (checkpoint != NULL && !add_checkpoint(checkpoint))
            ms_log(MS_WARN, "out of memory: not all tensors of %s are known", ms_file_path(source));
        file = take_file(stat);
    }
    return file != NULL && file->count > 0 ? file : NULL;
}

static uint64_t reach_of(const struct file *file, size_t index)
{
    return file->reach != NULL ? file->reach[index] : end_of(file->first + index);
}

void ms_checkpoint_files_visit(const struct ms_file *source, uint64_t begin, uint64_t end,
                               ms_checkpoint_files_visitor *visit, void *context)
{
    const struct file *file = find(source);
    if (file == NULL)
        return;
    /* The first of the file's tensors that may reach behind `begin`. */
    size_t i = MS_ARRAY_FIND(at, file->count, reach_of(file, at) <= begin);
    for (; i < file->count; i++) {
        const struct ms_tensor tensor = ms_checkpoint_files_at(file->first + i);
        if (tensor.offset >= end)
            break;
        if (tensor.offset + tensor.bytes > begin && !visit(context, file->first + i, &tensor))
            break;
    }
}
