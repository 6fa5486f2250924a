/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/hashes/live_blocks.h"

#include <pthread.h>

#include "runtime/base/heap.h"
#include "tests/simcuda/harness/test.h"

static CUcontext current = (CUcontext)1;

static CUresult ctx_get_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static struct ms_live_block *blocks;
static size_t count;

static void look(void)
{
    ms_heap_free(blocks);
    CHECK(ms_live_copy(&blocks, &count));
}

static void check(size_t at, enum ms_live_kind kind, CUdeviceptr address, size_t bytes,
                  uint32_t number)
{
    CHECK(at < count);
    CHECK_EQ(blocks[at].kind, kind);
    CHECK_EQ(blocks[at].address, address);
    CHECK_EQ(blocks[at].bytes, bytes);
    CHECK_EQ(blocks[at].number, number);
}

MS_TEST(a_block_is_known_by_its_size_and_how_many_there_were)
{
    ms_driver.ctx_get_current = ctx_get_current;
    ms_live_add(MS_LIVE_WHOLE, 0x3000, 0x100);
    ms_live_add(MS_LIVE_WHOLE, 0x1000, 0x200);
    ms_live_remove(MS_LIVE_WHOLE, 0x3000);
    ms_live_add(MS_LIVE_WHOLE, 0x5000, 0x100);
    ms_live_add(MS_LIVE_WHOLE, 0x3000, 0x100);
    ms_live_remove(MS_LIVE_WHOLE, 0x7000);
    look();
    CHECK_EQ(count, 3);
    check(0, MS_LIVE_WHOLE, 0x5000, 0x100, 1);
    check(1, MS_LIVE_WHOLE, 0x3000, 0x100, 2);
    check(2, MS_LIVE_WHOLE, 0x1000, 0x200, 0);
    struct ms_live_thread thread;
    CHECK(ms_live_thread(0, &thread));
    CHECK_EQ(thread.count, 4);
    CHECK(!ms_live_thread(1, &thread));
}

MS_TEST(parts_count_instead_of_their_whole)
{
    ms_driver.ctx_get_current = ctx_get_current;
    ms_live_add(MS_LIVE_WHOLE, 0x1000, 0x1000);
    ms_live_add(MS_LIVE_WHOLE, 0x2000, 0x1000);
    ms_live_add(MS_LIVE_PART, 0x1000, 0x100);
    ms_live_add(MS_LIVE_PART, 0x1100, 0x200);
    ms_live_add(MS_LIVE_PART, 0x10c0, 0x80); /* over both */
    look();
    CHECK_EQ(count, 2);
    check(0, MS_LIVE_WHOLE, 0x2000, 0x1000, 1);
    check(1, MS_LIVE_PART, 0x10c0, 0x80, 0);
    ms_live_remove(MS_LIVE_PART, 0x10c0);
    look();
    CHECK_EQ(count, 1);
    ms_live_add(MS_LIVE_PART, 0x1000, 0x80);
    ms_live_remove(MS_LIVE_WHOLE, 0x1000);
    look();
    CHECK_EQ(count, 1);
    check(0, MS_LIVE_WHOLE, 0x2000, 0x1000, 1);
}

MS_TEST(blocks_go_with_their_context)
{
    ms_driver.ctx_get_current = ctx_get_current;
    ms_live_add(MS_LIVE_WHOLE, 0x1000, 0x1000);
    current = (CUcontext)2;
    ms_live_add(MS_LIVE_WHOLE, 0x2000, 0x1000);
    CHECK(ms_live_has((CUcontext)1) && ms_live_has(current) && !ms_live_has((CUcontext)3));
    ms_live_forget((CUcontext)1);
    CHECK(!ms_live_has((CUcontext)1));
    look();
    CHECK_EQ(count, 1);
    check(0, MS_LIVE_WHOLE, 0x2000, 0x1000, 1);
}

static void *make_one(void *address)
{
    ms_live_add(MS_LIVE_WHOLE, (CUdeviceptr)(uintptr_t)address, 0x100);
    return NULL;
}

MS_TEST(threads_count_for_themselves)
{
    pthread_t thread;
    struct ms_live_thread threads[2];
    ms_driver.ctx_get_current = ctx_get_current;
    make_one((void *)0x1000);
    pthread_create(&thread, NULL, make_one, (void *)0x2000);
    pthread_join(thread, NULL);
    look();
    CHECK_EQ(count, 2);
    CHECK_EQ(blocks[0].thread, 0);
    CHECK_EQ(blocks[1].thread, 1);
    CHECK_EQ(blocks[1].number, 0);
    CHECK(ms_live_thread(0, &threads[0]) && ms_live_thread(1, &threads[1]));
    CHECK_EQ(threads[0].sequence, threads[1].sequence);
    make_one((void *)0x3000);
    CHECK(ms_live_thread(0, &threads[0]));
    CHECK(threads[0].sequence != threads[1].sequence);
}
