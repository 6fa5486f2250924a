/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the records of a zip file are: of one that stores them uncompressed, as torch.save does, so that
 * a record is a range of the file. Offsets and sizes of any width (zip64). Nothing is unpacked, and
 * checksums are not looked at.
 *
 * An own reader, because this is all that is needed of the format, and because a reader that also
 * unpacks would have to be linked and trusted with files that anybody may have made.
 */
#ifndef METASHARD_RUNTIME_CHECKPOINT_ZIP_H
#define METASHARD_RUNTIME_CHECKPOINT_ZIP_H

#include <stdint.h>

#include "runtime/base/arena.h"
#include "runtime/document/fault.h"

/* Equations: header + 30 <= offset; offset + bytes <= where the directory begins. */
struct ms_zip_record {
    const char *name; /* valid UTF-8, not empty */
    uint64_t header;  /* where its local header begins in the file */
    uint64_t offset;  /* of its first byte in the file */
    uint64_t bytes;
};

/* Records by name, as bytes; names are unique, and no two records share a byte. */
struct ms_zip {
    struct ms_arena arena;
    struct ms_zip_record *records;
    size_t count;
    const char *first; /* the name that is first in the directory; NULL: there is no record */
};

/* `file` is open for reading and file_bytes long. */
bool ms_zip_read(const struct ms_reading *reading, int file, uint64_t file_bytes,
                 struct ms_zip *zip_out);
void ms_zip_cleanup(struct ms_zip *zip);

const struct ms_zip_record *ms_zip_find(const struct ms_zip *zip, const char *name);

#endif
