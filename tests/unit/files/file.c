/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "runtime/driver/flags.h"
#include "runtime/files/descriptor.h"
#include "runtime/files/direct.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/file_name.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/host_snapshot.h"
#include "runtime/files/sums.h"
#include "runtime/state/counters.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_pages.h"
#include "tests/unit/files/files.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"

enum { BYTES = 1000 };

static struct test_file file;

static void start(void)
{
    make_test_file(&file, "/tmp", BYTES);
}

static struct ms_file *open_source(void)
{
    struct stat stat_;
    CHECK_EQ(stat(file.path, &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", file.path);
    return ms_trust_open(&mapping, BYTES);
}

MS_TEST_AFTER(start, a_file_is_one_source_and_is_left_behind_by_none)
{
    struct stat stat_;
    CHECK_EQ(stat(file.path, &stat_), 0);
    struct ms_file *again = open_source();
    CHECK(again == file.opened);
    ms_file_drop(again);
    CHECK(ms_source_file(file.source) == file.opened);
    CHECK(ms_source_snapshot(file.source) == NULL && ms_source_name(file.source) == NULL);
    CHECK_EQ(ms_file_state(file.opened), MS_FILE_IS_OPEN);
    CHECK(strcmp(ms_file_path(file.opened), file.path) == 0);
    CHECK_EQ(ms_file_stat(file.opened)->st_ino, stat_.st_ino);
    CHECK_EQ(ms_hot.files, 1);
    CHECK(ms_file_may_be_of(stat_.st_dev, stat_.st_ino));
    for (unsigned i = 1; i < 10000; i++) { /* some of them have the same hash */
        CHECK(!ms_file_may_be_of(stat_.st_dev, stat_.st_ino + i));
        CHECK(!ms_file_may_be_of(stat_.st_dev + i, stat_.st_ino));
    }
    const int before = count_open_there(), pieces = live;
    ms_file_drop(file.opened);
    CHECK(!ms_file_may_be_of(stat_.st_dev, stat_.st_ino));
    CHECK_EQ(ms_hot.files, 0);
    CHECK(ms_files.first == NULL);
    CHECK_EQ(count_open_there(), before - 1);
    CHECK_EQ(live, pieces - 1);
}

MS_TEST_AFTER(start, each_of_several_sources_leaves_by_itself)
{
    struct ms_file *first = file.opened, *second, *third;
    start();
    second = file.opened;
    start();
    third = file.opened;
    ms_file_drop(second);
    CHECK(ms_files.first == third && third->next == first && first->next == NULL);
    CHECK(ms_file_may_be_of(first->recorded.st_dev, first->recorded.st_ino));
    CHECK(ms_file_may_be_of(third->recorded.st_dev, third->recorded.st_ino));
    ms_file_drop(first);
    CHECK(ms_files.first == third && third->next == NULL);
    ms_file_drop(third);
    CHECK(ms_files.first == NULL);
}

MS_TEST_AFTER(start, a_source_without_memory_fails_and_leaves_nothing_open)
{
    const int before = count_open_there(), pieces = live;
    ms_file_drop(file.opened);
    may_make = 0;
    CHECK(open_source() == NULL);
    CHECK_EQ(count_open_there(), before - 1);
    CHECK_EQ(live, pieces - 1);
}

static void let_go(void *source)
{
    ms_file_let_go(source);
}

static void open_more(void *argument)
{
    struct ms_file *source = argument;
    atomic_store(&source->direct, ms_descriptor_open(file.path, O_RDONLY));
    atomic_store(&source->copy, ms_descriptor_open(file.path, O_RDONLY));
}

MS_TEST_AFTER(start, a_file_is_let_go_once_and_its_copy_goes_with_the_source)
{
    const struct stat recorded = *ms_file_stat(file.opened);
    const uint64_t sum = 2;
    const int before = count_open_there(), pieces = live;
    CHECK(ms_file_thread_call(open_more, file.opened));
    CHECK(ms_host_snapshot_count(BYTES, MS_SNAPSHOT_ANY));
    file.opened->recorded.st_size = MS_SUMS_PART;
    CHECK(ms_sums_add(file.opened, 0, &sum, 1));
    file.opened->recorded.st_size = BYTES;
    struct ms_file_name *name = ms_file_name_take(file.opened);
    CHECK_EQ(count_open_there(), before + 2);
    for (int i = 0; i < 2; i++) {
        CHECK(ms_file_thread_call(let_go, file.opened));
        CHECK_EQ(count_open_there(), before);
        CHECK_EQ(ms_hot.files, 0);
        CHECK_EQ(atomic_load(&file.opened->direct), MS_DIRECT_REFUSED);
        CHECK(!ms_file_may_be_of(recorded.st_dev, recorded.st_ino));
    }
    ms_file_drop(file.opened);
    CHECK_EQ(count_open_there(), before - 1);
    CHECK_EQ(ms_counter_get(MS_GAUGE_SNAPSHOT), 0);
    ms_file_name_drop(name);
    CHECK_EQ(live, pieces - 1);
}

STORY_AFTER(start, the_lease_of_a_source_goes_with_its_descriptor, ms_file_drop(file.opened),
            ms_config.leases = true, file.opened = open_source(),
            needs_lease(ms_lease_any(), file.path), IS(ms_file_thread_call(let_go, file.opened)),
            IS(!ms_lease_any()), ms_file_drop(file.opened))

/* --- descriptors that are not kept */

/* A source whose descriptor is the first behind half of the limit, or the last before it. */
static struct {
    const char *path; /* by which it is opened again */
    int descriptor;
    bool hides_stores;
    struct ms_file *source;
} wanted;

static void create_there(void *argument)
{
    struct stat stat;
    const struct ms_file_system system = {.hides_stores = wanted.hides_stores};
    struct ms_mapping mapping = {.device = 1, .inode = 2};
    const int low = ms_descriptor_open(file.path, O_RDONLY);
    const int high = fcntl(low, F_DUPFD_CLOEXEC, wanted.descriptor);
    CHECK_EQ(high, wanted.descriptor);
    ms_descriptor_close(low);
    snprintf(mapping.path, sizeof(mapping.path), "%s", wanted.path);
    CHECK(ms_descriptor_stat_cached(high, &stat));
    wanted.source = ms_file_create(high, &stat, &system, &mapping);
    (void)argument;
}

static struct ms_file *create(const char *path, int descriptor, bool hides_stores)
{
    struct rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 400;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    wanted.path = path;
    wanted.descriptor = descriptor;
    wanted.hides_stores = hides_stores;
    CHECK(ms_file_thread_call(create_there, NULL));
    CHECK(wanted.source != NULL);
    needs_own_table(ms_file_thread_has_own_table());
    return wanted.source;
}

static struct ms_file_failure failure;
static bool is_begun;

static void begin_use(void *source)
{
    is_begun = ms_file_begin_use(source, &failure);
}

static void end_use(void *source)
{
    ms_file_end_use(source);
}

static bool begin(struct ms_file *source)
{
    failure = (struct ms_file_failure){0};
    CHECK(ms_file_thread_call(begin_use, source));
    return is_begun;
}

static void end(struct ms_file *source)
{
    CHECK(ms_file_thread_call(end_use, source));
}

MS_TEST_AFTER(start, half_of_the_descriptors_are_for_files_that_stay_open)
{
    const int before = count_open_there();
    CHECK(create(file.path, 199, false)->stays_open);
    CHECK(wanted.source->mapped_device == 1 && wanted.source->mapped_inode == 2);
    CHECK(begin(wanted.source));
    CHECK_EQ(wanted.source->users, 1);
    end(wanted.source);
    CHECK_EQ(wanted.source->users, 1);
    ms_file_drop(wanted.source);
    CHECK(create("/nowhere", 200, false)->stays_open); /* it could not be opened again */
    ms_file_drop(wanted.source);
    CHECK(create("/dev/null", 200, false)->stays_open); /* nor this one */
    ms_file_drop(wanted.source);
    CHECK(!create(file.path, 200, false)->stays_open);
    CHECK_EQ(count_open_there(), before + 1);
    end(wanted.source);
    CHECK_EQ(count_open_there(), before);
    ms_file_drop(wanted.source);
    CHECK_EQ(count_open_there(), before);
}

MS_TEST_AFTER(start, the_first_use_opens_a_file_and_the_last_one_closes_it)
{
    const int before = count_open_there();
    struct ms_file *source = create(file.path, 200, false);
    end(source);
    CHECK_EQ(source->descriptor, -1);
    for (int i = 0; i < 2; i++) {
        CHECK(begin(source) && begin(source));
        CHECK(source->descriptor >= 0);
        CHECK_EQ(count_open_there(), before + 1);
        end(source);
        CHECK(source->descriptor >= 0);
        end(source);
        CHECK_EQ(source->descriptor, -1);
        CHECK_EQ(count_open_there(), before);
    }
    atomic_store(&source->copy, 99);
    CHECK(begin(source));
    CHECK_EQ(source->descriptor, -1);
    end(source);
    atomic_store(&source->copy, -1);
    ms_file_drop(source);
}

MS_TEST_AFTER(start, a_file_that_cannot_be_opened_again_says_why)
{
    struct ms_file *source = create(file.path, 200, false);
    end(source);
    const int before = count_open_there();
    CHECK_EQ(rename(file.path, "/tmp/metashard-unit-renamed"), 0);
    CHECK(!begin(source));
    CHECK(failure.file == source && failure.kind == MS_FAILURE_LOST && failure.error == ENOENT);
    CHECK_EQ(source->users, 0);
    close(open(file.path, O_WRONLY | O_CREAT, 0600));
    CHECK(!begin(source));
    CHECK(failure.file == source && failure.kind == MS_FAILURE_CHANGED && failure.error == 0);
    CHECK_EQ(failure.now.st_size, 0);
    CHECK_EQ(source->users, 0);
    CHECK_EQ(rename("/tmp/metashard-unit-renamed", file.path), 0);
    CHECK(begin(source));
    end(source);
    CHECK_EQ(count_open_there(), before);
    ms_file_drop(source);
}

/* --- writers */

static int watches;

/* How many files are watched. */
static void count_watches_there(void *argument)
{
    char path[64], line[256];
    watches = 0;
    for (int number = 0; number < 400; number++) {
        snprintf(path, sizeof(path), "/proc/thread-self/fdinfo/%d", number);
        FILE *info = fopen(path, "r");
        while (info != NULL && fgets(line, sizeof(line), info) != NULL)
            watches += strncmp(line, "inotify ", strlen("inotify ")) == 0;
        if (info != NULL)
            fclose(info);
    }
    (void)argument;
}

static int count_watches(void)
{
    CHECK(ms_file_thread_call(count_watches_there, NULL));
    return watches;
}

static bool had_one;

static void look_there(void *source)
{
    had_one = ms_file_had_writer(source);
}

static bool had_writer(struct ms_file *source)
{
    CHECK(ms_file_thread_call(look_there, source));
    return had_one;
}

static void write_once(const char *path)
{
    const int writer = open(path, O_WRONLY);
    CHECK(writer >= 0);
    close(writer);
}

MS_TEST_AFTER(start, a_source_had_a_writer_once_one_has_closed_its_file)
{
    struct ms_file *other = create(file.path, 100, true), *unwatched;
    start();
    struct ms_file *first = create(file.path, 101, true);
    struct ms_file *second = create(file.path, 102, true);
    unwatched = create(file.path, 103, false);
    close(open(file.path, O_RDONLY));
    CHECK_EQ(count_watches(), 2);
    CHECK(!had_writer(first) && !had_writer(second));
    ms_file_drop(second); /* the first one is still watched */
    CHECK_EQ(count_watches(), 2);
    write_once(file.path);
    CHECK(had_writer(first));
    CHECK(had_writer(first));
    CHECK(!had_writer(other) && !had_writer(unwatched));
    ms_file_drop(first);
    CHECK_EQ(count_watches(), 1);
    struct ms_file *third = create(file.path, 101, true);
    CHECK(!had_writer(third));
    CHECK(ms_file_thread_call(let_go, third)); /* nobody is watched for */
    write_once(file.path);
    CHECK(!had_writer(third));
    CHECK_EQ(third->watch, -1);
    ms_file_drop(third);
    CHECK_EQ(count_watches(), 1);
    ms_file_drop(other);
    CHECK_EQ(count_watches(), 0);
    ms_file_drop(unwatched);
}

/* --- locks */

static bool is_ending;

static void ask_there(void *source)
{
    is_ending = ms_file_ends_locks(source);
}

static bool ends_locks(void)
{
    CHECK(ms_file_thread_call(ask_there, file.opened));
    return is_ending;
}

static void lock_file(int kind)
{
    struct flock lock = {.l_type = (short)kind, .l_whence = SEEK_SET};
    CHECK_EQ(fcntl(file.descriptor, F_SETLK, &lock), 0);
}

STORY_AFTER(start, locks_end_only_in_the_program_s_own_table, IS(!ends_locks()),
            needs_own_table(ms_file_thread_has_own_table()), lock_file(F_RDLCK), IS(!ends_locks()))

MS_TEST(locks_end_where_there_is_no_other_table)
{
    deny(SYS_unshare, EPERM);
    deny(436, EPERM); /* close_range */
    start();
    CHECK(!ends_locks());
    lock_file(F_RDLCK);
    CHECK(ends_locks());
}

/* --- whether a file stays open */

static int has_table = -1, has_room = -1; /* -1: as it is */

WRAPS(ms_file_thread_has_own_table, ms_descriptor_leaves_room);
bool __wrap_ms_file_thread_has_own_table(void)
{
    return has_table >= 0 ? has_table : __real_ms_file_thread_has_own_table();
}

bool __wrap_ms_descriptor_leaves_room(int descriptor, unsigned of_four)
{
    return has_room >= 0 ? has_room : __real_ms_descriptor_leaves_room(descriptor, of_four);
}

/* In the program's table a file stays open, and so takes no descriptor again and again. */
MS_TEST(a_file_is_closed_between_uses_where_a_table_of_its_own_is_nearly_full)
{
    static struct test_file files[4];
    for (int i = 0; i < 4; i++) {
        has_table = i & 1;
        has_room = i >> 1;
        make_test_file(&files[i], "/tmp", 4096);
        CHECK_EQ(files[i].opened->stays_open, !has_table || has_room);
        ms_file_drop(files[i].opened);
    }
}
