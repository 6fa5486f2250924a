/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake_driver.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/config/config.h"
#include "runtime/fill/scratch.h"
#include "runtime/memory/addresses.h"
#include "runtime/memory/allocation.h"
#include "runtime/memory/invariants.h"
#include "runtime/memory/memory_internal.h"
#include "tools/simcuda/harness/test.h"

struct fake_driver fake;

enum { MOST = 2048, MOST_CONTEXTS = 8 };

/* The memory of a handle lives as long as a reference or a mapping of it. */
struct memory {
    int file;
    size_t bytes;
    size_t references, mappings; /* both 0: not in use */
};

struct reservation {
    CUdeviceptr begin;
    size_t bytes; /* 0: not in use */
};

struct mapping {
    CUdeviceptr begin;
    size_t bytes;    /* 0: not in use */
    int memory;      /* index */
    uint64_t access; /* bit d: device d */
};

enum event_state { EVENT_NONE, EVENT_IDLE, EVENT_RECORDED };

static struct memory memories[MOST];
static struct reservation reservations[MOST];
static struct mapping mappings[MOST];
static enum event_state events[MOST];
static CUcontext contexts[MOST_CONTEXTS]; /* contexts[fake.pushed_contexts] is current */

static struct {
    enum fake_call call;
    unsigned nth, seen;
    CUresult result;
    bool has_failed;
} failing;

__attribute__((format(printf, 1, 2))) static _Noreturn void end_test(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("# fake driver: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

#define WANT(condition) \
    if (!(condition))   \
    end_test("%s: %s is false", __func__, #condition)

/* --- failing */

/* Calls that give something back, and are made once. */
static bool can_only_succeed(enum fake_call call)
{
    return call == FAKE_event_destroy || call == FAKE_ctx_pop_current ||
           call == FAKE_exchange_capture_mode || call == FAKE_mem_free_host;
}

static CUresult enter(enum fake_call call)
{
    fake.calls[call]++;
    const bool is_meant = failing.call == FAKE_ANY ? !can_only_succeed(call) : failing.call == call;
    if (!is_meant || ++failing.seen != failing.nth)
        return CUDA_SUCCESS;
    failing.has_failed = true;
    return failing.result;
}

#define ENTER(call)                                  \
    do {                                             \
        const CUresult entered = enter(FAKE_##call); \
        if (entered != CUDA_SUCCESS)                 \
            return entered;                          \
    } while (0)

void fake_fail(enum fake_call call, unsigned nth, CUresult result)
{
    failing.call = call;
    failing.nth = nth;
    failing.seen = 0;
    failing.result = result;
    failing.has_failed = false;
}

bool fake_has_failed(void)
{
    return failing.has_failed;
}

/* --- contexts */

static CUresult ctx_get_current(CUcontext *context)
{
    ENTER(ctx_get_current);
    *context = contexts[fake.pushed_contexts];
    return CUDA_SUCCESS;
}

static CUresult ctx_get_device(CUdevice *device)
{
    ENTER(ctx_get_device);
    *device = fake.device;
    return CUDA_SUCCESS;
}

static CUresult ctx_push_current(CUcontext context)
{
    ENTER(ctx_push_current);
    WANT(fake.pushed_contexts + 1 < MOST_CONTEXTS);
    contexts[++fake.pushed_contexts] = context;
    return CUDA_SUCCESS;
}

static CUresult ctx_pop_current(CUcontext *context)
{
    ENTER(ctx_pop_current);
    WANT(fake.pushed_contexts > 0);
    *context = contexts[fake.pushed_contexts--];
    return CUDA_SUCCESS;
}

static CUresult exchange_capture_mode(CUstreamCaptureMode *mode)
{
    ENTER(exchange_capture_mode);
    const CUstreamCaptureMode before = fake.capture_mode;
    fake.capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult wait(void)
{
    if (fake.on_wait != NULL)
        fake.on_wait();
    return fake.wait_result;
}

static CUresult ctx_synchronize(void)
{
    ENTER(ctx_synchronize);
    return wait();
}

/* --- the device */

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(device_get_attribute);
    WANT(device >= 0);
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}

static CUresult device_get_uuid(CUuuid *uuid, CUdevice device)
{
    ENTER(device_get_uuid);
    memset(uuid->bytes, device, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

static CUresult driver_get_version(int *version)
{
    ENTER(driver_get_version);
    *version = 13000;
    return CUDA_SUCCESS;
}

static CUresult device_get_name(char *name, int bytes, CUdevice device)
{
    ENTER(device_get_name);
    snprintf(name, (size_t)bytes, "fake device %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_total_mem(size_t *bytes, CUdevice device)
{
    ENTER(device_total_mem);
    WANT(device >= 0);
    *bytes = fake.total_bytes;
    return CUDA_SUCCESS;
}

static CUresult mem_get_info(size_t *free_bytes, size_t *total_bytes)
{
    ENTER(mem_get_info);
    *free_bytes = fake.total_bytes - fake.physical_bytes;
    *total_bytes = fake.total_bytes;
    return CUDA_SUCCESS;
}

/* --- events and streams */

static CUresult event_create(CUevent *event, unsigned flags)
{
    ENTER(event_create);
    WANT((flags & CU_EVENT_DISABLE_TIMING) != 0);
    size_t at = 1;
    while (at < MOST && events[at] != EVENT_NONE)
        at++;
    WANT(at < MOST);
    events[at] = EVENT_IDLE;
    fake.events++;
    *event = (CUevent)(uintptr_t)at;
    return CUDA_SUCCESS;
}

static enum event_state *find_event(CUevent event)
{
    const size_t at = (size_t)(uintptr_t)event;
    WANT(at > 0 && at < MOST && events[at] != EVENT_NONE);
    return &events[at];
}

static CUresult event_destroy(CUevent event)
{
    ENTER(event_destroy);
    *find_event(event) = EVENT_NONE;
    fake.events--;
    return CUDA_SUCCESS;
}

static bool is_gone(CUstream stream)
{
    return fake.refused_stream != NULL && stream == fake.refused_stream;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    ENTER(event_record);
    if (is_gone(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    *find_event(event) = EVENT_RECORDED;
    return CUDA_SUCCESS;
}

static CUresult ctx_record_event(CUcontext context, CUevent event)
{
    ENTER(ctx_record_event);
    WANT(context != NULL);
    *find_event(event) = EVENT_RECORDED;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    ENTER(event_query);
    return fake.is_busy && *find_event(event) == EVENT_RECORDED ? CUDA_ERROR_NOT_READY
                                                                : CUDA_SUCCESS;
}

static CUresult event_synchronize(CUevent event)
{
    ENTER(event_synchronize);
    *find_event(event) = EVENT_IDLE;
    return wait();
}

static CUresult stream_create(CUstream *stream, unsigned flags)
{
    static uintptr_t last = 100;
    ENTER(stream_create);
    WANT(flags == CU_STREAM_NON_BLOCKING);
    *stream = (CUstream)++last;
    fake.streams++;
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
    ENTER(stream_destroy);
    WANT((uintptr_t)stream > 100);
    fake.streams--;
    return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream)
{
    ENTER(stream_query);
    if (is_gone(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    const bool is_busy = fake.is_busy || (fake.busy_stream != NULL && stream == fake.busy_stream);
    return is_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream stream)
{
    ENTER(stream_synchronize);
    return is_gone(stream) ? CUDA_ERROR_INVALID_HANDLE : fake.wait_result;
}

static CUresult stream_get_ctx(CUstream stream, CUcontext *context)
{
    ENTER(stream_get_ctx);
    if (is_gone(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    *context = FAKE_CONTEXT;
    return CUDA_SUCCESS;
}

/* --- addresses and memory */

static void *to_host(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

static CUresult mem_address_reserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                    CUdeviceptr wish, unsigned long long flags)
{
    ENTER(mem_address_reserve);
    WANT(bytes > 0 && bytes % FAKE_GRANULE == 0 && flags == 0);
    WANT(alignment == FAKE_GRANULE && wish % FAKE_GRANULE == 0);
    size_t at = 0;
    while (at < MOST && reservations[at].bytes != 0)
        at++;
    WANT(at < MOST);
    /* One granule more, so that what is aligned fits. */
    char *area = mmap(to_host(wish), bytes + FAKE_GRANULE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WANT(area != MAP_FAILED);
    const size_t before = (size_t)(-(uintptr_t)area & (FAKE_GRANULE - 1));
    if (before > 0)
        munmap(area, before);
    munmap(area + before + bytes, FAKE_GRANULE - before);
    reservations[at] = (struct reservation){(CUdeviceptr)(uintptr_t)(area + before), bytes};
    fake.reservations++;
    *address = reservations[at].begin;
    return CUDA_SUCCESS;
}

/* Any mapping that meets the range. */
static struct mapping *find_mapping(CUdeviceptr begin, size_t bytes)
{
    for (size_t i = 0; i < MOST; i++) {
        if (mappings[i].bytes > 0 && mappings[i].begin < begin + bytes &&
            begin < mappings[i].begin + mappings[i].bytes)
            return &mappings[i];
    }
    return NULL;
}

/* The mapping of exactly that range. */
static struct mapping *get_mapping(CUdeviceptr begin, size_t bytes)
{
    struct mapping *mapping = find_mapping(begin, bytes);
    WANT(mapping != NULL && mapping->begin == begin && mapping->bytes == bytes);
    return mapping;
}

static struct reservation *find_reservation(CUdeviceptr begin, size_t bytes)
{
    for (size_t i = 0; i < MOST; i++) {
        if (reservations[i].bytes > 0 && reservations[i].begin <= begin &&
            begin + bytes <= reservations[i].begin + reservations[i].bytes)
            return &reservations[i];
    }
    return NULL;
}

static CUresult mem_address_free(CUdeviceptr address, size_t bytes)
{
    ENTER(mem_address_free);
    struct reservation *reservation = find_reservation(address, bytes);
    WANT(reservation != NULL && reservation->begin == address && reservation->bytes == bytes);
    WANT(find_mapping(address, bytes) == NULL);
    munmap(to_host(address), bytes);
    reservation->bytes = 0;
    fake.reservations--;
    return CUDA_SUCCESS;
}

static CUresult mem_get_granularity(size_t *granule, const CUmemAllocationProp *prop,
                                    CUmemAllocationGranularity_flags option)
{
    ENTER(mem_get_granularity);
    WANT(prop->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    WANT(option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    *granule = FAKE_GRANULE;
    return CUDA_SUCCESS;
}

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                           const CUmemAllocationProp *prop, unsigned long long flags)
{
    ENTER(mem_create);
    WANT(bytes > 0 && bytes % FAKE_GRANULE == 0 && flags == 0);
    WANT(prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    if (bytes > fake.total_bytes - fake.physical_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t at = 0;
    while (at < MOST && memories[at].references + memories[at].mappings > 0)
        at++;
    WANT(at < MOST);
    memories[at] = (struct memory){.file = memfd_create("fake device memory", MFD_CLOEXEC),
                                   .bytes = bytes,
                                   .references = 1};
    WANT(memories[at].file >= 0 && ftruncate(memories[at].file, (off_t)bytes) == 0);
    fake.physical_bytes += bytes;
    fake.handles++;
    *handle = at + 1;
    return CUDA_SUCCESS;
}

static struct memory *get_memory(CUmemGenericAllocationHandle handle)
{
    WANT(handle > 0 && handle <= MOST && memories[handle - 1].references > 0);
    return &memories[handle - 1];
}

static void end_unused(struct memory *memory)
{
    if (memory->references + memory->mappings > 0)
        return;
    close(memory->file);
    fake.physical_bytes -= memory->bytes;
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
    ENTER(mem_release);
    struct memory *memory = get_memory(handle);
    memory->references--;
    fake.handles--;
    end_unused(memory);
    return CUDA_SUCCESS;
}

static CUresult mem_retain(CUmemGenericAllocationHandle *handle, void *address)
{
    ENTER(mem_retain);
    const struct mapping *mapping = find_mapping((CUdeviceptr)(uintptr_t)address, 1);
    WANT(mapping != NULL);
    memories[mapping->memory].references++;
    fake.handles++;
    *handle = (CUmemGenericAllocationHandle)mapping->memory + 1;
    return CUDA_SUCCESS;
}

/* From the start of the handle on, where nothing is mapped. */
static CUresult mem_map(CUdeviceptr address, size_t bytes, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER(mem_map);
    struct memory *memory = get_memory(handle);
    WANT(offset == 0 && flags == 0 && bytes == memory->bytes);
    WANT(find_reservation(address, bytes) != NULL && find_mapping(address, bytes) == NULL);
    size_t at = 0;
    while (at < MOST && mappings[at].bytes != 0)
        at++;
    WANT(at < MOST);
    WANT(mmap(to_host(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, 0) !=
         MAP_FAILED);
    mappings[at] = (struct mapping){address, bytes, (int)(handle - 1), 0};
    memory->mappings++;
    fake.mappings++;
    return CUDA_SUCCESS;
}

static void set_access_of_one(struct mapping *mapping, const CUmemAccessDesc *access, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t bit = UINT64_C(1) << access[i].location.id;
        WANT(access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        mapping->access = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                              ? mapping->access | bit
                              : mapping->access & ~bit;
    }
    mprotect(to_host(mapping->begin), mapping->bytes,
             (mapping->access >> fake.device & 1) != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* Sets the access of one mapping or of several, whole and without a gap. */
static CUresult mem_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                               size_t count)
{
    ENTER(mem_set_access);
    for (CUdeviceptr at = address; at < address + bytes;) {
        struct mapping *mapping = find_mapping(at, 1);
        WANT(mapping != NULL && mapping->begin == at && mapping->bytes <= address + bytes - at);
        set_access_of_one(mapping, access, count);
        at += mapping->bytes;
    }
    return CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr address, size_t bytes)
{
    ENTER(mem_unmap);
    struct mapping *mapping = get_mapping(address, bytes);
    struct memory *memory = &memories[mapping->memory];
    WANT(mmap(to_host(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
    mapping->bytes = 0;
    fake.mappings--;
    memory->mappings--;
    end_unused(memory);
    return CUDA_SUCCESS;
}

static CUresult mem_host_alloc(void **memory, size_t bytes, unsigned flags)
{
    ENTER(mem_host_alloc);
    WANT(flags == 0);
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return CUDA_SUCCESS;
}

static CUresult mem_free_host(void *memory)
{
    ENTER(mem_free_host);
    free(memory);
    return CUDA_SUCCESS;
}

static CUresult device_get_default_mem_pool(CUmemoryPool *pool, CUdevice device)
{
    ENTER(device_get_default_mem_pool);
    *pool = device == 0 ? FAKE_POOL : NULL;
    return CUDA_SUCCESS;
}

static CUresult device_get_mem_pool(CUmemoryPool *pool, CUdevice device)
{
    return device_get_default_mem_pool(pool, device);
}

static CUresult mem_pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void *value)
{
    ENTER(mem_pool_get_attribute);
    WANT(pool == FAKE_POOL);
    *(uint64_t *)value = fake.pool[attribute];
    return CUDA_SUCCESS;
}

/* A high mark is set back to the present value, which is the attribute before it. */
static CUresult mem_pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                       void *value)
{
    ENTER(mem_pool_set_attribute);
    WANT(pool == FAKE_POOL && *(uint64_t *)value == 0);
    fake.pool[attribute] = fake.pool[attribute - 1];
    return CUDA_SUCCESS;
}

/* The driver knows mapped memory; all else is host memory that nobody has told the driver of. */
static CUresult pointer_get_attribute(void *value, CUpointer_attribute attribute,
                                      CUdeviceptr address)
{
    ENTER(pointer_get_attribute);
    const struct mapping *mapping = find_mapping(address, 1);
    if (mapping == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = mapping->begin;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = mapping->bytes;
        return CUDA_SUCCESS;
    default:
        end_test("pointer attribute %d is not known", (int)attribute);
    }
}

/* --- work */

static void note_work(struct fake_work work)
{
    WANT(fake.pushed_contexts > 0 || contexts[0] == FAKE_CONTEXT);
    if (fake.work_count < FAKE_WORK)
        fake.work[fake.work_count] = work;
    fake.work_count++;
}

static CUresult memcpy_dtod_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER(memcpy_dtod_async);
    note_work((struct fake_work){FAKE_memcpy_dtod_async, to, from, bytes, 0, stream});
    memmove(to_host(to), to_host(from), bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_dtoh_async(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER(memcpy_dtoh_async);
    note_work((struct fake_work){FAKE_memcpy_dtoh_async, (uintptr_t)to, from, bytes, 0, stream});
    memcpy(to, to_host(from), bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_htod_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER(memcpy_htod_async);
    note_work((struct fake_work){FAKE_memcpy_htod_async, to, (uintptr_t)from, bytes, 0, stream});
    memcpy(to_host(to), from, bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_2d_async(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    ENTER(memcpy_2d_async);
    WANT(copy->dstMemoryType == CU_MEMORYTYPE_DEVICE);
    const char *from =
        copy->srcMemoryType == CU_MEMORYTYPE_HOST ? copy->srcHost : to_host(copy->srcDevice);
    note_work((struct fake_work){FAKE_memcpy_2d_async, copy->dstDevice, (uintptr_t)from,
                                 copy->WidthInBytes * copy->Height, 0, stream});
    for (size_t i = 0; i < copy->Height; i++)
        memcpy(to_host(copy->dstDevice + i * copy->dstPitch), from + i * copy->srcPitch,
               copy->WidthInBytes);
    return CUDA_SUCCESS;
}

static CUresult memset_d8_async(CUdeviceptr address, unsigned char value, size_t count,
                                CUstream stream)
{
    ENTER(memset_d8_async);
    note_work((struct fake_work){FAKE_memset_d8_async, address, 0, count, value, stream});
    memset(to_host(address), value, count);
    return CUDA_SUCCESS;
}

static CUresult memset_d32_async(CUdeviceptr address, unsigned value, size_t count, CUstream stream)
{
    ENTER(memset_d32_async);
    WANT(address % 4 == 0);
    note_work((struct fake_work){FAKE_memset_d32_async, address, 0, 4 * count, value, stream});
    for (size_t i = 0; i < count; i++)
        ((uint32_t *)to_host(address))[i] = value;
    return CUDA_SUCCESS;
}

/* --- for tests */

/* Kernels are not imitated: who launches one crashes. */
void fake_needs_hints(void)
{
#ifdef __SANITIZE_THREAD__
    ms_test_skip("ThreadSanitizer leaves no far addresses");
#endif
}

void fake_start(void)
{
    fake = (struct fake_driver){.total_bytes = (size_t)1 << 30,
                                .capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL};
    contexts[0] = FAKE_CONTEXT;
    fake_fail(FAKE_ANY, 0, CUDA_SUCCESS);
    ms_config.staging_bytes = 1 << 20;
    ms_config.dead_bytes = FAKE_GRANULE;
    ms_config.receive_parts = true;
    ms_config.idle_ms = 1;
    ms_config.receive_ms = 1;
    ms_driver = (struct ms_driver){
#define FUNCTION(field) .field = field
        FUNCTION(ctx_get_current),
        FUNCTION(ctx_get_device),
        FUNCTION(ctx_push_current),
        FUNCTION(ctx_pop_current),
        FUNCTION(ctx_synchronize),
        FUNCTION(ctx_record_event),
        FUNCTION(device_get_attribute),
        FUNCTION(device_get_default_mem_pool),
        FUNCTION(device_get_mem_pool),
        FUNCTION(device_get_name),
        FUNCTION(device_get_uuid),
        FUNCTION(device_total_mem),
        FUNCTION(driver_get_version),
        FUNCTION(mem_get_info),
        FUNCTION(event_create),
        FUNCTION(event_destroy),
        FUNCTION(event_query),
        FUNCTION(event_record),
        FUNCTION(event_synchronize),
        FUNCTION(exchange_capture_mode),
        FUNCTION(mem_address_free),
        FUNCTION(mem_address_reserve),
        FUNCTION(mem_create),
        FUNCTION(mem_free_host),
        FUNCTION(mem_get_granularity),
        FUNCTION(mem_host_alloc),
        FUNCTION(mem_map),
        FUNCTION(mem_pool_get_attribute),
        FUNCTION(mem_pool_set_attribute),
        FUNCTION(mem_release),
        FUNCTION(mem_retain),
        FUNCTION(mem_set_access),
        FUNCTION(mem_unmap),
        FUNCTION(memcpy_2d_async),
        FUNCTION(memcpy_dtod_async),
        FUNCTION(memcpy_dtoh_async),
        FUNCTION(memcpy_htod_async),
        FUNCTION(memset_d8_async),
        FUNCTION(memset_d32_async),
        FUNCTION(pointer_get_attribute),
        FUNCTION(stream_create),
        FUNCTION(stream_destroy),
        FUNCTION(stream_get_ctx),
        FUNCTION(stream_query),
        FUNCTION(stream_synchronize),
#undef FUNCTION
    };
}

int fake_memory_at(CUdeviceptr address)
{
    const struct mapping *mapping = find_mapping(address, 1);
    return mapping != NULL && (mapping->access & 1) != 0 ? mapping->memory + 1 : 0;
}

uint64_t fake_access_at(CUdeviceptr address)
{
    const struct mapping *mapping = find_mapping(address, 1);
    return mapping != NULL ? mapping->access : 0;
}

CUdeviceptr fake_program_memory(size_t bytes)
{
    const CUmemAllocationProp prop = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    WANT(mem_address_reserve(&address, bytes, FAKE_GRANULE, 0, 0) == CUDA_SUCCESS);
    WANT(mem_create(&handle, bytes, &prop, 0) == CUDA_SUCCESS);
    WANT(mem_map(address, bytes, 0, handle, 0) == CUDA_SUCCESS);
    WANT(mem_set_access(address, bytes, &access, 1) == CUDA_SUCCESS);
    mem_release(handle);
    return address;
}

void fake_program_memory_free(CUdeviceptr address)
{
    const struct mapping *mapping = find_mapping(address, 1);
    WANT(mapping != NULL && mapping->begin == address);
    const size_t bytes = mapping->bytes;
    mem_unmap(address, bytes);
    mem_address_free(address, bytes);
}

struct ms_allocation *fake_create(const struct ms_promise *promise)
{
    const struct ms_allocation *allocation;
    return ms_allocation_create(promise, &allocation) == CUDA_SUCCESS
               ? (struct ms_allocation *)allocation
               : NULL;
}

struct ms_allocation *fake_allocation(size_t bytes)
{
    const struct ms_promise promise = {.bytes = bytes, .context = FAKE_CONTEXT};
    struct ms_allocation *allocation = fake_create(&promise);
    WANT(allocation != NULL);
    return allocation;
}

struct ms_allocation *fake_find(CUdeviceptr address)
{
    struct ms_allocation *allocation = ms_space_claim(address);
    ms_space_release(allocation);
    return allocation;
}

void fake_allocation_free(struct ms_allocation *allocation)
{
    WANT(ms_space_claim(allocation->address) == allocation);
    ms_space_remove(allocation);
    ms_allocation_destroy(allocation);
}

void fake_set(struct ms_allocation *allocation, size_t begin, size_t end,
              const struct ms_content *content)
{
    WANT(ms_space_claim(allocation->address) == allocation);
    fake_set_claimed(allocation, begin, end, content);
    ms_space_release(allocation);
}

void fake_set_claimed(struct ms_allocation *allocation, size_t begin, size_t end,
                      const struct ms_content *content)
{
    if (ms_content_is_present(content))
        WANT(ms_backing_cover(ms_allocation_memory(allocation), begin, end) == CUDA_SUCCESS);
    WANT(ms_lineage_set(&MS_OWN(allocation)->lineage, begin, end, content));
}

static void check_memory(const struct ms_allocation *allocation, const struct ms_extent *extent)
{
    struct ms_range range = {extent->begin, extent->end};
    size_t at = extent->begin;
    while (ms_backing_next(ms_allocation_backing(allocation), &range) && range.begin == at) {
        at = range.end;
        range = (struct ms_range){at, extent->end};
    }
    WANT(at == extent->end);
}

void fake_check_allocation(const struct ms_allocation *allocation)
{
    const struct ms_backing *backing = &MS_OWN(allocation)->backing;
    size_t mapped = 0;
    struct ms_violation violation;
    if (!ms_lineage_is_valid(&MS_OWN(allocation)->lineage, &violation))
        end_test("%s: \"%s\" is not true", __func__, violation.rule);
    struct ms_walk walk = {ms_allocation_lineage(allocation), 0, SIZE_MAX};
    for (const struct ms_extent *extent; (extent = ms_lineage_walk(&walk)) != NULL;) {
        if (ms_content_is_present(&extent->content))
            check_memory(allocation, extent);
    }
    for (size_t i = 0; i < MOST; i++) {
        if (mappings[i].bytes > 0 && mappings[i].begin >= backing->address &&
            mappings[i].begin < backing->address + backing->bytes) {
            WANT((mappings[i].access & 1) != 0);
            mapped += mappings[i].bytes;
        }
    }
    WANT(backing->sinks != NULL || mapped == backing->backed_bytes);
}

void fake_check_empty(void)
{
    ms_scratch_drop();
    ms_backing_drop_sink(0);
    WANT(fake.mappings == 0);
    WANT(fake.handles == 0);
    WANT(fake.physical_bytes == 0);
    WANT(fake.reservations == 0);
    WANT(fake.events == 0);
    WANT(fake.pushed_contexts == 0);
    WANT(fake.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    WANT(ms_backing_device_bytes(0) == 0);
}
