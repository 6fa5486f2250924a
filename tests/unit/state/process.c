/* SPDX-License-Identifier: Apache-2.0 */
/* Who a process is, and whether it lives. */
#include "runtime/state/process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/simcuda/harness/test.h"

/* The field of /proc/PID/stat, counted as proc(5) does; the name has no space here. */
static uint64_t field_of_stat(int field)
{
    char text[1024] = "";
    FILE *file = fopen("/proc/self/stat", "re");
    CHECK(file != NULL && fgets(text, sizeof(text), file) != NULL);
    fclose(file);
    char *word = strtok(text, " ");
    for (int i = 1; i < field; i++)
        word = strtok(NULL, " ");
    return strtoull(word, NULL, 10);
}

MS_TEST(a_process_is_its_number_its_start_its_namespace_and_the_boot)
{
    struct ms_process_identity own;
    struct stat namespace;
    char boot[64] = "";
    CHECK_EQ(prctl(PR_SET_NAME, "name"), 0);
    ms_process_identify(&own);
    CHECK_EQ(own.pid, getpid());
    CHECK(own.start_ticks > 0);
    CHECK_EQ(own.start_ticks, field_of_stat(22));
    CHECK_EQ(stat("/proc/self/ns/pid", &namespace), 0);
    CHECK_EQ(own.pid_namespace, namespace.st_ino);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    CHECK(file != NULL && fgets(boot, sizeof(boot), file) != NULL);
    fclose(file);
    CHECK_EQ(strlen(own.boot), 36); /* without the end of the line */
    CHECK_EQ(strncmp(own.boot, boot, 36), 0);
}

MS_TEST(the_name_of_a_program_does_not_shift_what_follows)
{
    struct ms_process_identity before, after;
    ms_process_identify(&before);
    CHECK_EQ(prctl(PR_SET_NAME, "a) Z 1 (b) 2"), 0);
    ms_process_identify(&after);
    CHECK_EQ(after.start_ticks, before.start_ticks);
}

MS_TEST(only_the_same_process_of_this_boot_and_namespace_lives)
{
    struct ms_process_identity own, other;
    ms_process_identify(&own);
    const struct ms_state_process same = {.pid = own.pid,
                                          .start_ticks = own.start_ticks,
                                          .pid_namespace = own.pid_namespace};
    struct ms_state_process process = same;
    memcpy(process.boot, own.boot, sizeof(own.boot));
    const struct ms_state_process living = process;
    CHECK_EQ(ms_process_life(NULL, &process), MS_LIFE_ALIVE);
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_ALIVE);
    process.start_ticks++;
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_GONE);
    process = living;
    process.pid = UINT64_C(1) << 40;
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_GONE);
    process.start_ticks = 0;
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_GONE);
    process = living;
    process.pid_namespace++;
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_UNKNOWN);
    process = living;
    process.boot[35]++;
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_GONE);
    CHECK_EQ(ms_process_life(&own, &same), MS_LIFE_UNKNOWN); /* of a boot without a name */
    other = own;
    other.boot[0] = '\0';
    CHECK_EQ(ms_process_life(&other, &living), MS_LIFE_UNKNOWN);
    CHECK_EQ(ms_process_life(&other, &same), MS_LIFE_ALIVE);
    other = own;
    other.pid_namespace = process.pid_namespace = 0;
    process.boot[35]--;
    CHECK_EQ(ms_process_life(&other, &process), MS_LIFE_UNKNOWN);
}

/* Its number is there until somebody has waited for it. */
MS_TEST(a_process_that_ended_is_gone_before_anybody_waits_for_it)
{
    struct ms_process_identity own, found;
    int ends[2];
    siginfo_t info;
    CHECK_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        ms_process_identify(&found);
        _exit(write(ends[1], &found, sizeof(found)) != sizeof(found));
    }
    CHECK_EQ(read(ends[0], &found, sizeof(found)), sizeof(found));
    CHECK_EQ(found.pid, child);
    CHECK_EQ(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    ms_process_identify(&own);
    struct ms_state_process process = {.pid = found.pid,
                                       .start_ticks = found.start_ticks,
                                       .pid_namespace = found.pid_namespace};
    memcpy(process.boot, found.boot, sizeof(found.boot));
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_GONE);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK_EQ(ms_process_life(&own, &process), MS_LIFE_GONE);
}
