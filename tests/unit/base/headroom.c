/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of files as kernels and containers show them. tests/driver/suspend/check_memory.py has real
 * control groups. */
#include "runtime/base/headroom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/between.h"
#include "tools/simcuda/harness/test.h"

#define V1_MOUNT "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define V2_MOUNT "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define MACHINE "the memory of the machine"
#define GROUP "the memory limit of its cgroup"

static char root[] = "/tmp/headroom-XXXXXX";

static void remove_root(void)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    CHECK_EQ(system(command), 0);
}

static void start(void)
{
    CHECK(mkdtemp(root) != NULL);
    atexit(remove_root);
}

static void put(const char *file, const char *text)
{
    char path[256];
    const int length = snprintf(path, sizeof(path), "%s%s", root, file);
    for (int i = (int)strlen(root) + 1; i < length; i++) {
        if (path[i] != '/')
            continue;
        path[i] = '\0';
        mkdir(path, 0700);
        path[i] = '/';
    }
    FILE *made = fopen(path, "we");
    CHECK(made != NULL && fputs(text, made) >= 0 && fclose(made) == 0);
}

/* Writes the files of a cgroup of v1, and of v2. */
static void put_v1(const char *folder, const char *limit, const char *used, const char *stat)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/memory.limit_in_bytes", folder);
    put(path, limit);
    snprintf(path, sizeof(path), "%s/memory.usage_in_bytes", folder);
    put(path, used);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    put(path, stat);
}

static void put_v2(const char *folder, const char *max, const char *high, const char *used)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/memory.max", folder);
    put(path, max);
    snprintf(path, sizeof(path), "%s/memory.high", folder);
    put(path, high);
    snprintf(path, sizeof(path), "%s/memory.current", folder);
    put(path, used);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    put(path, "anon 900\ninactive_anon 900\nactive_file 50\ninactive_file 100\n");
}

static void must_be(uint64_t bytes, const char *bound)
{
    const struct ms_headroom headroom = ms_headroom_memory_under(root);
    CHECK_EQ(headroom.bytes, bytes);
    if (strcmp(headroom.bound, bound) != 0)
        ms_test_fail(__FILE__, __LINE__, "%s, expected %s", headroom.bound, bound);
}

STORY_AFTER(start, a_system_that_tells_no_limit_sets_no_bound, must_be(UINT64_MAX, "nothing"),
            put("/proc/meminfo", "MemTotal: 9 kB\nMemFree: 8 kB\n"),
            put("/proc/self/cgroup", "nonsense\n4:memory\n"),
            put("/proc/self/mountinfo", "nonsense\n - \n1 2 3 / - cgroup\n" V1_MOUNT V2_MOUNT),
            must_be(UINT64_MAX, "nothing"))

STORY_AFTER(start, the_machine_bounds_with_what_it_has_available,
            put("/proc/meminfo", "MemTotal: 16384 kB\nMemAvailable: 1000 kB\n"),
            must_be(1000 << 10, MACHINE))

MS_TEST_AFTER(start, the_least_of_a_group_and_all_above_it_bounds)
{
    put("/proc/meminfo", "MemAvailable:   1000 kB\n");
    put("/proc/self/cgroup", "5:devices:/a\n4:cpu,memory:/a/b\n0::/other\n");
    put("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" V1_MOUNT);
    put_v1("/sys/fs/cgroup/memory/a/b", "9223372036854771712\n", "300\n", "cache 5\n");
    put_v1("/sys/fs/cgroup/memory/a", "9223372036854771712\n", "400\n", "cache 5\n");
    put_v1("/sys/fs/cgroup/memory", "9223372036854771712\n", "500\n", "cache 5\n");
    must_be(1000 << 10, MACHINE);
    put_v1("/sys/fs/cgroup/memory", "10500\n", "500\n", "cache 5\n");
    must_be(10000, GROUP);
    put_v1("/sys/fs/cgroup/memory/a", "9400\n", "400\n", "cache 5\n");
    must_be(9000, GROUP);
    put_v1("/sys/fs/cgroup/memory/a/b", "8300\n", "300\n", "cache 5\n");
    must_be(8000, GROUP);
    /* The kernel takes pages of files that nobody uses before it kills. */
    put_v1("/sys/fs/cgroup/memory/a/b", "8300\n", "300\n",
           "inactive_file 70\ntotal_inactive_file 200\n");
    must_be(8200, GROUP);
    put_v1("/sys/fs/cgroup/memory/a/b", "8300\n", "300\n", "total_inactive_file 400\n");
    must_be(8300, GROUP);
    put_v1("/sys/fs/cgroup/memory/a/b", "8300\n", "9000\n", "cache 5\n");
    must_be(0, GROUP);
}

/* The limit is of a group above, which a container does not see. */
STORY_AFTER(start, a_limit_that_only_the_sums_tell_bounds, put("/proc/self/cgroup", "4:memory:/\n"),
            put("/proc/self/mountinfo", V1_MOUNT),
            put_v1("/sys/fs/cgroup/memory", "9000\n", "300\n", "hierarchical_memory_limit 1300\n"),
            must_be(1000, GROUP))

MS_TEST_AFTER(start, groups_of_the_second_version_bound)
{
    put("/proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put_v2("/sys/fs/cgroup/a/b", "max\n", "max\n", "300\n");
    put_v2("/sys/fs/cgroup/a", "max\n", "max\n", "400\n");
    must_be(UINT64_MAX, "nothing"); /* the root has no such files */
    put_v2("/sys/fs/cgroup/a", "9300\n", "max\n", "400\n");
    must_be(9000, GROUP);
    put_v2("/sys/fs/cgroup/a/b", "8200\n", "max\n", "300\n");
    must_be(8000, GROUP);
    put_v2("/sys/fs/cgroup/a/b", "8200\n", "7200\n", "300\n"); /* who exceeds that is held up */
    must_be(7000, GROUP);
}

/* Without a namespace of groups the kernel names the group from the root of the machine on, and the
 * mount shows a part. */
MS_TEST_AFTER(start, a_container_has_its_group_where_it_is_mounted)
{
    put("/proc/self/cgroup", "4:memory:/docker/abc/job\n");
    put("/proc/self/mountinfo",
        "35 31 0:32 /docker/ab /mnt rw - cgroup cgroup rw,memory\n"
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put_v1("/mnt", "1\n", "1\n", "cache 5\n"); /* another container's */
    put_v1("/sys/fs/cgroup/memory", "5000\n", "400\n", "cache 5\n");
    must_be(4600, GROUP);
    put_v1("/sys/fs/cgroup/memory/job", "4000\n", "400\n", "cache 5\n");
    must_be(3600, GROUP);
}

/* As the mounts of a container are, whose layers are named in one line. */
MS_TEST_AFTER(start, lines_that_are_too_long_are_passed_over)
{
    for (size_t length = 900; length < 5000; length += 41) {
        char text[8192];
        memset(text, 'x', length);
        snprintf(text + length, sizeof(text) - length, " - overlay\n" V2_MOUNT);
        put("/proc/self/mountinfo", text);
        put("/proc/self/cgroup", "0::/a\n");
        put_v2("/sys/fs/cgroup/a", "9300\n", "max\n", "400\n");
        must_be(9000, GROUP);
    }
}

static void must_be_bound(struct ms_headroom headroom, const char *bound, uint64_t bytes)
{
    CHECK(strcmp(headroom.bound, bound) == 0);
    CHECK(headroom.bytes <= bytes && headroom.bytes + (64 << 20) > bytes);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

MS_TEST(limits_of_the_process_bound_addresses)
{
    enum { ROOM = 256 << 20 };
    if (IS_SANITIZED || ms_test_is_watched())
        ms_test_skip("a sanitizer has all addresses");
    CHECK_EQ(ms_headroom_find(MS_HEADROOM_PRIVATE).bytes, UINT64_MAX);
    struct rlimit limit = {.rlim_cur = ROOM, .rlim_max = RLIM_INFINITY};
    CHECK_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
    must_be_bound(ms_headroom_find(MS_HEADROOM_PRIVATE), "RLIMIT_DATA", ROOM);
    CHECK_EQ(ms_headroom_find(MS_HEADROOM_ADDRESSES).bytes, UINT64_MAX);
    CHECK(mmap(NULL, ROOM / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
          MAP_FAILED);
    must_be_bound(ms_headroom_find(MS_HEADROOM_PRIVATE), "RLIMIT_DATA", ROOM / 2);
    const struct rlimit locked = {.rlim_cur = 0, .rlim_max = 0};
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &locked), 0);
    must_be_bound(ms_headroom_find(MS_HEADROOM_PRIVATE), "RLIMIT_DATA", ROOM / 2);
    limit.rlim_cur = ROOM / 2 + (32 << 20);
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    must_be_bound(ms_headroom_find(MS_HEADROOM_ADDRESSES), "RLIMIT_AS", 32 << 20);
    limit.rlim_cur = 1; /* what is there already may be more */
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    CHECK_EQ(ms_headroom_find(MS_HEADROOM_PRIVATE).bytes, 0);
}
