/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan check, explain and fit. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/config/config.h"
#include "runtime/plan/placement.h"
#include "tools/json_writer.h"
#include "tools/plan/commands.h"
#include "tools/plan/in_place.h"
#include "tools/plan/plan_writer.h"

/* A plan and its layout, with or without a checkpoint. */
struct opened {
    struct ms_checkpoint *checkpoint;
    struct ms_plan *plan;
    struct ms_layout *layout;
};

static void opened_close(struct opened *opened)
{
    ms_layout_destroy(opened->layout);
    ms_plan_destroy(opened->plan);
    ms_checkpoint_close(opened->checkpoint);
    *opened = (struct opened){0};
}

/* torch.save writes zip files, by any name. */
static bool is_zip(const char *path)
{
    char start[2] = "";
    FILE *file = fopen(path, "rb");
    const bool is_read = file != NULL && fread(start, 1, 2, file) == 2;
    if (file != NULL)
        fclose(file);
    return is_read && start[0] == 'P' && start[1] == 'K';
}

static bool is_plan(const char *path)
{
    struct stat found;
    const size_t length = strlen(path);
    if ((stat(path, &found) == 0 && S_ISDIR(found.st_mode)) || is_zip(path))
        return false;
    return (length < 12 || strcmp(path + length - 12, ".safetensors") != 0) &&
           (length < 11 || strcmp(path + length - 11, ".index.json") != 0);
}

/* Reports errors on stderr. */
static bool opened_open(struct opened *opened, const char *plan, const char *checkpoint)
{
    struct ms_fault fault;
    *opened = (struct opened){0};
    if (!is_plan(plan)) {
        usage_fault("%s: expected a plan, found a checkpoint: metashard-plan make makes one of it",
                    plan);
        return false;
    }
    if (!ms_plan_read(plan, &opened->plan, &fault) ||
        (checkpoint != NULL && !ms_checkpoint_open(checkpoint, &opened->checkpoint, &fault))) {
        fprintf(stderr, "%s\n", fault.text);
        opened_close(opened);
        return false;
    }
    if (!ms_layout_create(opened->plan, opened->checkpoint, &opened->layout, &fault)) {
        fprintf(stderr, "%s: %s\n", plan, fault.text);
        opened_close(opened);
        return false;
    }
    return true;
}

struct extremes {
    uint64_t least, most, sum, padding;
    uint32_t least_rank, most_rank;
};

static struct extremes extremes_of(const struct ms_census *census)
{
    struct extremes found = {.least = UINT64_MAX};
    for (uint32_t rank = 0; rank < census->world; rank++) {
        const uint64_t bytes = census->bytes[rank];
        if (bytes < found.least)
            found.least = bytes, found.least_rank = rank;
        if (bytes > found.most)
            found.most = bytes, found.most_rank = rank;
        found.sum += bytes;
        found.padding += census->padding[rank];
    }
    return found;
}

static size_t report_unplaced(const struct ms_layout *layout)
{
    size_t count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        if (ms_layout_at(layout, i).entry != SIZE_MAX)
            continue;
        if (count++ < 10) {
            fputs("not placed: ", stdout);
            put_escaped(stdout, ms_layout_at(layout, i).tensor.name, "\\");
            putchar('\n');
        }
    }
    return count;
}

static void report_census(const struct ms_layout *layout, const struct ms_census *census)
{
    const struct extremes found = extremes_of(census);
    const uint64_t whole = layout->bytes;
    const double mean = (double)found.sum / census->world;
    printf("tensors: %zu, %" PRIu64 " bytes\n", layout->count, whole);
    printf("ranks: %" PRIu32 "\n", census->world);
    printf("most: %" PRIu64 " bytes (rank %" PRIu32 ")\n", found.most, found.most_rank);
    printf("least: %" PRIu64 " bytes (rank %" PRIu32 ")\n", found.least, found.least_rank);
    printf("balance: %.4f (most over mean)\n", mean > 0 ? (double)found.most / mean : 1.0);
    printf("padding: %" PRIu64 " bytes in all ranks\n", found.padding);
    printf("saved: %.2f%% of the whole on the largest rank\n",
           whole > 0 ? 100.0 * (1.0 - (double)found.most / (double)whole) : 0.0);
}

static void report_in_place(const struct ms_layout *layout, const struct in_place_needs *in_place)
{
    printf("in place, enforced: %" PRIu64 " bytes, in granules of 2 MiB\n", in_place->bytes);
    printf("in place, advised: %" PRIu64 " bytes: a kernel gets whole tensors\n", layout->bytes);
    if (in_place->columns == 0)
        return;
    printf("whole in place: %zu (", in_place->columns);
    put_escaped(stdout, ms_layout_at(layout, in_place->a_column).tensor.name, "\\");
    puts(in_place->columns > 1 ? " and others): their parts lie in all granules; copy them out"
                               : "): its part lies in all granules; copy it out");
}

static size_t report_text(const struct ms_layout *layout, const struct ms_census *census,
                          const struct in_place_needs *in_place)
{
    report_census(layout, census);
    report_in_place(layout, in_place);
    const size_t unplaced = report_unplaced(layout);
    printf("%zu tensors are not placed\n", unplaced);
    return unplaced;
}

static void put_by_rank(struct writer *object, const char *key, const uint64_t *numbers,
                        uint32_t world)
{
    struct writer list = json_begin(object, key, '[', true);
    for (uint32_t rank = 0; rank < world; rank++)
        put_number(&list, NULL, numbers[rank]);
    json_end(&list, ']');
}

static void put_extreme(struct writer *object, const char *key, uint32_t rank, uint64_t bytes)
{
    struct writer extreme = json_begin(object, key, '{', true);
    put_number(&extreme, "rank", rank);
    put_number(&extreme, "bytes", bytes);
    json_end(&extreme, '}');
}

static size_t report_json(const struct ms_layout *layout, const struct ms_census *census,
                          const struct in_place_needs *in_place, bool has_ranks)
{
    const struct extremes found = extremes_of(census);
    size_t unplaced = 0;
    struct writer object = json_document(stdout);
    put_number(&object, "tensors", layout->count);
    put_number(&object, "bytes", layout->bytes);
    put_number(&object, "world_size", census->world);
    put_extreme(&object, "most", found.most_rank, found.most);
    put_extreme(&object, "least", found.least_rank, found.least);
    put_number(&object, "padding", found.padding);
    put_number(&object, "in_place", in_place->bytes);
    put_number(&object, "in_place_whole", in_place->columns);
    struct writer list = json_begin(&object, "not_placed", '[', true);
    for (size_t i = 0; i < layout->count; i++) {
        if (ms_layout_at(layout, i).entry != SIZE_MAX)
            continue;
        put_string(&list, NULL, ms_layout_at(layout, i).tensor.name);
        unplaced++;
    }
    json_end(&list, ']');
    if (has_ranks) {
        put_by_rank(&object, "bytes_by_rank", census->bytes, census->world);
        put_by_rank(&object, "padding_by_rank", census->padding, census->world);
    }
    json_document_end(&object);
    return unplaced;
}

int run_check(const struct options *options)
{
    struct opened opened;
    struct ms_census census;
    struct in_place_needs in_place;
    if (options->ranks != NULL && options->json == NULL) {
        fputs("--ranks: expected --json beside it\n", stderr);
        return USAGE;
    }
    if (!opened_open(&opened, options->words.files[0], options->words.files[1]))
        return BAD;
    int status = BAD;
    if (!ms_census_init(&census, opened.layout)) {
        fputs("metashard-plan: out of memory\n", stderr);
    } else if (!in_place_measure(opened.layout, extremes_of(&census).most_rank, &in_place)) {
        ms_census_cleanup(&census);
        fputs("metashard-plan: out of memory\n", stderr);
    } else {
        const size_t unplaced =
            options->json != NULL
                ? report_json(opened.layout, &census, &in_place, options->ranks != NULL)
                : report_text(opened.layout, &census, &in_place);
        ms_census_cleanup(&census);
        if (unplaced > 0 && options->quiet != NULL && options->json == NULL)
            fprintf(stderr, "%s: tensors that no entry matches: %zu\n", options->words.files[0],
                    unplaced);
        status = unplaced == 0 ? GOOD : BAD;
    }
    opened_close(&opened);
    return status;
}

static void print_shape(const struct ms_tensor *tensor)
{
    putchar('[');
    for (unsigned i = 0; i < tensor->dims; i++)
        printf("%s%" PRIu64, i > 0 ? ", " : "", tensor->shape[i]);
    putchar(']');
}

static void put_ranges(struct writer *object, const struct ms_placement *placement, size_t tensor)
{
    static struct ms_cursor cursor;
    struct ms_range range;
    struct writer list = json_begin(object, "ranges", '[', true);
    ms_placement_begin(&cursor, placement, tensor);
    while (ms_placement_next(&cursor, &range))
        put_value(&list, NULL, "[%" PRIu64 ", %" PRIu64 "]", range.begin, range.end);
    json_end(&list, ']');
}

static void print_json(const struct ms_layout *layout, const struct ms_placement *placement,
                       uint32_t rank)
{
    struct writer object = json_document(stdout);
    put_number(&object, "rank", rank);
    put_number(&object, "world_size", layout->plan->mesh.world);
    struct writer list = json_begin(&object, "tensors", '[', false);
    for (size_t i = 0; i < layout->count; i++) {
        const struct ms_tensor tensor = ms_layout_at(layout, i).tensor;
        struct writer row = json_begin(&list, NULL, '{', true);
        put_string(&row, "name", tensor.name);
        put_string(&row, "dtype", ms_dtype_names[tensor.dtype]);
        plan_writer_shape(&row, &tensor);
        put_number(&row, "in_place", in_place_bytes(placement, i, tensor.bytes));
        put_ranges(&row, placement, i);
        json_end(&row, '}');
    }
    json_end(&list, ']');
    json_document_end(&object);
}

static void print_text(const struct ms_layout *layout, const struct ms_placement *placement,
                       uint32_t rank)
{
    printf("rank %" PRIu32 " keeps %" PRIu64 " of %" PRIu64
           " bytes; in place counts granules of 2 MiB\n",
           rank, ms_placement_total(placement), layout->bytes);
    for (size_t i = 0; i < layout->count; i++) {
        const struct ms_tensor tensor = ms_layout_at(layout, i).tensor;
        printf("%12" PRIu64 " of %12" PRIu64 ", in place %12" PRIu64 "  ",
               ms_placement_bytes(placement, i), tensor.bytes,
               in_place_bytes(placement, i, tensor.bytes));
        put_escaped(stdout, tensor.name, "\\");
        printf(" %s ", ms_dtype_names[tensor.dtype]);
        print_shape(&tensor);
        putchar('\n');
    }
}

static int explain(const struct options *options, const struct ms_layout *layout)
{
    const struct ms_plan *plan = layout->plan;
    struct ms_fault fault;
    uint32_t rank;
    uint64_t number;
    bool is_given;
    if (options->rank != NULL) {
        if (!read_count(options->rank, plan->mesh.world - 1, &number)) {
            fprintf(stderr, "--rank: expected a rank below %" PRIu32 "\n", plan->mesh.world);
            return USAGE;
        }
        rank = (uint32_t)number;
    } else if (!ms_plan_find_rank(plan, &rank, &is_given, &fault)) {
        fprintf(stderr, "%s\n", fault.text);
        return BAD;
    }
    struct ms_placement *placement = ms_placement_create(layout, rank);
    if (placement == NULL) {
        fputs("metashard-plan: out of memory\n", stderr);
        return BAD;
    }
    (options->json != NULL ? print_json : print_text)(layout, placement, rank);
    ms_placement_destroy(placement);
    return GOOD;
}

int run_explain(const struct options *options)
{
    struct opened opened;
    if (!opened_open(&opened, options->words.files[0], options->words.files[1]))
        return BAD;
    const int status = explain(options, opened.layout);
    opened_close(&opened);
    return status;
}

/* A number alone may be meant as GiB. Reports what is wrong. */
static bool read_memory(const char *text, uint64_t *bytes_out)
{
    const char *end = text;
    const bool is_number = text != NULL && ms_config_read_bytes(&end, bytes_out) && *end == '\0';
    if (text == NULL)
        usage_fault("--memory: expected the memory of a device, as 80GiB, found none");
    else if (!is_number)
        usage_fault("--memory: expected a size, as 80GiB, found %s", text);
    else if (text[strspn(text, "0123456789")] == '\0')
        usage_fault("--memory: expected a unit, as %sGiB (or %sB for bytes)", text, text);
    else
        return true;
    return false;
}

/* Rank 0 always has the most, because chunks never get longer from rank to rank. */
static bool fits(const struct opened *opened, uint32_t size, uint64_t memory, uint64_t *most_out)
{
    struct ms_layout *layout;
    struct ms_fault fault;
    if (!ms_plan_resize(opened->plan, 0, size) ||
        !ms_layout_create(opened->plan, opened->checkpoint, &layout, &fault))
        return false;
    struct ms_placement *placement = ms_placement_create(layout, 0);
    *most_out = placement == NULL ? UINT64_MAX
                                  : ms_placement_total(placement) + ms_placement_padding(placement);
    ms_placement_destroy(placement);
    ms_layout_destroy(layout);
    return *most_out <= memory;
}

/* Measures rank 0, at the size that the plan has now. */
static bool measure_in_place(const struct opened *opened, struct in_place_needs *found_out)
{
    struct ms_layout *layout;
    struct ms_fault fault;
    if (!ms_layout_create(opened->plan, opened->checkpoint, &layout, &fault))
        return false;
    const bool is_measured = in_place_measure(layout, 0, found_out);
    ms_layout_destroy(layout);
    return is_measured;
}

static void put_fit(uint64_t memory, uint32_t world, uint64_t most,
                    const struct in_place_needs *in_place)
{
    struct writer document = json_document(stdout);
    put_value(&document, "fits", "%s", most <= memory ? "true" : "false");
    put_number(&document, "memory_bytes", memory);
    put_number(&document, "world_size", world);
    put_number(&document, "bytes", most);
    if (most <= memory)
        put_number(&document, "in_place_bytes", in_place->bytes);
    json_document_end(&document);
}

static void print_fit(uint64_t memory, uint32_t world, uint64_t most,
                      const struct in_place_needs *in_place)
{
    if (most > memory) {
        printf("does not fit: %" PRIu64 " bytes on rank 0 of %" PRIu32 " ranks\n", most, world);
        return;
    }
    printf("world: %" PRIu32 "\nmost: %" PRIu64 " bytes, for a program that copies its part out\n",
           world, most);
    printf("in place, enforced: %" PRIu64 " bytes, in granules of 2 MiB%s\n", in_place->bytes,
           in_place->bytes > memory ? ": that does not fit" : "");
}

/* `file` is the plan, for faults. */
static int fit(const struct options *options, const struct opened *opened, uint64_t memory,
               const char *file)
{
    const struct ms_mesh *mesh = &opened->plan->mesh;
    uint32_t low = 0, high = 1;
    uint64_t most = UINT64_MAX;
    struct in_place_needs in_place = {0};
    const uint32_t limit = MS_WORLD_MAX / mesh->stride[0];
    if (!ms_plan_resize(opened->plan, 0, 1)) {
        fprintf(stderr, "%s: tensors: expected no ranges, which are for one world only\n", file);
        return BAD;
    }
    while (high < limit && !fits(opened, high, memory, &most)) {
        low = high;
        high = high <= limit / 2 ? high * 2 : limit;
    }
    while (low + 1 < high) {
        const uint32_t middle = low + (high - low) / 2;
        *(fits(opened, middle, memory, &most) ? &high : &low) = middle;
    }
    const bool is_found = fits(opened, high, memory, &most);
    if (is_found && !measure_in_place(opened, &in_place)) {
        fputs("metashard-plan: out of memory\n", stderr);
        return BAD;
    }
    (options->json != NULL ? put_fit : print_fit)(memory, opened->plan->mesh.world, most,
                                                  &in_place);
    return is_found ? GOOD : BAD;
}

/* Fits the plan over the tensors that it declares, or over a checkpoint. */
static int fit_plan(const struct options *options, uint64_t memory)
{
    struct opened opened;
    int status = BAD;
    if (options->strategy != NULL) {
        fputs("--strategy: expected a checkpoint alone, found a plan\n", stderr);
        return USAGE;
    }
    if (!opened_open(&opened, options->words.files[0], options->words.files[1]))
        return BAD;
    if (opened.checkpoint == NULL && opened.layout->count == 0)
        fprintf(stderr,
                "%s: tensors: no entry declares a tensor; expected a checkpoint beside it\n",
                options->words.files[0]);
    else
        status = fit(options, &opened, memory, options->words.files[0]);
    opened_close(&opened);
    return status;
}

static int fit_checkpoint(const struct options *options, uint64_t memory)
{
    struct opened opened = {0};
    struct ms_fault fault;
    int status;
    char *text = plan_text(options, options->words.files[0], &opened.checkpoint, &status);
    if (text == NULL)
        return status;
    status = BAD;
    if (ms_plan_parse(text, strlen(text), "plan", &opened.plan, &fault))
        status = fit(options, &opened, memory, options->words.files[0]);
    else
        fprintf(stderr, "%s\n", fault.text);
    free(text);
    opened_close(&opened);
    return status;
}

int run_fit(const struct options *options)
{
    uint64_t memory;
    if (!read_memory(options->memory, &memory))
        return USAGE;
    return options->words.file_count == 2 || is_plan(options->words.files[0])
               ? fit_plan(options, memory)
               : fit_checkpoint(options, memory);
}
