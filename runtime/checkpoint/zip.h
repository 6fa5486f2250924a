/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the records of a zip file without compression, as torch.save writes it: each record is a
 * range of the file. Offsets and sizes may be wide (zip64). Ignores checksums; unpacks nothing.
 *
 * The shim needs no more of the format. A reader that also unpacks would have to be linked, and
 * trusted with untrusted files.
 */
#pragma once

#include <stdint.h>

#include "runtime/base/arena.h"
#include "runtime/document/fault.h"

/* Equations: header + 30 <= offset; offset + bytes <= the directory's offset. */
struct ms_zip_record {
    const char *name; /* valid UTF-8, not empty */
    uint64_t header;  /* offset of its local header in the file */
    uint64_t offset;  /* of the record's first byte in the file */
    uint64_t bytes;
};

/* Records sorted by the bytes of their names; names are unique, and no two records share a byte. */
struct ms_zip {
    struct ms_arena arena; /* holds names and records; the caller cleans it up */
    struct ms_zip_record *records;
    size_t count;
    const char *first; /* the first name in the directory, or NULL */
};

/* `file` is open for reading and file_bytes long. */
bool ms_zip_read(const struct ms_fault_context *reading, int file, uint64_t file_bytes,
                 struct ms_zip *zip_out);

const struct ms_zip_record *ms_zip_find(const struct ms_zip *zip, const char *name);
