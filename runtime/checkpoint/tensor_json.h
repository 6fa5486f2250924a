/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor's dtype and shape in a JSON document. */
#pragma once

#include "runtime/checkpoint/tensor.h"
#include "runtime/document/json.h"

/* Reads dtype and shape, which are values of the object at `place`. */
bool ms_json_tensor(const struct ms_fault_context *reading, const struct ms_place *place,
                    const char *dtype, const char *shape, struct ms_tensor *tensor);
