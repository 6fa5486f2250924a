/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's own exception for a shortage. Its libraries are the test's. */
#include <dlfcn.h>
#include <string.h>

#include "runtime/fill/overcommit.h"
#include "shim/real.h"
#include "tests/unit/between.h"
#include "tests/unit/logged.h"
#include "tests/unit/shim/called_in_order.h"

typedef void check_function(int32_t error, const char *file, const char *function, uint32_t line,
                            bool with_assertions, void *log);
#define CHECK_OF(end) _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_##end
check_function CHECK_OF(jbPNS0_19CUDAErrorLogCaptureE), CHECK_OF(jb), CHECK_OF(ib);
static check_function *const checks[] = {CHECK_OF(jbPNS0_19CUDAErrorLogCaptureE), CHECK_OF(jb),
                                         CHECK_OF(ib)};

static char libc10, libc10_cuda;
static bool has_libraries = true, has_allocator = true, has_get_allocator = true, has_forget = true;
static bool is_shortage;
static int log_capture;

struct data_ptr {
    void *words[8];
};
struct allocator {
    const struct functions {
        void *destroy[2];
        struct data_ptr (*allocate)(struct allocator *self, size_t bytes);
    } * functions;
};

static struct data_ptr allocate(struct allocator *self, size_t bytes)
{
    CHECK(self != NULL && bytes == (size_t)1 << 60);
    note('a');
    return (struct data_ptr){{NULL}};
}

static const struct functions functions = {{NULL, NULL}, allocate};
static struct allocator allocator = {&functions};

static struct allocator *get_allocator(const int8_t *device)
{
    CHECK_EQ(*device, 1);
    note('g');
    return has_allocator ? &allocator : NULL;
}

static int forget_error(void)
{
    note('f');
    return 0;
}

static void check(int32_t error, const char *file, const char *function, uint32_t line,
                  bool with_assertions, void *log)
{
    CHECK(error == 2 || error == 1);
    CHECK(strcmp(file, "file") == 0 && strcmp(function, "function") == 0);
    CHECK(line == 3 && with_assertions && log == &log_capture);
    note('c');
}

WRAPS(dlopen, ms_overcommit_take_failed);
void *__wrap_dlopen(const char *name, int flags)
{
    CHECK_EQ(flags, RTLD_LAZY | RTLD_NOLOAD);
    CHECK(strcmp(name, "libc10.so") == 0 || strcmp(name, "libc10_cuda.so") == 0);
    return !has_libraries ? NULL : name[6] == '.' ? &libc10 : &libc10_cuda;
}

static void *find(void *library, const char *name)
{
    if (library == &libc10) {
        CHECK(strcmp(name, "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE") == 0);
        return has_get_allocator ? (void *)get_allocator : NULL;
    }
    CHECK(library == &libc10_cuda);
    if (strcmp(name, "cudaGetLastError") == 0)
        return has_forget ? (void *)forget_error : NULL;
    note('l');
    return (void *)check;
}

ms_dlsym *ms_libc_dlsym(void)
{
    return find;
}

bool __wrap_ms_overcommit_take_failed(void)
{
    const bool was_shortage = is_shortage;
    is_shortage = false;
    return was_shortage;
}

static void must_call(int i, int32_t error, const char *calls)
{
    checks[i](error, "file", "function", 3, true, &log_capture);
    must_have(calls);
}

MS_TEST(other_errors_are_pytorchs)
{
    for (int i = 0; i < 3; i++) {
        must_call(i, 2, "lc");
        must_call(i, 1, "c");
    }
    is_shortage = true;
    must_call(0, 1, "c");
    CHECK(is_shortage); /* of another call */
    CHECK_EQ(lines, 0);
}

MS_TEST(a_shortage_of_the_shims_becomes_pytorchs_exception)
{
    for (int i = 0; i < 3; i++) {
        is_shortage = true;
        must_call(i, 2, "lgfac"); /* the last only if this PyTorch throws none */
    }
    CHECK(lines == 3 && logged_level == MS_INFO);
}

MS_TEST(a_pytorch_that_lacks_what_is_needed_says_what_it_says)
{
    bool *const has[] = {&has_allocator, &has_get_allocator, &has_forget};
    must_call(0, 2, "lc");
    for (int i = 0; i < 3; i++) {
        *has[i] = false;
        is_shortage = true;
        must_call(0, 2, i == 1 ? "c" : "gc");
        *has[i] = true;
    }
    CHECK_EQ(lines, 0);
}

MS_TEST(a_shortage_without_torch_libraries_calls_nothing)
{
    has_libraries = false;
    is_shortage = true;
    must_call(0, 2, "");
    has_libraries = true;
    must_call(0, 2, "lc"); /* they come later */
}
