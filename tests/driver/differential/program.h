/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random CUDA program, told by a seed. It keeps a model of what every byte of device memory must
 * be, compares all it reads with the model, and prints one line per operation with everything it
 * observed (results, sizes, hashes; no addresses), so that two runs can be compared too.
 *
 * Files: program.c (the loop, the operations on memory), program_kernels.c (launches),
 * program_host.c (host buffers: a clean file mapping, a written private mapping, pinned and plain
 * memory), program_order.c (streams, and the ways in which they are held back), program_shapes.c
 * (all that is not linear, and graphs).
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Deterministic random numbers. */
uint64_t program_random(void);
size_t program_below(size_t limit); /* 0 .. limit - 1 */
bool program_one_in(unsigned chances);

/* Ends the program with one line when an operation that must work does not. */
void program_must(CUresult result, const char *what);

uint64_t program_hash(const void *bytes, size_t length);

/* A device allocation and its model. */
struct program_block {
    CUdeviceptr address;
    size_t bytes;
    unsigned char *model;   /* what each byte must be */
    unsigned char *defined; /* 1 where the byte was ever written */
};

struct program_range {
    struct program_block *block;
    size_t at, bytes;
};

/* A range of a live block, of at most `limit` bytes; false when there is none. */
bool program_range(struct program_range *range_out, size_t limit);
CUdeviceptr program_address(const struct program_range *range);
bool program_is_disjoint(const struct program_range *a, const struct program_range *b);

/* Operations with kernels: of tests/simcuda/kernels/test_kernels.c and torch_kernels.c. */
void program_kernels_init(const char *kernels, const char *torch_kernels);
void program_add(void);
void program_copy_words(void);
void program_build(struct program_block *block);
void program_initialise(void);
void program_change_in_place(void);
void program_follow_table(void);
void program_reload_kernels(void);
void program_work_in_threads(void);

/* Operations of other shapes. */
void program_set_rows(void);
void program_copy_box(void);
void program_copy_peer(void);
void program_through_array(void);
void program_run_graph(void);

/* Host memory to copy from. */
enum program_buffer {
    BUFFER_FILE,    /* private read-only mapping of a file */
    BUFFER_WRITTEN, /* private mapping of a file with some pages overwritten */
    BUFFER_PINNED,
    BUFFER_PLAIN,
    BUFFER_COUNT
};
extern const char *const program_buffer_names[BUFFER_COUNT];
enum { PROGRAM_BUFFER_BYTES = 6 << 20 };
void program_buffers_init(const char *file);
unsigned char *program_buffer(enum program_buffer buffer);
/* Changes some bytes of a buffer that may be changed. Everything queued must be done. */
void program_buffer_change(enum program_buffer buffer);

/* Streams: operations are in program order whatever stream they use, by events. */
void program_streams_init(void);
CUstream program_next_stream(void);        /* ordered behind all before */
void program_streams_wait(void);           /* the host waits for everything */
void program_hold_stream(CUstream stream); /* queues a host function that takes its time */
