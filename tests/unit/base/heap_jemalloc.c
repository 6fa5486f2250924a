/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jemalloc never writes to the part of its thread-local data that private-jemalloc.sh cuts off, of
 * which this program has the whole. Whatever a thread does with the heap, it stays zero.
 */
#include "runtime/base/heap.h"

#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/between.h"

enum { CUT_AT = 856, WHOLE = 2632 }; /* private-jemalloc.sh */

extern _Thread_local unsigned char je_tsd_tls[WHOLE]
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

static int find_size(struct dl_phdr_info *info, __attribute__((unused)) size_t size, void *found)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)found = info->dlpi_phdr[i].p_memsz;
    }
    return 1; /* the program alone */
}

static void expect_whole(void)
{
    size_t found = 0;
    dl_iterate_phdr(find_size, &found);
    if (found < WHOLE)
        ms_test_skip("another jemalloc, of which nothing is cut off");
}

static void check_untouched(void)
{
    for (size_t i = CUT_AT; i < WHOLE; i++)
        CHECK_EQ(je_tsd_tls[i], 0);
}

static size_t size_of(unsigned random)
{
    return random % 64 == 0 ? random % (5U << 20) : random % 7 == 0 ? random % 70000 : random % 600;
}

/* More than 64 KiB again and again: then jemalloc would collect the caches of threads. */
static void *use_heap(void *seed)
{
    enum { PIECES = 500, STEPS = 60000 };
    static _Thread_local void *pieces[PIECES];
    unsigned random = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < STEPS; i++) {
        random = random * 1664525 + 1013904223;
        void **piece = &pieces[(random >> 8) % PIECES];
        const size_t bytes = size_of(random >> 4) + 1;
        if (random >> 30 == 0) {
            ms_heap_free(*piece);
            *piece = NULL;
        } else if (random >> 30 == 1 && *piece == NULL) {
            *piece = ms_heap_zalloc(bytes);
            CHECK(*piece != NULL && *(char *)*piece == 0);
        } else {
            *piece = ms_heap_realloc(*piece, bytes);
            CHECK(*piece != NULL);
            memset(*piece, 0xff, bytes < 4096 ? bytes : 4096);
        }
    }
    for (int i = 0; i < PIECES; i++) {
        ms_heap_free(pieces[i]);
        pieces[i] = NULL;
    }
    check_untouched();
    return NULL;
}

static pthread_key_t key;

/* When jemalloc has cleaned up for this thread, or will. */
static void use_at_the_end(void *value)
{
    ms_heap_free(ms_heap_alloc(100));
    ms_heap_free(ms_heap_alloc(100000));
    check_untouched();
    if ((uintptr_t)value > 1)
        pthread_setspecific(key, (void *)((uintptr_t)value - 1));
}

static void *use_and_end(void *seed)
{
    pthread_setspecific(key, (void *)3);
    return use_heap(seed);
}

MS_TEST_AFTER(expect_whole, the_heap_does_not_use_the_part_that_is_cut_off)
{
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    CHECK_EQ(pthread_key_create(&key, use_at_the_end), 0);
    for (int round = 0; round < 2; round++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, use_and_end, (void *)(i + 1)), 0);
        for (int i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    use_heap((void *)99);
}

MS_TEST_AFTER(expect_whole, a_child_does_not_use_the_part_that_is_cut_off)
{
    use_heap((void *)5);
    const pid_t child = fork();
    if (child == 0) {
        use_heap((void *)6);
        exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    check_untouched();
}

MS_TEST_AFTER(expect_whole, a_heap_out_of_memory_does_not_use_the_part_that_is_cut_off)
{
    const struct rlimit limit = {64 << 20, 64 << 20};
    if (ms_test_is_watched())
        ms_test_skip("valgrind needs memory of its own, and so does an emulator");
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    void *last = NULL;
    for (;;) {
        void **more = ms_heap_alloc(100000);
        if (more == NULL)
            break;
        *more = last;
        last = more;
    }
    check_untouched();
    while (last != NULL) {
        void *before = *(void **)last;
        ms_heap_free(last);
        last = before;
    }
    check_untouched();
}
