/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common part of this folder's programs. Each is one rank of what a framework does to
 * bring a model from the file of rank 0 to all ranks: a plain CUDA and NCCL program, which knows of
 * MetaShard only to give tensors their names, when it is told to. All tensors are float32, on one
 * device; the rank has one thread.
 *
 * Whatever fails ends the program with one line. Its options, of which each program uses some:
 *
 *   --rank R --ranks N     which rank this is
 *   --id FILE              where rank 0 leaves NCCL's id for the others
 *   --model FOLDER         tensors.txt has a line "NAME DIMENSION..." of each tensor, for all ranks; rank 0 maps the
 *                          *.safetensors that has them
 *   --out FILE             where the bytes go that this rank reads in the end
 *   --kernels FILE         kernels as PyTorch's (tools/simcuda/kernels): copies of columns and fills are kernels
 *   --cat FILE             torch.cat is a kernel (flow_kernels.c), and not a copy for each tensor
 *   --bucket-bytes N       how much is broadcast as one
 *   --keep                 whole tensors stay, and what the rank needs of them it reads in place
 *   --columns              o_proj and down_proj are cut by columns, as tensor parallelism does
 *   --copies               the root of a scatter sends copies of its rows, not the rows in place
 *   --per-unit             a unit's tensors are made when it is its turn
 *   --late                 what is freed stays until the model is made
 *   --cached BYTES         tensors lie in the segments of a caching allocator (cache.h), whose granule this is
 *   --unreported           ... of another than PyTorch's, which tells nobody what it takes back
 *   --replicas N           ranks of the mesh's outer dimension
 *   --names                every rank but 0 gives whole tensors their names
 *
 * On standard output: "largest BYTES", this rank's part of the largest tensor at most; and "part
 * NAME BYTES HASH" for each part that it read, in order. A rank that has nothing of a tensor has no
 * part of it.
 */
#pragma once

#include <cuda.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct parameter {
    char *name;
    uint64_t shape[2]; /* a tensor of one dimension has so many rows of one column */
    unsigned dims;
    size_t bytes;
    const unsigned char *data; /* of rank 0, in the mapped file; else NULL */
};

struct flow {
    int rank, ranks;
    ncclComm_t world;
    CUstream stream;    /* the current stream: the default one */
    CUstream transfers; /* where operations run that are not waited for at once */
    struct parameter *parameters;
    size_t count;
    bool keep, columns, copies, per_unit;
    int replicas;
    size_t bucket_bytes;
    const char *cat; /* a file of kernels, or NULL */
};
extern struct flow flow;

#define CU(call) flow_check((int)(call), #call, __FILE__, __LINE__)
#define NCCL(call) flow_check((int)(call), #call, __FILE__, __LINE__)
void flow_check(int result, const char *call, const char *file, int line);

/* Device, streams, model and communicator. */
void flow_open(int count, char **arguments);
/* Reads what was kept, reports it, and returns the exit status. ways: how many ranks share a
 * tensor. */
int flow_close(int ways);

/* --- memory: 0 stands for no bytes */

CUdeviceptr flow_allocate(size_t bytes);
void flow_free(CUdeviceptr address);
void flow_zero(CUdeviceptr address, size_t bytes);
void flow_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes);

/* Some columns of so many rows. */
struct region {
    CUdeviceptr address;
    size_t rows, row_bytes, pitch;
};
/* Rows and row_bytes are those of from. */
void flow_copy_region(const struct region *to, const struct region *from);

/* --- tensors */

/* The whole tensor: with its values on rank 0, and never written on the others. */
CUdeviceptr flow_whole(const struct parameter *parameter);
/* The same, but others write all of it by a kernel, with values that nobody needs. */
CUdeviceptr flow_initialised(const struct parameter *parameter);
void flow_broadcast(CUdeviceptr address, size_t bytes, int root, ncclComm_t comm, CUstream stream);

/* Elements, rows or columns, from begin up to end. */
struct range {
    uint64_t begin, end;
};
/* torch.chunk's rule: equal parts, rounded up; the last ones are shorter or empty. */
struct range flow_chunk(uint64_t length, int index, int ways);
uint64_t flow_chunk_length(uint64_t length, int ways);

bool flow_by_columns(const struct parameter *parameter);
/* Part `index` of `ways` of the whole tensor at this address, where it is. */
struct region flow_part(const struct parameter *parameter, CUdeviceptr whole, int index, int ways);
size_t flow_region_bytes(const struct region *region);

/* Bytes that this rank reads in the end. Nothing, when there are no bytes. */
void flow_observe(const char *name, const struct region *region);
void flow_observe_bytes(const char *name, CUdeviceptr address, size_t bytes);
/* This rank observes an own copy of this part of a whole tensor, or with --keep the part itself. */
void flow_take_part(const struct parameter *parameter, CUdeviceptr whole, int index, int ways);
