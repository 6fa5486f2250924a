/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aten/src/ATen/native/cuda/MultiTensorApply.cuh:
 *
 *     multi_tensor_apply_kernel(TensorListMetadata<D>, functor, arguments...)
 *
 *     void *addresses[D][N];
 *     int64_t numel[N];
 *     unsigned char block_to_tensor[B];    unsigned short where parameters may have 32 KiB
 *     int block_to_chunk[B];
 *     int start_tensor_this_launch;
 *
 * Block b of threads works on chunk block_to_chunk[b] of tensor block_to_tensor[b]. Nothing else
 * tells a block where it is. A chunk has 65536 elements; the last chunk of a tensor ends with the
 * tensor.
 */
#include "runtime/kernel/tensor_list.h"

#include <string.h>

enum { WORD_BYTES = 8, CHUNK_BYTES = 4, CHUNK_ELEMENTS = 65536 };

static const struct shape {
    unsigned lists, tensors, blocks;
    bool is_wide;
} shapes[] = {
    {1, 770, 2240, true}, {2, 448, 2240, true}, {1, 110, 320, false}, {2, 64, 320, false}};

static size_t numbers_at(const struct ms_tensor_list *list)
{
    return list->at + (size_t)list->tensors * (list->lists + 1) * WORD_BYTES;
}

static size_t number_bytes(const struct ms_tensor_list *list)
{
    return list->is_wide ? 2 : 1;
}

static size_t chunks_at(const struct ms_tensor_list *list)
{
    return numbers_at(list) + list->blocks * number_bytes(list);
}

static size_t end_of(const struct ms_tensor_list *list)
{
    const size_t end = chunks_at(list) + (size_t)(list->blocks + 1) * CHUNK_BYTES;
    return (end + WORD_BYTES - 1) / WORD_BYTES * WORD_BYTES;
}

/* "18TensorListMetadataILi2EE" */
static unsigned lists_of(const char *name)
{
    static const char metadata[] = "25multi_tensor_apply_kernelI",
                      lists[] = "TensorListMetadataILi";
    const char *at = strstr(name, metadata);
    at = at != NULL ? strstr(at, lists) : NULL;
    at = at != NULL ? at + sizeof(lists) - 1 : "";
    return (at[0] == '1' || at[0] == '2') && at[1] == 'E' ? (unsigned)(at[0] - '0') : 0;
}

static bool find_shape(const struct ms_param_layout *layout, struct ms_tensor_list *list_out)
{
    const unsigned lists = layout->rule == MS_RULE_EACH ? lists_of(layout->name) : 0;
    for (size_t i = 0; lists > 0 && layout->count > 0 && i < sizeof(shapes) / sizeof(shapes[0]);
         i++) {
        const struct shape *shape = &shapes[i];
        *list_out = (struct ms_tensor_list){layout->params[0].offset, lists, shape->tensors,
                                            shape->blocks, shape->is_wide};
        if (shape->lists == lists &&
            end_of(list_out) == layout->params[0].offset + layout->params[0].bytes)
            return true;
    }
    return false;
}

static unsigned number_of(const struct ms_tensor_list *list, const unsigned char *bytes,
                          unsigned block)
{
    const unsigned char *at = bytes + numbers_at(list) + block * number_bytes(list);
    uint16_t number;
    if (!list->is_wide)
        return *at;
    memcpy(&number, at, sizeof(number));
    return number;
}

unsigned ms_tensor_list_find(const struct ms_call *call, const struct ms_arguments *arguments,
                             struct ms_tensor_list *list_out)
{
    const struct ms_packed *packed = arguments->packed;
    unsigned count = 0;
    if (!find_shape(arguments->layout, list_out) || end_of(list_out) > packed->count ||
        call->grid[0] > list_out->blocks || call->grid[1] != 1 || call->grid[2] != 1)
        return 0;
    for (unsigned block = 0; block < call->grid[0]; block++) {
        const unsigned number = number_of(list_out, packed->bytes, block);
        if (number >= list_out->tensors)
            return 0;
        count = number + 1 > count ? number + 1 : count;
    }
    return count;
}

bool ms_tensor_list_select(const struct ms_tensor_list *list, const struct ms_packed *packed,
                           const bool *is_wanted, unsigned char *bytes, struct ms_call *call)
{
    unsigned kept = 0;
    memcpy(bytes, packed->bytes, packed->count);
    memset(bytes + list->at, 0, (size_t)list->tensors * list->lists * WORD_BYTES);
    memset(bytes + numbers_at(list), 0, end_of(list) - numbers_at(list));
    for (unsigned block = 0; block < call->grid[0]; block++) {
        const unsigned tensor = number_of(list, packed->bytes, block);
        if (!is_wanted[tensor])
            continue;
        for (unsigned i = 0; i < list->lists; i++) {
            const size_t at = list->at + ((size_t)list->tensors * i + tensor) * WORD_BYTES;
            memcpy(bytes + at, packed->bytes + at, WORD_BYTES);
        }
        memcpy(bytes + numbers_at(list) + kept * number_bytes(list),
               packed->bytes + numbers_at(list) + block * number_bytes(list), number_bytes(list));
        memcpy(bytes + chunks_at(list) + (size_t)kept * CHUNK_BYTES,
               packed->bytes + chunks_at(list) + (size_t)block * CHUNK_BYTES, CHUNK_BYTES);
        kept++;
    }
    call->grid[0] = kept;
    return kept > 0;
}

/* "14UnaryOpFunctorIfLi2ELi1ELi1EEEJNS0_4CopyIffEEEE": the bytes of an element; 0: no copy. */
static size_t copied_element(const char *name)
{
    static const char functor[] = "14UnaryOpFunctorI", copies[] = "Li2ELi1ELi1EEEJNS0_4CopyI";
    static const struct {
        char name, bytes;
    } types[] = {{'a', 1}, {'h', 1}, {'s', 2}, {'i', 4}, {'l', 8}, {'f', 4}, {'d', 8}};
    const char *at = strstr(name, functor);
    at = at != NULL ? at + sizeof(functor) - 1 : "";
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const char type = types[i].name, same[] = {type, type, 'E', 0};
        if (at[0] == type && strncmp(at + 1, copies, sizeof(copies) - 1) == 0 &&
            strncmp(at + sizeof(copies), same, sizeof(same) - 1) == 0)
            return (size_t)types[i].bytes;
    }
    return 0;
}

static uint64_t word_of(const struct ms_tensor_list *list, const unsigned char *bytes,
                        unsigned word_list, unsigned tensor)
{
    uint64_t word;
    memcpy(&word, bytes + list->at + ((size_t)list->tensors * word_list + tensor) * WORD_BYTES,
           sizeof(word));
    return word;
}

/* Finds the chunks of a tensor. False if they do not follow each other. */
static bool find_chunks(const struct ms_call *call, const struct ms_tensor_list *list,
                        const unsigned char *bytes, unsigned tensor, uint64_t *first_out,
                        uint64_t *count_out)
{
    *count_out = 0;
    for (unsigned block = 0; block < call->grid[0]; block++) {
        uint32_t chunk;
        if (number_of(list, bytes, block) != tensor)
            continue;
        memcpy(&chunk, bytes + chunks_at(list) + (size_t)block * CHUNK_BYTES, sizeof(chunk));
        if (*count_out == 0)
            *first_out = chunk;
        if (chunk != *first_out + (*count_out)++)
            return false;
    }
    return *count_out > 0;
}

bool ms_tensor_list_copy(const struct ms_call *call, const struct ms_arguments *arguments,
                         const struct ms_tensor_list *list, unsigned tensor,
                         struct ms_strided_copy *piece_out)
{
    const unsigned char *bytes = arguments->packed->bytes;
    const size_t element = list->lists == 2 ? copied_element(arguments->layout->name) : 0;
    uint64_t first = 0, count;
    if (element == 0 || !find_chunks(call, list, bytes, tensor, &first, &count))
        return false;
    const uint64_t elements = word_of(list, bytes, 2, tensor), begin = first * CHUNK_ELEMENTS;
    const uint64_t behind = begin + count * CHUNK_ELEMENTS;
    if (elements > SIZE_MAX / 2 / element || begin >= elements ||
        behind - CHUNK_ELEMENTS >= elements)
        return false;
    const size_t end = behind < elements ? behind : elements;
    *piece_out = (struct ms_strided_copy){.from = word_of(list, bytes, 0, tensor) + begin * element,
                                          .to = word_of(list, bytes, 1, tensor) + begin * element,
                                          .width = (end - begin) * element};
    return true;
}
