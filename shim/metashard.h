/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metashard.h: what a program can tell MetaShard and ask it. No program needs this header:
 * MetaShard is made for programs that know nothing of it.
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
 * handler, a host function of a stream, or a forked child. With METASHARD=off they fail.
 */
#ifndef METASHARD_H
#define METASHARD_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header; metashard_version() returns the library's. A program compares with
 * #if METASHARD_VERSION_NUMBER >= METASHARD_VERSION_OF(0, 2, 0). */
#define METASHARD_VERSION_MAJOR 0
#define METASHARD_VERSION_MINOR 2
#define METASHARD_VERSION_PATCH 0
#define METASHARD_VERSION_OF(major, minor, patch) (((major)*1000 + (minor)) * 1000 + (patch))
#define METASHARD_VERSION_NUMBER \
    METASHARD_VERSION_OF(METASHARD_VERSION_MAJOR, METASHARD_VERSION_MINOR, METASHARD_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

#ifndef METASHARD_API
#define METASHARD_API __attribute__((weak))
#endif

/*
 * Activates a sharding plan (docs/plan-format.md), from a file or from JSON text of `bytes` bytes.
 * On return, the loaded bytes that the plan gives to this rank are in device memory. Bytes loaded
 * later follow when they are used, when the program settles, or with metashard_materialise. A
 * second plan replaces the first. The call frees the memory of bytes that other ranks keep, unless
 * the program may have written there. In mode enforce it frees written memory, too, if that is
 * equal to its file, so no other thread may write to the tensors meanwhile. metashard_status says
 * how much was freed, and a log line what stays. Fails if the plan is not valid; the previous plan
 * then stays active. If neither the plan nor a launcher (RANK, ...) names the rank, the plan waits
 * for an NCCL communicator.
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

/* Materialises everything deferred, except bytes that the plan gives to other ranks. Bytes that
 * cannot be materialised stay deferred; their next use tries again. */
METASHARD_API int metashard_materialise(void);

/*
 * Gives back the device memory that the shim made in this process, while the process lives
 * (docs/suspend.md). Addresses stay. Bytes that are still in their file, or that recorded launches
 * can make again, are dropped; the rest waits in host memory or, if `folder` (an absolute path) is
 * not NULL, in a file without a name in that folder. Waits for the device. Writes figures to `text`
 * (may be NULL), as metashard_status does; keys: freed_bytes, replayed_bytes, made_bytes (the part
 * of replayed_bytes that is in no file: recorded launches and sets make it again), stored_bytes,
 * zero_bytes, stays_exported_bytes, stays_mapped_bytes, stays_bytes, and others_bytes (all other
 * memory in use on the devices, of any process). Fails, and changes nothing, while a stream is
 * captured or an NCCL group is open, or when there is no room for the rest. No other thread may use
 * the device meanwhile.
 *
 * metashard_resume takes everything back. So does the first launch; a copy takes back the bytes
 * that it uses. Without enough device memory, metashard_resume fails with -1 and calls of the
 * program fail with CUDA_ERROR_OUT_OF_MEMORY, both after METASHARD_RESUME_MS; nothing is lost, and
 * a later call may succeed.
 */
METASHARD_API int metashard_suspend(const char *folder, char *text, size_t bytes);
METASHARD_API int metashard_resume(void);

/* Writes one line of JSON, an object with the counters of the plan and of memory, to `text`, cut to
 * `bytes` including the NUL. Returns the full length without the NUL. Keys: pid, plans, mode, rank,
 * world_size, tensors, planned_bytes, owned_bytes, remote_reads, remote_read_bytes,
 * requested_bytes, backed_bytes, plan_freed_bytes (freed when plans arrived), suspended (true or
 * false). */
METASHARD_API size_t metashard_status(char *text, size_t bytes);

/* Returns the version, such as "0.2.0"; also with METASHARD=off. */
METASHARD_API const char *metashard_version(void);

/* Returns why the calling thread's last call failed, in one line, or "" if it did not fail. Valid
 * until the thread's next call. */
METASHARD_API const char *metashard_error(void);

#ifdef __cplusplus
}
#endif

#endif
