/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/tensor_list.h"

#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/harness/test.h"
#include "tests/unit/between.h"

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

STORY_ALONE(a_list_that_pytorch_would_not_make_has_no_tensors, start_wide(), IS(find()),
            EQUALS(find(), 3), call.grid[1] = 2, EQUALS(find(), 0), call.grid[1] = 1,
            call.grid[0] = 2241, EQUALS(find(), 0), call.grid[0] = 4, wide.block_to_tensor[3] = 448,
            EQUALS(find(), 0), wide.block_to_tensor[3] = 2, packed.count -= 8, EQUALS(find(), 0))

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

/* --- all shapes */

enum { ROOM = 48 << 10, FUNCTOR = 24 };
static const struct shape {
    char *name;
    unsigned lists, tensors, blocks, number_bytes;
} shapes[] = {{one_list, 1, 770, 2240, 2},
              {two_lists, 2, 448, 2240, 2},
              {one_list, 1, 110, 320, 1},
              {two_lists, 2, 64, 320, 1}};
static unsigned char bytes[ROOM], selected[ROOM], wanted[ROOM];
static size_t list_at, numbers_at, chunks_at, list_end;

static unsigned char *number_of(const struct shape *shape, unsigned block)
{
    return bytes + numbers_at + (size_t)block * shape->number_bytes;
}

static void set_number(const struct shape *shape, unsigned block, unsigned number)
{
    memcpy(number_of(shape, block), &(uint16_t){(uint16_t)number}, shape->number_bytes);
}

/* The blocks work on all tensors but the last, in turn. All else is drawn. */
static void start_shape(const struct shape *shape, size_t at)
{
    list_at = at;
    numbers_at = at + 8 * (size_t)shape->tensors * (shape->lists + 1);
    chunks_at = numbers_at + (size_t)shape->blocks * shape->number_bytes;
    list_end = (chunks_at + 4 * ((size_t)shape->blocks + 1) + 7) / 8 * 8;
    start(shape->name, bytes, list_end + FUNCTOR);
    layout->params[0] = (struct ms_param){(uint32_t)at, (uint32_t)(list_end - at)};
    call = (struct ms_call){.grid = {shape->blocks, 1, 1}};
    for (size_t i = 0; i < list_end + FUNCTOR; i++)
        bytes[i] = (unsigned char)rand();
    for (unsigned block = 0; block < shape->blocks; block++)
        set_number(shape, block, block % (shape->tensors - 1));
}

/* Makes `wanted`, the part of the parameters that is left for every third tensor. */
static unsigned want(const struct shape *shape)
{
    unsigned kept = 0;
    memcpy(wanted, bytes, sizeof(wanted));
    memset(wanted + numbers_at, 0, list_end - numbers_at);
    for (unsigned i = 0; i < shape->lists * shape->tensors; i++) {
        const unsigned tensor = i % shape->tensors;
        if (tensor % 3 != 1 || tensor == shape->tensors - 1)
            memset(wanted + list_at + (size_t)i * 8, 0, 8);
    }
    for (unsigned block = 0; block < shape->blocks; block++) {
        if (block % (shape->tensors - 1) % 3 != 1)
            continue;
        memcpy(wanted + numbers_at + (size_t)kept * shape->number_bytes, number_of(shape, block),
               shape->number_bytes);
        memcpy(wanted + chunks_at + (size_t)kept * 4, bytes + chunks_at + (size_t)block * 4, 4);
        kept++;
    }
    return kept;
}

/* The addresses of a tensor without a block go too. */
MS_TEST(a_selection_drops_blocks_of_other_tensors_in_each_shape)
{
    bool is_wanted[MS_MAX_LISTED];
    for (unsigned i = 0; i < MS_MAX_LISTED; i++)
        is_wanted[i] = i % 3 == 1;
    for (size_t i = 0; i < 8; i++) {
        start_shape(&shapes[i / 2], i % 2 * 16);
        CHECK_EQ(find(), shapes[i / 2].tensors - 1);
        memset(selected, 0xee, sizeof(selected));
        const unsigned kept = want(&shapes[i / 2]);
        CHECK(ms_tensor_list_select(&list, &packed, is_wanted, selected, &call));
        CHECK_EQ(call.grid[0], kept);
        CHECK_BYTES(selected, wanted, list_end + FUNCTOR);
        CHECK_EQ(selected[list_end + FUNCTOR], 0xee);
    }
}

MS_TEST(a_list_of_each_shape_has_tensors_up_to_its_edges)
{
    for (size_t i = 0; i < 8; i++) {
        const struct shape *shape = &shapes[i / 2];
        start_shape(shape, i % 2 * 16);
        packed.count = list_end;
        set_number(shape, shape->blocks - 1, shape->tensors - 1);
        CHECK_EQ(find(), shape->tensors);
        CHECK(list.lists == shape->lists && list.blocks == shape->blocks);
        set_number(shape, shape->blocks - 1, shape->tensors);
        CHECK_EQ(find(), 0);
        call.grid[0]--; /* that block is not there */
        CHECK_EQ(find(), shape->tensors - 1);
        packed.count--;
        CHECK_EQ(find(), 0);
        packed.count++;
        call.grid[0] += 2;
        CHECK_EQ(find(), 0);
        call.grid[0] = 0;
        CHECK_EQ(find(), 0);
        call.grid[0] = call.grid[2] = 2;
        CHECK_EQ(find(), 0);
        call.grid[2] = 1;
        layout->count = 0;
        CHECK_EQ(find(), 0);
        layout->count = 1;
        CHECK(find() > 0);
    }
}

MS_TEST(the_name_tells_the_number_of_lists)
{
    static char *const names[] = {
        "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi12EEENS1_",
        "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi0EEENS1_",
        "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2",
        "18TensorListMetadataILi2EEENS1_25multi_tensor_apply_kernelI",
        "25multi_tensor_apply_kernelINS1_18TensorListMetadataINS2_"};
    start_wide();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        layout->name = names[i];
        CHECK_EQ(find(), 0);
    }
    layout->name = one_list; /* whose sizes are others */
    CHECK_EQ(find(), 0);
    layout->name = two_lists;
    CHECK_EQ(find(), 3);
}

/* --- copies */

#define COPY_NAME(type, same)                                                               \
    "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_14UnaryOpFunctorI" type \
    "Li2ELi1ELi1EEEJNS0_4CopyI" same "EEEEEvT_T0_DpT1_"

static struct ms_strided_copy piece;

static bool find_piece(char *name, unsigned tensor)
{
    const struct ms_arguments arguments = {layout, &packed, {0, 0}};
    layout->name = name;
    CHECK(find());
    piece = (struct ms_strided_copy){0};
    return ms_tensor_list_copy(&call, &arguments, &list, tensor, &piece);
}

static void check_piece(uint64_t from, uint64_t to, size_t width)
{
    CHECK(piece.from == from && piece.to == to && piece.dims == 0);
    CHECK_EQ(piece.width, width);
}

/* Starts with a tensor of two chunks and a part. */
static void start_copy(void)
{
    start_wide();
    wide.numel[1] = 2 * 65536 + 7;
}

MS_TEST(a_copy_is_the_piece_that_its_blocks_copy)
{
    static char name[] = COPY_NAME("f", "ff");
    start_copy();
    CHECK(find_piece(name, 0));
    check_piece(0x1000, 0x100000, 400);
    CHECK(find_piece(name, 1));
    check_piece(0x2000, 0x200000, (size_t)2 * 65536 * 4);
    wide.block_to_chunk[1] = 1; /* the first chunk was copied by another launch */
    wide.block_to_chunk[2] = 2;
    CHECK(find_piece(name, 1));
    check_piece(0x2000 + 65536 * 4, 0x200000 + 65536 * 4, (size_t)(65536 + 7) * 4);
    wide.numel[1] = 2 * 65536 + 1;
    CHECK(find_piece(name, 1));
    CHECK_EQ(piece.width, (size_t)(65536 + 1) * 4);
}

MS_TEST(the_bytes_of_an_element_come_from_the_name)
{
    static const struct {
        char *name;
        size_t bytes;
    } names[] = {{COPY_NAME("a", "aa"), 1}, {COPY_NAME("h", "hh"), 1}, {COPY_NAME("s", "ss"), 2},
                 {COPY_NAME("i", "ii"), 4}, {COPY_NAME("l", "ll"), 8}, {COPY_NAME("f", "ff"), 4},
                 {COPY_NAME("d", "dd"), 8}};
    start_copy();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CHECK(find_piece(names[i].name, 0));
        CHECK_EQ(piece.width, 100 * names[i].bytes);
    }
}

/* A cast, a copy through numbers of 32 bits, of truth values, and other functions of an element. */
MS_TEST(a_kernel_that_changes_bits_is_no_copy)
{
    static char *const names[] = {
        COPY_NAME("f", "fd"),
        COPY_NAME("f", "df"),
        COPY_NAME("f", "dd"),
        COPY_NAME("f", "f"),
        COPY_NAME("b", "bb"),
        COPY_NAME("N3c108BFloat16E", "S7_S7_"),
        COPY_NAME("N3c104HalfE", "S7_S7_"),
        "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_14UnaryOpFunctorIf"
        "Li2ELi1ELi1EEEJNS0_3AbsIffEEEEEvT_T0_DpT1_",
        "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_14UnaryOpFunctorIf"
        "Li1ELi1ELi0EEEJNS0_4CopyIffEEEEEvT_T0_DpT1_",
        "25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_11CopyFunctorIff"
        "Li2ELi1ELi1EEEJNS0_4CopyIffEEEEEvT_T0_DpT1_",
        two_lists};
    start_copy();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK(!find_piece(names[i], 0));
}

MS_TEST(chunks_that_do_not_follow_each_other_are_no_piece)
{
    static char name[] = COPY_NAME("f", "ff");
    start_copy();
    wide.block_to_chunk[2] = 2;
    CHECK(!find_piece(name, 1));
    wide.block_to_chunk[2] = 0;
    CHECK(!find_piece(name, 1));
    wide.block_to_chunk[2] = 1;
    wide.numel[1] = 65536; /* the second is behind its end */
    CHECK(!find_piece(name, 1));
    wide.numel[1] = 65537;
    CHECK(find_piece(name, 1));
    wide.numel[1] = -1;
    CHECK(!find_piece(name, 1));
    wide.block_to_chunk[1] = -1;
    CHECK(!find_piece(name, 1));
    CHECK(!find_piece(name, 3)); /* no block works on it */
}

static void start_narrow_copy(void)
{
    list_end = 64 * 8 * 3 + 320 + 4 * 321 + 4;
    memset(bytes, 0, sizeof(bytes));
    start(COPY_NAME("d", "dd"), bytes, list_end);
    call = (struct ms_call){.grid = {1, 1, 1}};
}

MS_TEST(narrow_lists_are_copied_too)
{
    const uint64_t from = 0x3000, to = 0x5000, elements = 9;
    start_narrow_copy();
    memcpy(bytes + 8 * 63, &from, 8);
    memcpy(bytes + 8 * (64 + 63), &to, 8);
    memcpy(bytes + 8 * (128 + 63), &elements, 8);
    bytes[64 * 8 * 3] = 63;
    CHECK(find_piece(layout->name, 63));
    check_piece(from, to, 72);
}
