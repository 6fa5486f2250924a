/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver in memory, for tests of what calls the driver: fake_start() fills ms_driver. Reserved
 * addresses are host addresses without access, a handle is host memory, and mapping it there makes
 * the addresses usable, as on a device: so bytes can be looked at, and who touches what has no
 * memory crashes. Work is done at once.
 *
 * It is strict: what a driver would not take, or what leaves something half done, ends the test.
 * For one thread.
 */
#pragma once

#include "runtime/driver/driver.h"
#include "runtime/memory/space.h"

enum { FAKE_GRANULE = 64 << 10, FAKE_WORK = 1024 };
#define FAKE_CONTEXT ((CUcontext)1) /* of device 0; current from the start */
#define FAKE_POOL ((CUmemoryPool)9) /* the default one */
#define FAKE_STREAM ((CUstream)7)   /* of the program */

/* The functions of the table, by name: FAKE_mem_map. */
enum fake_call {
#define MS_DRIVER(field, symbol) FAKE_##field,
#define MS_DRIVER_OPTIONAL MS_DRIVER
#include "runtime/driver/driver.def"
#undef MS_DRIVER_OPTIONAL
#undef MS_DRIVER
    FAKE_CALLS,
    FAKE_ANY = FAKE_CALLS
};

/* One copy, set or launch. */
struct fake_work {
    enum fake_call call;
    CUdeviceptr address;
    uint64_t from; /* of a copy */
    size_t bytes;
    uint32_t value; /* of a set */
    CUstream stream;
};

struct fake_driver {
    unsigned calls[FAKE_CALLS]; /* how often each was called */
    struct fake_work work[FAKE_WORK];
    size_t work_count;

    /* The objects that there are. */
    size_t reservations, mappings, handles, events; /* handles: references to them */
    size_t physical_bytes;
    size_t streams;
    size_t pushed_contexts;
    CUstreamCaptureMode capture_mode;

    /* The figures of the driver's pool FAKE_POOL, which the test may set. */
    uint64_t pool[CU_MEMPOOL_ATTR_USED_MEM_HIGH + 1]; /* by attribute */

    /* Settings of the test. */
    CUdevice device;         /* of the current context */
    size_t total_bytes;      /* of the device */
    bool is_busy;            /* queries find work that is not done; waits end at once */
    CUstream busy_stream;    /* the same of one stream: the first that is made is 101 */
    void (*on_wait)(void);   /* called in each wait for an event */
    CUresult wait_result;    /* of these */
    CUstream refused_stream; /* a stream that is gone */
};
extern struct fake_driver fake;

void fake_start(void);

/* Skips a test that needs reservations to lie where they are asked for. ThreadSanitizer has other
 * uses for far addresses. */
void fake_needs_hints(void);

/* From now on the nth call of that function fails, or, with FAKE_ANY, of all but those that only
 * undo and cannot be repeated; 0: none does. True when it has failed since. */
void fake_fail(enum fake_call call, unsigned nth, CUresult result);
bool fake_has_failed(void);

/* Which mapped memory it is, beginning with 1, the same for each place that it is mapped at; 0:
 * none that may be used. */
int fake_memory_at(CUdeviceptr address);

/* The devices that may reach what is mapped at address: bit d for device d. */
uint64_t fake_access_at(CUdeviceptr address);

/* Memory that the program got from the driver, and its end. */
CUdeviceptr fake_program_memory(size_t bytes);
void fake_program_memory_free(CUdeviceptr address);

/* An allocation as ms_alloc makes it, in the index, and its end. */
struct ms_allocation *fake_create(const struct ms_promise *promise); /* or NULL */
struct ms_allocation *fake_allocation(size_t bytes);
struct ms_allocation *fake_find(CUdeviceptr address);
void fake_allocation_free(struct ms_allocation *allocation);

/* [begin, end) of it, which nobody has claimed, gets that content; with memory if it is present. */
void fake_set(struct ms_allocation *allocation, size_t begin, size_t end,
              const struct ms_content *content);

/* The same of one that the test has claimed. */
void fake_set_claimed(struct ms_allocation *allocation, size_t begin, size_t end,
                      const struct ms_content *content);

/* Ends the test unless its lineage is valid, what is present has memory, and each mapping in it is
 * a chunk. */
void fake_check_allocation(const struct ms_allocation *allocation);

/* Ends the test unless all that the driver gave was given back, except for the sink, which it gives
 * back. */
void fake_check_empty(void);
