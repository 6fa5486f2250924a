/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard.h: what a program may tell MetaShard, and ask. None of it is needed: a program that knows nothing
 * of MetaShard is what it is made for.
 *
 * The functions are in libmetashard.so, which is preloaded and not linked with. They are declared weak: a
 * program finds out by itself whether it runs under MetaShard.
 *
 *     if (metashard_plan_file != NULL && metashard_plan_file("plan.json") != 0)
 *         fprintf(stderr, "%s\n", metashard_error());
 *
 * From Python: ctypes.CDLL(None).metashard_plan_file (docs/examples/plan_ctypes.py).
 *
 * All functions that return int return 0 on success and -1 on failure; metashard_error then tells why. They
 * may be called from any thread, before and after cuInit, but not from a signal handler, a host function of a
 * stream, or a forked child. Where METASHARD=off, they fail.
 */
#ifndef METASHARD_H
#define METASHARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef METASHARD_API
#define METASHARD_API __attribute__((weak))
#endif

/*
 * Puts a sharding plan (docs/plan-format.md) in force: a file, or JSON text of so many bytes. What it gives to
 * this rank of what the program has loaded is in device memory on return; what is loaded later follows when
 * all tensors of the checkpoint have come, or when the program settles. A second plan replaces the first:
 * memory of bytes that the rank no longer keeps is given back, unless the program has written there. Fails
 * for a plan that is not valid; the plan before then stays in force. Where neither the plan nor a launcher
 * (RANK, ...) tells the rank, the plan waits for a communicator of NCCL.
 */
METASHARD_API int metashard_plan_file(const char *path);
METASHARD_API int metashard_plan_text(const char *json, size_t bytes);

/*
 * [address, address + bytes) of device memory is the tensor `name` of the plan. `dtype` as in safetensors
 * ("F32", "BF16", ...), `shape` has `dims` sizes (at most 8), outermost first; together they make `bytes`.
 * Needed only for tensors that are not copied from a checkpoint file. Forgotten when the memory is freed, and where another name
 * is given. Fails for memory that is not deferred (METASHARD_MIN_BYTES).
 */
METASHARD_API int metashard_name(uint64_t address, size_t bytes, const char *name,
                                 const char *dtype, const uint64_t *shape, unsigned dims);

/*
 * No byte of [address, address + bytes) is a tensor's by name any more: for allocators that use memory again and do not free it
 * (PyTorch's is known without). What has been received for other ranks stays with them. Fails for memory that is not deferred.
 */
METASHARD_API int metashard_unname(uint64_t address, size_t bytes);

/* Materialises everything that is deferred, except what the plan gives to other ranks. What cannot be
 * materialised stays deferred, and is tried again when it is used. */
METASHARD_API int metashard_materialise(void);

/* Writes one JSON object (a line) with the counters of the plan and of memory to text, cut to `bytes` with
 * its NUL; returns the length that it has whole, without the NUL. Keys: pid, plans, mode, rank, world_size,
 * tensors, planned_bytes, owned_bytes, remote_reads, remote_read_bytes, requested_bytes, backed_bytes. */
METASHARD_API size_t metashard_status(char *text, size_t bytes);

/* Why the calling thread's last call failed: one line; "" when none has. Valid until its next call. */
METASHARD_API const char *metashard_error(void);

#ifdef __cplusplus
}
#endif

#endif
