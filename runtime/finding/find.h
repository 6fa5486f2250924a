/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the file that copied bytes come from: by notes of the program's reads (reads.h), by the
 * mapping at their address (files/mapping.h), by the tensors of mapped files (mapped_tensors.h), or
 * by the files that the program reads unseen (uring.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/files/file.h"
#include "runtime/files/file_name.h"

/*
 * Returns a reference to the file that certainly holds the bytes of the host range [address,
 * address + bytes), and their offset in it. Either the file is mapped there (one mapping, within
 * the file, private pages never written), or one of its tensors has exactly these bytes
 * (mapped_tensors.h). This process must have no writable shared mapping or descriptor of the file.
 * NULL: take a snapshot.
 */
struct ms_file *ms_find_file(const void *address, size_t bytes, uint64_t *offset_out);

/* Returns the file with that name as it is now, perhaps with other bytes, or NULL as ms_find_file
 * does. */
struct ms_file *ms_find_again(const struct ms_named_file *name);
