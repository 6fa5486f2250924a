/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard.h: what a program can tell MetaShard and ask it. No program needs it: MetaShard is made
 * for programs that know nothing of it.
 *
 * The functions are in libmetashard.so, which is preloaded, not linked with. They are declared
 * weak, so a program can check whether it runs under MetaShard:
 *
 *     if (metashard_plan_file != NULL && metashard_plan_file("plan.json") != 0)
 *         fprintf(stderr, "%s\n", metashard_error());
 *
 * From Python: ctypes.CDLL(None).metashard_plan_file (docs/examples/plan_ctypes.py).
 *
 * Functions that return int return 0 on success and -1 on failure; metashard_error then returns the
 * reason. They may be called from any thread, before and after cuInit, but not from a signal
 * handler, a host function of a stream, or a forked child. With METASHARD=off they fail. In the run
 * of metashard-verify in which nothing is deferred they succeed and do nothing.
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
 * Activates a sharding plan (docs/plan-format.md), from a file or from JSON text of `bytes` bytes.
 * On return, the bytes that the plan gives to this rank, of what the program has loaded, are in
 * device memory. What is loaded later follows when all tensors of the checkpoint have been copied,
 * or when the program settles. A second plan replaces the first: memory of bytes that the rank no
 * longer keeps is freed, unless the program has written there. Fails if the plan is not valid; the
 * previous plan then stays active. If neither the plan nor a launcher (RANK, ...) names the rank,
 * the plan waits for an NCCL communicator.
 */
METASHARD_API int metashard_plan_file(const char *path);
METASHARD_API int metashard_plan_text(const char *json, size_t bytes);

/*
 * Says that [address, address + bytes) of device memory is the tensor `name` of the plan. `dtype`
 * is as in safetensors ("F32", "BF16", ...). `shape` has `dims` sizes (at most 8), outermost first;
 * dtype and shape must amount to `bytes`. Needed only for tensors that are not copied from a
 * checkpoint file. The name is forgotten when the memory is freed or gets another name. Fails for
 * memory that is not deferred (METASHARD_MIN_BYTES).
 */
METASHARD_API int metashard_name(uint64_t address, size_t bytes, const char *name,
                                 const char *dtype, const uint64_t *shape, unsigned dims);

/*
 * Removes all names from [address, address + bytes). For allocators that reuse memory without
 * freeing it (PyTorch's needs no call). Received bytes that other ranks keep stay remote. Fails for
 * memory that is not deferred.
 */
METASHARD_API int metashard_unname(uint64_t address, size_t bytes);

/* Materialises everything deferred, except what the plan gives to other ranks. What cannot be
 * materialised stays deferred, and is tried again when it is used. */
METASHARD_API int metashard_materialise(void);

/*
 * For metashard-verify, which compares a run without MetaShard with one under it: compares the
 * content of all device memory here too, not only when the process ends. `name` is for its output:
 * 1 to 100 characters, none of them a control character. The same name may be used again. Waits
 * for the device and reads all memory, so nothing else should work with it meanwhile, and no stream
 * may be captured. Under metashard-verify it fails if the name is not valid, or the file of hashes
 * cannot be written. Everywhere else it does nothing and succeeds.
 */
METASHARD_API int metashard_mark(const char *name);

/* Writes one line of JSON, an object with the counters of the plan and of memory, to `text`, cut to
 * `bytes` including the NUL. Returns its full length without the NUL. Keys: pid, plans, mode, rank,
 * world_size, tensors, planned_bytes, owned_bytes, remote_reads, remote_read_bytes,
 * requested_bytes, backed_bytes. */
METASHARD_API size_t metashard_status(char *text, size_t bytes);

/* Returns the version, such as "0.1.0"; also with METASHARD=off. */
METASHARD_API const char *metashard_version(void);

/* Returns why the calling thread's last call failed, in one line, or "" if it did not fail. Valid
 * until the thread's next call. */
METASHARD_API const char *metashard_error(void);

#ifdef __cplusplus
}
#endif

#endif
