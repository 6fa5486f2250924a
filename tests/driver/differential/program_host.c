/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/driver/differential/program.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const program_buffer_names[BUFFER_COUNT] = {"file", "written", "pinned", "plain"};

static unsigned char *buffers[BUFFER_COUNT];

static unsigned char *map_file(const char *path, int protection)
{
    const int file = open(path, O_RDONLY);
    void *address = mmap(NULL, PROGRAM_BUFFER_BYTES, protection, MAP_PRIVATE, file, 0);
    if (file < 0 || address == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    close(file);
    return address;
}

static void write_file(const char *path)
{
    unsigned char *bytes = malloc(PROGRAM_BUFFER_BYTES);
    for (size_t i = 0; i < PROGRAM_BUFFER_BYTES; i += 8) {
        const uint64_t value = program_random();
        memcpy(bytes + i, &value, 8);
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, PROGRAM_BUFFER_BYTES, file) != PROGRAM_BUFFER_BYTES ||
        fclose(file) != 0) {
        perror(path);
        exit(1);
    }
    free(bytes);
}

void program_buffers_init(const char *file)
{
    write_file(file);
    buffers[BUFFER_FILE] = map_file(file, PROT_READ);
    buffers[BUFFER_WRITTEN] = map_file(file, PROT_READ | PROT_WRITE);
    void *pinned;
    program_must(cuMemHostAlloc(&pinned, PROGRAM_BUFFER_BYTES, 0), "cuMemHostAlloc");
    buffers[BUFFER_PINNED] = pinned;
    buffers[BUFFER_PLAIN] = malloc(PROGRAM_BUFFER_BYTES);
    memcpy(buffers[BUFFER_PINNED], buffers[BUFFER_FILE], PROGRAM_BUFFER_BYTES);
    memset(buffers[BUFFER_PLAIN], 7, PROGRAM_BUFFER_BYTES);
    program_buffer_change(BUFFER_WRITTEN);
}

unsigned char *program_buffer(enum program_buffer buffer)
{
    return buffers[buffer];
}

void program_buffer_change(enum program_buffer buffer)
{
    if (buffer == BUFFER_FILE)
        return;
    for (int i = 0; i < 20; i++) {
        const size_t at = program_below(PROGRAM_BUFFER_BYTES - 4096);
        memset(buffers[buffer] + at, (int)program_below(256), program_below(4096));
    }
}
