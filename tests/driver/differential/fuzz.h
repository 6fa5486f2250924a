/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The differential fuzzer: a random CUDA program of numbered operations. All that operation i draws
 * comes from the seed and i, and what it needs and is not there it makes, so leaving operations out
 * leaves the others as they are. It writes one number per operation, a hash of every result, size
 * and byte that the operation observed; two processes that do not write the same numbers did not
 * observe the same. `run` compares them.
 *
 * An operation reaches the driver through CALL, TWIN and their kind, which count, and which ask for
 * each function in one of three ways (dlsym, both forms of cuGetProcAddress).
 *
 * Files: fuzz.c (the loop and its records), fuzz_entries.c (functions), fuzz_blocks.c (device
 * memory, host memory, streams), and the operations by chapter: fuzz_copies.c, fuzz_shapes.c,
 * fuzz_launches.c, fuzz_hidden.c, fuzz_streams.c, fuzz_memory.c, fuzz_mappings.c, fuzz_contexts.c,
 * fuzz_many.c, fuzz_plans.c, fuzz_pools.c, fuzz_refused.c, fuzz_files.c, fuzz_newer.c,
 * fuzz_bounds.c, fuzz_loads.c.
 */
#pragma once

/* Exported names are wanted, not the ones that cuda.h maps them to. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/simcuda/driver/newer.h"

/* --- functions of the driver */

enum fuzz_entry {
#define MS_ENTRY(class_, symbol, base, version, per_thread, reason) FUZZ_##symbol,
#include "shim/entries.def"
#undef MS_ENTRY
    FUZZ_ENTRIES
};
void fuzz_entries_init(void);
void *fuzz_entry(enum fuzz_entry entry);
const char *fuzz_entry_name(enum fuzz_entry entry);
bool fuzz_driver_lacks(enum fuzz_entry entry);
/* True one time in two, if the driver has the function: what is called may be the newer of two. */
bool fuzz_is_newer(enum fuzz_entry entry);
extern uint32_t *fuzz_hits; /* by entry */

#define CALL(symbol) ((__typeof__(&symbol))fuzz_entry(FUZZ_##symbol))
/* Exports of the simulated driver beside driver functions (tools/simcuda/driver/hook.h, gl.h). */
void *fuzz_stand_in(const char *name);
#define FUZZ_STAND_IN(name) ((__typeof__(&name))fuzz_stand_in(#name))
/* The other function when the condition is true; both have one type. */
#define TWIN(other_one, symbol, other) \
    ((__typeof__(&symbol))fuzz_entry((other_one) ? FUZZ_##other : FUZZ_##symbol))

/* A call of the default stream, and one of a stream that is drawn: each of the entry, or of its
 * twin. */
#define SEE_NOW(twin, symbol, ...)                           \
    do {                                                     \
        fuzz_default_stream(twin);                           \
        SEE(TWIN(twin, symbol, symbol##_ptds)(__VA_ARGS__)); \
    } while (0)
#define SEE_QUEUED(twin, symbol, ...)                               \
    do {                                                            \
        const CUstream drawn = fuzz_stream(twin);                   \
        SEE(TWIN(twin, symbol, symbol##_ptsz)(__VA_ARGS__, drawn)); \
    } while (0)

/* --- the operation that runs: what it draws and what it observes */

uint64_t fuzz_random(void);
size_t fuzz_below(size_t limit); /* 0 .. limit - 1 */
bool fuzz_one_in(unsigned chances);
/* For the choice of a function's way alone: in arguments of a call nothing is in order. */
size_t fuzz_way(size_t limit);

void fuzz_see(uint64_t value);
void fuzz_see_bytes(const void *bytes, size_t count);
/* Observes a result and hands it on; `what` is for whoever reads --print. */
CUresult fuzz_result(CUresult result, const char *what);
#define SEE(call) fuzz_result(call, #call)
/* A result that the shim may refuse where the driver does not, with a line in the log: transparent
 * or loud. */
void fuzz_loud(CUresult result, const char *what);
/* One line about the operation, where --print asks for it. */
void fuzz_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* False: the driver alone. */
bool fuzz_has_shim(void);
/* This setting of the simulated driver is in force: in the environment, or for a whole run of
 * tests. */
bool fuzz_driver_has(const char *setting);
/* The device runs what is queued in threads of its own, so that work can wait for the program. */
bool fuzz_device_has_threads(void);
/* True where what is recorded stays out of memory until it is needed (FUZZ_DEFERS=1). */
bool fuzz_defers(void);

/* --- device memory (fuzz_blocks.c) */

enum { FUZZ_SLOTS = 8, FUZZ_BLOCK_MOST = 1 << 20, FUZZ_BLOCK_LEAST = 64 };

struct fuzz_block {
    CUdeviceptr at; /* 0: there is none */
    size_t bytes;
    bool is_part;   /* of the arena, as of a caching allocator */
    bool is_mapped; /* by the program, in addresses that it has reserved */
    CUdeviceptr reserved_at, mapped_at;
    size_t reserved_bytes, mapped_bytes;
};
struct fuzz_range {
    struct fuzz_block *block;
    CUdeviceptr at;
    size_t bytes;
};

/* Any size up to the largest is as likely, of blocks and ranges: what is done twice weighs more
 * than what is rounded (--short). */
extern bool fuzz_is_large;

/* A block whose every byte is defined; made when there is none. */
struct fuzz_block *fuzz_block(void);
/* A new one, in the place of another; its bytes are recorded, and not in memory. */
struct fuzz_block *fuzz_new_block(size_t least);
void fuzz_free_block(struct fuzz_block *block);
/* A range of a block, of 1 to `most` bytes; at a multiple of the power of two `align`, and so
 * many. */
struct fuzz_range fuzz_range(size_t most, size_t align);
/* The same; one time in three of a new block, which takes the place of another. */
struct fuzz_range fuzz_fresh_range(size_t most, size_t align);
/* Two ranges of one size that do not meet. */
bool fuzz_two_ranges(struct fuzz_range *from, struct fuzz_range *to, size_t most, size_t align);
/* Reads and observes. */
void fuzz_read(CUdeviceptr at, size_t bytes);
/* The bytes that slots hold, or would hold. */
void fuzz_block_sizes(size_t sizes[FUZZ_SLOTS]);
void fuzz_free_all(void);
/* The end of a program: everything is read and freed. */
void fuzz_end_program(void);
/* Writes every byte, by calls that may be recorded. */
void fuzz_define(CUdeviceptr at, size_t bytes);

/* --- host memory */

enum fuzz_buffer { FUZZ_FILE, FUZZ_WRITTEN, FUZZ_PINNED, FUZZ_PLAIN, FUZZ_BUFFERS };
enum { FUZZ_BUFFER_BYTES = 1 << 20, FUZZ_SCRATCH_BYTES = 8 << 20 };
extern unsigned char *fuzz_buffers[FUZZ_BUFFERS];
extern unsigned char *fuzz_scratch; /* of FUZZ_SCRATCH_BYTES, pageable, for what is read */
extern unsigned char *fuzz_landing; /* of FUZZ_BUFFER_BYTES, pinned */
/* So many bytes of some buffer. */
const unsigned char *fuzz_source(size_t bytes);

/* The driver's, at most 2 MiB (fuzz_memory.c). */
size_t fuzz_granule(void);

/* Another mapping of the file; munmap, FUZZ_BUFFER_BYTES. */
unsigned char *fuzz_map_file(void);

/* --- streams: operations are in order whatever stream they use, by events */

/* A stream for a call; per_thread: the call is one whose NULL is the stream of the thread. */
CUstream fuzz_stream(bool per_thread);
/* The same for a call without a stream. */
void fuzz_default_stream(bool per_thread);
void fuzz_wait(void); /* for everything that is queued */

/* --- kernels of tools/simcuda/kernels (fuzz_launches.c) */

CUfunction fuzz_kernel(const char *name);
void fuzz_launch(CUfunction function, void **params);
/* out[i] = *table[i] by a kernel, observed; the launch knows no more than the table's address. */
void fuzz_gather(CUdeviceptr table, unsigned count);
extern const char *fuzz_kernels_path;
extern CUcontext fuzz_context;
extern const char *fuzz_folder;

/*
 * A witness: a block that is recorded and must stay out of memory from begin to end; observed as 0.
 * A shim that does not defer, or materialises without need, is seen by it.
 */
struct fuzz_witness {
    struct fuzz_block block;
};
struct fuzz_witness fuzz_witness_begin(void);
void fuzz_witness_end(struct fuzz_witness witness);
/* A device with threads may be busy for longer than the shim waits: then it brings into memory what
 * it would have recorded, or what a copy might point to, or leaves an allocation to the driver.
 * Where other programs use the device, there may be too little memory to promise any. */
bool fuzz_may_be_in_memory(void);

/* Observes as 0 that what was recorded there is not in memory. */
void fuzz_see_deferred(CUdeviceptr at);
/* The same, where a kernel was launched between: not observed where any launch may need all
 * memory. */
void fuzz_witness_end_launch(struct fuzz_witness witness);
extern bool fuzz_launches_need_all;

/* --- operations */

/* --without has this operation: nothing is drawn of its kind. */
bool fuzz_is_left_out(const char *name);

struct fuzz_operation {
    const char *name;
    void (*run)(void);
    unsigned weight;
};
/* A kernel of that context, which is current afterwards, reads 256 bytes. */
void fuzz_read_from(CUcontext reader, CUdeviceptr at);
/* By chapter; each ends with a row without a name. */
extern const struct fuzz_operation fuzz_basics[], fuzz_copies[], fuzz_shapes[], fuzz_launches[],
    fuzz_hidden[], fuzz_streams[], fuzz_memory[], fuzz_mappings[], fuzz_contexts[], fuzz_plans[],
    fuzz_refused[], fuzz_pools[], fuzz_many[], fuzz_files[], fuzz_newer[], fuzz_bounds[],
    fuzz_loads[], fuzz_tensors[];
/* First and last acts of a process: what changes the shim for good, and what the process does not
 * survive. */
extern const struct fuzz_operation fuzz_first_acts[], fuzz_last_acts[];

void fuzz_blocks_init(void);
void fuzz_launches_init(const char *kernels, const char *torch_kernels);
/* Before the driver is initialised. */
void fuzz_plans_begin(void);
void fuzz_plans_init(void);
/* FUZZ_PLANS: there are many plans, and tensors of several granules. */
bool fuzz_draws_plans(void);
/* One may arrive now. */
void fuzz_plan_arrives(void);
/* False: files have no headers, so that no tensor is known by a name. */
bool fuzz_has_names(void);
