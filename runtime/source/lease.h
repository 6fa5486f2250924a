/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read leases (fcntl(2), F_SETLEASE): while one is held, nobody changes the file's bytes. Whoever opens it for writing,
 * or truncates it, waits in the kernel until the lease is given back; or for lease-break-time (45 s), after which the
 * kernel takes it away.
 *
 *     another process    open(O_TRUNC) ......waits......................| goes on
 *     the lease thread          sees it |-> the bytes are brought in ->| gives the lease back
 *
 * The kernel tells of that by a signal, which is sent to the file thread alone and stays blocked there: no signal
 * of the program is used. The lease thread asks for the state of the leases instead, 20 times a second while there are any.
 * It is a thread of the program's table of descriptors, because it calls the driver.
 *
 * A lease is had for regular files of the user (or with CAP_LEASE) that nobody has open for writing, on file systems
 * that know leases. It belongs to the open file, so it goes with the descriptor.
 */
#ifndef METASHARD_RUNTIME_SOURCE_LEASE_H
#define METASHARD_RUNTIME_SOURCE_LEASE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Another process waits to change the file. To bring in what comes from it, and give the lease back (source.h); called on
 * the lease thread.
 */
typedef void ms_lease_breaker(dev_t device, ino_t inode);

/* Once, before any lease (lease_thread.c). NULL: none are taken. */
void ms_lease_start(ms_lease_breaker *breaker);
void ms_lease_allow(void);

struct ms_lease {
    _Atomic bool is_taken;
    _Atomic uint64_t held_ns; /* when it was last seen to be held */
};

/* --- in the file thread, and in those that it starts */

void ms_lease_take(struct ms_lease *lease, int descriptor);

/* The bytes that were read before this call are those of when the lease was taken. */
bool ms_lease_is_intact(struct ms_lease *lease, int descriptor);

/* Somebody waits for it, or has waited too long. */
bool ms_lease_is_broken(const struct ms_lease *lease, int descriptor);

/* Before the descriptor is closed, or when somebody waits. */
void ms_lease_drop(struct ms_lease *lease, int descriptor);

/* --- in the lease thread */

/* Until there are some. */
void ms_lease_wait(void);

/* --- on a thread of the program */

bool ms_lease_any(void);

/* Leases were perhaps taken: there must be a thread that gives them back. Where there is none to be had, gives up all. */
void ms_lease_serve(void);

#endif
