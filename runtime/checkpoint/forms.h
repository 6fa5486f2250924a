/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of tensors, dtype and shape, each kept once: a checkpoint has many tensors of few forms. */
#pragma once

#include "runtime/base/hash_set.h"
#include "runtime/checkpoint/tensor.h"

struct ms_forms {
    struct ms_pages words; /* of 8 bytes */
    size_t used;
    struct ms_hash_set known; /* only until ms_forms_end */
};

/* The number of the form of a measured tensor; MS_NO_NUMBER: out of memory. */
uint32_t ms_forms_add(struct ms_forms *forms, const struct ms_tensor *tensor);
/* Frees what only ms_forms_add needs. */
static inline void ms_forms_end(struct ms_forms *forms)
{
    ms_hash_set_cleanup(&forms->known);
}

/* Sets dtype, shape, elements and bytes of the tensor. */
void ms_forms_get(const struct ms_forms *forms, uint32_t form, struct ms_tensor *tensor_out);

void ms_forms_cleanup(struct ms_forms *forms);
