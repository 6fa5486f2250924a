/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: a libnccl.so.2 with the names of nccl.h 2.28.9, for ranks on one machine over
 * the simulated driver of tools/simcuda, for tests only. Ranks are processes, or devices of one
 * process.
 *
 * Binary interface. Every ncclX is weak and pncclX is a global alias at the same address, without
 * versions, and the library calls its own public functions where NCCL does, through the PLT: Bcast
 * calls Broadcast; whatever needs a communicator that is ready asks GetAsyncError, and
 * InitRankConfig, InitRankScalable, Finalize, Revoke and operations ask it once more when the
 * communicator does not block; InitAll calls GetUniqueId; windows call CommRegister and
 * CommDeregister. The stand-in has those functions of 2.29 to 2.32 that programs import
 * (later.c): ncclCommSuspend, Resume and MemStats, ncclWinGetUserPtr and collectives with a
 * configuration of the call (nccl*Config) work; ncclGetPeerDevicePointer knows a rank's own memory
 * alone, and there is no multicast; growing, signals and what else kernels use to communicate
 * (nccl_device.h) are refused with ncclInvalidUsage, as where the machine cannot do it. A config
 * may be shorter or longer than that of the header this was built with.
 *
 * Rendezvous. An id names a memory file of the process that made it, and works while that lives.
 * All traffic goes through this file; nothing is left behind in the file system.
 *
 * Operations. They are put in the stream and run later on its thread: buffers are read and written
 * then, by the mappings of that time. Memory that is not mapped is an illegal access, sticky as the
 * driver's. All collectives are rings in the order of ranks, with rounding to the data type at
 * every rank. A broadcast forwards what came in through a buffer of its own, as NCCL does for
 * buffers that are not registered; when the buffer is registered (ncclCommRegister, windows,
 * captured and NCCL_GRAPH_REGISTER is not 0) every rank but the last forwards from its user buffer
 * when all has arrived, so that a buffer whose addresses share memory breaks the result of the next
 * rank. Registration takes one allocation handle, as NCCL 2.28.9; memory that is mapped anew
 * afterwards is an error of the operation.
 *
 * Strictness. Ranks compare what they run (kind, bytes, type, operator, root, registration,
 * capture, place in the group). A difference is written to stderr, operation by operation, and
 * fails all ranks (ncclInvalidUsage, asynchronous). A send ends only when it has been received.
 * NCCL does not look: SIMNCCL_CHECK=real hangs or gives wrong numbers as NCCL would.
 *
 * Errors. A rank whose process ends, that aborts, or that fails is ncclRemoteError at the ranks
 * that wait for it. Waiting without progress for SIMNCCL_TIMEOUT_MS is ncclSystemError, with a list
 * of what every rank of every communicator of the process is doing.
 *
 * Environment, read at the first call. A bad value gives one line on stderr and the default.
 *
 *   SIMNCCL_VERSION=<n>         what ncclGetVersion says; default 22809
 *   SIMNCCL_CHECK=strict|real   default strict
 *   SIMNCCL_SHUFFLE=<n>         seed of the order of the collectives of a group; 0: largest first,
 *                               as NCCL sorts; default 1. The same on all ranks
 *   SIMNCCL_DELAY_US=<n>        operations wait up to so long before they start; default 0
 *   SIMNCCL_TIMEOUT_MS=<n>      waiting without progress, also for other ranks to arrive; default 60000
 *   SIMNCCL_MIRROR=1            there is no other process: the peers of this rank are taken to do what it does, with the same
 *                               numbers (mirror.c). Nobody is waited for; what is more than 1 MiB is not moved
 *   SIMNCCL_MIRROR_MIB=<n>      what each communicator of several ranks takes of the device's memory; default 0
 *   SIMNCCL_MOVED_MIB=<n>       operations of more move nothing, on all ranks alike; default 0: all move
 *   SIMNCCL_FAULTS=[<comm>.]<rank>:<nth>=<what>[,...]
 *                               at the nth operation (from 0) of the communicator with this number (from 0,
 *                               in the order in which the process made them; without: any):
 *                               kill: the process ends by SIGKILL when it runs the operation
 *                               delay<us>: the operation starts so much later
 *                               async<n>: the operation fails with ncclResult_t n, asynchronously
 *                               error<n>: the call returns ncclResult_t n and does nothing
 *                               *:<nth>=error<n> is the nth call (from 1) that comes from a library with the
 *                               text of SIMCUDA_FAULT_CALLER in its name; SIMCUDA_FAULT_REPORT gets its name
 *   SIMNCCL_LOG=<path>          one line for every operation that runs; %p in the path is the process id
 *   SIMNCCL_LINKS=<path>        the bytes that this rank sent to each other rank, when a communicator
 *                               is destroyed: "comm <number> from <rank> to <rank> bytes <n>"; %p too
 *
 * kill, delay and async count the operations as they run, error counts calls; both count every
 * operation but those without elements and those of communicators of one rank. AlltoAll, Gather and
 * Scatter are sends and receives, as in NCCL, and count as these when they run.
 */
#pragma once

#include <nccl.h>
#include <stdint.h>

/* Payload bytes that rank `from` has sent to rank `to` so far, by any operation. */
ncclResult_t simncclLinkBytes(ncclComm_t comm, int from, int to, uint64_t *bytes_out);
