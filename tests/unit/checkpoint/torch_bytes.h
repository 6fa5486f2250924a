/* SPDX-License-Identifier: Apache-2.0 */
/* Files as torch.save writes them, byte by byte. For one file of a test. */
#pragma once

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

struct bytes {
    unsigned char at[1 << 20];
    size_t count;
};

static inline void put(struct bytes *to, const void *data, size_t bytes)
{
    CHECK(bytes <= sizeof(to->at) - to->count);
    memcpy(to->at + to->count, data, bytes);
    to->count += bytes;
}

static inline void put_number(struct bytes *to, uint64_t number, size_t bytes)
{
    const unsigned char zero = 0;
    put(to, &number, bytes < 8 ? bytes : 8); /* little-endian, as every machine with CUDA is */
    for (; bytes > 8; bytes--)
        put(to, &zero, 1);
}

static inline void put_line(struct bytes *to, const char *text)
{
    put(to, text, strlen(text));
}

/* --- a pickle */

static inline void put_text(struct bytes *to, const char *text)
{
    put(to, "X", 1);
    put_number(to, strlen(text), 4);
    put_line(to, text);
}

static inline void put_integer(struct bytes *to, int64_t number)
{
    put(to, "\x8a\x08", 2); /* LONG1 */
    put_number(to, (uint64_t)number, 8);
}

/* A tensor of one dimension, in elements. */
struct part {
    const char *name, *key, *type; /* FloatStorage... */
    uint64_t held, first, length;  /* held: by the storage */
};

static inline void put_tensor(struct bytes *to, const struct part *part)
{
    put_line(to, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_text(to, "storage");
    put_line(to, "ctorch\n");
    put_line(to, part->type);
    put_line(to, "\n");
    put_text(to, part->key);
    put_text(to, "cpu");
    put_integer(to, (int64_t)part->held);
    put_line(to, "tQ"); /* its storage */
    put_integer(to, (int64_t)part->first);
    put_integer(to, (int64_t)part->length);
    put(to, "\x85", 1);
    put_integer(to, 1);
    put_line(to, "\x85\x89NtR"); /* stride, requires_grad, hooks */
}

static inline void put_state(struct bytes *to, const struct part *parts, size_t count)
{
    put_line(to, "\x80\x02}(");
    for (size_t i = 0; i < count; i++) {
        put_text(to, parts[i].name);
        put_tensor(to, &parts[i]);
    }
    put_line(to, "u.");
}

/* --- a zip file */

enum { ZIP_RECORDS = 16 };

struct zip {
    struct bytes bytes;
    const char *name[ZIP_RECORDS];
    size_t size[ZIP_RECORDS];
    size_t header[ZIP_RECORDS], data[ZIP_RECORDS], entry[ZIP_RECORDS]; /* places of them */
    size_t count, directory, end;
};

/* From "method" to the length of the name: no checksum. */
static inline void put_sizes(struct zip *zip, size_t index)
{
    put_number(&zip->bytes, 0, 10);
    put_number(&zip->bytes, zip->size[index], 4);
    put_number(&zip->bytes, zip->size[index], 4);
    put_number(&zip->bytes, strlen(zip->name[index]), 2);
}

static inline void add_record(struct zip *zip, const char *name, const void *data, size_t bytes)
{
    const size_t i = zip->count++;
    CHECK(i < ZIP_RECORDS);
    zip->name[i] = name;
    zip->size[i] = bytes;
    zip->header[i] = zip->bytes.count;
    put(&zip->bytes, "PK\3\4\24\0\0\0", 8);
    put_sizes(zip, i);
    put_number(&zip->bytes, 0, 2);
    put_line(&zip->bytes, name);
    zip->data[i] = zip->bytes.count;
    put(&zip->bytes, data, bytes);
}

static inline void end_zip(struct zip *zip)
{
    zip->directory = zip->bytes.count;
    for (size_t i = 0; i < zip->count; i++) {
        zip->entry[i] = zip->bytes.count;
        put(&zip->bytes, "PK\1\2\24\0\24\0\0\0", 10);
        put_sizes(zip, i);
        put_number(&zip->bytes, 0, 8); /* extra, comment, part, attributes */
        put_number(&zip->bytes, 0, 4);
        put_number(&zip->bytes, zip->header[i], 4);
        put_line(&zip->bytes, zip->name[i]);
    }
    zip->end = zip->bytes.count;
    put(&zip->bytes, "PK\5\6\0\0\0\0", 8);
    put_number(&zip->bytes, zip->count, 2);
    put_number(&zip->bytes, zip->count, 2);
    put_number(&zip->bytes, zip->end - zip->directory, 4);
    put_number(&zip->bytes, zip->directory, 4);
    put_number(&zip->bytes, 0, 2);
}

/* An open file of these bytes. */
static inline int file_of(const struct bytes *bytes)
{
    const int file = memfd_create("metashard-unit", MFD_CLOEXEC);
    CHECK(file >= 0);
    CHECK_EQ(write(file, bytes->at, bytes->count), (ssize_t)bytes->count);
    return file;
}
