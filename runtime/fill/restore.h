/* SPDX-License-Identifier: Apache-2.0 */
/* Lineage for what is resident: bytes that are still those of the file from which they came. */
#pragma once

#include <stddef.h>

/*
 * What is resident and equal to its file becomes cached, with that file as its source; its
 * allocations get was_resident. Waits for the device. The caller holds no claim, and no other
 * thread of the program may write to such memory. Returns the bytes.
 */
size_t ms_restore_all(void);

/* All of these allocations becomes resident again: it may be known to the program's kernels by an
 * address that nobody has seen. */
void ms_restore_keep(void);
