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

/* Bytes of a rank without and with MetaShard, in one way to load. */
struct way {
    const char *key, *words;
    uint64_t without, with;
};
enum { HELD, RECEIVED = 5, COPIED = 7, WAYS = 10 };

struct estimate {
    size_t count;
    uint32_t world;
    struct ms_tensor largest;
    uint64_t whole, kept;
    struct way ways[WAYS]; /* held on the device; of these, received from rank 0; copied to it */
};

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The shard of the rank with the most. Padding of flat placements makes no saving negative. */
static uint64_t shard_of(const struct ms_census *census, uint64_t whole)
{
    uint64_t shard = 0;
    for (uint32_t rank = 0; rank < census->world; rank++) {
        const uint64_t bytes = census->bytes[rank] + census->padding[rank];
        shard = bytes > shard ? bytes : shard;
    }
    return least_of(shard, whole);
}

/* A tensor that is broadcast takes, on a rank that keeps its shard already and is not the sender,
 * the granules of its part, and one granule for all other bytes. */
static uint64_t received_of(const struct in_place_needs *in_place, uint64_t largest)
{
    return least_of(in_place->most + IN_PLACE_GRANULE, largest);
}

static void sum_tensors(struct estimate *estimate, const struct ms_checkpoint *checkpoint)
{
    estimate->count = ms_checkpoint_count(checkpoint);
    estimate->largest.name = "none";
    for (size_t i = 0; i < estimate->count; i++) {
        const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, i);
        estimate->whole += tensor.bytes;
        if (tensor.bytes > estimate->largest.bytes)
            estimate->largest = tensor;
    }
}

static void fill_ways(struct estimate *estimate, uint64_t whole_in_place,
                      const struct in_place_needs *in_place)
{
    const uint64_t whole = estimate->whole, kept = estimate->kept,
                   largest = estimate->largest.bytes;
    const uint64_t one_more = least_of(largest, whole - kept);
    const uint64_t part_more = least_of(received_of(in_place, largest), one_more);
    const struct way ways[WAYS] = {
        {"whole_then_sharded", "built or loaded whole, then sharded", whole, kept},
        {"by_tensor", "loaded tensor by tensor, each then sharded", kept + one_more, kept},
        {"own_rows", "only the rank's own rows are loaded", kept, kept},
        {"in_place", "whole tensors, used in place", whole, whole_in_place},
        {"in_place_enforced", "the same, with a plan that is enforced", whole, in_place->bytes},
        {"then_sharded", "broadcast one by one, each then sharded", kept + one_more,
         kept + part_more},
        {"in_place", "broadcast one by one, used in place", whole,
         least_of(in_place->bytes + IN_PLACE_GRANULE, whole)},
        {"whole_then_sharded", "whole tensors from files, then sharded", whole, kept},
        {"in_place", "whole tensors from files, used in place", whole, whole_in_place},
        {"in_place_enforced", "the same, with a plan that is enforced", whole, in_place->bytes}};
    memcpy(estimate->ways, ways, sizeof(ways));
}

static void print_ways(const struct estimate *estimate, size_t first, size_t end)
{
    char texts[2][32];
    for (const struct way *way = &estimate->ways[first]; way < &estimate->ways[end]; way++) {
        const double saved = way->without > 0
                                 ? 100.0 * (double)(way->without - way->with) / (double)way->without
                                 : 0;
        printf("  %-42s %11s %11s %7.0f %%\n", way->words, size_text(texts[0], way->without),
               size_text(texts[1], way->with), saved);
    }
}

static void print_estimate(const struct estimate *estimate)
{
    char texts[3][32];
    printf("weights: %zu tensors, %s; the largest, ", estimate->count,
           size_text(texts[0], estimate->whole));
    put_escaped(stdout, estimate->largest.name, "\\");
    printf(", has %s\n", size_text(texts[1], estimate->largest.bytes));
    printf("each of %" PRIu32 " ranks keeps at most %s of them\n\n", estimate->world,
           size_text(texts[2], estimate->kept));
    printf("%-44s %11s %11s %9s\n", "device memory of a rank, for the weights", "without", "with",
           "saved");
    print_ways(estimate, HELD, RECEIVED);
    puts("of a rank to which rank 0 sends them, with a plan");
    print_ways(estimate, RECEIVED, COPIED);
    puts("copied to the device by a rank");
    print_ways(estimate, COPIED, WAYS);
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

static void put_ways(struct writer *document, const char *key, const struct estimate *estimate,
                     size_t first, size_t end)
{
    struct writer list = json_begin(document, key, '{', false);
    for (const struct way *way = &estimate->ways[first]; way < &estimate->ways[end]; way++) {
        struct writer one = json_begin(&list, way->key, '{', true);
        put_number(&one, "without", way->without);
        put_number(&one, "with", way->with);
        json_end(&one, '}');
    }
    json_end(&list, '}');
}

static void put_estimate(const struct estimate *estimate)
{
    struct writer document = json_document(stdout);
    put_number(&document, "tensors", estimate->count);
    put_number(&document, "bytes", estimate->whole);
    put_string(&document, "largest", estimate->largest.name);
    put_number(&document, "largest_bytes", estimate->largest.bytes);
    put_number(&document, "world_size", estimate->world);
    put_number(&document, "shard_bytes", estimate->kept);
    put_ways(&document, "held", estimate, HELD, RECEIVED);
    put_ways(&document, "received_with_plan", estimate, RECEIVED, COPIED);
    put_ways(&document, "copied", estimate, COPIED, WAYS);
    json_document_end(&document);
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
        struct estimate estimate = {.world = census.world};
        sum_tensors(&estimate, checkpoint);
        estimate.kept = shard_of(&census, estimate.whole);
        fill_ways(&estimate, whole_in_place, &in_place);
        ms_census_cleanup(&census);
        if (options->json != NULL)
            put_estimate(&estimate);
        else
            print_estimate(&estimate);
        status = GOOD;
    }
    free(text);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
    ms_checkpoint_close(checkpoint);
    return status;
}
