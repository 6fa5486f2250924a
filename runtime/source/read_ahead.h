/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel reads ahead of mapped checkpoints. A loader that touches a page of each tensor
 * makes the kernel read around it, megabytes that nobody uses, if the tensor is copied to a device
 * and comes from there. So mappings from which is copied get MADV_RANDOM: a fault reads one page.
 *
 * Nobody knows whether the program uses the next tensor on the CPU, page by page then. Faults that
 * had to wait for a disk tell: the lease thread counts them, 100 times a second. Where there are
 * more than copies explain, and a mapping has more pages than these do, the advice is taken back:
 *
 *     copies       |   |   |   |   |            a fault for each: the advice stays
 *     the CPU      |   |   ||||||||             taken back, 10 ms later
 *
 * Advice is given while there are leases, since the lease thread runs then, and taken back when
 * there are none any more.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/source/mapping.h"

/* In the file thread: what was copied was found in that mapping. */
void ms_read_ahead_note_copy(const struct ms_mapping *mapping);

/*
 * The program has mapped a file from its start on. The header of a checkpoint is read at once: who
 * touches it makes the kernel read around it else. While advice is given, the mapping gets it
 * before its first tensor is touched. For any thread.
 */
void ms_read_ahead_note_map(int file, void *address, size_t bytes);

/*
 * For the lease thread: looks how many faults there were since the last time, and perhaps takes the
 * advice back; certainly if there are no leases any more. Returns true while advice is given, and
 * this is to be called soon again.
 */
bool ms_read_ahead_look(bool has_leases);

/* For unit tests: the same, of a process with leases and so many faults since it began. */
bool ms_read_ahead_look_at(uint64_t faults);
