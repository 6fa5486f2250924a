/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks for what the CUDA runtime 13.0 asks for, in its way: dlopen, one dlsym, and from then on the
 * cuGetProcAddress that cuGetProcAddress itself gave out. Every answer must be the ABI that the
 * version and flags mean, from the shim where the entry table says so, else from the driver.
 *
 * REPLAY_EXPECT: "driver", without the shim or with the shim off, or "shim".
 */
#include <stdbool.h>

/* Before cuda.h, whose macros rename functions. */
enum class { CLASS_OWN, CLASS_OBSERVE, CLASS_SEAL, CLASS_FORWARD };

struct row {
    enum class class;
    const char *symbol;
    const char *base;
    int version;
    bool per_thread;
};
static const struct row rows[] = {
#define MS_ENTRY(class_, symbol, base, version, per_thread, reason) \
    {CLASS_##class_, #symbol, #base, version, per_thread},
#include "shim/entries.def"
#undef MS_ENTRY
};

#include "tools/simcuda/harness/test.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult get_proc_address(const char *, void **, int, cuuint64_t,
                                  CUdriverProcAddressQueryResult *);

struct request {
    char name[128];
    int version;
    int flags;
};

static bool expects_shim(void)
{
    const char *expect = getenv("REPLAY_EXPECT");
    CHECK(expect != NULL);
    return strcmp(expect, "shim") == 0;
}

/* The row that the driver has to choose; NULL: none fits. */
static const struct row *choose(const struct request *request)
{
    const struct row *best = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        if (strcmp(row->base, request->name) != 0 || row->version > request->version ||
            (row->per_thread && request->flags != CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
            continue;
        if (best == NULL || row->version > best->version ||
            (row->version == best->version && row->per_thread))
            best = row;
    }
    return best;
}

static bool is_in(const void *address, const char *library)
{
    Dl_info info;
    return dladdr(address, &info) != 0 && strstr(info.dli_fname, library) != NULL;
}

/* Reads the next line of the list; the first request has an empty name. */
static bool next_request(FILE *list, struct request *request)
{
    char line[256];
    if (fgets(line, sizeof line, list) == NULL)
        return false;
    request->name[0] = '\0';
    if (sscanf(line, "%127s ver=%d flags=%d", request->name, &request->version, &request->flags) !=
        3) {
        request->name[0] = '\0';
        CHECK_EQ(sscanf(line, " ver=%d flags=%d", &request->version, &request->flags), 2);
    }
    return true;
}

struct driver {
    void *library;
    get_proc_address *get;
    FILE *list;
};

static struct driver start(void)
{
    struct driver driver = {.library = dlopen("libcuda.so.1", RTLD_NOW)};
    CHECK(driver.library != NULL);
    get_proc_address *first = (get_proc_address *)dlsym(driver.library, "cuGetProcAddress_v2");
    CHECK(first != NULL);
    void *second = NULL;
    CHECK_EQ(first("cuGetProcAddress", &second, 12000, 0, NULL), CUDA_SUCCESS);
    driver.get = (get_proc_address *)second;
    const char *path = getenv("REPLAY_LIST");
    driver.list = path != NULL ? fopen(path, "r") : NULL;
    if (driver.list == NULL)
        ms_test_fail(__FILE__, __LINE__, "REPLAY_LIST does not name a file that can be read");
    return driver;
}

static void check_answer(const struct driver *driver, const struct request *request)
{
    const struct row *row = choose(request);
    CUdriverProcAddressQueryResult status;
    void *given = (void *)driver;
    const CUresult result =
        driver->get(request->name, &given, request->version, (cuuint64_t)request->flags, &status);
    if (row == NULL) {
        CHECK_EQ(result, CUDA_SUCCESS);
        CHECK(given == NULL);
        CHECK(status != CU_GET_PROC_ADDRESS_SUCCESS);
        return;
    }
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    const bool from_shim = expects_shim() && row->class != CLASS_FORWARD;
    if (!is_in(given, from_shim ? "libmetashard" : "libcuda"))
        ms_test_fail(__FILE__, __LINE__, "%s version %d flags %d: %s is not from the %s",
                     request->name, request->version, request->flags, row->symbol,
                     from_shim ? "shim" : "driver");
    /* Asking for the export by its name must lead to the same function. */
    if (given != dlsym(driver->library, row->symbol))
        ms_test_fail(__FILE__, __LINE__, "%s version %d flags %d is not what dlsym gives for %s",
                     request->name, request->version, request->flags, row->symbol);
}

MS_TEST(all_requests_of_the_runtime)
{
    const struct driver driver = start();
    struct request request;
    int count = 0;
    while (next_request(driver.list, &request)) {
        check_answer(&driver, &request);
        count++;
    }
    CHECK_EQ(count, 440);
}

MS_TEST(every_row_of_the_entry_table)
{
    const struct driver driver = start();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct request request = {.version = rows[i].version, .flags = rows[i].per_thread ? 2 : 1};
        strcpy(request.name, rows[i].base);
        check_answer(&driver, &request);
    }
}

MS_TEST(the_old_resolver)
{
    const struct driver driver = start();
    void *given = NULL;
    CHECK_EQ(driver.get("cuGetProcAddress", &given, 11030, 0, NULL), CUDA_SUCCESS);
    CUresult (*old)(const char *, void **, int, cuuint64_t) =
        (CUresult(*)(const char *, void **, int, cuuint64_t))given;
    CHECK_EQ(old("cuMemAlloc", &given, 3020, 0), CUDA_SUCCESS);
    CHECK(given == dlsym(driver.library, "cuMemAlloc_v2"));
    CHECK(is_in(given, expects_shim() ? "libmetashard" : "libcuda"));
    CHECK_EQ(old("cuMemAlloc", &given, 2000, 0), CUDA_SUCCESS);
    CHECK(given == dlsym(driver.library, "cuMemAlloc"));
    CHECK(is_in(given, "libcuda"));
}
