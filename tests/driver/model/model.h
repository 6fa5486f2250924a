/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model tester: a random CUDA program of several threads that keeps on the host what every byte
 * of device memory must be, and compares each byte that it reads back. The fuzzer in
 * ../differential compares two runs, so a fault that both runs share is not seen there; here it is.
 *
 * The operations of thread t follow from the seed and t, but for the others' work on shared blocks.
 * The first byte that is not the model's ends the process with a line that has the seed, the thread
 * and the operation.
 *
 * Order. A block's event is recorded after each operation on it, and the stream of the next one
 * waits for it first. So operations on a block happen in the order of calls, whatever streams they
 * use, and the model changes when the call is made. Bytes that come to the host late are compared
 * when their stream is known to be done. Shared blocks are held from the choice of a range to
 * model_done.
 *
 * Files: model.c (threads, the loop), model_blocks.c (blocks, order, comparisons), model_host.c
 * (host memory), model_files.c (files), model_functions.c (host functions), model_copies.c,
 * model_launches.c, model_plans.c (operations).
 */
#pragma once

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MODEL_STREAMS = 5,
    MODEL_OWN = 7,
    MODEL_SHARED = 3,
    MODEL_THREADS_MOST = 8,
    MODEL_MOST = 256 << 10
};

/* --- what the thread draws, and how it ends */

uint64_t model_random(void);
size_t model_below(size_t limit); /* 0 .. limit - 1 */
bool model_one_in(unsigned chances);
/* Prints where the thread is, and this, and ends the process. */
__attribute__((noreturn, format(printf, 1, 2))) void model_fail(const char *format, ...);
void model_check(CUresult result, const char *what);
#define OK(call) model_check(call, #call)

/* A context of the device, a context of another device, and a second one of the device. */
extern CUcontext model_context, model_peer_context, model_other_context;
extern const char *model_folder;
extern bool model_prints;     /* each operation, and each range that it changes */
extern bool model_reads_late; /* the driver reads pageable memory late (SIMCUDA_LATE) */
extern bool
    model_device_has_threads; /* what is queued can wait for the program (SIMCUDA_EAGER=0) */
/* --without has it: nothing is drawn of its kind. */
bool model_is_left_out(const char *operation);
extern _Thread_local unsigned model_thread;

/* --- device memory */

enum model_kind {
    MODEL_PLAIN,
    MODEL_POOLED,
    MODEL_MAPPED,   /* of two handles, mapped by the program */
    MODEL_REPORTED, /* a part of an arena, as a caching allocator has them */
    MODEL_KINDS
};
struct model_block {
    CUdeviceptr at; /* 0: there is none */
    size_t bytes;
    enum model_kind kind;
    unsigned char *content; /* what each byte must be, */
    unsigned char *known;   /* where this is 1 */
    CUevent last;           /* recorded after the last operation, in this stream */
    CUstream last_stream;
    pthread_mutex_t mutex;
    bool is_shared;
    int index;
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr reserved, mapped;
    size_t gap;  /* reserved before and behind what is mapped */
    size_t part; /* bytes of each handle */
};
struct model_range {
    struct model_block *block;
    size_t at, bytes;
};

/* A range of a block of this thread, or of a shared one, that is held until model_done. Its place
 * is a multiple of `align`, a power of two, and so is its size. */
struct model_range model_range(size_t most, size_t align);
/* Two ranges of one size that do not meet; false: none were found, and nothing is held. */
bool model_ranges(struct model_range *from, struct model_range *to, size_t most, size_t align);
/* A range of an own block, which nobody holds. */
struct model_range model_own_range(size_t most, size_t align);
/* All of a new own block of so many bytes, in the place of another. */
struct model_range model_new_range(size_t bytes);
/* The sizes of own blocks, or the sizes that they would at least have. */
void model_block_sizes(size_t sizes[MODEL_OWN]);
CUdeviceptr model_address(struct model_range range);
/* Orders a stream behind what was done to the block; after the call, model_done. */
void model_order(struct model_range range, CUstream stream);
void model_done(struct model_range range, CUstream stream);
/* A stream of this thread, or one of the default streams. */
CUstream model_stream(void);
/* Frees what this thread has. */
void model_free_all(void);
/* One in which nothing waits for the legacy stream: for captures, and host functions. */
CUstream model_own_stream(void);

/* Changes the bytes that the model expects in a range from now on. */
void model_write(struct model_range range, const void *bytes);
void model_fill(struct model_range range, const void *pattern, size_t width);
void model_move(struct model_range to, struct model_range from);
/* Compares; bytes that are not known become known by that. */
void model_compare(struct model_range range, const unsigned char *seen);
/* The same, later: what is at `seen` when the stream is done must be what the range is now. */
void model_compare_later(struct model_range range, const unsigned char *seen);
/* Waits for all streams of this thread, and makes the comparisons that wait. */
void model_wait(void);
/* Before each operation: the same when there is no room for more comparisons or pinned memory. */
void model_breathe(void);
void model_read_all(void);
void model_blocks_init(void);  /* once */
void model_blocks_begin(void); /* in each thread */

/* --- host memory */

/* So many bytes of pinned memory that nobody uses until the next model_wait. */
unsigned char *model_pinned(size_t bytes);
/* Whether there is enough for any operation. */
bool model_has_pinned(void);
void model_pinned_unused(void);
/* Bytes to copy from, in memory of some kind. After the call that copies: model_source_used. */
struct model_source {
    const unsigned char *bytes;
    void *passing;
    size_t passing_bytes;
    bool is_plain;
};
struct model_source model_source(size_t bytes, bool is_async);
void model_source_used(struct model_source source, size_t bytes);
/* One byte again and again, or random words. */
void model_draw_content(unsigned char *bytes, size_t count);
/* So many bytes of the thread's file (model_files.c). */
const unsigned char *model_in_file(size_t bytes);
void model_files_begin(void);
void model_host_begin(void);

/* --- host functions in streams */

/* cuLaunchHostFunc, or what drivers of 13.1 and later have of that name. */
void model_launch_host_function(CUstream stream, CUhostFn function, void *data);
void model_functions_init(void);
/* Waits until it is told on, but not for ever: was_late says that. */
struct model_gate {
    atomic_bool is_open, was_late;
};
void model_queue_gate(struct model_gate *gate, CUstream stream);
void model_open_gate(struct model_gate *gate);

/* --- plans (model_plans.c) */

/* Before the driver is initialised. */
void model_plans_begin(void);
/* False: files have no headers, so that no tensor is known by a name. */
bool model_has_names(void);

/* --- operations */

struct model_operation {
    const char *name;
    void (*run)(void);
    unsigned weight;
};
extern const struct model_operation model_memory[], model_copies[], model_launches[], model_files[],
    model_plans[];
void model_launches_init(const char *kernels, const char *torch_kernels); /* once */
void model_launches_begin(void);                                          /* in each thread */
