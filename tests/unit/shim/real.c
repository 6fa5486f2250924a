/* SPDX-License-Identifier: Apache-2.0 */
/* Which library is the driver, and which functions it has. The loader is the test's. */
#include "shim/real.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

#include "shim/libc.h"
#include "shim/off.h"
#include "tests/unit/between.h"
#include "tests/unit/logged.h"

/* Libraries, outside of this one: each function is a byte of one of them. */
enum { BYTES = 64 };
static char *driver, *second, *behind;
static const char *second_path = "/opt/libcuda.so.1";
static bool has_driver = true, is_off, has_behind, has_next = true, has_paths = true, finds_own;
static const char *absent = ""; /* what no library has */
static const char *listed = ""; /* the path of one that is loaded */
static unsigned asked, forgotten, searched, missed;

static bool is_in(const void *address, const char *library)
{
    return (const char *)address >= library && (const char *)address < library + BYTES;
}

/* libc's dlsym, and the next one. */
static void *find(void *handle, const char *name)
{
    asked++;
    if (handle == RTLD_NEXT && strcmp(name, "dlsym") == 0)
        return has_next ? &behind[1] : NULL;
    if (handle == RTLD_NEXT && strcmp(name, "dlvsym") == 0)
        return has_next ? &behind[4] : NULL;
    CHECK(handle == RTLD_NEXT || handle == driver || handle == second);
    if (strcmp(name, absent) == 0 || (handle == RTLD_NEXT && !has_behind)) {
        missed++;
        return NULL;
    }
    if (finds_own)
        return (void *)&is_off;
    return (char *)(handle == RTLD_NEXT ? behind : handle) + (strcmp(name, "cuInit") != 0 ? 3 : 2);
}

static char libc_dlvsym;

void *ms_libc_find(const char *name)
{
    CHECK(strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0);
    searched++;
    return strcmp(name, "dlsym") == 0 ? (void *)find : &libc_dlvsym;
}

WRAPS(dlerror, dlopen, dladdr, dl_iterate_phdr);
char *__wrap_dlerror(void)
{
    forgotten++;
    return NULL;
}

void *__wrap_dlopen(const char *path, int flags)
{
    CHECK_EQ(flags, RTLD_LAZY | RTLD_NOLOAD);
    if (strcmp(path, second_path) == 0)
        return second;
    CHECK(strcmp(path, "libcuda.so.1") == 0);
    return has_driver ? driver : NULL;
}

int __wrap_dladdr(const void *address, Dl_info *info_out)
{
    info_out->dli_fname = has_paths ? second_path : NULL;
    return is_in(address, second);
}

/* Segments of the driver are listed in any order; what is no PT_LOAD does not count. */
int __wrap_dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *context)
{
    const ElfW(Phdr) of_driver[] = {{.p_type = PT_NOTE, .p_vaddr = 0, .p_memsz = 5 * BYTES},
                                    {.p_type = PT_LOAD, .p_vaddr = 1000 + 8, .p_memsz = 4},
                                    {.p_type = PT_LOAD, .p_vaddr = 1000, .p_memsz = 40},
                                    {.p_type = PT_LOAD, .p_vaddr = 1000 + 16, .p_memsz = 48},
                                    {.p_type = PT_NOTE, .p_vaddr = 9000, .p_memsz = 1}};
    const ElfW(Phdr) of_second = {.p_type = PT_LOAD, .p_vaddr = 1000, .p_memsz = BYTES};
    struct dl_phdr_info libraries[] = {
        {.dlpi_addr = 1, .dlpi_phnum = 0},
        {.dlpi_addr = (uintptr_t)second - 1000, .dlpi_phdr = &of_second, .dlpi_phnum = 1},
        {.dlpi_addr = (uintptr_t)driver - 1000, .dlpi_phdr = of_driver, .dlpi_phnum = 5}};
    for (int i = 0; i < 3; i++)
        libraries[i].dlpi_name = i == 1 ? listed : "";
    for (int i = 0; i < 3; i++) {
        const int result = visit(&libraries[i], sizeof(libraries[i]), context);
        if (result != 0)
            return result;
    }
    return 0;
}

bool ms_is_off(void)
{
    return is_off;
}

static void start(void)
{
    char *libraries =
        mmap(NULL, 8 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(libraries != MAP_FAILED);
    driver = libraries + BYTES;
    second = libraries + 3 * BYTES;
    behind = libraries + 5 * BYTES;
}

/* --- dlsym */

MS_TEST_AFTER(start, libcs_dlsym_is_found_once)
{
    CHECK(ms_libc_dlsym() == find && ms_libc_dlsym() == find);
    CHECK(searched == 1 && ms_libc_dlsym_address == (void *)find);
}

STORY_AFTER(start, the_next_dlsym_is_that_of_a_library_behind_the_shim, ms_find_next_dlsym(),
            ms_find_next_dlsym(), IS(ms_next_dlsym_address == &behind[1]),
            IS(asked == 1 && forgotten == 0))

STORY_AFTER(start, the_next_dlsym_may_be_libcs_without_an_error, has_next = false,
            ms_find_next_dlsym(), IS(ms_next_dlsym_address == (void *)find), EQUALS(forgotten, 1))

STORY_AFTER(start, the_next_dlvsym_is_found_once, ms_find_next_dlvsym(), ms_find_next_dlvsym(),
            IS(ms_next_dlvsym_address == &behind[4]), IS(asked == 1 && forgotten == 0))

STORY_AFTER(start, the_next_dlvsym_may_be_libcs, has_next = false, ms_find_next_dlvsym(),
            IS(ms_next_dlvsym_address == &libc_dlvsym),
            IS(forgotten == 1 && ms_next_dlsym_address == NULL))

/* --- whether a driver is loaded */

MS_TEST_AFTER(start, a_libcuda_that_is_loaded_is_known_by_its_name)
{
    CHECK(!ms_image_is_loaded("libcuda.so"));
    listed = "/opt/libcuda.so.1";
    CHECK(ms_image_is_loaded("libcuda.so"));
    listed = "libcuda.so.1";
    CHECK(ms_image_is_loaded("libcuda.so"));
    listed = "/opt/libcudart.so.13";
    CHECK(!ms_image_is_loaded("libcuda.so"));
    listed = "/opt/libcuda.so/libother.so";
    CHECK(!ms_image_is_loaded("libcuda.so"));
    CHECK_EQ(asked, 0);
}

/* --- where libraries are */

static void must_be_at(const void *address, const char *begin, size_t bytes)
{
    const struct ms_image image = ms_image_of(address);
    CHECK_EQ(image.begin, (uintptr_t)begin);
    CHECK_EQ(image.end, (uintptr_t)begin + bytes);
}

MS_TEST_AFTER(start, a_library_is_where_its_segments_are)
{
    must_be_at(&driver[0], driver, BYTES);
    must_be_at(&driver[10], driver, BYTES); /* between them */
    must_be_at(&driver[BYTES - 1], driver, BYTES);
    must_be_at(&second[5], second, BYTES);
    must_be_at(driver + BYTES, NULL, 0);
    must_be_at(second + BYTES, NULL, 0);
    must_be_at(&behind[0], NULL, 0);
    must_be_at(NULL, NULL, 0);
}

extern const char __ehdr_start[], _end[] __attribute__((visibility("hidden")));

MS_TEST_AFTER(start, addresses_of_this_library_are_its_own)
{
    CHECK(ms_is_own(&is_off) && ms_is_own(__ehdr_start));
    CHECK(!ms_is_own(_end) && ms_is_own((const void *)((uintptr_t)_end - 1)));
    CHECK(!ms_is_own((const void *)((uintptr_t)__ehdr_start - 1)) && !ms_is_own(NULL));
}

/* --- the driver */

static void must_have_driver(const char *library)
{
    CHECK(ms_real_load(NULL));
    for (int i = 0; i < 2; i++) {
        const char *other = i == 0 ? library : library == driver ? second : driver;
        CHECK(ms_is_driver(&other[0]) == (i == 0) && ms_is_driver(&other[BYTES - 1]) == (i == 0));
    }
    CHECK(!ms_is_driver((const void *)((uintptr_t)library - 1)));
    CHECK(!ms_is_driver((const void *)((uintptr_t)library + BYTES)));
}

MS_TEST_AFTER(start, the_driver_is_the_loaded_libcuda)
{
    has_driver = false;
    CHECK(!ms_real_load(NULL));
    has_driver = true;
    must_have_driver(driver);
    CHECK(ms_real_load(&second[3])); /* a second copy is left alone */
    must_have_driver(driver);
}

STORY_AFTER(start, the_driver_may_be_the_library_of_a_function, IS(ms_real_load(&second[3])),
            must_have_driver(second))

MS_TEST_AFTER(start, the_library_of_a_function_must_be_a_libcuda)
{
    static const char *const paths[] = {"/lib/libcudart.so.1", "/libcuda.so/x.so", "libcuda.s"};
    for (int i = 0; i < 3; i++) {
        second_path = paths[i];
        CHECK(!ms_real_load(&second[3]));
    }
    second_path = "libcuda.so.1.1"; /* without a folder */
    has_paths = false;
    CHECK(!ms_real_load(&second[3]));
    has_paths = true;
    CHECK(!ms_real_load(&behind[3])); /* of no library */
    CHECK(ms_real_load(&second[3]));
    must_have_driver(second);
}

/* --- its functions */

static void must_get(enum ms_entry entry, const void *expected, unsigned questions)
{
    asked = forgotten = missed = 0;
    CHECK(ms_real_get(entry) == expected);
    CHECK_EQ(asked, questions);
    CHECK_EQ(forgotten,
             missed > 0 && expected == (void *)ms_missing); /* which the program would see */
}

STORY_AFTER(start, a_function_is_asked_for_once, IS(ms_real_load(NULL)),
            must_get(MS_ENTRY_cuMemAlloc_v2, driver + 3, 1),
            must_get(MS_ENTRY_cuMemAlloc_v2, driver + 3, 0),
            must_get(MS_ENTRY_cuInit, driver + 2, 1), IS(ms_real[MS_ENTRY_cuInit] == driver + 2))

MS_TEST_AFTER(start, a_function_the_driver_lacks_is_not_supported)
{
    CHECK(ms_real_load(NULL));
    absent = "cuMemAlloc_v2";
    must_get(MS_ENTRY_cuMemAlloc_v2, (void *)ms_missing, 1);
    absent = "";
    must_get(MS_ENTRY_cuMemAlloc_v2, (void *)ms_missing, 0);
    finds_own = true; /* the shim's export stands for nothing */
    must_get(MS_ENTRY_cuMemFree_v2, (void *)ms_missing, 1);
    CHECK_EQ(ms_missing(), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQ(lines, 0);
}

STORY_AFTER(start, a_shim_that_is_off_hides_nothing_behind_it, IS(ms_real_load(NULL)),
            is_off = true, must_get(MS_ENTRY_cuMemAlloc_v2, driver + 3, 2), has_behind = true,
            must_get(MS_ENTRY_cuMemFree_v2, behind + 3, 1), is_off = false,
            must_get(MS_ENTRY_cuCtxGetDevice, driver + 3, 1))

STORY_AFTER(start, no_function_is_supported_until_a_driver_comes, has_driver = false,
            must_get(MS_ENTRY_cuMemAlloc_v2, (void *)ms_missing, 0),
            IS(lines == 1 && logged_level == MS_ERROR),
            IS(strcmp(logged, "cuMemAlloc_v2 was called, but no libcuda.so.1 can be found") == 0),
            has_driver = true, asked = 0, IS(ms_real_get(MS_ENTRY_cuMemAlloc_v2) == driver + 3),
            IS(asked == 1 && lines == 1), must_have_driver(driver))
