/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/heap.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "runtime/base/log.h"

/*
 * jemalloc's public functions under the private names that private-jemalloc.sh gives them. Flags
 * as in jemalloc(3): MALLOCX_ARENA(a) is (a + 1) << 20, MALLOCX_TCACHE_NONE is 1 << 8.
 */
void *ms_je_mallocx(size_t size, int flags);
void *ms_je_rallocx(void *memory, size_t size, int flags);
void ms_je_dallocx(void *memory, int flags);

/* Stubs: private-jemalloc.sh cuts off external settings, and heap profiling, which they enable. */
char *ms_je_secure_getenv(const char *name);
ssize_t ms_je_readlink(const char *path, char *buffer, size_t length);

char *ms_je_secure_getenv(const char *name)
{
    (void)name;
    return NULL;
}

ssize_t ms_je_readlink(const char *path, char *buffer, size_t length)
{
    (void)path, (void)buffer, (void)length;
    return -1;
}

/*
 * At its start jemalloc maps one page to test madvise, writes there even if the mapping failed
 * (5.3.0, madvise_MADV_DONTNEED_zeroes_pages), and unmaps it. In that case jemalloc gets this page,
 * once.
 */
enum { LARGEST_PAGE = 64 << 10 };
static char spare_pages[2 * LARGEST_PAGE]; /* contains an aligned page */

void *ms_je_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset);

void *ms_je_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    static atomic_flag is_used = ATOMIC_FLAG_INIT;
    void *mapped = mmap(address, length, protection, flags, file, offset);
    const bool is_one_page = address == NULL && length <= LARGEST_PAGE && length % 4096 == 0 &&
                             (protection & PROT_WRITE) != 0;
    if (mapped == MAP_FAILED && is_one_page && !atomic_flag_test_and_set(&is_used))
        mapped = spare_pages + (-(uintptr_t)spare_pages & (LARGEST_PAGE - 1));
    return mapped;
}

#define NEVER_CALLED(name)                                        \
    _Noreturn void ms_je_##name(void);                            \
    _Noreturn void ms_je_##name(void)                             \
    {                                                             \
        ms_fatal("heap profiling is disabled, but calls " #name); \
    }
NEVER_CALLED(exp)
NEVER_CALLED(log)
NEVER_CALLED(round)
NEVER_CALLED(_Unwind_Backtrace)
NEVER_CALLED(_Unwind_GetIP)

/*
 * Stubs for mallctl, which nobody calls: its tables of names would be relocated in every process,
 * so private-jemalloc.sh drops them, but the rest of jemalloc calls these functions.
 */
#define WITHOUT_SETTINGS(type, name, answer) \
    type name(void);                         \
    type name(void)                          \
    {                                        \
        return answer;                       \
    }
WITHOUT_SETTINGS(bool, je_ctl_boot, false) /* false: no failure */
WITHOUT_SETTINGS(int, je_ctl_byname, ENOENT)
WITHOUT_SETTINGS(int, je_ctl_bymib, ENOENT)
WITHOUT_SETTINGS(int, je_ctl_bymibname, ENOENT)
WITHOUT_SETTINGS(int, je_ctl_nametomib, ENOENT)
WITHOUT_SETTINGS(int, je_ctl_mibnametomib, ENOENT)
#define NOTHING
WITHOUT_SETTINGS(void, je_ctl_prefork, NOTHING)
WITHOUT_SETTINGS(void, je_ctl_postfork_parent, NOTHING)
WITHOUT_SETTINGS(void, je_ctl_postfork_child, NOTHING)
WITHOUT_SETTINGS(void, je_ctl_mtx_assert_held, NOTHING)

/*
 * No thread gets a cache: allocations bypass it (NO_THREAD_CACHE), so it would only take memory in
 * each thread, and private-jemalloc.sh has cut off its thread-local data.
 */
extern bool je_opt_tcache;
bool je_opt_tcache = false;

/* All allocations are from the first arena: only the shim uses this copy of jemalloc. */
enum { FIRST_ARENA = 1 << 20, NO_THREAD_CACHE = 1 << 8, ZEROED = 0x40 };
enum { FLAGS = FIRST_ARENA | NO_THREAD_CACHE };

void *ms_heap_alloc(size_t bytes)
{
    return ms_heap_checked(ms_je_mallocx(bytes, FLAGS), bytes);
}

void *ms_heap_zalloc(size_t bytes)
{
    return ms_heap_checked(ms_je_mallocx(bytes, FLAGS | ZEROED), bytes);
}

void *ms_heap_realloc(void *memory, size_t bytes)
{
    return memory == NULL ? ms_heap_alloc(bytes)
                          : ms_heap_checked(ms_je_rallocx(memory, bytes, FLAGS), bytes);
}

void ms_heap_free(void *memory)
{
    if (memory != NULL)
        ms_je_dallocx(memory, FLAGS);
}
