/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that come from the start, late, and in place of others, and tensors that are larger than
 * the driver's granules. With METASHARD_PLAN_MODE=enforce nothing may be read that other ranks
 * keep, so plans are of one rank.
 *
 * MODEL_PLANS: "late", "first" (one is there from the start), "sizes" (no name is known, so that a
 * plan has sizes and orders); without it there are no plans.
 */
#include "tests/driver/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shim/metashard.h"
#include "tests/harness/drawn_plans.h"

static struct drawn_file large;

static bool has_plans(const char *kind)
{
    const char *kinds = getenv("MODEL_PLANS");
    return kinds != NULL && (kind == NULL ? kinds[0] != '\0' : strcmp(kinds, kind) == 0);
}

bool model_has_names(void)
{
    return !has_plans("sizes");
}

/* --- what is drawn */

/* The tensors of every thread's file, and the large ones. */
static size_t draw_plan(char *text)
{
    size_t sizes[MODEL_OWN];
    const char *mode = getenv("METASHARD_PLAN_MODE");
    struct drawn_program program = {.tensors = {{"a.weight", "F32", 4, 256, 64},
                                                {"b.weight", "BF16", 2, 100, 333},
                                                {"c.weight", "U8", 1, 40, 1000},
                                                {"d.weight", "F32", 4, 512, 400},
                                                large.tensors[0],
                                                large.tensors[1]},
                                    .tensor_count = 6,
                                    .sizes = sizes,
                                    .size_count = model_has_names() ? 0 : MODEL_OWN,
                                    .keeps_all = mode != NULL && strcmp(mode, "enforce") == 0};
    model_block_sizes(sizes);
    const size_t length = drawn_plan(&program, model_below, text);
    if (model_prints)
        printf("thread %u:   %s\n", model_thread, text);
    return length;
}

void model_plans_begin(void)
{
    char text[DRAWN_PLAN_BYTES];
    large = drawn_file_make(model_folder, model_has_names());
    if (!has_plans("first"))
        return;
    draw_plan(text);
    drawn_plan_to_file(model_folder, text);
}

/* --- how plans arrive */

static void by_call(void)
{
    char text[DRAWN_PLAN_BYTES];
    const size_t length = draw_plan(text);
    if (metashard_plan_text != NULL && metashard_plan_text(text, length) != 0)
        model_fail("a plan is refused: %s\n%s", metashard_error(), text);
}

/* It is looked at four times a second. */
static void by_file(void)
{
    char text[DRAWN_PLAN_BYTES];
    draw_plan(text);
    if (!drawn_plan_to_file(model_folder, text))
        model_fail("the file of the plan cannot be written");
}

static void by_socket(void)
{
    char text[DRAWN_PLAN_BYTES];
    const char *path = getenv("METASHARD_CONTROL");
    const size_t length = draw_plan(text);
    if (metashard_plan_text != NULL && path != NULL && !drawn_plan_to_socket(path, text, length))
        model_fail("a plan is not accepted at %s", path);
}

static void bring_plan(void)
{
    if (!has_plans(NULL))
        return;
    const size_t way = model_below(8);
    if (way == 0)
        by_file();
    else if (way < 3)
        by_socket();
    else
        by_call();
}

static void materialise(void)
{
    if (has_plans(NULL) && metashard_materialise != NULL && metashard_materialise() != 0)
        model_fail("metashard_materialise: %s", metashard_error());
}

/* --- the process is suspended */

/* Work of other threads may be in the way. */
static bool is_in_the_way(const char *why)
{
    return strstr(why, "captured") != NULL || strstr(why, "still busy") != NULL ||
           strstr(why, "METASHARD=verify") != NULL;
}

static void suspend(void)
{
    const char *folder = model_one_in(3) ? model_folder : NULL;
    const bool resumes = model_one_in(3);
    if (metashard_suspend == NULL)
        return;
    if (metashard_suspend(folder, NULL, 0) != 0 && !is_in_the_way(metashard_error()))
        model_fail("metashard_suspend: %s", metashard_error());
    if (resumes && metashard_resume() != 0)
        model_fail("metashard_resume: %s", metashard_error());
}

/* --- tensors of several granules */

/* In two pieces, which meet anywhere. */
static void copy_pieces(struct model_range to, const unsigned char *from, CUstream stream)
{
    const size_t cut = model_one_in(2) ? 0 : model_below(to.bytes);
    const CUdeviceptr at = model_address(to);
    if (cut < to.bytes)
        OK(cuMemcpyHtoDAsync(at + cut, from + cut, to.bytes - cut, stream));
    if (cut > 0)
        OK(cuMemcpyHtoDAsync(at, from, cut, stream));
}

static struct model_range load(void)
{
    const size_t i = model_below(DRAWN_LARGE), bytes = drawn_tensor_bytes(&large.tensors[i]);
    const struct model_range range = model_new_range(bytes);
    const CUstream stream = model_own_stream();
    const bool is_passing = model_one_in(3) && !model_reads_late;
    const unsigned char *content =
        is_passing ? drawn_file_map(model_folder, large.bytes) : large.content;
    model_order(range, stream);
    copy_pieces(range, content + large.begins[i], stream);
    model_write(range, content + large.begins[i]);
    if (is_passing)
        munmap((void *)content, large.bytes);
    model_done(range, stream);
    return range;
}

static void load_tensor(void)
{
    load();
}

static void read_range(struct model_range range)
{
    unsigned char *seen = malloc(range.bytes);
    const CUstream stream = model_own_stream();
    model_order(range, stream);
    OK(cuMemcpyDtoHAsync(seen, model_address(range), range.bytes, stream));
    OK(cuStreamSynchronize(stream));
    model_compare(range, seen);
    free(seen);
    model_done(range, stream);
}

/* Bytes that are written to resident memory are nowhere else. */
static void set_range(struct model_range range)
{
    const unsigned char value = (unsigned char)model_random();
    const CUstream stream = model_own_stream();
    model_order(range, stream);
    OK(cuMemsetD8Async(model_address(range), value, range.bytes, stream));
    model_fill(range, &value, 1);
    model_done(range, stream);
}

static void touch(struct model_range whole)
{
    const size_t most = model_one_in(2) && whole.bytes > 8192 ? 8192 : whole.bytes;
    struct model_range range = whole;
    range.bytes = 1 + model_below(most);
    range.at += model_below(whole.bytes - range.bytes + 1);
    switch (model_below(4)) {
    case 0:
        read_range(range);
        return;
    case 1:
        read_range(whole); /* into one piece of memory */
        return;
    default:
        set_range(range);
    }
}

/* A plan that comes late, and others in its place. */
static void plans_of_tensor(void)
{
    if (!has_plans(NULL))
        return;
    const struct model_range range = load();
    for (size_t plans = 1 + model_below(3); plans > 0; plans--) {
        for (size_t deeds = model_below(5); deeds > 0; deeds--)
            touch(range);
        bring_plan();
    }
    if (model_one_in(2))
        read_range(range);
}

const struct model_operation model_plans[] = {
    {"a plan", bring_plan, 6},
    {"materialise", materialise, 1},
    {"suspend", suspend, 2},
    {"load a tensor", load_tensor, 6},
    {"plans of a tensor", plans_of_tensor, 6},
    {NULL, NULL, 0},
};
