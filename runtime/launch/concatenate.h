/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of torch.cat as what they are: copies of tensors, one behind the other. What a tensor holds is
 * then known in the result too, which a kernel that reads hundreds of blocks would not tell.
 */
#ifndef METASHARD_RUNTIME_LAUNCH_CONCATENATE_H
#define METASHARD_RUNTIME_LAUNCH_CONCATENATE_H

#include "runtime/launch/launch.h"

struct ms_piece {
    CUdeviceptr from, to;
    size_t bytes;
};

enum { MS_MAX_PIECES = 256 };

/*
 * True when the launch does nothing but copy these pieces, of which none overlaps another's destination: its
 * name, the sizes of its parameters and all that they hold are as PyTorch makes them.
 */
bool ms_concatenation_find(const struct ms_call *call, const struct ms_param_layout *layout,
                           const struct ms_packed *packed, struct ms_piece pieces[MS_MAX_PIECES],
                           size_t *count_out);

#endif
