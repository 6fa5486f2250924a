/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/thread.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "tests/unit/counted_heap.h"
#include "tools/simcuda/harness/test.h"

enum { BYTES = 5000 };

static const unsigned char zeros[BYTES];

/* Returns it. */
static void *use(__attribute__((unused)) void *argument)
{
    unsigned char *memory = ms_thread_memory(MS_THREAD_FAULT, BYTES);
    if (memory == NULL || memcmp(memory, zeros, BYTES) != 0)
        return NULL;
    memset(memory, 1, BYTES);
    return ms_thread_memory(MS_THREAD_FAULT, BYTES) == memory &&
                   ms_thread_memory(MS_THREAD_RECEIVES, BYTES) != memory
               ? memory
               : NULL;
}

MS_TEST(each_thread_has_its_own_memory_until_it_ends)
{
    pthread_t thread;
    void *theirs, *ours = use(NULL);
    CHECK(ours != NULL);
    const int before = live;
    CHECK_EQ(before, 3);
    CHECK_EQ(pthread_create(&thread, NULL, use, NULL), 0);
    CHECK_EQ(pthread_join(thread, &theirs), 0);
    CHECK(theirs != NULL && theirs != ours);
    CHECK_EQ(live, before);
}

MS_TEST(a_thread_that_got_no_memory_asks_again)
{
    may_make = 0;
    CHECK(ms_thread_memory(MS_THREAD_FAULT, BYTES) == NULL);
    may_make = 1; /* of two */
    CHECK(ms_thread_memory(MS_THREAD_FAULT, BYTES) == NULL);
    may_make = 1;
    CHECK(ms_thread_memory(MS_THREAD_FAULT, BYTES) != NULL);
}

static void *look(void *argument)
{
    pthread_attr_t attributes;
    size_t *stack_out = argument;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstacksize(&attributes, stack_out);
    pthread_attr_destroy(&attributes);
    return sigismember(&blocked, SIGUSR1) == 1 && sigismember(&blocked, SIGTERM) == 1 ? argument
                                                                                      : NULL;
}

MS_TEST(the_shims_threads_get_no_signal_and_leave_the_programs_mask)
{
    pthread_t thread;
    void *result;
    sigset_t mask;
    size_t stack = 0;
    CHECK_EQ(ms_thread_create(&thread, look, &stack), 0);
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == &stack && stack >= 64 << 10);
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    CHECK_EQ(sigismember(&mask, SIGUSR1), 0);
}
