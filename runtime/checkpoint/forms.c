/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/checkpoint/forms.h"

#include <string.h>

/* The words of a form: elements, bytes, dtype and number of dimensions, then each dimension. The
 * index of the first word is the form's number. */
enum { ELEMENTS, BYTES, KIND, SHAPE, WORDS_MAX = SHAPE + MS_TENSOR_DIMS_MAX };

static const uint64_t *words_of(const struct ms_forms *forms, uint32_t form)
{
    return (const uint64_t *)forms->words.memory + form;
}

static size_t write_words(const struct ms_tensor *tensor, uint64_t words[WORDS_MAX])
{
    words[ELEMENTS] = tensor->elements;
    words[BYTES] = tensor->bytes;
    words[KIND] = (uint64_t)tensor->dims << 32 | tensor->dtype;
    memcpy(words + SHAPE, tensor->shape, tensor->dims * sizeof(words[0]));
    return SHAPE + tensor->dims;
}

struct wanted {
    const struct ms_forms *forms;
    const uint64_t *words;
    size_t count;
};

static bool is_wanted(const void *context, uint32_t form)
{
    const struct wanted *wanted = context;
    const uint64_t *words = words_of(wanted->forms, form);
    return words[KIND] == wanted->words[KIND] &&
           memcmp(words, wanted->words, wanted->count * sizeof(words[0])) == 0;
}

uint32_t ms_forms_add(struct ms_forms *forms, const struct ms_tensor *tensor)
{
    uint64_t words[WORDS_MAX];
    const size_t count = write_words(tensor, words);
    const struct wanted wanted = {forms, words, count};
    const uint64_t hash = ms_hash_set_bytes(words + BYTES, (count - BYTES) * sizeof(words[0]));
    const uint32_t found = ms_hash_set_find(&forms->known, hash, is_wanted, &wanted);
    if (found != MS_NO_NUMBER)
        return found;
    if (forms->used + count > MS_NO_NUMBER ||
        !ms_pages_grow(&forms->words, (forms->used + count) * sizeof(words[0])) ||
        !ms_hash_set_add(&forms->known, hash, (uint32_t)forms->used))
        return MS_NO_NUMBER;
    const uint32_t form = (uint32_t)forms->used;
    memcpy((uint64_t *)forms->words.memory + form, words, count * sizeof(words[0]));
    forms->used += count;
    return form;
}

void ms_forms_get(const struct ms_forms *forms, uint32_t form, struct ms_tensor *tensor_out)
{
    const uint64_t *words = words_of(forms, form);
    tensor_out->elements = words[ELEMENTS];
    tensor_out->bytes = words[BYTES];
    tensor_out->dtype = (enum ms_dtype)(uint32_t)words[KIND];
    tensor_out->dims = (unsigned)(words[KIND] >> 32);
    memset(tensor_out->shape, 0, sizeof(tensor_out->shape));
    memcpy(tensor_out->shape, words + SHAPE, tensor_out->dims * sizeof(words[0]));
}

void ms_forms_cleanup(struct ms_forms *forms)
{
    ms_pages_cleanup(&forms->words);
    ms_forms_end(forms);
    forms->used = 0;
}
