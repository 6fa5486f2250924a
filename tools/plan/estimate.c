/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan estimate: what a rank would save of a checkpoint's weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan/placement.h"
#include "tools/json_writer.h"
#include "tools/plan/commands.h"
#include "tools/plan/in_place.h"

static const char *size_text(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1000 && unit < 6; unit++)
        value /= 1024;
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

static void print_row(const char *what, uint64_t without, uint64_t with)
{
    char texts[2][32];
    const double saved = without > 0 ? 100.0 * (double)(without - with) / (double)without : 0;
    printf("  %-42s %11s %11s %7.0f %%\n", what, size_text(texts[0], without),
           size_text(texts[1], with), saved);
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of the rank with the most. Padding of flat placements is no saving of less than nothing. */
static uint64_t shard_of(const struct ms_census *census, uint64_t whole)
{
    uint64_t shard = 0;
    for (uint32_t rank = 0; rank < census->world; rank++) {
        const uint64_t bytes = census->bytes[rank] + census->padding[rank];
        shard = bytes > shard ? bytes : shard;
    }
    return least_of(shard, whole);
}

/* What a rank but the sender's has of a tensor that is broadcast while it keeps its shard already:
 * the granules of its part, and the one that takes all other bytes. */
static uint64_t received_of(const struct in_place_needs *in_place, uint64_t largest)
{
    return least_of(in_place->most + IN_PLACE_GRANULE, largest);
}

static void print_estimate(const struct ms_checkpoint *checkpoint, const struct ms_census *census,
                           uint64_t whole_in_place, const struct in_place_needs *in_place)
{
    const size_t count = ms_checkpoint_count(checkpoint);
    uint64_t whole = 0;
    struct ms_tensor largest = {.name = "none"};
    char texts[3][32];
    for (size_t i = 0; i < count; i++) {
        const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, i);
        whole += tensor.bytes;
        if (tensor.bytes > largest.bytes)
            largest = tensor;
    }
    const uint64_t kept = shard_of(census, whole);
    const uint64_t one_more = least_of(largest.bytes, whole - kept);
    const uint64_t part_more = least_of(received_of(in_place, largest.bytes), one_more);
    printf("weights: %zu tensors, %s; the largest, ", count, size_text(texts[0], whole));
    put_escaped(stdout, largest.name, "\\");
    printf(", has %s\n", size_text(texts[1], largest.bytes));
    printf("each of %" PRIu32 " ranks keeps at most %s of them\n\n", census->world,
           size_text(texts[2], kept));
    printf("%-44s %11s %11s %9s\n", "device memory of a rank, for the weights", "without", "with",
           "saved");
    print_row("built or loaded whole, then sharded", whole, kept);
    print_row("loaded tensor by tensor, each then sharded", kept + one_more, kept);
    print_row("only the rank's own rows are loaded", kept, kept);
    print_row("whole tensors, used in place", whole, whole_in_place);
    print_row("the same, with a plan that is enforced", whole, in_place->bytes);
    puts("of a rank to which rank 0 sends them, with a plan");
    print_row("broadcast one by one, each then sharded", kept + one_more, kept + part_more);
    print_row("broadcast one by one, used in place", whole,
              least_of(in_place->bytes + IN_PLACE_GRANULE, whole));
    puts("copied to the device by a rank");
    print_row("whole tensors from files, then sharded", whole, kept);
    print_row("whole tensors from files, used in place", whole, whole_in_place);
    print_row("the same, with a plan that is enforced", whole, in_place->bytes);
    puts(
        "\nIn place means that kernels are given pointers into the whole tensors; a plan is "
        "enforced\n"
        "with METASHARD_PLAN_MODE=enforce, and takes granules of 2 MiB. Rank 0, which sends, takes "
        "at\n"
        "most what it takes without MetaShard, and an allocator's segments come on top.\n"
        "\nNot counted, because a checkpoint does not show it: gradients, the optimizer's states,\n"
        "activations, buffers of frameworks and of NCCL, and other copies of the weights. A "
        "tensor\n"
        "that kernels use whole is in memory besides, while it exists.");
}

int run_estimate(const struct options *options)
{
    struct ms_checkpoint *checkpoint = NULL;
    struct ms_plan *plan = NULL;
    struct ms_layout *layout = NULL;
    struct ms_census census;
    struct in_place_needs in_place;
    uint64_t whole_in_place;
    struct ms_fault fault;
    int status;
    if (options->world == NULL)
        return usage_fault("--world: expected the number of ranks, as 8");
    char *text = plan_text(options, options->words.files[0], &checkpoint, &status);
    if (text == NULL)
        return status;
    status = BAD;
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault) ||
        !ms_layout_create(plan, checkpoint, &layout, &fault)) {
        fprintf(stderr, "%s\n", fault.text);
    } else if (!in_place_measure_most(layout, plan->mesh.world, &in_place) ||
               !in_place_whole_bytes(layout, plan->mesh.world, &whole_in_place) ||
               !ms_census_init(&census, layout)) {
        fputs("metashard-plan: out of memory\n", stderr);
    } else {
        print_estimate(checkpoint, &census, whole_in_place, &in_place);
        ms_census_cleanup(&census);
        status = GOOD;
    }
    free(text);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
    ms_checkpoint_close(checkpoint);
    return status;
}
