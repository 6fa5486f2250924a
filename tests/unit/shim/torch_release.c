/* SPDX-License-Identifier: Apache-2.0 */
/* Which PyTorch is proved: by its library's build-id, by its commit, and by what the user has
 * checked. The libraries of the process are the test's. */
#include "shim/torch_release.h"

#include <elf.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/config/config.h"
#include "runtime/kernel/rules.h"
#include "shim/torch_checks.h"
#include "tests/unit/between.h"
#include "tests/unit/counted_heap.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/logged.h"

static const struct {
    const char *version, *commit, *build_id;
} releases[] = {
#define MS_RELEASE(version, commit, build_id) {version, commit, build_id},
#include "shim/torch_releases.def"
#undef MS_RELEASE
};
enum { RELEASES = sizeof(releases) / sizeof(releases[0]) };

/* --- the process */

static char folder[64], checks[96], library[128]; /* library: there is only its folder */
static int descriptors;                           /* that are open */
static const char *path;                          /* of a library; NULL: of the program */
static unsigned char notes[2][256];               /* of two segments */
static ElfW(Phdr) segments[4];
static unsigned visited;

WRAPS(dl_iterate_phdr, read);
int __wrap_dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *context)
{
    struct dl_phdr_info program = {.dlpi_name = NULL}, other = {.dlpi_name = "/lib/libc.so.6"};
    struct dl_phdr_info last = {.dlpi_addr = (uintptr_t)notes - 64,
                                .dlpi_name = path,
                                .dlpi_phdr = segments,
                                .dlpi_phnum = 4};
    visited++;
    CHECK_EQ(visit(&program, sizeof(program), context), 0);
    CHECK_EQ(visit(&other, sizeof(other), context), 0);
    return visit(&last, sizeof(last), context);
}

static size_t most = SIZE_MAX; /* bytes of one read */
static int reads_left = 1000;
ssize_t __wrap_read(int file, void *buffer, size_t bytes)
{
    CHECK(file >= 0);
    return reads_left-- > 0 ? __real_read(file, buffer, bytes < most ? bytes : most) : -1;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* version.py, in the folder above the library's. */
static void say(const char *text)
{
    char name[96];
    snprintf(name, sizeof(name), "%s/version.py", folder);
    write_file(name, text);
}

static void start(void)
{
    strcpy(folder, "/tmp/metashard-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(library, sizeof(library), "%s/lib", folder);
    CHECK_EQ(mkdir(library, 0755), 0);
    strcat(library, "/libtorch_cuda.so");
    snprintf(checks, sizeof(checks), "%s/checks", folder);
    snprintf(ms_config.torch_checks, sizeof(ms_config.torch_checks), "%s", checks);
    path = library;
    for (int i = 0; i < 2; i++)
        segments[2 * i] = (ElfW(Phdr)){.p_type = PT_NOTE, .p_vaddr = 64 + (size_t)i * 256};
    segments[1] = segments[3] = (ElfW(Phdr)){.p_type = PT_LOAD, .p_vaddr = 1, .p_memsz = 200};
    descriptors = open_descriptors();
}

static void end(void)
{
    char command[96];
    CHECK_EQ(open_descriptors(), descriptors);
    CHECK_EQ(live, 0);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK_EQ(system(command), 0);
}

#define TEST(name) MS_TEST_BETWEEN(start, end, name)

/* --- notes */

static const char gnu[] = "GNU";

/* Adds one behind those of the segment. */
static void add_note(int i, uint32_t type, const void *name, size_t name_bytes, const void *text,
                     size_t bytes)
{
    ElfW(Phdr) *segment = &segments[2 * i];
    const ElfW(Nhdr) note = {(uint32_t)name_bytes, (uint32_t)bytes, type};
    unsigned char *at = notes[i] + segment->p_memsz;
    memcpy(at, &note, sizeof(note));
    at += sizeof(note);
    memcpy(at, name, name_bytes);
    at += (name_bytes + 3) / 4 * 4;
    memcpy(at, text, bytes);
    segment->p_memsz = (size_t)(at - notes[i]) + (bytes + 3) / 4 * 4;
}

static size_t from_digits(const char *digits, unsigned char *bytes_out)
{
    const size_t count = strlen(digits) / 2;
    for (size_t i = 0; i < count; i++)
        CHECK_EQ(sscanf(digits + 2 * i, "%2hhx", &bytes_out[i]), 1);
    return count;
}

static void add_build_id(int i, const char *digits)
{
    unsigned char bytes[64];
    const size_t count = from_digits(digits, bytes);
    add_note(i, NT_GNU_BUILD_ID, gnu, sizeof(gnu), bytes, count);
}

static void clear_notes(void)
{
    memset(notes, 0, sizeof(notes));
    segments[0].p_memsz = segments[2].p_memsz = 0;
}

/* --- is it proved? Each question is the first one of a process */

static void must_warn(const char *version, const char *build_id)
{
    char expected[256];
    snprintf(expected, sizeof(expected),
             "this PyTorch (version %s, build-id %s) is none of the releases that MetaShard was "
             "checked with, up to %s: ",
             version, build_id, releases[RELEASES - 1].version);
    CHECK_EQ(lines, 1);
    CHECK_EQ(logged_level, MS_WARN);
    if (strncmp(logged, expected, strlen(expected)) != 0)
        ms_test_fail(__FILE__, __LINE__, "said: %s, expected: %s", logged, expected);
}

/* Memory that nobody has set is no text. */
static __attribute__((noinline)) void fill_stack(void)
{
    volatile char bytes[4 * PATH_MAX];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = 'x';
}

/* version: as a line names it; NULL: it is proved. */
static void must_be(const char *version, const char *build_id)
{
    int status;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        visited = 0;
        fill_stack();
        CHECK_EQ(ms_torch_release_is_proved(), version == NULL);
        if (version != NULL)
            must_warn(version, build_id);
        CHECK_EQ(ms_torch_release_is_proved(), version == NULL); /* and it stays */
        CHECK_EQ(lines, version != NULL);
        CHECK_EQ(visited, 1);
        CHECK_EQ(open_descriptors(), descriptors);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void must_be_unknown(void)
{
    must_be("unknown", "unknown");
}

#define OTHER_ID "00112233445566778899aabbccddeeff01020304"

TEST(each_release_is_known_by_its_build_id_and_by_its_commit)
{
    char text[256];
    for (int i = 0; i < RELEASES; i += i == 0 ? RELEASES - 1 : 1) {
        clear_notes();
        add_build_id(0, releases[i].build_id);
        say("");
        must_be(NULL, NULL);
        clear_notes();
        add_build_id(0, OTHER_ID);
        snprintf(text, sizeof(text), "\n__version__ = '1'\ngit_version = '%s'\n",
                 releases[i].commit);
        say(text);
        must_be(NULL, NULL);
    }
}

TEST(libraries_are_known_by_their_name)
{
    static const char *const others[] = {"/libtorch_cuda_cpp.so", "libtorch_cuda.so.1",
                                         "/libtorch_cuda.so/x", "/xlibtorch_cuda.so", ""};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        path = others[i];
        visited = 0;
        CHECK(ms_torch_release_is_proved()); /* another program's kernels */
        CHECK_EQ(visited, 1);
    }
    path = "/nowhere/libtorch_cuda_cu.so";
    must_be_unknown();
    path = "libtorch_cuda.so";
    must_be_unknown();
    CHECK_EQ(lines, 0);
}

/* The longest path that there is room for, and one more. */
TEST(a_path_may_have_any_length)
{
    char name[PATH_MAX + 1];
    static const char end_of_it[] = "/libtorch_cuda.so";
    memset(name, 'x', sizeof(name));
    name[0] = '/';
    memcpy(name + PATH_MAX - sizeof(end_of_it), end_of_it, sizeof(end_of_it));
    path = name;
    must_be_unknown();
    memcpy(name + sizeof(name) - sizeof(end_of_it), end_of_it, sizeof(end_of_it));
    CHECK(ms_torch_release_is_proved());
}

TEST(a_build_id_is_one_of_many_notes)
{
    add_note(0, NT_GNU_BUILD_ID, "GNU\0X", 5, "abcd", 4);
    add_note(0, NT_GNU_BUILD_ID, "XNU", 4, "abcd", 4);
    add_note(0, NT_GNU_BUILD_ID, "GN", 3, "abcd", 4);
    add_note(0, NT_GNU_ABI_TAG, gnu, 4, "abcde", 5);
    must_be_unknown();
    add_build_id(0, "0a0b");
    must_be("unknown", "0a0b");
    add_build_id(0, OTHER_ID); /* the first one is it */
    must_be("unknown", "0a0b");
    add_build_id(1, OTHER_ID); /* or that of the last segment */
    must_be("unknown", OTHER_ID);
    segments[2].p_type = PT_LOAD; /* whatever is in there */
    must_be("unknown", "0a0b");
}

TEST(a_note_that_is_cut_off_is_none)
{
    add_build_id(0, "0a0b0c0d");
    segments[0].p_memsz--;
    must_be_unknown();
    segments[0].p_memsz = sizeof(ElfW(Nhdr)) - 1;
    must_be_unknown();
    segments[0].p_memsz = 0;
    must_be_unknown();
}

TEST(a_build_id_is_cut_where_it_is_longer_than_any)
{
    static const char digits[] = "000102030405060708090a0b0c0d0e0f10111213141516171819";
    static const size_t kept[] = {2, 40, 44, 46, 46, 46};
    static const size_t lengths[] = {2, 40, 44, 46, 48, 50};
    char written[64], expected[64];
    for (int i = 0; i < 6; i++) {
        clear_notes();
        snprintf(written, sizeof(written), "%.*s", (int)lengths[i], digits);
        snprintf(expected, sizeof(expected), "%.*s", (int)kept[i], digits);
        add_build_id(0, written);
        must_be("unknown", expected);
    }
}

#define SOME_47 "12345678901234567890123456789012345678901234567"

TEST(a_version_is_what_version_py_says)
{
    static const char *const cases[][2] = {
        {"", "unknown"},
        {"import x\n__version__ = '9.9.9+cu1'\nmore\n", "9.9.9+cu1"},
        {"\n__version__ =  '9.9.9", "9.9.9"},
        {"\n__version__ = '9\n.9'", "9"},
        {"\n__version__ = ''\n", "unknown"},
        {"\n__version__ = \n'7'\n", "7"},
        {"\n__version__ = 9", "unknown"},
        {"__version__ = '9.9.9'\n", "unknown"}, /* not of a line's beginning */
        {"x__version__ = '9.9.9'\n", "unknown"},
        {"\n__version__ = '" SOME_47 "'", SOME_47},
        {"\n__version__ = '" SOME_47 "8'", "unknown"},
        {"\n__version__ = '1'\ngit_version = 'abc'\n", "1"},
    };
    must_be_unknown(); /* there is no file */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        say(cases[i][0]);
        must_be(cases[i][1], "unknown");
    }
    reads_left = 0;
    must_be_unknown();
}

TEST(a_version_is_in_the_first_kilobyte)
{
    char text[2048];
    const int lengths[] = {0, 1024 - 1 - 20, 1024 - 20};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof(text), "%*s\n__version__ = '9.99'", lengths[i], "");
        CHECK_EQ(strlen(text), lengths[i] + 21);
        say(text);
        must_be(i == 2 ? "9.9" : "9.99", "unknown");
    }
}

TEST(a_library_that_comes_later_is_looked_at)
{
    path = "/lib/libm.so";
    CHECK(ms_torch_release_is_proved());
    path = library;
    CHECK(!ms_torch_release_is_proved());
    path = "/lib/libm.so"; /* and it stays */
    CHECK(!ms_torch_release_is_proved());
    CHECK_EQ(visited, 2);
    CHECK_EQ(lines, 1);
}

/* --- what the user has checked */

static uint64_t sum_of_rules(void)
{
    uint64_t sum = 0xcbf29ce484222325;
    for (const char *at = ms_builtin_rules; *at != '\0'; at++)
        sum = (sum ^ (unsigned char)*at) * 0x100000001b3;
    return sum;
}

/* Before its line are so many bytes of others. */
static void write_checks(const char *format, const char *build_id, uint64_t sum, int before)
{
    static char text[70000 + 256];
    snprintf(text, sizeof(text), "%s\n%*s\n%s %016" PRIx64 " 9.9\n", format, before, "", build_id,
             sum);
    write_file(checks, text);
}

#define FORMAT "metashard-torch-checks/1"

STORY_BETWEEN(start, end, a_checked_library_is_proved, add_build_id(0, OTHER_ID),
              must_be("unknown", OTHER_ID), write_checks(FORMAT, OTHER_ID, sum_of_rules(), 0),
              must_be(NULL, NULL), clear_notes(), must_be_unknown(), IS(!ms_torch_checks_have("")))

TEST(a_check_is_of_a_library_and_of_the_rules)
{
    const uint64_t sum = sum_of_rules();
    write_checks(FORMAT, "0a0b", sum, 0);
    reads_left = 2; /* the second one finds the end */
    CHECK(ms_torch_checks_have("0a0b"));
    CHECK_EQ(reads_left, 0);
    reads_left = 1000;
    CHECK(!ms_torch_checks_have("0a0c") && !ms_torch_checks_have("0b"));
    CHECK(!ms_torch_checks_have("0a"));
    write_checks(FORMAT, "0a0b", sum + 1, 0);
    CHECK(!ms_torch_checks_have("0a0b"));
    write_checks("metashard-torch-checks/2", "0a0b", sum, 0);
    CHECK(!ms_torch_checks_have("0a0b"));
    write_checks(FORMAT "1", "0a0b", sum, 0);
    CHECK(!ms_torch_checks_have("0a0b"));
    write_checks("\n" FORMAT, "0a0b", sum, 0);
    CHECK(!ms_torch_checks_have("0a0b"));
    write_checks(FORMAT, "", sum, 0); /* a library without one is not known by that */
    CHECK(!ms_torch_checks_have(""));
    write_file(checks, "");
    CHECK(!ms_torch_checks_have("0a0b"));
    CHECK_EQ(lines, 0);
}

/* The file is read in parts of any size, up to 64 KiB. */
TEST(a_check_is_looked_for_in_the_first_64_kib)
{
    const int others = (64 << 10) - (int)sizeof(FORMAT "\n\n0a0b 0123456789abcdef ") + 1;
    write_checks(FORMAT, "0a0b", sum_of_rules(), others);
    CHECK(ms_torch_checks_have("0a0b"));
    most = 30000;
    CHECK(ms_torch_checks_have("0a0b"));
    reads_left = 2; /* what a read that fails has left is there */
    CHECK(!ms_torch_checks_have("0a0b"));
    reads_left = 1000;
    write_checks(FORMAT, "0a0b", sum_of_rules(), others + 1);
    CHECK(!ms_torch_checks_have("0a0b"));
    may_make = 0;
    write_checks(FORMAT, "0a0b", sum_of_rules(), 0);
    CHECK(!ms_torch_checks_have("0a0b"));
    CHECK_EQ(lines, 0);
}

static void must_not_trust(void)
{
    const unsigned before = lines;
    CHECK(!ms_torch_checks_have("0a0b"));
    CHECK_EQ(lines, before + 1);
    CHECK_EQ(logged_level, MS_WARN);
    CHECK(strncmp(logged, checks, strlen(checks)) == 0 && strstr(logged, "is not used") != NULL);
}

TEST(a_file_that_others_may_write_is_not_trusted)
{
    write_checks(FORMAT, "0a0b", sum_of_rules(), 0);
    CHECK_EQ(chmod(checks, 0664), 0);
    must_not_trust();
    CHECK_EQ(chmod(checks, 0646), 0);
    must_not_trust();
    CHECK_EQ(chmod(checks, 0755), 0);
    CHECK(ms_torch_checks_have("0a0b"));
    if (geteuid() == 0) {
        CHECK_EQ(chown(checks, 1, (gid_t)-1), 0);
        must_not_trust();
    }
}

TEST(a_path_of_checks_that_is_no_file_has_no_check)
{
    CHECK(!ms_torch_checks_have("0a0b"));
    CHECK_EQ(mkfifo(checks, 0600), 0);
    CHECK(!ms_torch_checks_have("0a0b"));
    CHECK_EQ(chmod(checks, 0666), 0);
    CHECK(!ms_torch_checks_have("0a0b"));
    CHECK_EQ(lines, 0);
}

TEST(checks_are_in_the_users_cache)
{
    write_checks(FORMAT, "0a0b", sum_of_rules(), 0);
    CHECK(ms_torch_checks_have("0a0b"));
    strcpy(ms_config.torch_checks, "auto");
    CHECK(!ms_torch_checks_have("0a0b")); /* the user has none */
    snprintf(ms_config.cache_dir, sizeof(ms_config.cache_dir), "%s", folder);
    CHECK(!ms_torch_checks_have("0a0b"));
    snprintf(library, sizeof(library), "%s/metashard", folder);
    CHECK_EQ(mkdir(library, 0755), 0);
    strcat(library, "/torch-checks");
    CHECK_EQ(rename(checks, library), 0);
    CHECK(ms_torch_checks_have("0a0b"));
    ms_config.torch_checks[0] = '\0'; /* none is looked for */
    CHECK(!ms_torch_checks_have("0a0b"));
}

/* A folder's name that leaves just room for the file's, and those that do not. */
TEST(a_cache_with_a_long_name_has_no_checks)
{
    static const char file[] = "/metashard/torch-checks";
    strcpy(ms_config.torch_checks, "auto");
    snprintf(library, sizeof(library), "%s/metashard", folder);
    CHECK_EQ(mkdir(library, 0755), 0);
    strcat(library, "/torch-checks");
    write_checks(FORMAT, "0a0b", sum_of_rules(), 0);
    CHECK_EQ(rename(checks, library), 0);
    snprintf(checks, sizeof(checks), "%s/metashard/torch-check", folder); /* a name that is cut */
    CHECK_EQ(link(library, checks), 0);
    for (size_t length = MS_PATH_BYTES - sizeof(file); length < MS_PATH_BYTES; length++) {
        memset(ms_config.cache_dir, '/', length);
        memcpy(ms_config.cache_dir, folder, strlen(folder));
        ms_config.cache_dir[length] = '\0';
        CHECK_EQ(ms_torch_checks_have("0a0b"), length == MS_PATH_BYTES - sizeof(file));
    }
    CHECK_EQ(lines, 0);
}
