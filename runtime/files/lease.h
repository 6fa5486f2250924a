/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read leases (fcntl(2), F_SETLEASE): while a lease is held, nobody changes the file's bytes. A
 * process that opens the file for writing, or truncates it, waits in the kernel until the lease is
 * given back, but at most lease-break-time (45 s): then the kernel removes the lease.
 *
 *     another process    open(O_TRUNC) ......waits......................| goes on
 *     the lease thread      notices it |-> materialises the bytes ---->| gives the lease back
 *
 * The kernel reports this by a signal, which goes only to the file thread and stays blocked there:
 * no signal of the program is used. Instead, the lease thread queries the leases 20 times a second
 * while there are any. It uses the program's table of descriptors, because it calls the driver.
 *
 * The kernel grants a lease for a regular file of the user (or with CAP_LEASE) that nobody has open
 * for writing, on file systems with leases. A lease belongs to the open file, so closing the file
 * drops it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ms_lease {
    _Atomic bool is_taken;
    _Atomic uint64_t held_ns; /* when it was last seen to be held */
};

/* --- in the file thread and the threads that it starts */

void ms_lease_take(struct ms_lease *lease, int descriptor);

/* True if bytes that were read before this call are the file's from when the lease was taken. */
bool ms_lease_is_intact(struct ms_lease *lease, int descriptor);

/* True if a process waits for the lease, or has waited too long. */
bool ms_lease_is_broken(struct ms_lease *lease, int descriptor);

/* Called before the descriptor is closed, or when a process waits. */
void ms_lease_drop(struct ms_lease *lease, int descriptor);

/* A check has found a file without links: the lease thread looks at all files, once. */
void ms_lease_wake(void);

/* --- in the lease thread (lease_thread.c) */

/* Waits until there are leases, or ms_lease_wake is called. */
void ms_lease_wait(void);

/* --- for any thread */

bool ms_lease_any(void);
