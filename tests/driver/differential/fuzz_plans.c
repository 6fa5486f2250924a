/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that arrive at any moment, and what a program may tell the shim. Nothing of it may change a
 * byte.
 *
 * With FUZZ_PLANS there are many plans, of all forms, and blocks of tensors that are larger than
 * the driver's granules: "late", "first" (one is there from the start), or "sizes" (no name is
 * known, so that a plan has sizes and orders); with "none" there is no plan. With
 * METASHARD_PLAN_MODE=enforce nothing may be read that other ranks keep, so plans are of one rank.
 */
#include "tests/driver/differential/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shim/metashard.h"
#include "tests/harness/drawn_plans.h"

enum { STATUS_BYTES = 2048 };

static const char *control_path = "";
static struct drawn_file large;

static bool has_plans(const char *kind)
{
    const char *kinds = getenv("FUZZ_PLANS");
    return kinds != NULL && strcmp(kinds, kind) == 0;
}

bool fuzz_draws_plans(void)
{
    return getenv("FUZZ_PLANS") != NULL && !has_plans("none");
}

bool fuzz_has_names(void)
{
    return !has_plans("sizes");
}

static bool is_enforced(void)
{
    const char *mode = getenv("METASHARD_PLAN_MODE");
    return mode != NULL && strcmp(mode, "enforce") == 0;
}

/* --- what is drawn */

static const char not_valid[] = "{\"format\": \"metashard-plan/1\", \"tensors\": 3}";

/* A plan for some of the checkpoint's tensors, and for one that the program names itself. */
static size_t draw_simple_plan(char *text)
{
    static const char *const placements[] = {"[{\"shard\": 0}]", "[\"replicate\"]",
                                             "[{\"shard\": 1}]", "[{\"flat\": \"zero3\"}]"};
    const unsigned drawn = 1 + (unsigned)fuzz_below(4), world = is_enforced() ? 1 : drawn;
    const unsigned rank = (unsigned)fuzz_below(world);
    const char *first = placements[fuzz_below(4)];
    const char *others = placements[fuzz_below(4)];
    if (fuzz_one_in(10)) /* not valid: refused, and the plan before stays in force */
        return (size_t)snprintf(text, DRAWN_PLAN_BYTES, "%s", not_valid);
    return (size_t)snprintf(text, DRAWN_PLAN_BYTES,
                            "{\"format\": \"metashard-plan/1\", \"world_size\": %u, \"rank\": %u, "
                            "\"tensors\": [{\"name\": \"%c.*\", \"placements\": %s}, "
                            "{\"name\": \"*\", \"placements\": %s}]}",
                            world, rank, 'a' + (int)fuzz_below(5), first, others);
}

static size_t draw_any_plan(char *text)
{
    size_t sizes[FUZZ_SLOTS];
    struct drawn_program program = {.tensors = {{"a.weight", "F32", 4, 256, 64},
                                                {"b.weight", "BF16", 2, 100, 333},
                                                {"c.weight", "U8", 1, 40, 1000},
                                                {"d.weight", "F32", 4, 512, 400},
                                                large.tensors[0],
                                                large.tensors[1]},
                                    .tensor_count = 6,
                                    .sizes = sizes,
                                    .size_count = fuzz_has_names() ? 0 : FUZZ_SLOTS,
                                    .keeps_all = is_enforced()};
    fuzz_block_sizes(sizes);
    if (fuzz_one_in(10))
        return (size_t)snprintf(text, DRAWN_PLAN_BYTES, "%s", not_valid);
    return drawn_plan(&program, fuzz_below, text);
}

static size_t draw_plan(char *text)
{
    const size_t length = fuzz_draws_plans() ? draw_any_plan(text) : draw_simple_plan(text);
    fuzz_say("  %s\n", text);
    return length;
}

void fuzz_plans_begin(void)
{
    static char text[DRAWN_PLAN_BYTES];
    if (fuzz_draws_plans())
        large = drawn_file_make(fuzz_folder, fuzz_has_names());
    if (!has_plans("first"))
        return;
    draw_any_plan(text);
    drawn_plan_to_file(fuzz_folder, text);
}

void fuzz_plans_init(void)
{
    if (getenv("METASHARD_CONTROL") != NULL)
        control_path = getenv("METASHARD_CONTROL");
}

/* --- how a plan arrives */

static void plan_by_call(void)
{
    static char text[DRAWN_PLAN_BYTES];
    const size_t length = draw_plan(text);
    if (metashard_plan_text == NULL)
        return;
    const bool is_taken = metashard_plan_text(text, length) == 0;
    if (is_taken != (strcmp(text, not_valid) != 0)) {
        fuzz_say("  the plan is %s: %s\n", is_taken ? "taken" : "refused", metashard_error());
        fuzz_see(1);
    }
}

void fuzz_plan_arrives(void)
{
    if (fuzz_draws_plans() && fuzz_one_in(2))
        plan_by_call();
}

/* METASHARD_PLAN is looked at four times a second: it arrives whenever it is seen. */
static void plan_by_file(void)
{
    static char text[DRAWN_PLAN_BYTES];
    draw_plan(text);
    drawn_plan_to_file(fuzz_folder, text);
}

/* Over the socket; the answer comes when it is in force. */
static void plan_by_socket(void)
{
    static char text[DRAWN_PLAN_BYTES];
    const size_t length = draw_plan(text);
    const bool materialises = fuzz_one_in(5);
    if (!fuzz_has_shim())
        return;
    if (materialises)
        drawn_request(control_path, "materialise\n", strlen("materialise\n"));
    else
        drawn_plan_to_socket(control_path, text, length);
}

/* --- what a program tells and asks */

/* The program gives a name to what no file holds. */
static void name(void)
{
    const struct fuzz_block *block = fuzz_new_block(4096);
    /* No plan of many should cut the block into tens of thousands of pieces, which take time. */
    const uint64_t columns = fuzz_draws_plans() ? block->bytes / 64 : 16;
    const uint64_t shape[] = {block->bytes / columns, columns};
    if (metashard_name != NULL)
        metashard_name(block->at, shape[0] * shape[1], "e.weight", "U8", shape, 2);
}

static void unname(void)
{
    const struct fuzz_range range = fuzz_range(FUZZ_BLOCK_MOST, 1);
    if (metashard_unname != NULL)
        metashard_unname(range.at, range.bytes);
}

static void materialise(void)
{
    if (metashard_materialise != NULL)
        metashard_materialise();
}

/* To a folder, too. A capture, and what the device waits for, forbid it; but a driver before CUDA
 * 12.5 would wait for ever for what only this thread can end. */
static void suspend(void)
{
    const char *profile = getenv("SIMCUDA_PROFILE");
    const bool has_folder = fuzz_one_in(3), resumes = fuzz_one_in(3);
    if (metashard_suspend != NULL && (profile == NULL || strcmp(profile, "12.4") != 0))
        metashard_suspend(has_folder ? fuzz_folder : NULL, NULL, 0);
    if (metashard_resume != NULL && resumes)
        metashard_resume();
}

static void status(void)
{
    char text[STATUS_BYTES];
    if (metashard_status != NULL)
        metashard_status(text, sizeof(text));
}

const struct fuzz_operation fuzz_plans[] = {
    {"a plan by a call", plan_by_call, 2},
    {"a plan by a file", plan_by_file, 1},
    {"a plan by the socket", plan_by_socket, 1},
    {"name a block", name, 2},
    {"take names away", unname, 1},
    {"materialise", materialise, 1},
    {"suspend", suspend, 2},
    {"status", status, 1},
    {NULL, NULL, 0},
};

/* --- tensors of several granules */

/* In pieces, which meet anywhere, and out of order. */
static void copy_pieces(CUdeviceptr at, const unsigned char *from, size_t bytes)
{
    const size_t cut = fuzz_one_in(2) ? 0 : fuzz_below(bytes);
    const CUstream stream = fuzz_stream(false);
    if (cut < bytes)
        SEE(CALL(cuMemcpyHtoDAsync_v2)(at + cut, from + cut, bytes - cut, stream));
    if (cut > 0)
        SEE(CALL(cuMemcpyHtoDAsync_v2)(at, from, cut, stream));
}

/* A block of the tensor, and up to a few bytes behind; so it may be of any kind of memory. */
static struct fuzz_block *load(void)
{
    const size_t i = fuzz_below(DRAWN_LARGE);
    const size_t bytes = drawn_tensor_bytes(&large.tensors[i]);
    struct fuzz_block *block = fuzz_new_block(bytes + (fuzz_one_in(2) ? 0 : fuzz_below(12)));
    const bool is_passing = fuzz_one_in(3) && !fuzz_driver_has("SIMCUDA_LATE");
    const unsigned char *content =
        is_passing ? drawn_file_map(fuzz_folder, large.bytes) : large.content;
    copy_pieces(block->at, content + large.begins[i], bytes);
    if (is_passing)
        munmap((void *)content, large.bytes);
    return block;
}

static void load_tensor(void)
{
    const struct fuzz_block *block = load();
    if (fuzz_one_in(3))
        fuzz_read(block->at + fuzz_below(block->bytes - 5000), 1 + fuzz_below(5000));
}

static void fill_words(CUdeviceptr at, size_t bytes)
{
    uint32_t value = (uint32_t)fuzz_random();
    uint64_t count = bytes / 4;
    at = (at + 3) / 4 * 4;
    if (count > 1)
        fuzz_launch(fuzz_kernel("fill32"), (void *[]){&at, &value, &(uint64_t){count - 1}});
}

/* Bytes that are read come into memory, and bytes that are written there are nowhere else. */
static void touch(const struct fuzz_block *block)
{
    const size_t most = fuzz_one_in(2) ? 8192 : block->bytes;
    const size_t bytes = 1 + fuzz_below(most < block->bytes ? most : block->bytes);
    const CUdeviceptr at = block->at + fuzz_below(block->bytes - bytes + 1);
    const size_t part = bytes < FUZZ_BUFFER_BYTES ? bytes : FUZZ_BUFFER_BYTES;
    const CUstream stream = fuzz_stream(false);
    switch (fuzz_below(16)) {
    case 0:
    case 1:
        fuzz_read(at, bytes);
        break;
    case 2:
    case 3:
    case 4:
    case 5:
        fuzz_read(block->at, block->bytes); /* into one piece of memory */
        break;
    case 6:
        fill_words(at, part); /* which may write anywhere in the block */
        break;
    case 7:
    case 8:
        fuzz_wait();
        SEE(CALL(cuMemcpyHtoDAsync_v2)(at, fuzz_source(part), part, stream));
        break;
    default:
        SEE(CALL(cuMemsetD8Async)(at, (unsigned char)fuzz_random(), bytes, stream));
    }
}

/* A plan that comes late, and others in its place. */
static void plans_of_tensor(void)
{
    const struct fuzz_block *block = load();
    for (size_t plans = 1 + fuzz_below(3); plans > 0; plans--) {
        for (size_t deeds = fuzz_below(5); deeds > 0; deeds--)
            touch(block);
        if (fuzz_one_in(4))
            plan_by_socket();
        else
            plan_by_call();
    }
    if (fuzz_one_in(2))
        touch(block);
    if (fuzz_one_in(2))
        fuzz_read(block->at, block->bytes);
}

/* The copy is as long as the shorter one of two blocks. */
static void copy_block(void)
{
    const struct fuzz_block *from = fuzz_block(), *to = fuzz_block();
    const size_t bytes = from->bytes < to->bytes ? from->bytes : to->bytes;
    if (from != to)
        SEE(CALL(cuMemcpyDtoDAsync_v2)(to->at, from->at, bytes, fuzz_stream(false)));
}

static void read_block(void)
{
    const struct fuzz_block *block = fuzz_block();
    fuzz_read(block->at, block->bytes);
}

/* Drawn with FUZZ_PLANS alone. */
const struct fuzz_operation fuzz_tensors[] = {
    {"load a tensor", load_tensor, 8},
    {"plans of a tensor", plans_of_tensor, 8},
    {"copy a block", copy_block, 3},
    {"read a block", read_block, 3},
    {NULL, NULL, 0},
};
