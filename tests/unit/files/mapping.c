/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files/descriptor.h"
#include "runtime/files/file.h"
#include "runtime/files/file_thread.h"
#include "runtime/files/trust.h"
#include "runtime/finding/find.h"
#include "runtime/finding/held_files.h"
#include "runtime/loading/source_read.h"
#include "tests/unit/between.h"
#include "tests/unit/files/kernel.h"
#include "tools/simcuda/harness/deny.h"

enum { BYTES = 256 << 10 };

static char path[64] = "/tmp/metashard-mapping-XXXXXX";
static int file;

static void remove_file(void)
{
    unlink(path);
}

/* A file of BYTES bytes with a known content, removed when the test ends. */
static void make_file(void)
{
    file = mkstemp(path);
    CHECK(file >= 0);
    atexit(remove_file);
    unsigned char *bytes = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 >> 3);
    CHECK_EQ(write(file, bytes, BYTES), BYTES);
    free(bytes);
    close(file); /* nobody writes */
    file = open(path, O_RDONLY);
    CHECK(file >= 0);
}

static unsigned char *map(int protection, int flags)
{
    const bool stores = (flags & MAP_SHARED) != 0 && (protection & PROT_WRITE) != 0;
    const int opened = open(path, stores ? O_RDWR : O_RDONLY);
    unsigned char *address = mmap(NULL, BYTES, protection, flags, opened >= 0 ? opened : file, 0);
    CHECK(address != MAP_FAILED);
    if (opened >= 0)
        close(opened);
    return address;
}

/* As who has nothing open of it before, or after. */
static void write_byte(void)
{
    const int writer = open(path, O_WRONLY);
    CHECK_EQ(pwrite(writer, "x", 1, 5), 1);
    close(writer);
}

static struct ms_file *find(const unsigned char *address, size_t bytes, uint64_t *offset_out)
{
    return ms_find_file(address, bytes, offset_out);
}

/* The source of the whole file, as it is then. */
static struct stat found_as;

static struct ms_file *find_whole(void)
{
    uint64_t offset;
    struct ms_file *source = find(map(PROT_READ, MAP_PRIVATE), BYTES, &offset);
    CHECK(source != NULL);
    CHECK_EQ(fstat(file, &found_as), 0);
    return source;
}

/* To what it was then, or a nanosecond beside it. */
static void set_time_back(long beside_ns)
{
    struct timespec times[2] = {found_as.st_atim, found_as.st_mtim};
    times[1].tv_nsec ^= beside_ns;
    CHECK_EQ(futimens(file, times), 0);
}

/* The driver writes to files of its own under a claim, and who prepares a file waits for claims. */
MS_TEST(no_other_inode_is_taken_for_that_of_a_source)
{
    enum { MANY = 10000 }; /* many times the hashes of inodes */
    make_file();
    uint64_t offset;
    struct stat stat;
    CHECK_EQ(fstat(file, &stat), 0);
    struct ms_file *source = find(map(PROT_READ, MAP_PRIVATE), 100000, &offset);
    needs_mappings(source != NULL, path);
    CHECK(ms_file_may_be_of(stat.st_dev, stat.st_ino));
    for (ino_t other = 1; other < MANY; other++)
        CHECK(!ms_file_may_be_of(stat.st_dev, stat.st_ino + other));
    ms_file_drop(source);
    CHECK(!ms_file_may_be_of(stat.st_dev, stat.st_ino));
}

MS_TEST_AFTER(make_file, a_clean_private_mapping_is_the_file)
{
    unsigned char *address = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    uint64_t offset;
    struct ms_file *source = find(address + 1000, 100000, &offset);
    needs_mappings(source != NULL, path);
    CHECK_EQ(offset, 1000);
    unsigned char *buffer = malloc(100000);
    const void *bytes;
    CHECK_EQ(ms_source_read(ms_file_source(source), offset, buffer, 100000, &bytes), CUDA_SUCCESS);
    CHECK_BYTES(bytes, address + 1000, 100000);
    free(buffer);
    ms_file_drop(source);
}

MS_TEST_AFTER(make_file, a_written_private_page_is_not_the_file)
{
    unsigned char *address = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    address[70000] = 1;
    uint64_t offset;
    CHECK(find(address, BYTES, &offset) == NULL);
    CHECK(find(address + 69000, 1500, &offset) == NULL);
    CHECK(find(address + 128 * 1024, 1000, &offset) != NULL); /* pages away from it still are */
}

MS_TEST_AFTER(make_file, a_file_that_can_be_stored_to_is_not_trusted)
{
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    map(PROT_READ | PROT_WRITE, MAP_SHARED);
    uint64_t offset;
    CHECK(find(address, BYTES, &offset) == NULL);
}

MS_TEST(memory_without_a_file_has_no_source)
{
    uint64_t offset;
    unsigned char *heap = malloc(BYTES);
    memset(heap, 1, BYTES);
    CHECK(find(heap, BYTES, &offset) == NULL);
    free(heap);
}

MS_TEST_AFTER(make_file, a_range_behind_the_end_of_the_file_is_not_trusted)
{
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    CHECK_EQ(truncate(path, 100000), 0);
    uint64_t offset;
    CHECK(find(address, 100001, &offset) == NULL);
    CHECK(find(address, 100000, &offset) != NULL);
}

/* A write through it is seen by no one. */
MS_TEST_AFTER(make_file, a_file_that_is_open_for_writing_is_not_trusted)
{
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_file *source = find(address, BYTES, &offset);
    needs_mappings(source != NULL, path);
    ms_file_drop(source);
    const int flags[] = {O_WRONLY, O_RDWR, O_RDWR | O_APPEND};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        const int writer = open(path, flags[i] | O_CLOEXEC);
        CHECK(writer >= 0);
        CHECK(find(address, BYTES, &offset) == NULL);
        CHECK_EQ(close(writer), 0);
        source = find(address, BYTES, &offset);
        CHECK(source != NULL);
        ms_file_drop(source);
    }
}

static CUresult read_all(struct ms_file *source)
{
    static unsigned char buffer[BYTES];
    const void *bytes;
    return ms_source_read(ms_file_source(source), 0, buffer, BYTES, &bytes);
}

MS_TEST_AFTER(make_file, a_file_overwritten_later_is_refused)
{
    struct ms_file *source = find_whole();
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    write_byte(); /* same size, at once after the recording */
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST_AFTER(make_file, a_modification_time_set_back_does_not_hide_a_change)
{
    struct ms_file *source = find_whole();
    write_byte();
    set_time_back(0);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST_AFTER(make_file, a_truncated_file_is_refused)
{
    struct ms_file *source = find_whole();
    CHECK_EQ(truncate(path, BYTES / 2), 0);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST_AFTER(make_file, an_unlinked_file_still_works)
{
    struct ms_file *source = find_whole();
    unlink(path);
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
}

/* Another link, or one less, is innocent; but not what comes with the next change time. */
MS_TEST(a_link_does_not_hide_what_comes_later)
{
    char other[sizeof(path) + 2];
    make_file();
    struct ms_file *source = find_whole();
    snprintf(other, sizeof(other), "%s-2", path);
    CHECK_EQ(link(path, other), 0);
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    write_byte();
    set_time_back(0);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
    unlink(other);
}

/* Without a lease, a new number of links can hide a write before the next check whose modification
 * time is set back to the nanosecond. A new number hides nothing else. */
MS_TEST(a_link_hides_a_write_whose_time_is_set_back)
{
    char other[sizeof(path) + 2];
    make_file();
    struct ms_file *source = find_whole();
    snprintf(other, sizeof(other), "%s-2", path);
    write_byte();
    CHECK_EQ(link(path, other), 0);
    set_time_back(0);
    CHECK_EQ(read_all(source), CUDA_SUCCESS);
    unlink(other);
    set_time_back(1);
    CHECK_EQ(read_all(source), CUDA_ERROR_OPERATING_SYSTEM);
}

/* Opening a pipe, a terminal or a tape has side effects. */
MS_TEST_AFTER(make_file, a_name_that_leads_to_no_file_is_not_opened)
{
    char events[4096];
    struct stat stat_;
    unlink(path);
    CHECK_EQ(mkfifo(path, 0600), 0);
    CHECK_EQ(stat(path, &stat_), 0);
    struct ms_mapping mapping = {.device = stat_.st_dev, .inode = stat_.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", path);
    const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    CHECK(watch >= 0 && inotify_add_watch(watch, path, IN_OPEN) >= 0);
    CHECK(ms_trust_open(&mapping, 0) == NULL);
    CHECK_EQ(read(watch, events, sizeof(events)), -1);
    close(watch);
}

MS_TEST_AFTER(make_file, two_tensors_of_one_file_share_a_descriptor)
{
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_file *first = find(address, 70000, &offset);
    struct ms_file *second = find(address + 80000, 70000, &offset);
    CHECK(first != NULL && first == second);
    CHECK_EQ(offset, 80000);
    ms_file_drop(first);
    CHECK_EQ(read_all(second), CUDA_SUCCESS);
    ms_file_drop(second);
}

/* A file on an overlay whose lower layer is another file system: fstat and the kernel's list of
 * mappings disagree about its device. Needs the right to mount. */
static bool enter_overlay(char *folder)
{
    char options[200];
    CHECK(mkdtemp(folder) != NULL);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, NULL) != 0 || chdir(folder) != 0)
        return false;
    static const char *const names[] = {"lower", "other", "merged"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK_EQ(mkdir(names[i], 0700), 0);
    if (mount("tmpfs", "other", "tmpfs", 0, NULL) != 0)
        return false;
    CHECK_EQ(mkdir("other/upper", 0700), 0);
    CHECK_EQ(mkdir("other/work", 0700), 0);
    snprintf(options, sizeof(options), "lowerdir=lower,upperdir=other/upper,workdir=other/work");
    const int made = open("lower/file", O_RDWR | O_CREAT, 0600);
    CHECK_EQ(ftruncate(made, BYTES), 0);
    CHECK_EQ(pwrite(made, "checkpoint", 10, 100000), 10);
    close(made);
    return mount("overlay", "merged", "overlay", 0, options) == 0;
}

static char overlay[] = "/tmp/metashard-overlay-XXXXXX";

static void start_on_overlay(void)
{
    if (!enter_overlay(overlay)) {
        rmdir(overlay);
        ms_test_skip("overlays cannot be mounted here");
    }
    strcpy(path, "merged/file");
}

static void leave_overlay(void)
{
    if (chdir("/") == 0 && umount2(overlay, MNT_DETACH) == 0)
        rmdir(overlay);
}

MS_TEST_BETWEEN(start_on_overlay, leave_overlay, a_file_on_an_overlay_is_found)
{
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_file *source = find(address + 100000, 70000, &offset);
    CHECK(source != NULL);
    unsigned char seen[10];
    const void *bytes;
    CHECK_EQ(ms_source_read(ms_file_source(source), offset, seen, sizeof(seen), &bytes),
             CUDA_SUCCESS);
    CHECK_BYTES(bytes, "checkpoint", 10);
    ms_file_drop(source);
}

/* Neither the lease nor the writers of an overlay's file include its mappings. */
static void check_stored_to_on_overlay(int protection)
{
    uint64_t offset;
    write_byte(); /* the file is the upper one from now on */
    const int writer = open(path, O_RDWR);
    unsigned char *stored = mmap(NULL, BYTES, protection, MAP_SHARED, writer, 0);
    CHECK(stored != MAP_FAILED);
    close(writer);
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    CHECK(find(address, BYTES, &offset) == NULL);
    munmap(stored, BYTES);
    CHECK(find(address, BYTES, &offset) != NULL);
}

MS_TEST_BETWEEN(start_on_overlay, leave_overlay,
                a_file_on_an_overlay_that_can_be_stored_to_is_not_trusted)
{
    check_stored_to_on_overlay(PROT_READ | PROT_WRITE);
}

MS_TEST_BETWEEN(start_on_overlay, leave_overlay,
                a_file_on_an_overlay_that_mprotect_can_make_so_is_not_trusted)
{
    check_stored_to_on_overlay(PROT_READ);
}

/* The mapping goes on showing the lower file; what is opened under its name, device and inode is
 * the upper one. */
MS_TEST_BETWEEN(start_on_overlay, leave_overlay, a_file_that_was_copied_up_is_not_what_is_mapped)
{
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    const int writer = open(path, O_WRONLY);
    CHECK_EQ(pwrite(writer, "CHECKPOINT", 10, 100000), 10);
    close(writer);
    CHECK_BYTES(address + 100000, "checkpoint", 10);
    struct ms_file *changed = find(address + 100000, 70000, &offset);
    struct ms_file *same = find(address, 70000, &offset);
    CHECK(changed == NULL);
    CHECK(same != NULL);
    ms_file_drop(same);
}

/* Nor is what a descriptor from before that reads, which cannot be compared with it. */
MS_TEST_BETWEEN(start_on_overlay, leave_overlay, a_file_on_an_overlay_is_not_held)
{
    const int direct = open(path, O_RDONLY | O_DIRECT);
    if (direct < 0)
        ms_test_skip("nothing is read past the page cache here");
    CHECK_EQ(ms_held_files_hold(direct), 0);
}

/* --- the two ways to look: asking the kernel for a mapping, and reading its list, which older
 * kernels leave */

enum { PLACES = 64, FILES = 4, PAGE = 4096, SHOTS = 4000 };

struct sight {
    bool is_found, is_stored_to;
    struct ms_mapping mapping;
};

struct visits {
    size_t count;
    uint64_t sum; /* of what they say, in their order */
};

static void add_visit(void *context, const struct ms_mapping *mapping)
{
    struct visits *visits = context;
    const uint64_t facts[] = {mapping->begin, mapping->end, mapping->device, mapping->inode,
                              (uint64_t)mapping->shared};
    visits->count++;
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
        visits->sum = visits->sum * 1099511628211u + facts[i];
    for (const char *at = mapping->path; *at != '\0'; at++)
        visits->sum = visits->sum * 1099511628211u + (unsigned char)*at;
}

/* Pages of several files, private and shared, with and without the right to write, some of them
 * written; and of none. */
static unsigned char *make_zoo(const int *files)
{
    unsigned char *zoo =
        mmap(NULL, (size_t)PLACES * 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(zoo != MAP_FAILED);
    for (size_t i = 0; i < PLACES; i++) {
        static const int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
        /* The files but the first are stored to in few places. */
        const int one = rand() % FILES, protection = protections[rand() % (one == 0 ? 2 : 3)];
        const int sharing = rand() % 8 == 0 ? MAP_SHARED : MAP_PRIVATE;
        const int pages = 1 + rand() % 4;
        unsigned char *place = zoo + i * 4 * PAGE;
        if (rand() % 5 == 0)
            continue;
        CHECK(mmap(place, (size_t)pages * PAGE, protection, sharing | MAP_FIXED, files[one],
                   (off_t)(rand() % 3) * PAGE) == place);
        if ((protection & PROT_WRITE) != 0 && sharing == MAP_PRIVATE && rand() % 2 == 0)
            place[rand() % (pages * PAGE)] = 1;
    }
    return zoo;
}

static void look(unsigned char *zoo, struct sight *sights, struct visits *visits)
{
    bool lasts;
    srand(2);
    for (size_t i = 0; i < SHOTS; i++) {
        const size_t at = (size_t)rand() % (PLACES * 4 * PAGE), most = PLACES * 4 * PAGE - at;
        const size_t wanted = 1 + (size_t)rand() % (rand() % 2 == 0 ? 100 : 5 * PAGE);
        struct sight *sight = &sights[i];
        sight->is_found = ms_mapping_find(zoo + at, wanted < most ? wanted : most, &sight->mapping);
        if (sight->is_found)
            sight->is_stored_to =
                ms_mapping_is_stored_to(sight->mapping.device, sight->mapping.inode, &lasts);
    }
    CHECK(ms_mapping_visit(add_visit, visits));
}

static void check_same_sight(const struct sight *asked, const struct sight *read)
{
    CHECK_EQ(asked->is_found, read->is_found);
    if (!asked->is_found)
        return;
    CHECK_EQ(asked->is_stored_to, read->is_stored_to);
    CHECK_EQ(asked->mapping.begin, read->mapping.begin);
    CHECK_EQ(asked->mapping.end, read->mapping.end);
    CHECK_EQ(asked->mapping.file_offset, read->mapping.file_offset);
    CHECK_EQ(asked->mapping.device, read->mapping.device);
    CHECK_EQ(asked->mapping.inode, read->mapping.inode);
    CHECK_EQ(asked->mapping.shared, read->mapping.shared);
    CHECK(strcmp(asked->mapping.path, read->mapping.path) == 0);
}

MS_TEST(asking_and_reading_find_the_same)
{
    static struct sight asked[SHOTS], read[SHOTS];
    struct visits asked_visits = {0}, read_visits = {0};
    int files[FILES];
    size_t found = 0;
    srand(1);
    for (size_t i = 0; i < FILES; i++) {
        char name[] = "/tmp/metashard-mapping-XXXXXX";
        files[i] = mkstemp(name);
        CHECK(files[i] >= 0 && ftruncate(files[i], 16 * PAGE) == 0);
        if (i > 0) /* one has a name, and the others have lost it */
            unlink(name);
        else
            strcpy(path, name);
    }
    atexit(remove_file);
    unsigned char *zoo = make_zoo(files);
    look(zoo, asked, &asked_visits);
    deny(SYS_ioctl, ENOTTY);
    look(zoo, read, &read_visits);
    for (size_t i = 0; i < SHOTS; i++) {
        check_same_sight(&asked[i], &read[i]);
        found += asked[i].is_found;
    }
    CHECK(found > SHOTS / 50 && found < SHOTS / 2);
    CHECK(asked_visits.count > 3);
    CHECK_EQ(asked_visits.count, read_visits.count);
    CHECK_EQ(asked_visits.sum, read_visits.sum);
}

/* As with a driver, whose devices and pinned memory are all mapped shared and writable. */
static void map_many_shared(void)
{
    for (int i = 0; i < 200; i++)
        CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) !=
              MAP_FAILED);
}

static void check_among_many_shared(void)
{
    make_file();
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    struct ms_mapping mapping;
    bool lasts;
    CHECK(ms_mapping_find(address, BYTES, &mapping));
    map_many_shared();
    CHECK(ms_mapping_find(address, BYTES, &mapping));
    CHECK(!ms_mapping_is_stored_to(mapping.device, mapping.inode, &lasts) && lasts);
    map(PROT_READ | PROT_WRITE, MAP_SHARED);
    map_many_shared();
    CHECK(ms_mapping_find(address, BYTES, &mapping));
    CHECK(ms_mapping_is_stored_to(mapping.device, mapping.inode, &lasts));
}

/* Longer than any call takes: its folders are entered one by one. */
static void check_long_path(void)
{
    enum { FOLDERS = 20, LETTERS = 250 };
    char name[LETTERS + 1];
    struct ms_mapping mapping;
    struct stat stat;
    memset(name, 'd', LETTERS);
    name[LETTERS] = '\0';
    const int before = open(".", O_RDONLY | O_DIRECTORY);
    CHECK_EQ(chdir("/tmp"), 0);
    name[0] = 'a' + (char)(getpid() % 26); /* another run may be at work */
    for (int i = 0; i < FOLDERS; i++)
        CHECK(mkdir(name, 0700) == 0 && chdir(name) == 0);
    const int opened = open("f", O_RDWR | O_CREAT, 0600);
    CHECK(ftruncate(opened, BYTES) == 0 && fstat(opened, &stat) == 0);
    void *address = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, opened, 0);
    const bool is_found = ms_mapping_find(address, BYTES, &mapping);
    CHECK(unlink("f") == 0 && munmap(address, BYTES) == 0 && close(opened) == 0);
    for (int i = 0; i < FOLDERS; i++)
        CHECK(chdir("..") == 0 && rmdir(name) == 0);
    CHECK(fchdir(before) == 0 && close(before) == 0);
    CHECK(is_found && mapping.inode == stat.st_ino && mapping.device == stat.st_dev);
    CHECK_EQ(mapping.path[0], '\0');
}

MS_TEST_AFTER(make_file, a_file_with_too_long_a_path_is_found_without_one)
{
    struct ms_mapping mapping;
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    needs_mappings(ms_mapping_find(address, BYTES, &mapping), path);
    check_long_path();
    deny(SYS_ioctl, ENOTTY); /* as an older kernel */
    check_long_path();
}

/* --- what is opened */

static struct ms_mapping mapping_of(const char *name)
{
    struct stat stat;
    CHECK_EQ(lstat(name, &stat), 0);
    struct ms_mapping mapping = {.device = stat.st_dev, .inode = stat.st_ino};
    snprintf(mapping.path, sizeof(mapping.path), "%s", name);
    return mapping;
}

MS_TEST_AFTER(make_file, a_mapping_of_no_regular_file_is_not_opened)
{
    struct ms_mapping mapping = mapping_of(path);
    CHECK(ms_mapping_open(&mapping) >= 0);
    unlink(path);
    CHECK_EQ(mkfifo(path, 0600), 0);
    mapping = mapping_of(path);
    CHECK_EQ(ms_mapping_open(&mapping), -1);
    mapping = mapping_of("/dev/null");
    CHECK_EQ(ms_mapping_open(&mapping), -1);
    mapping = mapping_of("/tmp");
    CHECK_EQ(ms_mapping_open(&mapping), -1);
}

MS_TEST_AFTER(make_file, another_file_of_that_name_is_not_taken_for_the_mapped_one)
{
    struct ms_mapping mapping = mapping_of(path);
    mapping.inode++;
    CHECK_EQ(ms_mapping_open(&mapping), -1);
    mapping = mapping_of(path);
    mapping.device++;
    CHECK_EQ(ms_mapping_open(&mapping), -1);
}

MS_TEST(a_file_is_found_among_many_shared_mappings)
{
    check_among_many_shared();
}

STORY_ALONE(a_file_is_found_among_many_shared_mappings_by_reading, deny(SYS_ioctl, ENOTTY),
            check_among_many_shared())

/* --- pages that a handler of the program gives (userfaultfd), which are not the file's */

static struct {
    int faults;
    size_t page_bytes;
    unsigned char *page;
} handler;

static void *give_pages(__attribute__((unused)) void *argument)
{
    struct uffd_msg message;
    while (read(handler.faults, &message, sizeof(message)) == sizeof(message)) {
        const uint64_t at = message.arg.pagefault.address & ~(uint64_t)(handler.page_bytes - 1);
        struct uffdio_copy copy = {.dst = at,
                                   .src = (uintptr_t)handler.page,
                                   .len = handler.page_bytes};
        ioctl(handler.faults, UFFDIO_COPY, &copy);
    }
    return NULL;
}

static bool start_handler(const unsigned char *mapped, size_t bytes)
{
    static pthread_t thread;
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(uintptr_t)mapped, bytes},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    handler.page = malloc(handler.page_bytes);
    memset(handler.page, 0x5a, handler.page_bytes);
    handler.faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    return handler.faults >= 0 && ioctl(handler.faults, UFFDIO_API, &api) == 0 &&
           ioctl(handler.faults, UFFDIO_REGISTER, &range) == 0 &&
           pthread_create(&thread, NULL, give_pages, NULL) == 0;
}

/* A file with holes, for which there are no pages. */
static unsigned char *map_holes(const char *folder, size_t bytes)
{
    snprintf(path, sizeof(path), "%s/XXXXXX", folder);
    const int writer = mkstemp(path);
    if (writer < 0 || ftruncate(writer, (off_t)bytes) != 0)
        ms_test_skip("no such memory here");
    atexit(remove_file);
    close(writer);
    file = open(path, O_RDONLY);
    unsigned char *mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED)
        ms_test_skip("no such memory here");
    return mapped;
}

/* The first pages are there before, the others are given when they are copied. */
static void check_given_pages(const char *folder, size_t page_bytes, size_t there)
{
    static unsigned char seen[16 << 20];
    const size_t bytes = 4 * page_bytes;
    uint64_t offset;
    const void *from;
    handler.page_bytes = page_bytes;
    unsigned char *mapped = map_holes(folder, bytes);
    for (size_t i = 0; i < there; i++)
        CHECK_EQ(*(volatile unsigned char *)&mapped[i * page_bytes], 0);
    if (!start_handler(mapped, bytes))
        ms_test_skip("no userfaultfd for such memory here");
    struct ms_file *source = find(mapped, bytes, &offset);
    for (size_t i = 0; i < 4; i++)
        CHECK_EQ(mapped[i * page_bytes], i < there ? 0 : 0x5a);
    if (source == NULL)
        return; /* the memory is copied */
    CHECK_EQ(ms_source_read(ms_file_source(source), offset, seen, bytes, &from), CUDA_SUCCESS);
    CHECK_BYTES(seen, mapped, bytes);
}

MS_TEST(given_pages_of_a_file_in_memory)
{
    check_given_pages("/dev/shm", 4096, 0);
}

MS_TEST(given_pages_beside_those_of_the_file)
{
    check_given_pages("/dev/shm", 4096, 2);
}

static char huge[] = "/tmp/metashard-huge-XXXXXX";

static void remove_huge(void)
{
    umount2(huge, MNT_DETACH);
    rmdir(huge);
}

MS_TEST(given_pages_that_are_huge)
{
    CHECK(mkdtemp(huge) != NULL);
    atexit(remove_huge);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", huge, "hugetlbfs", 0, "pagesize=2M") != 0)
        ms_test_skip("no huge pages can be mounted here");
    check_given_pages(huge, 2 << 20, 0);
}

MS_TEST(a_file_is_opened_again_if_it_is_that_file)
{
    struct stat wanted, found;
    make_file();
    CHECK_EQ(fstat(file, &wanted), 0);
    const int opened = ms_mapping_open_again(path, &wanted, &found);
    CHECK(opened >= 0 && found.st_ino == wanted.st_ino && found.st_size == BYTES);
    ms_mapping_close(opened);
    struct stat other_inode = wanted, other_device = wanted;
    other_inode.st_ino++;
    other_device.st_dev++;
    errno = EBADF;
    CHECK(ms_mapping_open_again(path, &other_inode, &found) == -1 && errno == 0);
    errno = EBADF;
    CHECK(ms_mapping_open_again(path, &other_device, &found) == -1 && errno == 0);
    unlink(path);
    CHECK(ms_mapping_open_again(path, &wanted, &found) == -1 && errno != 0);
}

/* Nobody need have touched it before. */
static void check_untouched(void)
{
    uint64_t offset;
    unsigned char *mapped = map_holes("/dev/shm", BYTES);
    nanosleep(&(struct timespec){.tv_nsec = 30 * 1000 * 1000}, NULL);
    CHECK(find(mapped, BYTES, &offset) != NULL);
}

MS_TEST(a_file_in_memory_that_nobody_has_touched_is_a_source)
{
    if (ms_test_is_watched())
        ms_test_skip("an emulator hides which pages are a file's");
    check_untouched();
}

/* Before Linux 5.14. */
STORY_ALONE(an_untouched_file_in_memory_is_a_source_before_linux_5_14,
            deny_with(SYS_madvise, 2, 22, EINVAL), check_untouched())

/* --- files that the program has leased */

static bool may_be_opened(dev_t device_beside, ino_t inode_beside)
{
    struct stat stat_of, found;
    CHECK_EQ(fstat(file, &stat_of), 0);
    if (device_beside != 0 || inode_beside != 0)
        ms_mapping_note_lease(stat_of.st_dev + device_beside, stat_of.st_ino + inode_beside);
    const int opened = ms_mapping_open_again(path, &stat_of, &found);
    if (opened >= 0)
        ms_mapping_close(opened);
    return opened >= 0;
}

MS_TEST_AFTER(make_file, a_file_with_a_lease_of_the_program_is_not_opened)
{
    struct stat stat_of;
    CHECK_EQ(fstat(file, &stat_of), 0);
    CHECK(may_be_opened(0, 0));
    CHECK(may_be_opened(1, 0));
    CHECK(may_be_opened(0, 1));
    ms_mapping_note_lease(stat_of.st_dev, stat_of.st_ino);
    CHECK(!may_be_opened(0, 0));
    CHECK(!may_be_opened(0, 2));
}

MS_TEST_AFTER(make_file, any_file_may_have_a_lease_past_the_most_that_are_known)
{
    enum { MOST = 16 };
    for (unsigned i = 1; i <= MOST; i++) {
        CHECK(may_be_opened(0, i));
        CHECK(may_be_opened(0, i)); /* the same one again takes no place */
    }
    CHECK(!may_be_opened(0, MOST + 1));
    CHECK(!may_be_opened(0, MOST + 2));
}

/* --- bytes that may not be there */

/* Three pages, of which the second may not be read. */
static unsigned char *make_pages(size_t page)
{
    unsigned char *pages =
        mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    for (size_t i = 0; i < 3 * page; i++)
        pages[i] = (unsigned char)(i * 11 + i / 256);
    CHECK_EQ(mprotect(pages + page, page, PROT_NONE), 0);
    return pages;
}

static void check_peek(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const struct {
        size_t begin, bytes;
        bool is_there;
    } rows[] = {
        {0, page, true},          {0, 1, true},
        {page - 1, 1, true},      {page - 1, 2, false},
        {0, page + 1, false},     {page, 1, false},
        {2 * page - 1, 1, false}, {2 * page - 1, 2, false},
        {2 * page, 1, true},      {2 * page + 5, page - 5, true},
        {0, 3 * page, false},     {page - 1, page + 2, false},
    };
    unsigned char *pages = make_pages(page), *seen = malloc(3 * page);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const bool is_there = ms_mapping_peek(pages + rows[i].begin, seen, rows[i].bytes);
        if (is_there != rows[i].is_there)
            ms_test_fail(__FILE__, __LINE__, "row %zu", i);
        if (is_there)
            CHECK_BYTES(seen, pages + rows[i].begin, rows[i].bytes);
    }
    CHECK(!ms_mapping_peek((void *)16, seen, 1));
    free(seen);
    CHECK_EQ(munmap(pages, 3 * page), 0);
}

MS_TEST(a_peek_sees_nothing_of_unreadable_memory)
{
    check_peek();
}

static int count_open(void)
{
    const int next = dup(0);
    close(next);
    return next;
}

MS_TEST(a_peek_sees_nothing_of_unreadable_memory_by_a_denied_call)
{
    const int before = count_open();
    deny(SYS_process_vm_readv, EPERM);
    check_peek();
    CHECK_EQ(count_open(), before);
}

STORY_ALONE(a_peek_sees_nothing_of_unreadable_memory_on_an_older_kernel,
            deny(SYS_process_vm_readv, ENOSYS), check_peek())

static struct {
    const unsigned char *address;
    size_t bytes;
    bool are_present;
} asked;

static void ask_there(void *argument)
{
    asked.are_present = ms_mapping_is_present(asked.address, asked.bytes);
    (void)argument;
}

static bool are_present(const unsigned char *address, size_t bytes)
{
    asked.address = address;
    asked.bytes = bytes;
    CHECK(ms_file_thread_call(ask_there, NULL));
    return asked.are_present;
}

/* Pages of the file that were touched, and are not taken away again. */
MS_TEST_AFTER(make_file, pages_are_present_when_each_was_touched)
{
    enum { PAGES = 700 }; /* more than are asked for at once */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK_EQ(truncate(path, (off_t)(PAGES * page)), 0);
    unsigned char *pages = mmap(NULL, PAGES * page, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(pages != MAP_FAILED);
    for (size_t i = 0; i < PAGES; i++)
        (void)*(volatile unsigned char *)&pages[i * page];
    needs_mappings(are_present(pages + page, page), path);
    CHECK(are_present(pages, PAGES * page));
    CHECK_EQ(madvise(pages, page, MADV_DONTNEED), 0);
    CHECK_EQ(madvise(pages + (PAGES - 1) * page, page, MADV_DONTNEED), 0);
    CHECK(are_present(pages + page, (PAGES - 2) * page));
    CHECK(are_present(pages + 2 * page - 1, 2));
    CHECK(!are_present(pages + page - 1, page));
    CHECK(!are_present(pages + page, (PAGES - 2) * page + 1));
    CHECK(!are_present(pages, 1));
    CHECK(!are_present(pages, PAGES * page));
    CHECK_EQ(munmap(pages, PAGES * page), 0);
}

/* PAGEMAP_SCAN, of Linux 6.7; 96: the size of its argument. */
static bool can_list_pages(void)
{
    uint64_t argument[12] = {0}; /* too small by what it says */
    const int pages = open("/proc/self/pagemap", O_RDONLY);
    const int result = ioctl(pages, _IOWR('f', 16, uint64_t[12]), argument);
    const bool is_known = result < 0 && errno == EINVAL;
    close(pages);
    return is_known;
}

/* Without it, as if there were many: nobody knows. */
MS_TEST(pages_that_are_there_are_counted)
{
    enum { PAGES = 700, THERE = PAGES / 2 }; /* more places than are told at once */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages =
        mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    const uintptr_t begin = (uintptr_t)pages, end = begin + PAGES * page;
    madvise(pages, PAGES * page, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < PAGES; i += 2)
        pages[i * page] = 1;
    CHECK(ms_mapping_has_pages(begin, end, 0));
    CHECK(ms_mapping_has_pages(begin, end, THERE));
    if (!can_list_pages())
        CHECK(ms_mapping_has_pages(begin, end, THERE + 1));
    else {
        CHECK(!ms_mapping_has_pages(begin, end, THERE + 1));
        CHECK(!ms_mapping_has_pages(begin, end - 2 * page, THERE));
        CHECK(!ms_mapping_has_pages(begin + page, end, THERE));
        CHECK(ms_mapping_has_pages(begin + page, end - page, THERE - 1));
    }
    CHECK_EQ(munmap(pages, PAGES * page), 0);
}

/* --- memory that is loaded where it is */

static unsigned char *map_pages(size_t pages, int flags)
{
    unsigned char *memory = mmap(NULL, pages * (size_t)sysconf(_SC_PAGESIZE),
                                 PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

MS_TEST_AFTER(make_file, mappings_of_no_file_are_counted)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory = map_pages(4, MAP_PRIVATE), *shared = map_pages(2, MAP_SHARED);
    if (ms_mapping_count_anonymous(memory, page) == 0) {
        struct query {
            uint64_t size, more[12];
        } query = {.size = sizeof(query), .more = {0, (uintptr_t)memory}};
        const int list = open("/proc/self/maps", O_RDONLY);
        CHECK(ioctl(list, _IOWR('f', 17, struct query), &query) != 0);
        ms_test_skip("the kernel does not answer queries of mappings");
    }
    CHECK_EQ(ms_mapping_count_anonymous(memory + 1, 4 * page - 1), 1);
    CHECK_EQ(mprotect(memory + page, page, PROT_READ), 0);
    CHECK_EQ(ms_mapping_count_anonymous(memory, page), 1);
    CHECK_EQ(ms_mapping_count_anonymous(memory, page + 1), 2);
    CHECK_EQ(ms_mapping_count_anonymous(memory, 4 * page), 3);
    CHECK_EQ(ms_mapping_count_anonymous(shared, 2 * page), 1);
    unsigned char *files =
        mmap(memory + 3 * page, page, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
    CHECK(files == memory + 3 * page);
    CHECK_EQ(ms_mapping_count_anonymous(memory, 3 * page), 3);
    CHECK_EQ(ms_mapping_count_anonymous(memory, 3 * page + 1), 0);
    CHECK_EQ(munmap(files, page), 0);
    CHECK_EQ(ms_mapping_count_anonymous(memory, 3 * page + 1), 0);
    const int unnamed = (int)syscall(SYS_memfd_create, "zero", 0U);
    CHECK_EQ(ftruncate(unnamed, (off_t)page), 0);
    CHECK_EQ(ms_mapping_count_anonymous(mmap(NULL, page, PROT_READ, MAP_SHARED, unnamed, 0), page),
             0);
}

static bool may_load(const unsigned char *memory, size_t bytes)
{
    const bool may = ms_mapping_may_load(memory, bytes, true);
    CHECK_EQ(ms_mapping_may_load(memory, bytes, false), may);
    return may;
}

MS_TEST(pages_that_are_not_there_are_brought_in_before_they_are_loaded)
{
    enum {
        PAGES = 2100 /* more than are asked about at once */,
        GUARD_INSTALL = 102,
        NONE = 12345
    };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory = map_pages(PAGES, MAP_PRIVATE);
    if (madvise(memory, page, NONE) == 0)
        ms_test_skip("an emulator claims to take any advice");
    if (!ms_mapping_may_load(memory, page, false)) {
        CHECK(errno == EINVAL);
        ms_test_skip("the kernel brings in no memory");
    }
    CHECK(may_load(memory + 1, (PAGES - 1) * page));
    for (size_t i = 0; i < PAGES; i++)
        CHECK_EQ(*(const volatile unsigned char *)&memory[i * page], 0);
    CHECK_EQ(mprotect(memory + (PAGES - 1) * page, page, PROT_NONE), 0);
    CHECK(!ms_mapping_may_load(memory, PAGES * page, false));
    CHECK(!may_load(memory + (PAGES - 1) * page, 1));
    CHECK(may_load(memory, (PAGES - 1) * page));
    if (madvise(memory + 1600 * page, page, GUARD_INSTALL) == 0) {
        CHECK(may_load(memory, 1600 * page));
        CHECK(!may_load(memory, 1601 * page));
        CHECK(!may_load(memory, (PAGES - 1) * page));
    }
    CHECK_EQ(munmap(memory, 10 * page), 0);
    CHECK(!may_load(memory + 9 * page, 2 * page));
}

/* --- lists */

static int maps = -1; /* the list of mappings, which answers no queries; -1: the kernel's own */

WRAPS(ms_descriptor_open);
int __wrap_ms_descriptor_open(const char *opened, int flags)
{
    char name[40];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", maps);
    return __real_ms_descriptor_open(maps >= 0 ? name : opened, flags);
}

static void note_found(void *context, const struct ms_mapping *mapping)
{
    char *seen = context;
    sprintf(seen + strlen(seen), "%lx %s;", (unsigned long)mapping->begin, mapping->path);
}

/* As for a file deep within folders, which another user may have named. */
MS_TEST(a_line_that_does_not_fit_is_one_mapping_without_a_path)
{
    static const char begin[] = "1000-2000 r--p 00000000 00:01 7 /";
    static const char rest[] = "3000-4000 r--p 00000000 00:01 8 /b\n"
                               "5000-6000 r--p 00000000 00:01 9 /c\n";
    for (size_t bytes = 8190; bytes < 8195; bytes++) {
        static char text[16384];
        char seen[128] = "";
        memset(text, 'a', bytes);
        memcpy(text, begin, sizeof(begin) - 1);
        strcpy(text + bytes, rest);
        maps = (int)syscall(SYS_memfd_create, "maps", 0U);
        CHECK_EQ(pwrite(maps, text, strlen(text), 0), (ssize_t)strlen(text));
        CHECK(ms_mapping_visit(note_found, seen));
        close(maps);
        if (strcmp(seen, "1000 ;5000 /c;") != 0)
            ms_test_fail(__FILE__, __LINE__, "%zu bytes: found %s", bytes, seen);
    }
}
