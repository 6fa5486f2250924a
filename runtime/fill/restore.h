/* SPDX-License-Identifier: Apache-2.0 */
/* Lineage for what is resident: what is equal to the file that it came from (origins.h). */
#pragma once

#include <stddef.h>

/*
 * What is resident and equal to its file becomes cached, with that file as its source; its
 * allocations get was_resident. Waits for the device. The caller holds no claim, and no other
 * thread of the program may write to such memory. Returns the bytes.
 */
size_t ms_restore_residents(void);
