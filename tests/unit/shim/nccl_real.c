/* SPDX-License-Identifier: Apache-2.0 */
/* Which copy of NCCL a call goes to. The loader is the test's: libraries are a few bytes of "code"
 * each. */
#include "shim/nccl_real.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/log.h"
#include "shim/nccl_wrappers.h"
#include "tests/unit/between.h"

enum { LIBRARIES = 10, CODE = 64 };

/* A library of a program, or a copy of NCCL. */
struct library {
    const char *path;
    char code[CODE];
    struct library *nccl; /* whose functions are found through it */
    bool has_names_with_p, has_comm_count, is_loaded, is_own;
};
static struct library libraries[LIBRARIES], *next; /* next: behind the shim */
static unsigned opened, closed, asked;             /* how often the loader was */
static bool torch_is_loaded, torch_has_nccl, has_map = true;
static int torch;

static struct library *library_at(const void *address)
{
    for (int i = 0; i < LIBRARIES; i++) {
        if ((const char *)address >= libraries[i].code &&
            (const char *)address < libraries[i].code + CODE)
            return &libraries[i];
    }
    return NULL;
}

/* Where a function is in each copy: with a "p" at odd places. */
static void *function_of(struct library *nccl, const char *name)
{
    const bool has_p = name[0] == 'p';
    static const char *const names[] = {"ncclGroupStart", "ncclAllReduce", "ncclCommCount",
                                        "ncclCommUserRank", "ncclCommInitRank"};
    for (int i = 0; i < 5; i++) {
        if (strcmp(name + has_p, names[i]) == 0 && (!has_p || nccl->has_names_with_p) &&
            (i != 2 || nccl->has_comm_count))
            return &nccl->code[2 * i + has_p];
    }
    return NULL;
}

static void *find(void *handle, const char *name)
{
    struct library *library = handle == RTLD_NEXT ? next : handle;
    asked++;
    if (handle == &torch)
        return torch_has_nccl && strcmp(name, "_ZN4c10d16ProcessGroupNCCL10groupStartEv") == 0
                   ? &torch
                   : NULL;
    return library != NULL && library->nccl != NULL ? function_of(library->nccl, name) : NULL;
}

ms_dlsym *ms_libc_dlsym(void)
{
    return find;
}

bool ms_is_own(const void *address)
{
    return library_at(address)->is_own;
}

static const void *comes_first; /* a function of a copy that another thread adds meanwhile */

struct ms_image ms_image_of(const void *address)
{
    const void *other = comes_first;
    comes_first = NULL;
    if (other != NULL)
        CHECK(ms_nccl_detect(other) != NULL);
    const struct library *library = library_at(address);
    return (struct ms_image){(uintptr_t)library->code, (uintptr_t)library->code + CODE};
}

bool ms_image_is_loaded(const char *name)
{
    CHECK(strcmp(name, "libtorch_cuda.so") == 0);
    return torch_is_loaded;
}

WRAPS(dlopen, dlclose, dladdr, dladdr1, dl_iterate_phdr);

void *__wrap_dlopen(const char *path, int flags)
{
    CHECK_EQ(flags, RTLD_LAZY | RTLD_NOLOAD); /* nothing is loaded */
    CHECK(path[0] != '\0');                   /* that would be the program */
    if (strcmp(path, "libtorch_cuda.so") == 0) {
        CHECK(torch_is_loaded); /* else the loader searches the files for it */
        opened++;
        return &torch;
    }
    for (int i = 0; i < LIBRARIES; i++) {
        if (libraries[i].path != NULL && strcmp(libraries[i].path, path) == 0) {
            opened++;
            return &libraries[i];
        }
    }
    return NULL;
}

int __wrap_dlclose(void *handle)
{
    CHECK(handle == &torch);
    closed++;
    return 0;
}

int __wrap_dladdr(const void *address, Dl_info *info)
{
    const struct library *library = library_at(address);
    *info = (Dl_info){.dli_fname = library != NULL ? library->path : NULL};
    return library != NULL;
}

int __wrap_dladdr1(const void *address, Dl_info *info, void **map, int flags)
{
    static struct link_map found;
    CHECK_EQ(flags, RTLD_DL_LINKMAP);
    found.l_name = (char *)(uintptr_t) "";
    if (__wrap_dladdr(address, info) == 0)
        return 0;
    if (info->dli_fname != NULL) /* the program itself has no path */
        found.l_name = (char *)(uintptr_t)info->dli_fname;
    *map = has_map ? &found : NULL;
    return 1;
}

int __wrap_dl_iterate_phdr(int visit(struct dl_phdr_info *, size_t, void *), void *context)
{
    int result = 0;
    for (int i = 0; i < LIBRARIES && result == 0; i++) {
        struct dl_phdr_info info = {.dlpi_name = libraries[i].path};
        if (libraries[i].is_loaded && info.dlpi_name != NULL)
            result = visit(&info, sizeof(info), context);
    }
    return result;
}

/* 0 and 1: copies of NCCL; 2 and 3: libraries with them; 4: without one; 5: the program. */
static struct library *const a = &libraries[0], *const b = &libraries[1],
                             *const has_a = &libraries[2], *const has_b = &libraries[3],
                             *const has_none = &libraries[4], *const program = &libraries[5];

static void make_nccl(struct library *library, const char *path)
{
    *library = (struct library){.path = path,
                                .nccl = library,
                                .has_names_with_p = true,
                                .has_comm_count = true,
                                .is_loaded = true};
}

static void start(void)
{
    make_nccl(a, "/a/libnccl.so.2");
    make_nccl(b, "/b/libnccl.so.2");
    *has_a = (struct library){.path = "/lib/has_a.so", .nccl = a};
    *has_b = (struct library){.path = "/lib/has_b.so", .nccl = b};
    *has_none = (struct library){.path = "/lib/has_none.so"};
    a->is_loaded = b->is_loaded = false;
}

static void must_be(const struct ms_nccl *nccl, const struct library *library)
{
    CHECK_EQ(nccl != NULL, library != NULL);
    if (library != NULL)
        CHECK(library_at(nccl->functions[MS_NCCL_ncclGroupStart]) == library);
}

STORY_AFTER(start, a_call_goes_to_the_copy_that_its_caller_would_find,
            must_be(ms_nccl_of(NULL, has_b->code), b), must_be(ms_nccl_of(NULL, has_a->code), a),
            must_be(ms_nccl_of(NULL, has_b->code + 1), b),
            IS(ms_nccl_is_first(ms_nccl_of(NULL, has_b->code))),
            IS(!ms_nccl_is_first(ms_nccl_of(NULL, has_a->code))))

MS_TEST_AFTER(start, a_caller_is_looked_up_once)
{
    must_be(ms_nccl_of(NULL, has_b->code), b);
    const unsigned before = asked + opened;
    for (int i = 0; i < 3; i++)
        must_be(ms_nccl_of(NULL, has_b->code), b);
    CHECK_EQ(asked + opened, before);
}

/* One lookup tells that the copy is known. */
MS_TEST_AFTER(start, the_functions_of_a_copy_are_looked_up_once)
{
    must_be(ms_nccl_of(NULL, has_b->code), b);
    const unsigned before = asked;
    must_be(ms_nccl_of(NULL, has_b->code + 1), b);
    CHECK_EQ(asked, before + 1);
}

MS_TEST_AFTER(start, a_copy_that_two_threads_find_is_one)
{
    static char paths[LIBRARIES][32];
    comes_first = a->code;
    must_be(ms_nccl_detect(a->code), a);
    for (int i = 1; i < 8; i++) {
        snprintf(paths[i], sizeof(paths[i]), "/%d/libnccl.so", i);
        make_nccl(&libraries[i], paths[i]);
        must_be(ms_nccl_detect(libraries[i].code), &libraries[i]);
    }
}

MS_TEST_AFTER(start, a_copy_has_its_functions_by_their_real_names)
{
    a->has_names_with_p = b->has_comm_count = false;
    const struct ms_nccl *nccl = ms_nccl_of(NULL, has_a->code);
    CHECK(nccl->functions[MS_NCCL_ncclGroupStart] == &a->code[0]);
    CHECK(nccl->functions[MS_NCCL_ncclAllReduce] == &a->code[2]);
    CHECK(nccl->comm_count == &a->code[4] && nccl->comm_user_rank == &a->code[6]);
    CHECK(nccl->functions[MS_NCCL_ncclGroupEnd] == NULL); /* it has none */
    CHECK(nccl->image.begin == (uintptr_t)a->code && nccl->image.end == (uintptr_t)a->code + CODE);
    nccl = ms_nccl_of(NULL, has_b->code);
    CHECK(nccl->functions[MS_NCCL_ncclGroupStart] == &b->code[1]);
    CHECK(nccl->functions[MS_NCCL_ncclCommInitRank] == &b->code[9]);
    CHECK(nccl->comm_count == NULL && nccl->comm_user_rank == &b->code[7]);
}

STORY_AFTER(start, the_shims_own_functions_are_no_copy, a->is_own = true,
            must_be(ms_nccl_of(NULL, has_a->code), NULL), a->is_own = false,
            must_be(ms_nccl_of(NULL, has_a->code), a))

MS_TEST_AFTER(start, the_code_of_a_copy_is_known_when_the_copy_is)
{
    CHECK(ms_nccl_at(a->code) == NULL);
    const struct ms_nccl *nccl = ms_nccl_of(NULL, has_a->code),
                         *other = ms_nccl_of(NULL, has_b->code);
    CHECK(ms_nccl_at(a->code) == nccl && ms_nccl_at(a->code + CODE - 1) == nccl);
    CHECK(ms_nccl_at(a->code - 1) == NULL);
    CHECK(ms_nccl_at(b->code) == other && ms_nccl_at(b->code + CODE - 1) == other);
    CHECK(ms_nccl_at(b->code + CODE) == NULL && ms_nccl_at(NULL) == NULL);
}

/* --- a caller that has none itself */

STORY_AFTER(start, a_caller_without_a_copy_gets_the_one_behind_the_shim, next = b,
            must_be(ms_nccl_of(NULL, has_none->code), b),
            must_be(ms_nccl_of(NULL, program->code), b), must_be(ms_nccl_of(NULL, "elsewhere"), b),
            has_map = false, must_be(ms_nccl_of(NULL, program->code + 1), b))

STORY_AFTER(start, a_caller_without_nccl_gets_the_first_copy_found,
            must_be(ms_nccl_of(NULL, has_none->code), NULL),
            must_be(ms_nccl_of(NULL, has_b->code), b), must_be(ms_nccl_of(NULL, has_a->code), a),
            a->is_loaded = true, must_be(ms_nccl_of(NULL, has_none->code), b))

MS_TEST_AFTER(start, a_caller_without_nccl_gets_the_copy_that_is_loaded)
{
    static const char *const others[] = {"/usr/lib/libnccl-net.so", "/libnccl.so/other",
                                         "/lib/other_libnccl.so"};
    a->is_loaded = b->is_loaded = true;
    b->path = "libnccl.so"; /* found by a relative name */
    for (int i = 0; i < 3; i++) {
        a->path = others[i];
        b->is_loaded = false;
        must_be(ms_nccl_of(NULL, has_none->code), NULL);
    }
    b->is_loaded = true;
    must_be(ms_nccl_of(NULL, has_none->code), b);
}

/* --- copies that were found by other means */

MS_TEST_AFTER(start, a_function_tells_its_copy)
{
    const struct ms_nccl *nccl = ms_nccl_detect(&a->code[3]);
    must_be(nccl, a);
    const unsigned before = opened;
    CHECK(ms_nccl_detect(&a->code[2]) == nccl);
    CHECK_EQ(opened, before);
    must_be(ms_nccl_detect(&b->code[2]), b);
    CHECK(ms_nccl_detect("elsewhere") == NULL);
    CHECK(ms_nccl_detect(program->code) == NULL);
    CHECK(ms_nccl_detect(has_none->code) == NULL);
}

MS_TEST_AFTER(start, the_table_has_room_for_eight_copies_of_nccl)
{
    static char paths[LIBRARIES][32];
    for (int i = 0; i < 9; i++) {
        snprintf(paths[i], sizeof(paths[i]), "/%d/libnccl.so", i);
        make_nccl(&libraries[i], paths[i]);
        must_be(ms_nccl_detect(libraries[i].code), i < 8 ? &libraries[i] : NULL);
    }
    for (int i = 0; i < 8; i++)
        must_be(ms_nccl_at(libraries[i].code), &libraries[i]);
}

/* --- communicators */

static ncclComm_t comm(int number)
{
    return (ncclComm_t)(uintptr_t)(0x10000 + number);
}

MS_TEST_AFTER(start, a_communicator_goes_to_the_copy_that_made_it)
{
    const struct ms_nccl *of_a = ms_nccl_of(NULL, has_a->code),
                         *of_b = ms_nccl_of(NULL, has_b->code);
    ms_nccl_add_comm(comm(1), of_a);
    ms_nccl_add_comm(comm(2), of_a);
    ms_nccl_add_comm(comm(3), of_a);
    for (int i = 1; i <= 3; i++)
        CHECK(ms_nccl_of(comm(i), has_b->code) == of_a);
    CHECK(ms_nccl_of(comm(4), has_b->code) == of_b); /* of nobody */
    ms_nccl_forget_comm(comm(1));
    CHECK(ms_nccl_of(comm(1), has_b->code) == of_b);
    CHECK(ms_nccl_of(comm(2), has_b->code) == of_a && ms_nccl_of(comm(3), has_b->code) == of_a);
    ms_nccl_forget_comm(comm(1)); /* there is none any more */
    CHECK(ms_nccl_of(comm(2), has_b->code) == of_a && ms_nccl_of(comm(3), has_b->code) == of_a);
    ms_nccl_add_comm(comm(2), of_b); /* the handle is another one's now */
    CHECK(ms_nccl_of(comm(2), has_a->code) == of_b);
    ms_nccl_forget_comm(comm(2));
    CHECK(ms_nccl_of(comm(2), has_a->code) == of_a);
    ms_nccl_forget_comm(comm(3));
    CHECK(ms_nccl_of(comm(3), has_b->code) == of_b);
}

MS_TEST_AFTER(start, the_last_that_was_forgotten_is_not_found_again)
{
    const struct ms_nccl *of_a = ms_nccl_detect(a->code);
    must_be(ms_nccl_detect(b->code), b);
    ms_nccl_add_comm(comm(1), of_a);
    ms_nccl_forget_comm(comm(1));
    must_be(ms_nccl_of(comm(1), has_b->code), b);
    must_be(ms_nccl_of(comm(2), has_b->code + 1), b);
}

MS_TEST_AFTER(start, the_loader_is_asked_each_time_without_room)
{
    enum { MOST = 1280 };
    const struct ms_nccl *of_a = ms_nccl_detect(a->code);
    must_be(ms_nccl_detect(b->code), b);
    for (int i = 0; i < MOST + 1; i++)
        ms_nccl_add_comm(comm(i), of_a);
    CHECK(ms_nccl_of(comm(MOST - 1), has_b->code) == of_a);
    must_be(ms_nccl_of(comm(MOST), has_b->code), b);
    const unsigned before = opened;
    must_be(ms_nccl_of(comm(MOST), has_b->code), b);
    CHECK(opened > before);
    ms_nccl_forget_comm(comm(5));
    must_be(ms_nccl_of(NULL, has_b->code), b);
    const unsigned since = opened;
    must_be(ms_nccl_of(NULL, has_b->code), b);
    CHECK_EQ(opened, since);
}

/* --- PyTorch with NCCL inside */

static bool is_warned(void)
{
    char text[512] = "";
    ms_log_open(MS_WARN, "/dev/null");
    FILE *file = tmpfile();
    CHECK(file != NULL);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fileno(file));
    ms_log_open(MS_WARN, path);
    ms_nccl_prepare_detection();
    ms_log_open(MS_WARN, NULL);
    rewind(file);
    const bool is_said = fread(text, 1, sizeof(text) - 1, file) > 0;
    CHECK(!is_said || strstr(text, "this PyTorch has NCCL linked into it") != NULL);
    fclose(file);
    return is_said;
}

MS_TEST_AFTER(start, a_pytorch_with_nccl_linked_into_it_is_a_warning)
{
    CHECK(!is_warned()); /* no PyTorch */
    torch_is_loaded = true;
    CHECK(!is_warned()); /* it does not use NCCL */
    CHECK_EQ(closed, 1);
    torch_has_nccl = true;
    CHECK(is_warned());
    a->is_loaded = true;
    CHECK(!is_warned());
    CHECK_EQ(opened, closed);
}
