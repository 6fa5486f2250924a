/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/source/mapping.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/source/source.h"
#include "tests/harness/test.h"

enum { BYTES = 256 << 10 };

static char path[] = "/tmp/metashard-mapping-XXXXXX";
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
}

static unsigned char *map(int protection, int flags)
{
    unsigned char *address = mmap(NULL, BYTES, protection, flags, file, 0);
    CHECK(address != MAP_FAILED);
    return address;
}

static struct ms_source *find(const unsigned char *address, size_t bytes, uint64_t *offset_out)
{
    return ms_source_from_mapping(address, bytes, offset_out);
}

MS_TEST(a_clean_private_mapping_is_the_file)
{
    make_file();
    unsigned char *address = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    uint64_t offset;
    struct ms_source *source = find(address + 1000, 100000, &offset);
    if (source == NULL)
        ms_test_skip("this kernel does not tell about mappings (pagemap, or device numbers)");
    CHECK_EQ(offset, 1000);
    CHECK(ms_source_is_file(source));
    unsigned char *buffer = malloc(100000);
    const void *bytes;
    CHECK_EQ(ms_source_read(source, offset, buffer, 100000, &bytes), CUDA_SUCCESS);
    CHECK_BYTES(bytes, address + 1000, 100000);
    free(buffer);
    ms_source_drop(source);
}

MS_TEST(a_written_private_page_is_not_the_file)
{
    make_file();
    unsigned char *address = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    address[70000] = 1;
    uint64_t offset;
    CHECK(find(address, BYTES, &offset) == NULL);
    CHECK(find(address + 69000, 1500, &offset) == NULL);
    CHECK(find(address + 128 * 1024, 1000, &offset) != NULL); /* pages away from it still are */
}

MS_TEST(a_file_that_can_be_stored_to_is_not_trusted)
{
    make_file();
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

MS_TEST(a_range_behind_the_end_of_the_file_is_not_trusted)
{
    make_file();
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    CHECK_EQ(ftruncate(file, 100000), 0);
    uint64_t offset;
    CHECK(find(address, 100001, &offset) == NULL);
    CHECK(find(address, 100000, &offset) != NULL);
}

static CUresult read_all(const struct ms_source *source, uint64_t offset)
{
    static unsigned char buffer[BYTES];
    const void *bytes;
    return ms_source_read(source, offset, buffer, BYTES, &bytes);
}

MS_TEST(a_file_overwritten_later_is_refused)
{
    make_file();
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_source *source = find(address, BYTES, &offset);
    CHECK(source != NULL);
    CHECK_EQ(read_all(source, offset), CUDA_SUCCESS);
    CHECK_EQ(pwrite(file, "x", 1, 5), 1); /* same size, at once after the recording */
    CHECK_EQ(read_all(source, offset), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(a_modification_time_set_back_does_not_hide_a_change)
{
    make_file();
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_source *source = find(address, BYTES, &offset);
    CHECK(source != NULL);
    struct stat stat;
    CHECK_EQ(fstat(file, &stat), 0);
    CHECK_EQ(pwrite(file, "x", 1, 5), 1);
    const struct timespec times[2] = {stat.st_atim, stat.st_mtim};
    CHECK_EQ(futimens(file, times), 0);
    CHECK_EQ(read_all(source, offset), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(a_truncated_file_is_refused)
{
    make_file();
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_source *source = find(address, BYTES, &offset);
    CHECK(source != NULL);
    CHECK_EQ(ftruncate(file, BYTES / 2), 0);
    CHECK_EQ(read_all(source, offset), CUDA_ERROR_OPERATING_SYSTEM);
}

MS_TEST(an_unlinked_file_still_works)
{
    make_file();
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_source *source = find(address, BYTES, &offset);
    CHECK(source != NULL);
    unlink(path);
    CHECK_EQ(read_all(source, offset), CUDA_SUCCESS);
}

MS_TEST(two_tensors_of_one_file_share_a_descriptor)
{
    make_file();
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_source *first = find(address, 70000, &offset);
    struct ms_source *second = find(address + 80000, 70000, &offset);
    CHECK(first != NULL && first == second);
    CHECK_EQ(offset, 80000);
    ms_source_drop(first);
    CHECK_EQ(read_all(second, 0), CUDA_SUCCESS);
    ms_source_drop(second);
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

MS_TEST(a_file_on_an_overlay_is_found)
{
    char folder[] = "/tmp/metashard-overlay-XXXXXX";
    if (!enter_overlay(folder)) {
        rmdir(folder);
        ms_test_skip("overlays cannot be mounted here");
    }
    file = open("merged/file", O_RDONLY);
    CHECK(file >= 0);
    unsigned char *address = map(PROT_READ, MAP_PRIVATE);
    uint64_t offset;
    struct ms_source *source = find(address + 100000, 70000, &offset);
    CHECK(source != NULL);
    unsigned char seen[10];
    const void *bytes;
    CHECK_EQ(ms_source_read(source, offset, seen, sizeof(seen), &bytes), CUDA_SUCCESS);
    CHECK_BYTES(bytes, "checkpoint", 10);
    ms_source_drop(source);
    if (chdir("/") == 0 && umount2(folder, MNT_DETACH) == 0)
        rmdir(folder);
}
