/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with checkpoints that the test writes. For one file of a test. */
#pragma once

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/checkpoint/checkpoint.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/checkpoint/torch_bytes.h"

static char test_folder[] = "/tmp/metashard-unit-XXXXXX";

static inline int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat, (void)type, (void)ftw;
    return remove(path);
}

static inline void remove_folder(void)
{
    nftw(test_folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void make_folder(void)
{
    CHECK(mkdtemp(test_folder) != NULL);
    atexit(remove_folder);
}

static inline const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", test_folder, name);
    return path;
}

static inline void put_file(const char *name, const void *data, size_t bytes)
{
    const int file = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK_EQ(write(file, data, bytes), (ssize_t)bytes);
    close(file);
}

/* The text with " for each '. */
static inline const char *quoted(const char *text)
{
    static char copy[1 << 20];
    CHECK(strlen(text) < sizeof(copy));
    strcpy(copy, text);
    for (char *at = copy; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    return copy;
}

static inline void put_json(const char *name, const char *text)
{
    put_file(name, quoted(text), strlen(text));
}

/* A safetensors file of this header, and so many bytes of data. */
static inline void save(const char *name, const char *header, size_t data_bytes)
{
    static struct bytes bytes;
    bytes.count = 0;
    put_number(&bytes, strlen(header), 8);
    put_line(&bytes, quoted(header));
    put_number(&bytes, 0, data_bytes);
    put_file(name, bytes.at, bytes.count);
}

/* A file of torch.save with these tensors in a storage "0" of 64 bytes. */
static inline void save_torch(const char *name, const struct part *parts, size_t count)
{
    static const unsigned char zeros[64];
    static struct bytes text;
    static struct zip zip;
    text.count = 0;
    memset(&zip, 0, sizeof(zip));
    put_state(&text, parts, count);
    add_record(&zip, "archive/data.pkl", text.at, text.count);
    add_record(&zip, "archive/data/0", zeros, sizeof(zeros));
    end_zip(&zip);
    put_file(name, zip.bytes.at, zip.bytes.count);
}
