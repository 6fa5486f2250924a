/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a safetensors file: mapped privately and read-only, as the safetensors library does. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct tensor {
    char *name;
    const unsigned char *data; /* in the mapping */
    uint64_t rows, row_bytes;
};

struct checkpoint {
    struct tensor *tensors;
    size_t count;
    uint64_t bytes;
};

/* Adds the tensors of every *.safetensors file of folder, in the order of file names and offsets.
 * Ends the program with one line (file, what was expected) when a file is damaged. */
void checkpoint_open(struct checkpoint *checkpoint, const char *folder);
