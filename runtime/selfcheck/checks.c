/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/selfcheck/checks.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/base/heap.h"
#include "runtime/driver/device_memory.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/backing.h"
#include "runtime/memory/far_address.h"
#include "runtime/order/order.h"

/*
 * The memory of a run, in granules. A, B and C are a handle each. The last place is for a second
 * mapping of a handle. Bytes are compared in a window on either side of a border.
 *
 *     |  A  |  B  |  C  |     |
 */
enum { HANDLES = 3, PLACES = 4, LEAST_FREE_GRANULES = 16 };
enum { WINDOW = 8 << 10, MOST_HOST_BYTES = 96 << 10 };
enum { PATIENCE_MS = 1000, EVENT_PATIENCE_MS = 20, SETS = 4, SET_VALUE = 0xA0 };

enum answer { YES, NO, REFUSED, UNKNOWN };

struct run {
    CUcontext context;
    CUdevice device;
    CUmemAllocationProp prop;
    size_t granule;
    CUdeviceptr base; /* 0: nothing is reserved */
    CUmemGenericAllocationHandle handles[HANDLES];
    bool is_mapped[PLACES];
    CUstream work, reader; /* the reader never waits for the work */
    CUevent event;
    unsigned char *given, *got; /* host_bytes each: more than drivers put into a command */
    size_t host_bytes;
    bool is_stuck;      /* the device does not get to the work */
    enum answer answer; /* of the current check */
    char *seen;
};

static CUdeviceptr place(const struct run *run, size_t at)
{
    return run->base + at * run->granule;
}

/* --- answers: a check that returns false has given one */

__attribute__((format(printf, 3, 4))) static bool answer(struct run *run, enum answer answer,
                                                         const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    run->answer = answer;
    vsnprintf(run->seen, MS_SEEN_BYTES, format, arguments);
    va_end(arguments);
    return false;
}

/* Other errors say nothing about the fact: memory is short, or the context is lost. */
static bool is_refusal(CUresult result)
{
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
           result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED;
}

static bool good(struct run *run, CUresult result, const char *call)
{
    return result == CUDA_SUCCESS || answer(run, is_refusal(result) ? REFUSED : UNKNOWN,
                                            "%s returns CUDA error %d", call, (int)result);
}

/* --- waiting: not by events, which are a fact to be asked */

static CUresult poll(CUstream stream)
{
    enum { SPINS = 64, STEP_NS = 50 * 1000, STEPS = PATIENCE_MS * (1000000 / STEP_NS) };
    CUresult state = ms_driver.stream_query(stream);
    for (int i = 0; i < SPINS + STEPS && state == CUDA_ERROR_NOT_READY; i++) {
        if (i < SPINS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
        state = ms_driver.stream_query(stream);
    }
    return state;
}

static bool wait(struct run *run, CUstream stream)
{
    const CUresult state = poll(stream);
    if (state == CUDA_SUCCESS)
        return true;
    run->is_stuck |= state == CUDA_ERROR_NOT_READY;
    return answer(run, UNKNOWN, "the device does not finish: CUDA error %d", (int)state);
}

/* --- content */

static unsigned char byte_of(unsigned seed, size_t at)
{
    return (unsigned char)((at * 2654435761u + seed * 40503u) >> 11);
}

static void give_pattern(struct run *run, unsigned seed, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        run->given[i] = byte_of(seed, i);
}

static bool write_pattern(struct run *run, unsigned seed, CUdeviceptr to, size_t bytes)
{
    give_pattern(run, seed, bytes);
    return good(run, ms_driver.memcpy_htod_async(to, run->given, bytes, run->work),
                "cuMemcpyHtoDAsync") &&
           wait(run, run->work);
}

/* Fills `got` before it reads, so that bytes that are not read differ from `given`. */
static bool read_got(struct run *run, CUdeviceptr from, size_t at, size_t bytes)
{
    for (size_t i = at; i < at + bytes; i++)
        run->got[i] = (unsigned char)~run->given[i];
    return good(run, ms_driver.memcpy_dtoh_async(run->got + at, from, bytes, run->reader),
                "cuMemcpyDtoHAsync") &&
           wait(run, run->reader);
}

/* True if the bytes read are the bytes given. */
static bool compare(struct run *run, const char *what, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (run->got[i] != run->given[i])
            return answer(run, NO, "byte %zu of %zu %s is 0x%02x, not 0x%02x", i, bytes, what,
                          run->got[i], run->given[i]);
    }
    return true;
}

/* Each handle is read by itself: a copy over several is a fact of its own. */
static bool find_given(struct run *run, const char *what, CUdeviceptr from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const size_t left = run->granule - (from + done - run->base) % run->granule;
        const size_t now = bytes - done < left ? bytes - done : left;
        if (!read_got(run, from + done, done, now))
            return false;
        done += now;
    }
    return compare(run, what, bytes);
}

static bool find_pattern(struct run *run, const char *what, unsigned seed, CUdeviceptr from,
                         size_t bytes)
{
    give_pattern(run, seed, bytes);
    return find_given(run, what, from, bytes);
}

/* --- memory and addresses */

static bool map(struct run *run, size_t at, CUmemGenericAllocationHandle handle)
{
    const CUmemAccessDesc access = {.location = run->prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (!good(run, ms_driver.mem_map(place(run, at), run->granule, 0, handle, 0), "cuMemMap"))
        return false;
    run->is_mapped[at] = true;
    return good(run, ms_driver.mem_set_access(place(run, at), run->granule, &access, 1),
                "cuMemSetAccess");
}

static bool unmap(struct run *run, size_t at)
{
    if (!good(run, ms_driver.mem_unmap(place(run, at), run->granule), "cuMemUnmap"))
        return false;
    run->is_mapped[at] = false;
    return true;
}

static bool has_free_memory(struct run *run)
{
    size_t free_bytes, total_bytes;
    return good(run, ms_driver.mem_get_info(&free_bytes, &total_bytes), "cuMemGetInfo") &&
           (free_bytes / LEAST_FREE_GRANULES >= run->granule ||
            answer(run, UNKNOWN, "only %zu bytes are free", free_bytes));
}

static bool make_handles(struct run *run)
{
    for (size_t i = 0; i < HANDLES; i++) {
        CUmemGenericAllocationHandle handle;
        char call[48];
        snprintf(call, sizeof(call), "cuMemCreate of %zu bytes", run->granule);
        if (!good(run, ms_driver.mem_create(&handle, run->granule, &run->prop, 0), call))
            return false;
        run->handles[i] = handle;
        if (!map(run, i, handle))
            return false;
    }
    return true;
}

static bool make_host(struct run *run)
{
    run->host_bytes = run->granule < MOST_HOST_BYTES ? run->granule : MOST_HOST_BYTES;
    run->given = ms_heap_alloc(run->host_bytes);
    run->got = ms_heap_alloc(run->host_bytes);
    return (run->given != NULL && run->got != NULL) ||
           answer(run, UNKNOWN, "there is no host memory");
}

static bool make_streams(struct run *run)
{
    CUstream stream;
    CUevent event;
    if (!good(run, ms_driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"))
        return false;
    run->work = stream;
    if (!good(run, ms_driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"))
        return false;
    run->reader = stream;
    if (!good(run, ms_driver.event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"))
        return false;
    run->event = event;
    return true;
}

/* Reserves as much as an allocation does: a driver may put a smaller range elsewhere. */
static size_t reserved_bytes(const struct run *run)
{
    return ms_backing_reserved(PLACES * run->granule, run->granule);
}

/* The first fact. Its check makes memory, streams and the event for the others. */
static bool check_memory(struct run *run)
{
    run->prop = ms_device_memory_properties(run->device);
    if (!good(run,
              ms_driver.mem_get_granularity(&run->granule, &run->prop,
                                            CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
              "cuMemGetAllocationGranularity"))
        return false;
    if (run->granule < 4 * WINDOW || (run->granule & (run->granule - 1)) != 0)
        return answer(run, NO, "the granularity is %zu bytes", run->granule);
    return has_free_memory(run) && make_host(run) && make_streams(run) &&
           good(run, ms_addresses_reserve(&run->base, reserved_bytes(run), run->granule, false),
                "cuMemAddressReserve") &&
           make_handles(run) && write_pattern(run, 1, place(run, 0), WINDOW) &&
           find_pattern(run, "written", 1, place(run, 0), WINDOW);
}

static bool check_granularity(struct run *run)
{
    CUmemAllocationProp plain = run->prop;
    size_t granule;
    plain.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    plain.allocFlags.gpuDirectRDMACapable = 0;
    return good(run,
                ms_driver.mem_get_granularity(&granule, &plain,
                                              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                "cuMemGetAllocationGranularity") &&
           (granule == run->granule ||
            answer(run, NO, "it is %zu bytes, of other memory %zu", run->granule, granule));
}

static bool check_hint(struct run *run)
{
    return ms_address_is_far(run->base) || answer(run, NO, "0x%llx was reserved", run->base);
}

static bool is_alias(struct run *run)
{
    const size_t bytes = WINDOW;
    return write_pattern(run, 2, place(run, 0), bytes) &&
           write_pattern(run, 3, place(run, HANDLES) + bytes, bytes) &&
           find_pattern(run, "written at the first address", 2, place(run, HANDLES), bytes) &&
           find_pattern(run, "written at the second address", 3, place(run, 0) + bytes, bytes);
}

static bool check_alias(struct run *run)
{
    if (!map(run, HANDLES, run->handles[0]))
        return false;
    const bool is_same = is_alias(run);
    return wait(run, run->work) && unmap(run, HANDLES) && is_same;
}

/* --- sets and copies over the borders of A, B and C */

static bool find_words(struct run *run, uint32_t word)
{
    for (size_t i = 0; i < 2 * WINDOW; i += sizeof(word))
        memcpy(run->given + i, &word, sizeof(word));
    return find_given(run, "set at the first border", place(run, 1) - WINDOW, 2 * WINDOW) &&
           find_given(run, "set at the second border", place(run, 2) - WINDOW, 2 * WINDOW);
}

static bool check_set(struct run *run)
{
    const CUdeviceptr from = place(run, 1) - WINDOW;
    const size_t bytes = run->granule + 2 * WINDOW;
    return good(run, ms_driver.memset_d8_async(from, 0x5C, bytes, run->work), "cuMemsetD8Async") &&
           wait(run, run->work) && find_words(run, 0x5C5C5C5C) &&
           good(run, ms_driver.memset_d32_async(from, 0x1234ABCD, bytes / 4, run->work),
                "cuMemsetD32Async") &&
           wait(run, run->work) && find_words(run, 0x1234ABCD);
}

static bool check_copy(struct run *run)
{
    const size_t bytes = 2 * WINDOW - 3;
    const CUdeviceptr first = place(run, 1) - WINDOW + 1;
    const CUdeviceptr second = place(run, 2) - WINDOW + 2;
    return write_pattern(run, 4, first, bytes) &&
           find_given(run, "copied from the host", first, bytes) &&
           good(run, ms_driver.memcpy_dtod_async(second, first, bytes, run->work),
                "cuMemcpyDtoDAsync") &&
           wait(run, run->work) && find_given(run, "copied on the device", second, bytes) &&
           read_got(run, first, 0, bytes) && compare(run, "copied to the host", bytes);
}

enum { ROWS = 8, ROW_BYTES = 999, HOST_PITCH = 1008 };

/* The pitch of rows in device memory. Rows at the borders reach over them. */
static size_t pitch_of(const struct run *run)
{
    return run->granule / 4 + 512;
}

static CUdeviceptr first_row(const struct run *run)
{
    return place(run, 1) - ROW_BYTES / 2 - 2 * pitch_of(run);
}

static bool find_rows(struct run *run, const char *what, CUdeviceptr from, size_t pitch)
{
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t at = 0; at < ROW_BYTES; at++)
            run->given[at] = byte_of(5, i * HOST_PITCH + at);
        if (!find_given(run, what, from + i * pitch, ROW_BYTES))
            return false;
    }
    return true;
}

static bool check_copy_2d(struct run *run)
{
    const CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = run->given,
                                .srcPitch = HOST_PITCH,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = first_row(run),
                                .dstPitch = pitch_of(run),
                                .WidthInBytes = ROW_BYTES,
                                .Height = ROWS};
    const CUDA_MEMCPY2D along = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                 .srcDevice = first_row(run),
                                 .srcPitch = pitch_of(run),
                                 .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                 .dstDevice = place(run, 0),
                                 .dstPitch = HOST_PITCH,
                                 .WidthInBytes = ROW_BYTES,
                                 .Height = ROWS};
    give_pattern(run, 5, ROWS * HOST_PITCH);
    return good(run, ms_driver.memcpy_2d_async(&down, run->work), "cuMemcpy2DAsync") &&
           wait(run, run->work) &&
           find_rows(run, "of a row from the host", first_row(run), pitch_of(run)) &&
           good(run, ms_driver.memcpy_2d_async(&along, run->work), "cuMemcpy2DAsync") &&
           wait(run, run->work) &&
           find_rows(run, "of a row on the device", place(run, 0), HOST_PITCH);
}

/* --- order */

/* Queues sets of A, the last of them with that value. */
static bool queue_sets(struct run *run, unsigned char value)
{
    for (unsigned i = 0; i < SETS; i++) {
        const unsigned char now = (unsigned char)(value - (SETS - 1) + i);
        if (!good(run, ms_driver.memset_d8_async(place(run, 0), now, run->granule, run->work),
                  "cuMemsetD8Async"))
            return false;
    }
    return true;
}

static bool check_source(struct run *run)
{
    const size_t bytes = run->host_bytes;
    give_pattern(run, 6, bytes);
    if (!queue_sets(run, SET_VALUE) ||
        !good(run, ms_driver.memcpy_htod_async(place(run, 1), run->given, bytes, run->work),
              "cuMemcpyHtoDAsync"))
        return false;
    give_pattern(run, 7, bytes);
    return wait(run, run->work) &&
           find_pattern(run, "copied before they were overwritten", 6, place(run, 1), bytes);
}

/* The event was recorded after the sets, the last of which has that value. Once the sets are done,
 * waits only a little for the event: it may follow work of the program. */
static bool find_sets(struct run *run, unsigned char value)
{
    const size_t bytes = WINDOW;
    bool are_done = false;
    CUresult state = ms_order_event_poll(run->event, EVENT_PATIENCE_MS);
    for (int ms = 0; state == CUDA_ERROR_NOT_READY && !are_done && ms < PATIENCE_MS;
         ms += EVENT_PATIENCE_MS) {
        are_done = ms_driver.stream_query(run->work) != CUDA_ERROR_NOT_READY;
        state = ms_order_event_poll(run->event, EVENT_PATIENCE_MS);
    }
    if (state != CUDA_SUCCESS)
        return answer(run, UNKNOWN, "the event is not complete: CUDA error %d", (int)state);
    memset(run->given, value, bytes);
    return find_given(run, "set before the event", place(run, 1) - bytes, bytes) &&
           wait(run, run->work);
}

static bool check_event(struct run *run)
{
    const unsigned char value = SET_VALUE + SETS;
    return queue_sets(run, value) &&
           good(run, ms_driver.event_record(run->event, run->work), "cuEventRecord") &&
           find_sets(run, value);
}

/* Holds for a driver without the function: there is nothing else to ask. */
static bool check_context_event(struct run *run)
{
    const unsigned char value = SET_VALUE + 2 * SETS;
    if (!queue_sets(run, value))
        return false;
    const CUresult result = ms_order_context_record(run->context, run->event);
    return result == CUDA_ERROR_NOT_SUPPORTED ||
           (good(run, result, "cuCtxRecordEvent") && find_sets(run, value));
}

/* --- A and C change places */

static bool check_remap(struct run *run)
{
    const size_t bytes = WINDOW;
    return write_pattern(run, 8, place(run, 0), bytes) &&
           write_pattern(run, 9, place(run, 2), bytes) && unmap(run, 0) && unmap(run, 2) &&
           map(run, 0, run->handles[2]) && map(run, 2, run->handles[0]) &&
           find_pattern(run, "of the memory mapped first", 9, place(run, 0), bytes) &&
           find_pattern(run, "of the memory mapped second", 8, place(run, 2), bytes);
}

/* --- all checks */

static const struct check {
    enum ms_fact fact;
    bool (*holds)(struct run *run);
} checks[] = {
    {MS_FACT_MEMORY, check_memory}, /* before the others */
    {MS_FACT_GRANULARITY, check_granularity},
    {MS_FACT_HINT, check_hint},
    {MS_FACT_ALIAS, check_alias},
    {MS_FACT_SET, check_set},
    {MS_FACT_COPY, check_copy},
    {MS_FACT_COPY_2D, check_copy_2d},
    {MS_FACT_SOURCE, check_source},
    {MS_FACT_EVENT, check_event},
    {MS_FACT_CONTEXT_EVENT, check_context_event},
    {MS_FACT_REMAP, check_remap}, /* last: other memory lies there then */
};

enum { CHECKS = sizeof(checks) / sizeof(checks[0]) };

/* Asks one fact. False if no other fact can be asked. */
static bool ask(struct run *run, const struct check *check, struct ms_check_report *report)
{
    const uint32_t bit = MS_FACT_BIT(check->fact);
    run->seen = report->seen[check->fact];
    run->answer = YES;
    if (check->holds(run))
        return true;
    if (run->answer == UNKNOWN)
        report->unknown |= bit;
    else
        report->unmet |= bit;
    if (run->answer == REFUSED)
        report->refused |= bit;
    ms_log(MS_DEBUG, "self-check: %s: %s", ms_facts[check->fact].name, run->seen);
    /* Queued work would change what the next check finds. */
    return check->fact != MS_FACT_MEMORY && !run->is_stuck &&
           (run->answer != UNKNOWN || check->fact == MS_FACT_CONTEXT_EVENT) &&
           poll(run->work) == CUDA_SUCCESS && poll(run->reader) == CUDA_SUCCESS;
}

/* Tries twice, then leaves the resource. */
#define GIVE_BACK(call)             \
    do {                            \
        if ((call) != CUDA_SUCCESS) \
            (void)(call);           \
    } while (0)

static void give_memory_back(const struct run *run)
{
    for (size_t i = 0; i < PLACES; i++) {
        if (run->is_mapped[i])
            GIVE_BACK(ms_driver.mem_unmap(place(run, i), run->granule));
    }
    for (size_t i = 0; i < HANDLES; i++) {
        if (run->handles[i] != 0)
            GIVE_BACK(ms_driver.mem_release(run->handles[i]));
    }
    if (run->base != 0)
        GIVE_BACK(ms_driver.mem_address_free(run->base, reserved_bytes(run)));
}

/* False if queued work may still use the memory. */
static bool give_back(struct run *run)
{
    if (run->is_stuck || (run->work != NULL && poll(run->work) == CUDA_ERROR_NOT_READY) ||
        (run->reader != NULL && poll(run->reader) == CUDA_ERROR_NOT_READY)) {
        ms_log(MS_INFO, "self-check: device %d is busy: %zu bytes of it are not given back",
               run->device, HANDLES * run->granule);
        return false;
    }
    if (run->event != NULL)
        GIVE_BACK(ms_driver.event_destroy(run->event));
    if (run->work != NULL)
        GIVE_BACK(ms_driver.stream_destroy(run->work));
    if (run->reader != NULL)
        GIVE_BACK(ms_driver.stream_destroy(run->reader));
    give_memory_back(run);
    ms_heap_free(run->given);
    ms_heap_free(run->got);
    return true;
}

void ms_checks_run(CUcontext context, CUdevice device, struct ms_check_report *report_out)
{
    struct ms_driver_scope scope;
    struct run run = {.context = context, .device = device};
    size_t at = 0;
    *report_out = (struct ms_check_report){0};
    if (ms_driver_enter(context, &scope) == CUDA_SUCCESS) {
        while (at < CHECKS && ask(&run, &checks[at], report_out))
            at++;
        at += at < CHECKS;
        report_out->is_stuck = !give_back(&run);
        ms_driver_leave(&scope);
    }
    for (; at < CHECKS; at++)
        report_out->unknown |= MS_FACT_BIT(checks[at].fact);
}
