/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the kernel from reading ahead of mapped checkpoints. A loader that touches a page of each
 * tensor makes the kernel read megabytes around the page, which nobody uses if the tensor is copied
 * to a device: deferred bytes are read later. So mappings that copies come from get MADV_RANDOM: a
 * fault reads one page.
 *
 * Nobody knows whether the program uses the next tensor on the CPU, where each page would fault.
 * Faults that had to wait for a disk tell: the lease thread counts them, 100 times a second. If
 * there are more than copies explain, and a mapping has more pages than copies do, it takes the
 * advice back:
 *
 *     copies       |   |   |   |   |            a fault for each: the advice stays
 *     the CPU      |   |   ||||||||             taken back, 10 ms later
 *
 * Advice is given while there are leases, since the lease thread runs then, and is taken back with
 * the last lease.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/files/mapping.h"

/* The copied bytes were found in that mapping. In the file thread. */
void ms_read_ahead_note_copy(const struct ms_mapping *mapping);

/*
 * The program has mapped a file from its start on. Reads the header of a checkpoint at once,
 * because a touch would make the kernel read around it. While advice is given, the mapping gets it,
 * too, before its first tensor is touched. For any thread.
 */
void ms_read_ahead_note_map(int file, void *address, size_t bytes);

/*
 * For the lease thread: looks how many faults there were since the last look, and may take the
 * advice back; it does so if no lease is left. Returns true while advice is given: the next look
 * should come soon.
 */
bool ms_read_ahead_look(bool has_leases);

/* For unit tests: looks as in a process with leases and `faults` faults since it began. */
bool ms_read_ahead_look_at(uint64_t faults);
