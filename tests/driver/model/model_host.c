/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory to copy from and to: pinned, plain, memory that goes at once, and a file. */
#include "tests/driver/model/model.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PINNED = 8 << 20, PINNED_ROOM = 3 << 20, FILE_BYTES = 1 << 20 };

static _Thread_local unsigned char *pinned, *plain, *file, *written;
static _Thread_local size_t pinned_used;

/* --- memory */

bool model_has_pinned(void)
{
    return pinned_used + PINNED_ROOM <= PINNED;
}

void model_pinned_unused(void)
{
    pinned_used = 0;
}

unsigned char *model_pinned(size_t bytes)
{
    if (pinned_used + bytes > PINNED)
        abort();
    unsigned char *out = pinned + pinned_used;
    pinned_used += (bytes + 63) / 64 * 64;
    return out;
}

/* One byte again and again, or random words. */
static void draw_content(unsigned char *bytes, size_t count)
{
    if (model_one_in(4)) {
        memset(bytes, (int)model_below(256), count);
        return;
    }
    uint64_t word = model_random();
    for (size_t i = 0; i < count; i += sizeof(word)) {
        word = word * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(bytes + i, &word, count - i < sizeof(word) ? count - i : sizeof(word));
    }
}

/* --- the file: four tensors of a checkpoint, and bytes behind them */

static const char header[] =
    "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[256,64],\"data_offsets\":[0,65536]},"
    "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[100,333],\"data_offsets\":[65536,132136]},"
    "\"c.weight\":{\"dtype\":\"U8\",\"shape\":[40,1000],\"data_offsets\":[132136,172136]},"
    "\"d.weight\":{\"dtype\":\"F32\",\"shape\":[512,400],\"data_offsets\":[172136,991336]}}";
enum { BEGIN = 8 + sizeof(header) - 1, FILE_END = BEGIN + 991336 };

static void path_of(char path[4096], const char *end)
{
    snprintf(path, 4096, "%s/model-%d-%u.safetensors%s", model_folder, (int)getpid(), model_thread,
             end);
}

static void write_file(const char *path, int flags)
{
    const uint64_t length = sizeof(header) - 1;
    unsigned char *bytes = malloc(FILE_BYTES);
    draw_content(bytes, FILE_BYTES);
    memcpy(bytes, &length, sizeof(length));
    memcpy(bytes + 8, header, length);
    const int descriptor = open(path, O_WRONLY | O_CREAT | flags, 0600);
    if (descriptor < 0 || write(descriptor, bytes, FILE_END) != FILE_END)
        model_fail("%s cannot be written", path);
    /* So old that a later write would show. */
    const struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    if (model_one_in(2))
        futimens(descriptor, times);
    close(descriptor);
    free(bytes);
}

static void map_file(const char *path)
{
    const int descriptor = open(path, O_RDONLY);
    if (file != NULL)
        munmap(file, FILE_BYTES);
    if (written != NULL)
        munmap(written, FILE_BYTES);
    file = mmap(NULL, FILE_BYTES, PROT_READ, model_one_in(2) ? MAP_PRIVATE : MAP_SHARED, descriptor,
                0);
    written = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (file == MAP_FAILED || written == MAP_FAILED)
        model_fail("%s cannot be mapped", path);
    for (int i = 0; i < 4; i++)
        draw_content(written + BEGIN + model_below(900000), 3000);
}

void model_change_file(void)
{
    char path[4096], next[4096];
    path_of(path, "");
    path_of(next, ".next");
    if (model_reads_late)
        model_wait();
    switch (model_below(3)) {
    case 0: /* in place */
        write_file(path, 0);
        return;
    case 1: /* in place, and empty in between */
        write_file(path, O_TRUNC);
        return;
    default: /* another file of that name */
        write_file(next, O_TRUNC);
        if (rename(next, path) != 0)
            model_fail("%s cannot be renamed", next);
        map_file(path);
    }
}

void model_host_begin(void)
{
    char path[4096];
    path_of(path, "");
    plain = malloc(MODEL_MOST);
    OK(cuMemHostAlloc((void **)&pinned, PINNED, 0));
    write_file(path, O_TRUNC);
    map_file(path);
}

/* --- sources */

struct model_source model_source(size_t bytes, bool is_async)
{
    static const size_t tensors[] = {0, 65536, 132136, 172136};
    struct model_source source = {0};
    /* What the driver reads late stays as it is. */
    const bool stays = is_async && model_reads_late;
    size_t at = model_below(FILE_END - bytes);
    switch (model_below(5)) {
    case 0:
    case 1:
        if (model_one_in(2))
            at = BEGIN + tensors[model_below(4)];
        source.bytes = (model_one_in(4) ? written : file) + (at + bytes > FILE_END ? 0 : at);
        return source;
    case 2:
        source.bytes = model_pinned(bytes);
        draw_content((unsigned char *)source.bytes, bytes);
        return source;
    case 3:
        source.passing_bytes = bytes;
        source.passing =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (source.passing == MAP_FAILED)
            model_fail("no memory");
        draw_content(source.passing, bytes);
        source.bytes = source.passing;
        if (stays) {
            munmap(source.passing, bytes);
            source.passing = NULL;
            source.bytes = model_pinned(bytes);
            draw_content((unsigned char *)source.bytes, bytes);
        }
        return source;
    default:
        source.bytes = stays ? model_pinned(bytes) : plain;
        source.is_plain = !stays;
        draw_content((unsigned char *)source.bytes, bytes);
        return source;
    }
}

void model_source_used(struct model_source source, size_t bytes)
{
    if (source.is_plain)
        memset(plain, 0x5a, bytes);
    if (source.passing != NULL)
        munmap(source.passing, source.passing_bytes);
}
