/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's loops over lists of tensors, which torch._foreach_* launches. The shim cuts a launch
 * into one for each tensor, so that each is about one block, and a tensor that cannot be recorded
 * does not keep the others from it. */
#pragma once

#include "runtime/base/strided_copy.h"
#include "runtime/kernel/call.h"

enum { MS_MAX_LISTED = 1024 };

/* Where the lists lie in the packed parameters. */
struct ms_tensor_list {
    size_t at;        /* addresses of the tensors */
    unsigned lists;   /* 1: tensors change in place; 2: the second list is made of the first */
    unsigned tensors; /* that each list has room for; at most MS_MAX_LISTED */
    unsigned blocks;  /* of threads, at most */
    bool is_wide;     /* a tensor's number has two bytes */
};

/* Returns the number of tensors in a launch; 0 unless the kernel's rule, its name, the size of its
 * parameters and their content are as PyTorch makes them. */
unsigned ms_tensor_list_find(const struct ms_call *call, const struct ms_arguments *arguments,
                             struct ms_tensor_list *list_out);

/* Writes the parameters of a launch over the wanted tensors alone into `bytes` (packed->count), and
 * sets the grid. False: no block of threads works on any of them. */
bool ms_tensor_list_select(const struct ms_tensor_list *list, const struct ms_packed *packed,
                           const bool *is_wanted, unsigned char *bytes, struct ms_call *call);

/* True if the kernel's name shows that the launch only copies, bit by bit: *piece_out is then the
 * piece of the tensor that its blocks of threads copy. False for floating point of 8 or 16 bits,
 * which goes through 32 bits, where NaNs become one. */
bool ms_tensor_list_copy(const struct ms_call *call, const struct ms_arguments *arguments,
                         const struct ms_tensor_list *list, unsigned tensor,
                         struct ms_strided_copy *piece_out);
