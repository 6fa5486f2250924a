/* SPDX-License-Identifier: Apache-2.0 */
/* SIMCUDA_ variables, the files they make, injected faults, forks, the end of the process. */
#include "tools/simcuda/driver/order.h"
#include "tools/simcuda/tests/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs the body in a child with what the variables say; its standard error goes to the file. */
static void run(void (*body)(void), const char *errors)
{
    int status;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (errors != NULL)
            CHECK(freopen(errors, "w", stderr) != NULL);
        body();
        exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static char folder[] = "/tmp/simcuda-test-XXXXXX";
static pid_t owner;

static void remove_folder(void)
{
    if (getpid() == owner)
        rmdir(folder);
}

static const char *path_of(const char *name)
{
    static char path[4][128];
    static int next;
    if (owner == 0) {
        CHECK(mkdtemp(folder) != NULL);
        owner = getpid();
        atexit(remove_folder);
    }
    char *text = path[next++ % 4];
    snprintf(text, sizeof(path[0]), "%s/%s", folder, name);
    return text;
}

static char *contents(const char *path)
{
    static char text[65536];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    unlink(path);
    return text;
}

static long long number(const char *json, const char *name)
{
    char key[64];
    snprintf(key, sizeof(key), "\"%s\": ", name);
    const char *at = strstr(json, key);
    if (at == NULL)
        ms_test_fail(__FILE__, __LINE__, "%s is missing in %s", name, json);
    return strtoll(at + strlen(key), NULL, 10);
}

static void do_a_bit_of_everything(void)
{
    start();
    static char host[1000];
    CUdeviceptr first;
    CUdeviceptr second;
    CUmemGenericAllocationHandle kept;
    OK(cuMemAlloc(&first, 2 * MIB));
    OK(cuMemAlloc(&second, 6 * MIB));
    OK(cuMemcpyHtoD(first, host, 1000));
    OK(cuMemcpyDtoD(second, first, 500));
    OK(cuMemcpyDtoH(host, second, 300));
    OK(cuMemsetD32(second, 1, 25));
    OK(cuMemFree(second));
    const CUdeviceptr address = reserve(4 * MIB);
    back(address, 2 * MIB);
    kept = create(2 * MIB);
    OK(cuMemMap(address + 2 * MIB, 2 * MIB, 0, kept, 0));
}

MS_TEST(statistics)
{
    setenv("SIMCUDA_STATS", path_of("stats-%p.json"), 1);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        do_a_bit_of_everything();
        exit(0);
    }
    int status;
    char name[64];
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    snprintf(name, sizeof(name), "stats-%ld.json", (long)child);
    const char *json = contents(path_of(name));
    CHECK_EQ(number(json, "physical_bytes_peak"), 8 * MIB);
    CHECK_EQ(number(json, "physical_bytes_now"), 6 * MIB);
    CHECK_EQ(number(json, "h2d_bytes"), 1000);
    CHECK_EQ(number(json, "d2d_bytes"), 500);
    CHECK_EQ(number(json, "d2h_bytes"), 300);
    CHECK_EQ(number(json, "memset_bytes"), 100);
    CHECK_EQ(number(json, "allocate_calls"), 2);
    CHECK_EQ(number(json, "create_calls"), 2);
    CHECK_EQ(number(json, "map_calls"), 2);
    CHECK_EQ(number(json, "illegal_accesses"), 0);
    CHECK_EQ(number(json, "races"), 0);
    CHECK_EQ(number(json, "live_handles"), 1);
    CHECK_EQ(number(json, "live_reservations"), 1);
    CHECK(number(json, "processor_us") > 0);
    CHECK_EQ(number(json, "disk_bytes") % 512, 0);
}

static void unmap_too_early(void)
{
    start();
    CUstream stream;
    struct gate gate;
    const CUdeviceptr address = reserve(2 * MIB);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    back(address, 2 * MIB);
    close_gate(&gate, stream);
    OK(cuMemsetD8Async(address, 1, 2 * MIB, stream));
    OK(cuMemUnmap(address, 2 * MIB));
    open_gate(&gate);
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}

MS_TEST(races_and_illegal_accesses_are_counted_and_told)
{
    const char *errors = path_of("errors");
    setenv("SIMCUDA_STATS", path_of("stats"), 1);
    run(unmap_too_early, errors);
    const char *json = contents(path_of("stats"));
    CHECK_EQ(number(json, "races"), 1);
    CHECK_EQ(number(json, "illegal_accesses"), 1);
    const char *text = contents(path_of("errors"));
    CHECK(strstr(text, "simcuda: race: memory was unmapped while cuMemsetAsync was queued") !=
          NULL);
    CHECK(strstr(text, "simcuda: illegal access by cuMemsetAsync") != NULL);
}

static void log_a_little(void)
{
    start();
    FAILS(cuMemFree(12345), CUDA_ERROR_INVALID_VALUE);
}

MS_TEST(log_of_calls)
{
    setenv("SIMCUDA_LOG", path_of("log"), 1);
    run(log_a_little, NULL);
    CHECK_EQ(strcmp(contents(path_of("log")),
                    "cuInit\ncuDevicePrimaryCtxRetain\ncuCtxSetCurrent\ncuMemFree_v2\n"),
             0);
}

static void meet_faults(void)
{
    start();
    CUdeviceptr address;
    char host[4];
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp prop = device_prop(0);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    FAILS(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    size_t total;
    OK(cuMemGetInfo(NULL, &total));
    CHECK_EQ(total - free_bytes(), 4 * MIB);
    OK(cuMemAlloc(&address, 4));
    FAILS(cuMemcpyHtoD(address, host, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuMemcpyHtoD(address, host, 4));
    FAILS(cuMemcpyHtoD(address, host, 4), CUDA_ERROR_UNKNOWN);
}

MS_TEST(faults_on_request)
{
    setenv("SIMCUDA_FAULTS", "cuMemCreate:2=2,cuMemcpyHtoD_v2:1=700,cuMemcpyHtoD_v2:3=999", 1);
    run(meet_faults, NULL);
}

static void make_traced_calls(void)
{
    int count;
    OK(cuInit(0));
    for (volatile int i = 0; i < 2; i++) /* so that there is one place */
        OK(cuDeviceGetCount(&count));
    FAILS(cuDeviceGetCount(&count), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Two calls from one place have one path. */
MS_TEST(calls_of_a_library_are_numbered_and_traced)
{
    char path[2][32];
    setenv("SIMCUDA_FAULT_CALLER", "test_environment", 1);
    setenv("SIMCUDA_FAULTS", "*:4=2", 1);
    setenv("SIMCUDA_FAULT_REPORT", path_of("report"), 1);
    setenv("SIMCUDA_FAULT_TRACE", path_of("trace"), 1);
    run(make_traced_calls, NULL);
    CHECK(strcmp(contents(path_of("report")), "cuDeviceGetCount\n") == 0);
    const char *text = contents(path_of("trace"));
    CHECK(strncmp(text, "1 cuInit ", 9) == 0);
    CHECK_EQ(sscanf(strstr(text, "\n2 "), "\n2 cuDeviceGetCount %31s", path[0]), 1);
    CHECK_EQ(sscanf(strstr(text, "\n3 "), "\n3 cuDeviceGetCount %31s", path[1]), 1);
    CHECK(strcmp(path[0], path[1]) == 0);
    CHECK_EQ(sscanf(strstr(text, "\n4 "), "\n4 cuDeviceGetCount %31s", path[1]), 1);
    CHECK(strcmp(path[0], path[1]) != 0);
    CHECK(strstr(text, "\n5 ") == NULL);
}

/* The call that was the fourth is the only one of its path, when all is called from the same
 * places. */
MS_TEST(calls_of_a_path_are_counted_alone)
{
    char path[32], line[80];
    setenv("SIMCUDA_FAULT_CALLER", "test_environment", 1);
    setenv("SIMCUDA_FAULTS", "*:4=2", 1);
    setenv("SIMCUDA_FAULT_TRACE", path_of("trace"), 1);
    for (volatile int i = 0; i < 2; i++) {
        run(make_traced_calls, NULL);
        const char *text = contents(path_of("trace"));
        if (i == 1) {
            snprintf(line, sizeof(line), "1 cuDeviceGetCount %s\n", path);
            CHECK(strcmp(text, line) == 0);
            break;
        }
        CHECK_EQ(sscanf(strstr(text, "\n4 "), "\n4 cuDeviceGetCount %31s", path), 1);
        setenv("SIMCUDA_FAULT_PATH", path, 1);
        setenv("SIMCUDA_FAULTS", "*:1=2", 1);
    }
}

static void check_defaults(void)
{
    start();
    int count;
    size_t total;
    OK(cuDeviceGetCount(&count));
    CHECK_EQ(count, 1);
    OK(cuMemGetInfo(NULL, &total));
    CHECK_EQ(total, 8192 * MIB);
}

MS_TEST(bad_values_are_told_and_not_used)
{
    setenv("SIMCUDA_DEVICES", "many", 1);
    setenv("SIMCUDA_MEMORY_MIB", "-5", 1);
    setenv("SIMCUDA_FAULTS", "cuNoSuchCall:1=2,cuMemAlloc_v2:0=2,cuMemAlloc_v2", 1);
    run(check_defaults, path_of("errors"));
    const char *text = contents(path_of("errors"));
    CHECK(strstr(text, "simcuda: SIMCUDA_DEVICES is \"many\", expected a number") != NULL);
    CHECK(strstr(text, "simcuda: SIMCUDA_MEMORY_MIB is \"-5\", expected a number") != NULL);
    CHECK(strstr(text, "\"cuNoSuchCall:1=2\" is not understood") != NULL);
    CHECK(strstr(text, "\"cuMemAlloc_v2:0=2\" is not understood") != NULL);
    CHECK(strstr(text, "\"cuMemAlloc_v2\" is not understood") != NULL);
}

static void check_forked(void)
{
    CUdeviceptr address;
    int version;
    FAILS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuMemAlloc(&address, 1), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuDriverGetVersion(&version));
}

MS_TEST(nothing_works_in_a_forked_child)
{
    setenv("SIMCUDA_STATS", path_of("stats"), 1);
    start();
    CUstream stream;
    struct gate gate;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    close_gate(&gate, stream);
    run(check_forked, NULL);
    CHECK(access(path_of("stats"), F_OK) != 0);
    open_gate(&gate);
    OK(cuCtxSynchronize());
}

static void use_the_driver(void)
{
    start();
    CHECK(free_bytes() > 0);
}

MS_TEST(a_fork_before_init_is_harmless)
{
    int version;
    OK(cuDriverGetVersion(&version));
    run(use_the_driver, NULL);
    run(use_the_driver, NULL);
}

static void check_granule(void)
{
    size_t granularity;
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    OK(cuInit(0));
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_EQ(granularity, 128 << 10);
}

MS_TEST(the_granule_can_be_smaller)
{
    setenv("SIMCUDA_GRANULE_KIB", "100", 1);
    run(check_granule, path_of("errors"));
}

static CUdeviceptr reserve_at(CUdeviceptr wish)
{
    CUdeviceptr address = 0;
    OK(cuMemAddressReserve(&address, 64 * MIB, 0, wish, 0));
    return address;
}

/* A sanitizer's own memory lies there. */
static bool may_be_low(void)
{
    void *memory = mmap((void *)0x310000000, 4096, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != MAP_FAILED)
        munmap(memory, 4096);
#ifdef __SANITIZE_THREAD__
    return false;
#endif
    return memory == (void *)0x310000000;
}

#define FAR ((CUdeviceptr)0x5a5b00000000)
#define LOW ((CUdeviceptr)0x302000000)

static void check_low(void)
{
    const bool is_possible = may_be_low();
    start();
    CUdeviceptr allocated;
    OK(cuMemAlloc(&allocated, 4 * MIB));
    CHECK(allocated > (CUdeviceptr)1 << 36);
    const CUdeviceptr first = reserve_at(0);
    CHECK_EQ(first == LOW, is_possible);
    if (!is_possible)
        return;
    CHECK_EQ(reserve_at(0), LOW + 64 * MIB);
    CHECK_EQ(reserve_at(FAR), FAR);
    CHECK_EQ(reserve_at(FAR), FAR + 64 * MIB); /* it is taken: the next one that is free */
    OK(cuMemAddressFree(FAR, 64 * MIB));
    CHECK_EQ(reserve_at(FAR + 2 * MIB), FAR + 128 * MIB);
    OK(cuMemAddressFree(first, 64 * MIB));
    CHECK_EQ(reserve_at(0), LOW);
}

MS_TEST(reservations_may_be_low)
{
    setenv("SIMCUDA_LOW", "1", 1);
    run(check_low, NULL);
    unsetenv("SIMCUDA_LOW");
    setenv("SIM_SETTINGS", "SIMCUDA_DEVICES=2 SIMCUDA_LOW=1", 1);
    run(check_low, NULL);
}

static void check_declined(void)
{
    start();
    CHECK(reserve_at(FAR) != FAR);
}

static void check_refused(void)
{
    CUdeviceptr address;
    start();
    FAILS(cuMemAddressReserve(&address, 64 * MIB, 0, FAR, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(reserve_at(0) != FAR);
}

MS_TEST(wanted_addresses_may_be_declined_or_refused)
{
    setenv("SIMCUDA_HINTS", "0", 1);
    run(check_declined, NULL);
    setenv("SIMCUDA_HINTS", "2", 1);
    run(check_refused, NULL);
    setenv("SIM_SETTINGS", "SIMCUDA_HINTS=0", 1); /* the variable comes first */
    run(check_refused, NULL);
}
