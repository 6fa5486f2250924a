/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a random program of several, told by a seed. All ranks draw the same sequence of
 * operations of NCCL, on the same places of the same tensors; between them each rank allocates,
 * fills, copies and reads by draws of its own. It prints a line for each operation and for each
 * read, with a hash of the bytes, so that two runs can be compared.
 *
 * A byte that nobody wrote may be anything. Every rank therefore keeps what each of the ranks has
 * surely written (`known`), by what all ranks know, and only such bytes are sent, or read.
 *
 * Order. Every piece of work waits for those before it that touch the same tensor, whatever streams
 * they are in; as the order is the same everywhere, ranks never wait for each other in a circle.
 *
 * Files: program.c (the loop, draws, ends), tensors.c (tensors, what is known, streams), local.c
 * (what a rank does alone), families.c (communicators), wire.c (NCCL's operations).
 */
#pragma once

#include <cuda.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_RANKS = 8, MAX_TENSORS = 8, MAX_STORED = 16, MAX_FAMILIES = 4, MAX_SPANS = 48 };

/* --- program.c */

struct program {
    int rank, ranks;
    int operation; /* the number of the current one */
    /* Waits before operations of NCCL, so that no rank sends what a failed one left. */
    bool is_careful;
    /* Bytes from the checkpoint are received and read, and go nowhere else. */
    bool is_gentle;
};
extern struct program program;

uint64_t random_common(uint64_t limit); /* 0 .. limit - 1, the same on all ranks */
uint64_t random_own(uint64_t limit);    /* this rank's */
bool common_one_in(unsigned chances);
bool own_one_in(unsigned chances);

/* Ends the program, quietly, with a line that says how: others have died, or a call was refused. */
void program_cuda(CUresult result, const char *what);
void program_nccl(ncclResult_t result, const char *what);

/* --- tensors.c */

struct spans {
    int count; /* ascending, none touches the next; what has no room is not noted */
    struct {
        size_t begin, end;
    } rows[MAX_SPANS];
};

/* A tensor of the checkpoint, which is mapped. */
struct stored {
    char name[64], dtype[8];
    size_t begin, bytes;
    uint64_t shape[2];
};
extern struct stored stored[MAX_STORED];
extern int stored_count;

struct tensor {
    CUdeviceptr address;
    size_t bytes;
    struct spans known[MAX_RANKS]; /* the same on all ranks */
    struct spans mine;             /* known[own rank], and what this rank wrote by itself */
    CUevent last;                  /* behind all work on it */
    bool is_claimed;               /* by an operation of the current group */
    const struct stored *as; /* the tensor of the checkpoint that was loaded, or will be; or NULL */
    bool is_loaded;          /* it is a tensor of the checkpoint, which a plan may divide */
    void *registered;        /* with the world */
};
extern struct tensor tensors[MAX_TENSORS];

struct range {
    struct tensor *tensor;
    size_t at, bytes;
};

void tensors_init(const char *layout);
const unsigned char *tensors_file(size_t *bytes_out);

struct tensor *tensor_free_slot(void);
/* One that is there and not claimed, by a common draw; or NULL. */
struct tensor *tensor_draw(void);
bool tensor_may_be_sent(const struct tensor *tensor);
void tensor_create(struct tensor *tensor, size_t bytes);
void tensor_destroy(struct tensor *tensor);
size_t tensor_random_bytes(void);

bool range_is_known(const struct range *range, const struct spans *spans);
void range_know(const struct range *range, int rank); /* on that rank */
CUdeviceptr range_address(const struct range *range);

/* A stream of this rank's choice; work on the tensors of a range goes between these. */
CUstream stream_draw(void);
void range_begin(const struct range *range, CUstream stream);
void range_end(const struct range *range, CUstream stream);
void tensors_wait(void);

/* --- local.c */

void local_init(const char *kernels);
void local_fill(const struct range *range); /* overwrites all of it; it is this rank's then */
void local_copy(const struct range *to, const struct range *from);
void local_load(const struct range *range, const struct stored *from);
void local_name(const struct tensor *tensor, const struct stored *as);
void local_burst(void);
void local_read_all(void);

/* --- families.c: communicators that were made together, by colours */

struct family {
    bool is_there;
    ncclComm_t comm; /* this rank's; NULL: it is in none */
    bool does_not_block;
    int class[MAX_RANKS]; /* by rank; -1: in none */
    int place[MAX_RANKS]; /* rank in the communicator */
    int size[MAX_RANKS];  /* ranks of the communicator */
};
extern struct family families[MAX_FAMILIES];

void families_init(const char *id_path);
struct family *family_draw(void);
int family_most(const struct family *family);                    /* ranks of the largest */
int family_rank(const struct family *family, int of, int place); /* in the communicator of `of` */
void family_split(void);
void family_wait(const struct family *family); /* until its communicator has done what was called */
void family_destroy_one(void);
void families_expect_no_error(void);
void families_abort(void);
void families_destroy(void);

/* --- wire.c */

void wire_one(void);
void wire_group(void);
void wire_coalesced(void);
void wire_captured(void); /* and replayed */
void wire_register(void); /* a new tensor, with the world */
/* The rank with this number has a tensor of the checkpoint, and broadcasts it. */
void wire_broadcast_whole(struct tensor *tensor, int root);
void wire_barrier(void);
