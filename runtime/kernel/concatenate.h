/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of torch.cat as copies of tensors into the result: each in one piece, or in rows if the
 * tensors are concatenated in a dimension other than the first. So the result has the lineage of
 * each input, which a kernel that reads hundreds of blocks would hide. */
#pragma once

#include "runtime/base/strided_copy.h"
#include "runtime/kernel/call.h"

enum { MS_CAT_DIMS = 4, MS_MAX_INPUTS = 256 };

/* One launch. Refers to the packed parameters that it was read from. */
struct ms_concatenation {
    size_t count;    /* inputs */
    size_t element;  /* bytes of an element */
    size_t vector;   /* elements that a thread copies at once */
    size_t capacity; /* inputs that the parameters have room for */
    size_t shapes;   /* shapes of non-dense inputs that the parameters have room for */
    unsigned dims;
    uint64_t out;
    const unsigned char *metadata;
    /* the result's, in elements */
    uint64_t size[MS_CAT_DIMS], stride[MS_CAT_DIMS];
    unsigned dimension; /* of concatenation */
    uint64_t scale;     /* elements of `dimension` in one unit of the metadata */
};

/* True if the launch only copies its inputs to separate places in the result, which no input
 * overlaps: the kernel's name, the sizes of its parameters and their content are as PyTorch makes
 * them. */
bool ms_concatenate_find(const struct ms_call *call, const struct ms_param_layout *layout,
                         const struct ms_packed *packed,
                         struct ms_concatenation *concatenation_out);

/* Returns the copy of one input; its width is 0 if the input is empty. */
void ms_concatenate_input(const struct ms_concatenation *concatenation, size_t input,
                          struct ms_strided_copy *rows_out);
