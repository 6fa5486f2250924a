/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/tensor_list.h"

#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"

/* As PyTorch 2.15 has them. */
struct wide {
    uint64_t addresses[2][448];
    int64_t numel[448];
    uint16_t block_to_tensor[2240];
    int32_t block_to_chunk[2240], start;
};

/* Up to 4 KiB of parameters. */
struct narrow {
    uint64_t addresses[1][110];
    int64_t numel[110];
    uint8_t block_to_tensor[320];
    int32_t block_to_chunk[320], start;
};

static struct ms_param_layout *layout;
static struct ms_packed packed;
static struct ms_tensor_list list;
static struct ms_call call;
static struct wide wide;
static struct narrow narrow;

static char two_lists[] = "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_";
static char one_list[] = "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_";

static void start(char *name, void *bytes, size_t count)
{
    if (layout == NULL)
        layout = calloc(1, sizeof(*layout) + 2 * sizeof(struct ms_param));
    CHECK(layout != NULL);
    layout->known = true;
    layout->name = name;
    layout->rule = MS_RULE_EACH;
    layout->count = 2;
    layout->bytes = count + 8;
    layout->params[0] = (struct ms_param){0, (uint32_t)count};
    layout->params[1] = (struct ms_param){(uint32_t)count, 1};
    packed.bytes = bytes;
    packed.count = count;
}

/* Three tensors; the second has two chunks. */
static void start_wide(void)
{
    static const uint16_t tensors[] = {0, 1, 1, 2};
    static const int32_t chunks[] = {0, 0, 1, 0};
    memset(&wide, 0, sizeof(wide));
    for (unsigned i = 0; i < 3; i++) {
        wide.addresses[0][i] = 0x1000 * (i + 1);
        wide.addresses[1][i] = 0x100000 * (i + 1);
        wide.numel[i] = 100 * (i + 1);
    }
    memcpy(wide.block_to_tensor, tensors, sizeof(tensors));
    memcpy(wide.block_to_chunk, chunks, sizeof(chunks));
    wide.start = 7;
    start(two_lists, &wide, sizeof(wide));
    call = (struct ms_call){.grid = {4, 1, 1}, .block = {512, 1, 1}};
}

static unsigned find(void)
{
    const struct ms_arguments arguments = {layout, &packed, {0, 0}};
    return ms_tensor_list_find(&call, &arguments, &list);
}

MS_TEST(lists_are_known_by_their_sizes)
{
    start_wide();
    CHECK(find());
    CHECK_EQ(list.lists, 2);
    CHECK_EQ(list.tensors, 448);
    start(one_list, &narrow, sizeof(narrow));
    call.grid[0] = 1;
    CHECK(find());
    CHECK_EQ(list.lists, 1);
    CHECK_EQ(list.tensors, 110);
    layout->params[0].bytes += 8;
    CHECK(!find());
    layout->params[0].bytes -= 8;
    layout->rule = MS_RULE_IN_PLACE;
    CHECK(!find());
    start("25multi_tensor_apply_kernelINS1_18TensorListMetadataILi3EEENS1_", &narrow,
          sizeof(narrow));
    CHECK(!find());
    start("26multi_tensor_apply_kernelsINS1_18TensorListMetadataILi1EEENS1_", &narrow,
          sizeof(narrow));
    CHECK(!find());
}

MS_TEST(what_is_not_as_pytorch_makes_it_has_no_tensors)
{
    start_wide();
    CHECK(find());
    CHECK_EQ(find(), 3);
    call.grid[1] = 2;
    CHECK_EQ(find(), 0);
    call.grid[1] = 1;
    call.grid[0] = 2241;
    CHECK_EQ(find(), 0);
    call.grid[0] = 4;
    wide.block_to_tensor[3] = 448;
    CHECK_EQ(find(), 0);
    wide.block_to_tensor[3] = 2;
    packed.count -= 8;
    CHECK_EQ(find(), 0);
}

MS_TEST(the_blocks_of_a_tensor_are_moved_up)
{
    static struct wide one;
    bool is_wanted[MS_MAX_LISTED] = {false, true};
    start_wide();
    CHECK(find());
    CHECK(ms_tensor_list_select(&list, &packed, is_wanted, (unsigned char *)&one, &call));
    CHECK_EQ(call.grid[0], 2);
    CHECK_EQ(one.addresses[0][0], 0);
    CHECK_EQ(one.addresses[0][1], 0x2000);
    CHECK_EQ(one.addresses[1][1], 0x200000);
    CHECK_EQ(one.addresses[1][2], 0);
    CHECK_EQ(one.numel[1], 200);
    CHECK_EQ(one.block_to_tensor[0], 1);
    CHECK_EQ(one.block_to_tensor[1], 1);
    CHECK_EQ(one.block_to_chunk[0], 0);
    CHECK_EQ(one.block_to_chunk[1], 1);
    CHECK_EQ(one.block_to_tensor[2], 0);
    is_wanted[1] = false;
    is_wanted[0] = is_wanted[2] = true;
    call.grid[0] = 4;
    CHECK(ms_tensor_list_select(&list, &packed, is_wanted, (unsigned char *)&one, &call));
    CHECK_EQ(call.grid[0], 2);
    CHECK_EQ(one.addresses[1][0], 0x100000);
    CHECK_EQ(one.addresses[1][1], 0);
    CHECK_EQ(one.block_to_tensor[1], 2);
    is_wanted[0] = is_wanted[2] = false;
    call.grid[0] = 4;
    CHECK(!ms_tensor_list_select(&list, &packed, is_wanted, (unsigned char *)&one, &call));
}

MS_TEST(narrow_lists_have_numbers_of_a_byte)
{
    static struct narrow one;
    bool is_wanted[MS_MAX_LISTED] = {false};
    memset(&narrow, 0, sizeof(narrow));
    start(one_list, &narrow, sizeof(narrow));
    call = (struct ms_call){.grid = {2, 1, 1}};
    narrow.addresses[0][109] = 0x1000;
    narrow.block_to_tensor[1] = 109;
    narrow.block_to_chunk[1] = 5;
    CHECK(find());
    CHECK_EQ(find(), 110);
    is_wanted[109] = true;
    CHECK(ms_tensor_list_select(&list, &packed, is_wanted, (unsigned char *)&one, &call));
    CHECK_EQ(call.grid[0], 1);
    CHECK_EQ(one.addresses[0][109], 0x1000);
    CHECK_EQ(one.block_to_tensor[0], 109);
    CHECK_EQ(one.block_to_chunk[0], 5);
    narrow.block_to_tensor[0] = 110;
    call.grid[0] = 2;
    CHECK_EQ(find(), 0);
}
