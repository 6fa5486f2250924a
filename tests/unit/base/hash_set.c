/* SPDX-License-Identifier: Apache-2.0 */
/* A file cannot be made of names that all have the same hash. The rest of what hash_set.c does is
 * tested by those that use it. */
#include "runtime/base/hash_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

static const char text[] = "model.layers.0.weight";

MS_TEST(hashes_are_others_in_another_process)
{
    int ends[2];
    char number[16];
    uint64_t other = 0;
    CHECK_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        snprintf(number, sizeof(number), "%d", ends[1]);
        setenv("UNIT_HASH_TO", number, 1);
        execl("/proc/self/exe", "unit-hash_set", "tell_hash", NULL);
        _exit(1);
    }
    close(ends[1]);
    const ssize_t told = read(ends[0], &other, sizeof(other));
    CHECK_EQ(waitpid(child, NULL, 0), child);
    if (told == 0)
        ms_test_skip("this program cannot start itself here"); /* valgrind, an emulator */
    CHECK_EQ(told, sizeof(other));
    CHECK(other != ms_hash_set_text(text));
    CHECK_EQ(ms_hash_set_text(text), ms_hash_set_bytes(text, sizeof(text) - 1));
}

/* Run by the test above, by its name. */
MS_TEST(tell_hash)
{
    const char *to = getenv("UNIT_HASH_TO");
    if (to == NULL)
        ms_test_skip("it is run by another test");
    const uint64_t hash = ms_hash_set_text(text);
    CHECK_EQ(write(atoi(to), &hash, sizeof(hash)), sizeof(hash));
}
