/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/shard/checkpoint_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/source/file_thread.h"
#include "runtime/source/trust.h"

struct ms_checkpoint_file {
    struct stat stat;
    size_t count;     /* 0: not a checkpoint */
    size_t *by_place; /* its tensors by offset, as indices of all tensors */
    uint64_t *reach;  /* the greatest end of by_place[0..i]: tensors of torch.save may overlap */
};

static struct {
    struct {
        const struct ms_tensor *tensor;
        uint64_t copied; /* bytes; may count some twice */
    } * all;
    size_t count, capacity;
    size_t complete; /* tensors that count and are copied completely */
    size_t counting; /* tensors that count, of the first `counted` */
    size_t counted;
    struct ms_checkpoint_file *file; /* in the order in which they became known */
    size_t file_count, file_capacity;
    size_t last; /* the file of the last query */
} known;

size_t ms_checkpoint_files_count(void)
{
    return known.count;
}

const struct ms_tensor *ms_checkpoint_files_at(size_t index)
{
    return known.all[index].tensor;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static struct ms_checkpoint_file *find_file(const struct stat *stat)
{
    if (known.last < known.file_count && is_same(&known.file[known.last].stat, stat))
        return &known.file[known.last];
    for (size_t i = 0; i < known.file_count; i++) {
        if (is_same(&known.file[i].stat, stat)) {
            known.last = i;
            return &known.file[i];
        }
    }
    return NULL;
}

/* Adds the file even if it is no checkpoint, so that it is not read again. */
static struct ms_checkpoint_file *add_file(const struct stat *stat)
{
    if (!MS_ARRAY_GROW(known.file, known.file_count, known.file_capacity))
        return NULL;
    struct ms_checkpoint_file *file = &known.file[known.file_count++];
    *file = (struct ms_checkpoint_file){.stat = *stat};
    return file;
}

static int by_place(const void *a, const void *b)
{
    const size_t left = *(const size_t *)a, right = *(const size_t *)b;
    const uint64_t left_at = known.all[left].tensor->offset;
    const uint64_t right_at = known.all[right].tensor->offset;
    if (left_at != right_at)
        return left_at < right_at ? -1 : 1;
    return left < right ? -1 : left > right;
}

/* Tensors [first, end) of all are those of one file. */
static bool add_tensors(struct ms_checkpoint_file *file, size_t first, size_t end)
{
    file->by_place = ms_heap_alloc((end - first) * sizeof(*file->by_place));
    file->reach = ms_heap_alloc((end - first) * sizeof(*file->reach));
    if (file->by_place == NULL || file->reach == NULL)
        return false;
    for (size_t i = first; i < end; i++)
        file->by_place[i - first] = i;
    qsort(file->by_place, end - first, sizeof(*file->by_place), by_place);
    uint64_t reach = 0;
    for (size_t i = 0; i < end - first; i++) {
        const struct ms_tensor *tensor = known.all[file->by_place[i]].tensor;
        if (tensor->offset + tensor->bytes > reach)
            reach = tensor->offset + tensor->bytes;
        file->reach[i] = reach;
    }
    file->count = end - first;
    return true;
}

/* Adds all files of a checkpoint, which stays open: tensors point into it. */
static bool add_checkpoint(const struct ms_checkpoint *checkpoint)
{
    const size_t count = ms_checkpoint_count(checkpoint);
    const struct ms_tensor *tensors = ms_checkpoint_tensors(checkpoint);
    for (size_t i = 0; i < count;) {
        const char *path = tensors[i].file;
        const size_t first = known.count;
        for (; i < count && strcmp(tensors[i].file, path) == 0; i++) {
            if (!MS_ARRAY_GROW(known.all, known.count, known.capacity))
                return false;
            known.all[known.count].copied = 0;
            known.all[known.count++].tensor = &tensors[i];
        }
        struct stat now;
        if (stat(path, &now) != 0)
            continue;
        struct ms_checkpoint_file *file = find_file(&now);
        if (file == NULL)
            file = add_file(&now);
        if (file == NULL || (file->count == 0 && !add_tensors(file, first, known.count)))
            return false;
    }
    return true;
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
    const struct ms_tensor *tensors = ms_checkpoint_tensors(checkpoint);
    struct stat now;
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++) {
        const bool is_new = i == 0 || strcmp(tensors[i].file, tensors[i - 1].file) != 0;
        if (is_new && stat(tensors[i].file, &now) == 0 && is_same(&now, wanted))
            return true;
    }
    return false;
}

struct headers {
    const struct ms_source *source;
    const char *path;
    struct ms_checkpoint *checkpoint;
    struct ms_fault *fault;
    bool is_read;
};

static void read_headers_there(void *argument)
{
    struct headers *headers = argument;
    if (!ms_file_thread_has_own_table() &&
        ms_trust_is_locked(ms_source_descriptor(headers->source)))
        ms_fault_set(headers->fault, "%s: another process has a lock on it", headers->path);
    else
        headers->is_read = ms_checkpoint_open(headers->path, &headers->checkpoint, headers->fault);
}

/* Reads in the file thread, because the program may hold locks on its checkpoint. */
static bool read_headers(const struct ms_source *source, const char *path,
                         struct ms_checkpoint **checkpoint_out, struct ms_fault *fault)
{
    struct headers headers = {.source = source, .path = path, .fault = fault};
    fault->text[0] = '\0';
    ms_file_thread_call(read_headers_there, &headers);
    *checkpoint_out = headers.checkpoint;
    return headers.is_read;
}

/* Opens the checkpoint through its index if it has one, otherwise the file by itself. */
static struct ms_checkpoint *open_checkpoint(const struct ms_source *source)
{
    const char *path = ms_source_path(source);
    const struct stat *wanted = ms_source_stat(source);
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

const struct ms_checkpoint_file *ms_checkpoint_files_find(const struct ms_source *source)
{
    const struct stat *stat = ms_source_stat(source);
    const struct ms_checkpoint_file *file = find_file(stat);
    if (file == NULL) {
        struct ms_checkpoint *checkpoint = open_checkpoint(source);
        if (checkpoint != NULL && !add_checkpoint(checkpoint))
            ms_log(MS_WARN, "out of memory: not all tensors of %s are known",
                   ms_source_path(source));
        file = find_file(stat);
        if (file == NULL)
            file = add_file(stat);
    }
    return file != NULL && file->count > 0 ? file : NULL;
}

/* The first tensor by place that may reach behind begin. */
static size_t first_behind(const struct ms_checkpoint_file *file, uint64_t begin)
{
    size_t low = 0, high = file->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (file->reach[middle] <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool ms_checkpoint_files_visit(const struct ms_checkpoint_file *file, uint64_t begin, uint64_t end,
                               ms_checkpoint_files_visitor *visit, void *context)
{
    for (size_t i = first_behind(file, begin); i < file->count; i++) {
        const struct ms_tensor *tensor = known.all[file->by_place[i]].tensor;
        if (tensor->offset >= end)
            break;
        if (tensor->offset + tensor->bytes > begin && !visit(context, file->by_place[i], tensor))
            return false;
    }
    return true;
}

struct note {
    uint64_t begin, end, least, slack;
    bool completed;
};

static bool counts(const struct ms_tensor *tensor, const struct note *note)
{
    return tensor->bytes >= note->least && tensor->bytes >= note->slack;
}

/* The program loads again: copies what is there already, while nothing is missing. */
static void begin_again(void)
{
    for (size_t i = 0; i < known.count; i++)
        known.all[i].copied = 0;
    known.complete = 0;
}

static bool add_tensor_copy(void *context, size_t index, const struct ms_tensor *tensor)
{
    struct note *note = context;
    uint64_t *copied = &known.all[index].copied;
    if (counts(tensor, note) && *copied + note->slack > tensor->bytes &&
        known.complete == known.counting)
        begin_again();
    const uint64_t begin = note->begin > tensor->offset ? note->begin : tensor->offset;
    const uint64_t tensor_end = tensor->offset + tensor->bytes;
    const uint64_t end = note->end < tensor_end ? note->end : tensor_end;
    const bool was_complete = *copied + note->slack > tensor->bytes;
    *copied += end - begin;
    if (!was_complete && counts(tensor, note) && *copied + note->slack > tensor->bytes) {
        known.complete++;
        note->completed = true;
    }
    return true;
}

bool ms_checkpoint_files_add_copy(const struct ms_checkpoint_file *file, uint64_t begin,
                                  uint64_t end, uint64_t least, uint64_t slack)
{
    struct note note = {begin, end, least, slack, false};
    ms_checkpoint_files_visit(file, begin, end, add_tensor_copy, &note);
    if (!note.completed)
        return false;
    for (; known.counted < known.count; known.counted++)
        known.counting += counts(known.all[known.counted].tensor, &note);
    return known.complete == known.counting;
}
