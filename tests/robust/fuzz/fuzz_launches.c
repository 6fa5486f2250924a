/* SPDX-License-Identifier: Apache-2.0 */
/* Any name of a kernel, with any parameters: what is found of a loop, a concatenation or a list of
 * tensors reads the parameters alone. An input is a line with the name, and `struct head` behind
 * it, in which parameters lie as drivers report them: within the packed bytes, which follow. */

#include "runtime/kernel/concatenate.h"
#include "runtime/kernel/loads.h"
#include "runtime/kernel/strided_loop.h"
#include "runtime/kernel/tensor_list.h"
#include "tests/robust/fuzz/fuzz.h"

enum { MOST_PARAMS = 8 };

struct head {
    uint8_t rule, count;
    uint16_t grid[2], block, pointers;
    struct {
        uint16_t offset, bytes;
    } params[MOST_PARAMS];
};

static bool read_layout(const struct head *head, struct ms_param_layout *layout)
{
    layout->rule = head->rule % MS_RULE_COUNT;
    layout->count = head->count % (MOST_PARAMS + 1);
    for (uint32_t i = 0; i < layout->count; i++) {
        layout->params[i] = (struct ms_param){head->params[i].offset, head->params[i].bytes};
        if ((size_t)head->params[i].offset + head->params[i].bytes > layout->bytes)
            return false;
    }
    return true;
}

static void check_loop(const struct ms_call *call, const struct ms_param_layout *layout,
                       const struct ms_packed *packed, size_t pointers)
{
    struct ms_range numbers = {0, 0};
    struct ms_strided_copy rows;
    struct ms_strides strides;
    struct ms_loads loads;
    if (ms_strided_loop_find_numbers(layout, packed, &numbers))
        require(numbers.begin < numbers.end && numbers.end <= packed->count);
    if (ms_strided_loop_find(call, layout, packed, pointers, &rows))
        require(rows.width > 0);
    if (ms_strided_loop_find_strides(layout, packed, pointers, &strides) == MS_STRIDED_FOUND)
        require(strides.rows >= 1);
    ms_loads_find(layout, packed, pointers, &loads);
}

static void check_concatenation(const struct ms_call *call, const struct ms_param_layout *layout,
                                const struct ms_packed *packed)
{
    struct ms_concatenation found;
    if (!ms_concatenate_find(call, layout, packed, &found))
        return;
    require(found.count <= MS_MAX_INPUTS && found.dims >= 1 && found.dims <= MS_CAT_DIMS);
    for (size_t i = 0; i < found.count; i++) {
        struct ms_strided_copy rows;
        ms_concatenate_input(&found, i, &rows);
        require(rows.width == 0 || rows.to >= found.out);
    }
}

static void check_list(struct ms_call *call, const struct ms_arguments *arguments)
{
    static bool is_wanted[MS_MAX_LISTED];
    struct ms_tensor_list list;
    const unsigned tensors = ms_tensor_list_find(call, arguments, &list);
    require(tensors <= MS_MAX_LISTED);
    if (tensors == 0)
        return;
    for (unsigned i = 0; i < MS_MAX_LISTED; i++)
        is_wanted[i] = i % 2 != 0;
    for (unsigned i = 0; i < tensors; i++) {
        struct ms_strided_copy piece;
        ms_tensor_list_copy(call, arguments, &list, i, &piece);
    }
    unsigned char *bytes = malloc(arguments->packed->count);
    require(bytes != NULL);
    const unsigned before = call->grid[0];
    ms_tensor_list_select(&list, arguments->packed, is_wanted, bytes, call);
    require(call->grid[0] <= before);
    free(bytes);
}

static void check(char *name, const struct head *head, const uint8_t *data, size_t size)
{
    struct ms_param_layout *layout =
        calloc(1, sizeof(*layout) + MOST_PARAMS * sizeof(struct ms_param));
    struct ms_packed packed = {.bytes = data, .count = size};
    struct ms_call call = {.grid = {head->grid[0], head->grid[1], 1}, .block = {head->block, 1, 1}};
    require(layout != NULL);
    layout->known = true;
    layout->name = name;
    layout->bytes = size;
    if (read_layout(head, layout)) {
        check_loop(&call, layout, &packed, head->pointers);
        check_concatenation(&call, layout, &packed);
        check_list(&call, &(struct ms_arguments){layout, &packed, {0, 0}});
    }
    free(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct head head;
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    const size_t length = end != NULL ? (size_t)(end - data) : 0;
    if (end == NULL || size - length - 1 < sizeof(head))
        return 0;
    memcpy(&head, end + 1, sizeof(head));
    size -= length + 1 + sizeof(head);
    char *name = strndup((const char *)data, length);
    uint8_t *packed = malloc(size > 0 ? size : 1);
    require(name != NULL && packed != NULL);
    memcpy(packed, end + 1 + sizeof(head), size);
    check(name, &head, packed, size);
    free(packed);
    free(name);
    return 0;
}
