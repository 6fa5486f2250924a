/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

enum { BYTES = 3 << 20, ODD = 12345 };

static unsigned char bytes[BYTES];
static struct ms_fault fault;

static void fill(unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(seed + i + i / 251);
}

static const unsigned char *read_back(const struct ms_source *source)
{
    const void *seen = NULL;
    CHECK(!ms_source_is_file(source));
    CHECK_EQ(ms_source_read(source, 0, NULL, 1, &seen), CUDA_SUCCESS);
    return seen;
}

static struct ms_source *add(struct ms_store *store, unsigned seed, size_t count)
{
    fill(seed);
    struct ms_source *source = ms_store_add(store, bytes, count, &fault);
    if (source == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
    return source;
}

static void check(const struct ms_source *source, unsigned seed, size_t count)
{
    fill(seed);
    CHECK_BYTES(read_back(source), bytes, count);
}

/* The store goes with its last source. */
static void keep_and_read(const char *folder)
{
    struct ms_store *store = ms_store_create(folder, 4 * (size_t)BYTES, 0, &fault);
    CHECK(store != NULL);
    struct ms_source *first = add(store, 1, ODD), *second = add(store, 2, BYTES);
    CHECK(ms_store_finish(store, &fault));
    ms_store_drop(store);
    check(first, 1, ODD);
    check(second, 2, BYTES);
    ms_source_drop(first);
    check(second, 2, BYTES);
    ms_source_drop(second);
}

MS_TEST(in_host_memory)
{
    keep_and_read(NULL);
}

static void check_empty(const char *folder)
{
    CHECK_EQ(rmdir(folder), 0);
}

MS_TEST(in_a_folder)
{
    char folder[] = "/tmp/store-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    keep_and_read(folder);
    check_empty(folder);
}

/* Nothing but the room that was asked for goes with a source. */
MS_TEST(pages_go_with_their_source)
{
    struct ms_store *store = ms_store_create(NULL, 2 * (size_t)BYTES, 0, &fault);
    struct ms_source *source = add(store, 1, BYTES);
    unsigned char *seen = (unsigned char *)(uintptr_t)read_back(source);
    ms_source_drop(source); /* the store is still there */
    for (size_t i = 0; i < BYTES; i++)
        CHECK_EQ(seen[i], 0);
    ms_store_drop(store);
}

MS_TEST(a_limit)
{
    struct ms_store *store = ms_store_create(NULL, 4 * (size_t)BYTES, BYTES + 1, &fault);
    struct ms_source *source = add(store, 1, BYTES);
    CHECK(ms_store_add(store, bytes, 1 << 20, &fault) == NULL);
    CHECK(strstr(fault.text, "METASHARD_SUSPEND_BYTES") != NULL);
    check(source, 1, BYTES);
    ms_source_drop(source);
    ms_store_drop(store);
}

MS_TEST(a_folder_that_is_not_there)
{
    CHECK(ms_store_create("/nowhere/at/all", BYTES, 0, &fault) == NULL);
    CHECK(strstr(fault.text, "/nowhere/at/all: No such file") != NULL);
}

/* As a folder that is full; and no signal ends the process. */
MS_TEST(a_file_that_cannot_grow)
{
    const struct rlimit limit = {.rlim_cur = BYTES / 2, .rlim_max = BYTES / 2};
    char folder[] = "/tmp/store-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    struct ms_store *store = ms_store_create(folder, BYTES, 0, &fault);
    CHECK(store != NULL);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK(ms_store_add(store, bytes, BYTES, &fault) == NULL);
    CHECK(strstr(fault.text, strerror(EFBIG)) != NULL);
    ms_store_drop(store);
    check_empty(folder);
}
