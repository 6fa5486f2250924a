/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a worker, in the format safetensors, and one of torch.save. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/robust/long/training.h"

size_t place_of(int tensor)
{
    size_t words = 0;
    for (int i = 0; i < tensor; i++)
        words += words_of(i);
    return words;
}

size_t checkpoint_words(void)
{
    return place_of(TENSORS);
}

struct mapped checkpoint_map(const char *path)
{
    struct stat found;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &found) != 0)
        fail("%s cannot be opened", path);
    struct mapped mapped = {.bytes = (size_t)found.st_size};
    mapped.at = mmap(NULL, mapped.bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped.at == MAP_FAILED)
        fail("%s cannot be mapped", path);
    close(file);
    uint64_t header;
    memcpy(&header, mapped.at, 8);
    mapped.data = 8 + header;
    return mapped;
}

void checkpoint_unmap(struct mapped mapped)
{
    munmap(mapped.at, mapped.bytes);
}

static void write_all(int file, const void *bytes, size_t count, off_t at)
{
    if (file < 0 || pwrite(file, bytes, count, at) != (ssize_t)count)
        fail("a file cannot be written");
}

/* The header, which is filled up with blanks. */
static size_t make_header(char *text, size_t room)
{
    size_t length = (size_t)snprintf(text, room, "{");
    for (int i = 0; i < TENSORS; i++)
        length += (size_t)snprintf(text + length, room - length,
                                   "%s\"t%d\":{\"dtype\":\"U32\",\"shape\":[%d,%zu],"
                                   "\"data_offsets\":[%zu,%zu]}",
                                   i > 0 ? "," : "", i, ROWS, columns_of(i), 4 * place_of(i),
                                   4 * place_of(i + 1));
    length += (size_t)snprintf(text + length, room - length, "}");
    while (length % 8 != 0)
        text[length++] = ' ';
    return length;
}

static void write_file(struct worker *worker, int file)
{
    char text[1024];
    const uint64_t length = make_header(text, sizeof(text));
    write_all(file, &length, 8, 0);
    write_all(file, text, length, 8);
    write_all(file, worker->truth, 4 * checkpoint_words(), 8 + (off_t)length);
    close(file);
}

static void new_name(struct worker *worker, char *path, size_t room)
{
    snprintf(path, room, "%s/worker%u-%lu.safetensors", folder, worker->index, worker->round);
}

enum { NEW_FILE = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC };

void checkpoint_make(struct worker *worker)
{
    worker->truth = malloc(4 * checkpoint_words());
    for (size_t i = 0; i < checkpoint_words(); i++)
        worker->truth[i] = draw(worker);
    snprintf(worker->path, sizeof(worker->path), "%s/worker%u-first.safetensors", folder,
             worker->index);
    write_file(worker, open(worker->path, NEW_FILE, 0600));
}

void checkpoint_save(struct worker *worker)
{
    char path[sizeof(worker->path)];
    switch (worker->round % 3) {
    case 0: /* keeps the newest */
        new_name(worker, path, sizeof(path));
        write_file(worker, open(path, NEW_FILE, 0600));
        unlink(worker->path);
        memcpy(worker->path, path, sizeof(path));
        break;
    case 1: /* replaces */
        snprintf(path, sizeof(path), "%s/worker%u.new", folder, worker->index);
        write_file(worker, open(path, NEW_FILE, 0600));
        if (rename(path, worker->path) != 0)
            fail("%s cannot be replaced", worker->path);
        break;
    default: /* in place */
        write_file(worker, open(worker->path, O_WRONLY | O_CLOEXEC));
    }
}

void torch_round(struct worker *worker)
{
    char path[160], made[176];
    if (worker->torch_bytes == NULL)
        return;
    snprintf(path, sizeof(path), "%s/worker%u.pt", folder, worker->index);
    snprintf(made, sizeof(made), "%s.new", path);
    const int file = open(made, NEW_FILE, 0600);
    write_all(file, worker->torch_bytes, worker->torch_count, 0);
    close(file);
    if (rename(made, path) != 0)
        fail("%s cannot be replaced", path);
    const struct mapped mapped = checkpoint_map(path);
    const CUdeviceptr copy = allocate(worker->torch_count);
    OK(cuMemcpyHtoD(copy, mapped.at, worker->torch_count));
    checkpoint_unmap(mapped);
    read_back(worker, "a file of torch.save", copy, worker->torch_bytes, worker->torch_count,
              worker->streams[0]);
    OK(cuMemFree(copy));
}
