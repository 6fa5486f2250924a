/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the simulated driver's core: tables, memory, contexts, streams. Modules,
 * launches and graphs see sim.h only. sim_lock guards everything here that names no other guard.
 */
#pragma once

#include "tools/simcuda/driver/sim.h"

enum { SIM_DEVICES_MAX = 16 };
#define SIM_SMALL_ALIGNMENT ((size_t)512)

static inline size_t sim_round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* --- settings: immutable after the first call (core.c) */

enum sim_hints { SIM_HINTS_DECLINED, SIM_HINTS_HONOURED, SIM_HINTS_REFUSED };
/* SIMCUDA_BREAK: what a driver does otherwise than it should. */
enum sim_broken {
#define SIM_BREAK(id, name) SIM_BROKEN_##id,
#include "tools/simcuda/driver/broken.def"
#undef SIM_BREAK
    SIM_BROKEN_COUNT
};

struct sim_config {
    int devices;
    size_t memory_bytes;
    size_t granule_bytes; /* a power of two */
    bool low_addresses;   /* of reservations */
    enum sim_hints hints;
    bool pageable;
    unsigned poison; /* 0: none, 1: always the same byte, 2: another one each time */
    unsigned delay_us;
    bool has_switch; /* multicast objects */
    bool is_behind;  /* events are done when the host has waited for what was queued before them */
    bool eager;      /* work that nothing is before runs on the thread that queues it */
    unsigned broken; /* one bit for each of enum sim_broken */
    bool reads_late; /* pageable sources of asynchronous copies, when the stream gets there */
    size_t others_leave_bytes; /* of each device's memory; 0: there are no others */
    unsigned jitter_us;
    bool frees_anywhere; /* memory, without a current context too */
    int driver_version;  /* 0: the one that the library was built for */
    bool is_dry;         /* nothing is computed (dry.c), */
    bool computes;       /* but by kernels that have host versions */
    int capability;      /* 10 * major + minor */
    int multiprocessors;
    size_t context_bytes; /* what a primary context takes of its device */
};
extern struct sim_config sim_config;
#define SIM_GRANULE (sim_config.granule_bytes)

/* A dry run copies what is not larger between host and device; and copies and fills so much within
 * devices, by which a program finds out what the device is. */
#define SIM_DRY_BYTES ((size_t)1 << 20)
#define SIM_DRY_WITHIN_BYTES ((size_t)64 << 10)

static inline bool sim_is_broken(enum sim_broken what)
{
    return (sim_config.broken & (1u << what)) != 0;
}

/* The byte that fresh memory is filled with. Called with the lock held. */
static inline unsigned char sim_poison_byte_locked(void)
{
    static unsigned char next = 0xCB;
    return sim_config.poison == 2 ? next++ : 0xCB;
}

/* The state of a thread. */
struct sim_thread {
    bool is_worker;
    struct CUctx_st *running_context; /* of the work that a worker is running */
    CUstreamCaptureMode capture_mode;
};
extern _Thread_local struct sim_thread sim_thread;

/* Where the statistics go (SIMCUDA_STATS); empty: nowhere. */
enum { SIM_PATH_BYTES = 1024 };
extern char sim_stats_path[SIM_PATH_BYTES];

/* This process has called cuInit itself. After sim_finish() every call fails. */
bool sim_is_used(void);
void sim_finish(void);

/* Ids for contexts, streams, buffers, handles, captures; never 0, never used twice. */
uint64_t sim_new_id_locked(void);

/* A number below `limit`, for settings that draw; the same ones in every process. */
uint64_t sim_draw_locked(uint64_t limit);

void sim_fault_locked(CUdeviceptr address, size_t bytes, const char *what);

/* --- tables of objects by address, and sets of free ranges (table.c) */

/* First member of what lives in a table. Rows of one table do not overlap. */
struct sim_region {
    uint64_t begin;
    size_t bytes;
};
struct sim_table {
    struct sim_region **rows; /* sorted by begin */
    size_t count, room;
};
void sim_table_add(struct sim_table *table, struct sim_region *row);
void sim_table_remove(struct sim_table *table, struct sim_region *row);
struct sim_region *sim_table_find(const struct sim_table *table, uint64_t address);
/* The first row that ends after `address`; NULL when there is none. */
struct sim_region *sim_table_at_or_after(const struct sim_table *table, uint64_t address);
bool sim_table_overlaps(const struct sim_table *table, uint64_t begin, size_t bytes);

struct sim_extents {
    struct sim_range *rows; /* sorted, never adjacent */
    size_t count, room;
};
bool sim_extents_take(struct sim_extents *extents, size_t bytes, size_t alignment,
                      uint64_t *begin_out); /* lowest fit */
bool sim_extents_take_at(struct sim_extents *extents, uint64_t begin, size_t bytes);
void sim_extents_give(struct sim_extents *extents, uint64_t begin, size_t bytes);
void sim_extents_cleanup(struct sim_extents *extents);

/* --- devices (device.c) */

struct sim_device {
    int file;                 /* memory file; -1 until the first use */
    struct sim_extents space; /* free ranges of the file, without end */
    size_t used_bytes;
    struct CUctx_st *primary;
    unsigned primary_users;
    unsigned primary_flags;
    struct CUmemPoolHandle_st *default_pool, *pool;
};
extern struct sim_device sim_devices[SIM_DEVICES_MAX];
CUresult sim_device_check(CUdevice device);

/* --- devices that several processes share (shared.c) */

void sim_shared_open(const char *path);

/* The bytes that other processes have of a device, and those that this process has from now on. */
size_t sim_shared_others(CUdevice device);
void sim_shared_set(CUdevice device, size_t used_bytes);

/* --- addresses and physical memory (space.c) */

/* Physical memory: a range of a memory file. Lives while it has users (handles) or mappings. */
struct sim_physical {
    struct sim_region region; /* begin: the handle value; bytes: 1 */
    CUdevice device;
    size_t bytes;
    uint64_t offset;
    int file; /* of the device, or own for memory of another process */
    bool foreign, exported;
    unsigned users, mappings;
    CUmemAllocationProp prop;
};
CUresult sim_physical_create_locked(CUdevice device, size_t bytes, struct sim_physical **out);
/* The bytes that the device has left at this moment (SIMCUDA_OTHERS). */
size_t sim_physical_free_bytes_locked(CUdevice device);
/* From what sim_physical_open_locked gave, here or in another process; NULL: it is not that. */
struct sim_physical *sim_physical_import_locked(int file);
void sim_physical_drop_if_unused_locked(struct sim_physical *physical);
/* A new open file whose position is where the memory begins; -1 on failure. */
int sim_physical_open_locked(struct sim_physical *physical);

CUresult sim_space_take_locked(size_t bytes, size_t alignment, CUdeviceptr *address_out);
/* The same for a reservation of the program, which has addresses of its own (SIMCUDA_LOW,
 * SIMCUDA_HINTS). */
CUresult sim_space_reserve_locked(size_t bytes, size_t alignment, CUdeviceptr hint,
                                  CUdeviceptr *address_out);
void sim_space_unreserve_locked(CUdeviceptr address, size_t bytes);
void sim_space_give_locked(CUdeviceptr address, size_t bytes);
bool sim_space_map_locked(CUdeviceptr address, struct sim_physical *physical, size_t bytes,
                          bool accessible);
/* SIMCUDA_BREAK=remap: the address will lead to this memory, whatever is mapped there. */
void sim_space_keep_stale_locked(CUdeviceptr address, const struct sim_physical *physical);
void sim_space_set_access_locked(CUdeviceptr address, size_t bytes, bool accessible);
void sim_space_unmap_locked(CUdeviceptr address, size_t bytes);

/* --- what addresses mean (memory.c) */

enum sim_kind {
    SIM_DEVICE,     /* cuMemAlloc and relatives */
    SIM_POOLED,     /* cuMemAllocAsync */
    SIM_GRAPHED,    /* of a memory node of a graph */
    SIM_IPC,        /* memory of another process, opened */
    SIM_RESERVED,   /* cuMemAddressReserve */
    SIM_HOST,       /* cuMemHostAlloc */
    SIM_REGISTERED, /* cuMemHostRegister */
    SIM_MANAGED,
    SIM_EXTERNAL, /* of another API, mapped */
    SIM_GRAPHICS, /* the same of a graphics API, which keeps the memory */
};
struct sim_memory;
/* Who has memory beside a context: a pool, a graph. */
struct sim_owner {
    void (*forget_locked)(struct sim_memory *memory); /* the memory goes */
    bool (*free_locked)(struct sim_memory *memory);   /* by cuMemFree; false: it cannot be */
    /* NULL: the context's peers decide */
    bool (*allows_locked)(const struct sim_memory *memory, CUdevice device, bool write);
};
struct sim_memory {
    struct sim_region region; /* as requested */
    enum sim_kind kind;
    CUdevice device;
    struct CUctx_st *context;
    uint64_t buffer_id;
    unsigned flags;
    CUdeviceptr alias; /* of host memory: the device's other address for it; of that: the host's */
    bool sync_memops;
    bool internal;                 /* module globals: not the program's to free */
    bool freeing;                  /* a stream-ordered free is queued */
    struct sim_slab *slab;         /* of a small one */
    struct sim_physical *physical; /* of a large one */
    size_t backed_bytes;           /* rounded up: what it takes */
    const struct sim_owner *owner; /* NULL: the context alone */
    struct CUmemPoolHandle_st *pool;
    struct sim_graph_memory *in_graph; /* of SIM_GRAPHED (graph_memory.c) */
    struct sim_advice *advice; /* of managed memory, for each page, once there is any (managed.c) */
};
extern struct sim_table sim_memories;
struct sim_memory *sim_memory_find_locked(CUdeviceptr address);
struct sim_memory *sim_memory_add_locked(enum sim_kind kind, uint64_t begin, size_t bytes,
                                         struct CUctx_st *context);
CUresult sim_memory_create_locked(struct CUctx_st *context, enum sim_kind kind, CUdevice device,
                                  size_t bytes, struct sim_memory **out);
/* Addresses for it, and its memory later. */
CUresult sim_memory_reserve_locked(enum sim_kind kind, CUdevice device, size_t bytes,
                                   struct sim_memory **out);
CUresult sim_memory_back_locked(struct sim_memory *memory);
void sim_memory_destroy_locked(struct sim_memory *memory);
/* The granules under cuMemAlloc's memory, and where in them it begins. */
struct sim_physical *sim_memory_physical_locked(const struct sim_memory *memory,
                                                uint64_t *begin_out);
/* The device's address for an address in host memory (host.c). */
CUdeviceptr sim_host_device_address_locked(const struct sim_memory *memory, CUdeviceptr address);

/* The bytes of [address, address + bytes) that lie in the mapping in which it begins. All of them
 * if it begins in none. */
size_t sim_bytes_of_one_handle(CUdeviceptr address, size_t bytes);

/* One chunk of a reservation. */
struct sim_mapping {
    struct sim_region region;
    struct sim_physical *physical;
    uint64_t buffer_id;
    unsigned char access[SIM_DEVICES_MAX]; /* CUmemAccess_flags */
};
extern struct sim_table sim_mappings;
extern struct sim_table sim_handles; /* physical memory by handle value (space.c) */

/* device -1: any device will do. */
bool sim_can_touch_locked(CUdevice device, CUdeviceptr address, size_t bytes, bool write);

/* --- contexts (current.c, context.c) */

struct CUctx_st {
    struct sim_region region; /* begin: the handle */
    CUdevice device;
    bool is_primary;
    struct CUctx_st *memory_owner; /* of a green context: the primary one; else itself */
    bool is_destroyed; /* contexts are never given back, so that stale handles can be told */
    unsigned flags;
    unsigned api_version;
    uint64_t id;
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    bool peers[SIM_DEVICES_MAX]; /* devices whose memory kernels here may touch */
    struct CUstream_st *legacy;
    struct CUstream_st *streams; /* all, also the legacy one */
};
extern struct sim_table sim_contexts;
CUresult sim_context_push(CUcontext context);
void sim_context_leave(const struct CUctx_st *context); /* no more the thread's current one */
struct CUctx_st *sim_context_current(void);             /* NULL: none, or destroyed */
CUresult sim_context_get(struct CUctx_st **context_out);
/* The same for a call that frees. Where none has to be current (SIMCUDA_FREE_ANYWHERE): the one of
 * the memory at the address, or NULL. */
CUresult sim_context_get_to_free(uint64_t address, struct CUctx_st **context_out);
CUresult sim_context_check_locked(CUcontext handle);
/* Waits for all work of the context / of all contexts on all devices. Called without the lock. */
void sim_context_drain(struct CUctx_st *context);
/* CUDA_SUCCESS when both handles are live contexts. */
CUresult sim_contexts_check(CUcontext one, CUcontext other);
/*
 * A context ends its streams itself and the rest through enders: a file whose objects belong to
 * contexts registers one when the library is loaded, and so the file knows contexts, and contexts
 * do not know the file.
 */
struct sim_ender {
    struct sim_ender *next;
    void (*end_locked)(struct CUctx_st *context);
};
void sim_context_add_ender(struct sim_ender *ender);
/* With work of the context drained. */
void sim_context_end_locked(struct CUctx_st *context);

/* --- streams and events (stream.c, event.c) */

/* A place in the order of a stream; also the queue entry that gets there. Counted references. */
struct sim_mark {
    unsigned references;
    bool done;
    uint64_t done_ns;
    uint64_t number; /* of all streams' marks, in the order in which they were queued */
    struct sim_work *work;
    struct sim_mark **after; /* must be done first */
    int after_count;
    struct sim_mark *next;
};
struct CUstream_st {
    struct sim_region region; /* begin: the handle */
    struct CUctx_st *context;
    struct CUstream_st *next; /* of the context */
    unsigned flags;
    int priority;
    uint64_t id;
    bool is_legacy, is_destroyed, has_worker;
    pthread_cond_t wake; /* something was queued, or the stream ends */
    struct sim_mark *first, **last_link;
    struct sim_mark *last; /* newest ever queued; holds a reference */
    struct sim_mark *running;
    struct sim_mark *eager;      /* runs on the thread that queued it (SIMCUDA_EAGER) */
    struct sim_capture *capture; /* NULL unless capturing; see capture.c */
    int capture_index;
};
extern pthread_cond_t sim_progress; /* a mark is done, or the process ends */

CUresult sim_stream_find_locked(CUstream handle, bool per_thread, struct CUstream_st **stream_out);
struct CUstream_st *sim_stream_create_locked(struct CUctx_st *context, unsigned flags,
                                             int priority);
void sim_stream_destroy_locked(struct CUstream_st *stream);
static inline bool sim_stream_is_blocking(const struct CUstream_st *stream)
{
    return !stream->is_legacy && (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}
static inline bool sim_stream_is_busy(const struct CUstream_st *stream)
{
    return stream->last != NULL && !stream->last->done;
}
/* Queues work (NULL: an empty item) after what the stream's rules ask for and after `after`. */
struct sim_mark *sim_stream_queue_locked(struct CUstream_st *stream, struct sim_work *work,
                                         struct sim_mark *after);
void sim_mark_keep_locked(struct sim_mark *mark);
void sim_mark_drop_locked(struct sim_mark *mark);
/* Is a mark that is done seen so by a host that asks? Always, without SIMCUDA_BEHIND. */
bool sim_mark_is_seen_locked(const struct sim_mark *mark);
void sim_marks_see_all_locked(void);
/* Waits with the lock given away meanwhile; returns the sticky error. */
CUresult sim_mark_wait_locked(struct sim_mark *mark);
CUresult sim_stream_wait_locked(struct CUstream_st *stream);
/* A mark, with a reference for the caller, that is done when all is that is queued in the context
 * now. */
CUresult sim_context_mark_locked(struct CUctx_st *context, struct sim_mark **mark_out);
void sim_streams_stop(void);
bool sim_streams_are_stopping(void);
bool sim_streams_are_stopping_locked(void);
void sim_work_discard(struct sim_work *work);
/*
 * Memory is about to go: reports queued work that would touch it as a race, and waits for running
 * work that does, so that the simulator itself never touches what is gone.
 */
void sim_streams_retire_range_locked(CUdeviceptr begin, size_t bytes, const char *what);
uint64_t sim_now_ns(void);

/* --- capture (capture.c, capture_graph.c) */

/* Work arrives on a capturing stream. Takes the work. */
CUresult sim_capture_add_locked(struct CUstream_st *stream, struct sim_work *work);
/* Stream-ordered memory becomes memory of the graph. */
CUresult sim_capture_allocate_locked(struct CUstream_st *stream, const CUmemPoolProps *props,
                                     size_t bytes, CUdeviceptr *address_out);
CUresult sim_capture_free_locked(struct CUstream_st *stream, CUdeviceptr address);
/* Is the legacy stream of the context closed because a blocking stream captures? */
CUresult sim_capture_refuse_legacy_locked(struct CUctx_st *context);
/*
 * A call that would wait for the whole context: whatever the mode, and in every thread, it
 * invalidates the captures there (NVIDIA/TensorRT issue 2888, ggml-org/llama.cpp pull request
 * 14033; cuCtxRecordEvent in cuda.h).
 */
CUresult sim_capture_refuse_context_locked(const struct CUctx_st *context);
/* A call that is not safe: invalidates the captures that forbid it to this thread. */
CUresult sim_capture_refuse_unsafe_locked(void);
/* A call that must not meet a capturing stream: invalidates its capture. */
CUresult sim_capture_refuse_stream_locked(struct CUstream_st *stream);
void sim_capture_leave_locked(struct CUstream_st *stream); /* the stream is destroyed */

/* The point of a capture at which an event was recorded. */
enum { SIM_CAPTURE_STREAMS_MAX = 64 };
struct sim_capture_point {
    uint64_t capture_id; /* 0: not captured */
    unsigned seen[SIM_CAPTURE_STREAMS_MAX];
};
CUresult sim_capture_record_locked(struct CUstream_st *stream, struct sim_capture_point *point_out);
/* The stream waits for the point: it joins the capture when it is not yet in it. */
CUresult sim_capture_wait_locked(struct CUstream_st *stream, const struct sim_capture_point *point);
CUresult sim_capture_refuse_event_locked(const struct sim_capture_point *point);
bool sim_capture_is_live_locked(uint64_t capture_id);

/* --- multicast objects (multicast.c), whose handles cuMemRelease and cuMemMap meet */
bool sim_multicast_is_one_locked(CUmemGenericAllocationHandle handle);
bool sim_multicast_release_locked(CUmemGenericAllocationHandle handle); /* false: it is none */

/* --- memory of graphs (graph_memory.c) */
bool sim_graph_memory_free_locked(CUdeviceptr address); /* false: there is none to be freed */

/* --- memory of other processes (ipc.c) */
/* Writes a name of granules of this process for others, in 64 bytes, valid while it lives. */
void sim_ipc_describe_locked(const struct sim_memory *memory, void *handle_out);
/* The same granules here, also in the process that they are of. CUDA_ERROR_INVALID_VALUE: the bytes
 * are no such name. */
CUresult sim_ipc_map_locked(const void *handle, enum sim_kind kind, struct CUctx_st *context,
                            struct sim_memory **out);
