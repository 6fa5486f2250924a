/* SPDX-License-Identifier: Apache-2.0 */
/* distribute_tensor of DTensor, for one mesh dimension and a placement that shards
 * (torch/distributed/tensor). */
#pragma once

#include "tests/ranks/flows/flow.h"

/*
 * This rank's part of the whole tensor that rank 0 has. Every rank gives a whole tensor, cuts it
 * into equal chunks, the last ones padded, and makes room for one; rank 0 sends its chunks, in one
 * group, and the padding is cut off.
 */
struct region scatter_tensor(const struct parameter *parameter, CUdeviceptr whole);
