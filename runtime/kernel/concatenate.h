/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of torch.cat as what they are: copies of tensors into their places in the result, each in one piece or, when the
 * tensors are concatenated in another dimension than the first, in rows. What a tensor holds is then known in the
 * result too, which a kernel that reads hundreds of blocks does not tell.
 */
#ifndef METASHARD_RUNTIME_KERNEL_CONCATENATE_H
#define METASHARD_RUNTIME_KERNEL_CONCATENATE_H

#include "runtime/base/strided_copy.h"
#include "runtime/kernel/call.h"

enum { MS_CAT_DIMS = 4, MS_MAX_INPUTS = 256 };

/* One launch. Refers to the packed parameters that it was read from. */
struct ms_concatenation {
    size_t count;    /* inputs */
    size_t element;  /* bytes of an element */
    size_t vector;   /* elements that a thread copies at once */
    size_t capacity; /* inputs that the parameters have room for */
    size_t shapes;   /* and shapes of inputs that are not dense */
    unsigned dims;
    uint64_t out;
    const unsigned char *metadata;
    /* of the result, in elements */
    uint64_t size[MS_CAT_DIMS], stride[MS_CAT_DIMS];
    unsigned dimension; /* in which inputs lie one behind the other */
    uint64_t scale;     /* elements of `dimension` for each one that the metadata counts */
};

/*
 * True when the launch does nothing but copy its inputs, of which none overlaps the result, nor another one's place in it: its
 * name, the sizes of its parameters and all that they hold are as PyTorch makes them.
 */
bool ms_concatenation_find(const struct ms_call *call, const struct ms_param_layout *layout,
                           const struct ms_packed *packed,
                           struct ms_concatenation *concatenation_out);

/* The copy of one input; its rows have no width when the input is empty. */
void ms_concatenation_input(const struct ms_concatenation *concatenation, size_t input,
                            struct ms_strided_copy *rows_out);

#endif
