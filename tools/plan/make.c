/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan make: an entry for each tensor of a checkpoint. */
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/nearest.h"
#include "tools/plan/commands.h"
#include "tools/plan/make_rules.h"

static const char *const strategies[] = {"fsdp2", "tp", "fsdp1", "zero3", "replicate", NULL};
#define STRATEGIES "fsdp2, tp, fsdp1, zero3 or replicate"

struct maker {
    const char *strategy;
    json_t *mesh;
    const char *data_dim; /* the strategy's own mesh dimension, or NULL */
    bool has_tp;
    json_t *units; /* of fsdp1: the dtype of each */
};

/* The part of a name that identifies the tensor, and the dimension that tensor parallelism cuts. */
static const struct {
    const char *pattern;
    int dim;
} tp_rules[] = {
    {"*.[qkv]_proj.weight", 0},
    {"*.[qkv]_proj.bias", 0},
    {"*.gate_proj.weight", 0},
    {"*.up_proj.weight", 0},
    {"*.gate_proj.bias", 0},
    {"*.up_proj.bias", 0},
    {"*.o_proj.weight", 1},
    {"*.down_proj.weight", 1},
    {"*.w[13].weight", 0},
    {"*.w2.weight", 1},
    {"*.w[qkv].weight", 0},
    {"*.wo.weight", 1},
    {"*embed_tokens.weight", 0},
    {"*tok_embeddings.weight", 0},
    {"*wte.weight", 0},
    {"*lm_head.weight", 0},
    {"output.weight", 0},
    {"*.fc1.weight", 0},
    {"*.fc1.bias", 0},
    {"*.fc2.weight", 1},
    {"*.out_proj.weight", 1},
    {"*.dense_h_to_4h.weight", 0},
    {"*.dense_4h_to_h.weight", 1},
    {"*.dense_h_to_4h.bias", 0},
};

static int tp_dim(const struct ms_tensor *tensor)
{
    for (size_t i = 0; i < sizeof(tp_rules) / sizeof(tp_rules[0]); i++) {
        if (fnmatch(tp_rules[i].pattern, tensor->name, 0) == 0 &&
            (unsigned)tp_rules[i].dim < tensor->dims)
            return tp_rules[i].dim;
    }
    return -1;
}

/* The name up to its first numeric part, as "model.layers.0"; otherwise "root". free(). */
static char *unit_name(const char *name)
{
    for (const char *part = name; part != NULL; part = strchr(part, '.')) {
        part += *part == '.';
        const size_t digits = strspn(part, "0123456789");
        if (digits > 0 && part[digits] == '.')
            return strndup(name, (size_t)(part + digits - name));
    }
    return strdup("root");
}

static json_t *unit_of(const struct maker *maker, const struct ms_tensor *tensor)
{
    const char *dtype = ms_dtype_names[tensor->dtype];
    char *name = unit_name(tensor->name);
    json_t *first = name != NULL ? json_object_get(maker->units, name) : NULL, *unit = NULL;
    if (name != NULL && first == NULL)
        json_object_set_new(maker->units, name, json_string(dtype));
    if (first != NULL && strcmp(json_string_value(first), dtype) != 0) /* a unit has one dtype */
        unit = json_sprintf("%s/%s", name, dtype);
    else if (name != NULL)
        unit = json_string(name);
    free(name);
    return unit;
}

static json_t *data_placement(const struct maker *maker, const struct ms_tensor *tensor)
{
    if (ms_dtype_bits[tensor->dtype] < 8)
        return NULL;
    if (strcmp(maker->strategy, "fsdp2") == 0)
        return tensor->dims > 0 ? json_pack("{s:i}", "shard", 0) : NULL;
    if (strcmp(maker->strategy, "zero3") == 0)
        return json_pack("{s:s}", "flat", "zero3");
    if (strcmp(maker->strategy, "fsdp1") == 0)
        return json_pack("{s:s,s:o}", "flat", "fsdp1", "unit", unit_of(maker, tensor));
    return NULL;
}

/* Tensor parallelism first: the data dimension cuts what it leaves. */
static json_t *placements(const struct maker *maker, const struct ms_tensor *tensor)
{
    json_t *made = json_object();
    const bool is_cut = maker->has_tp && ms_dtype_bits[tensor->dtype] >= 8;
    if (is_cut && tp_dim(tensor) >= 0)
        json_object_set_new(made, "tp", json_pack("{s:i}", "shard", tp_dim(tensor)));
    json_t *data = maker->data_dim != NULL ? data_placement(maker, tensor) : NULL;
    if (data != NULL)
        json_object_set_new(made, maker->data_dim, data);
    return made;
}

static json_t *escaped(const char *name)
{
    char *text = malloc(2 * strlen(name) + 1), *to = text;
    if (text == NULL)
        return NULL;
    for (; *name != '\0'; *to++ = *name++) {
        if (strchr("*?[\\", *name) != NULL)
            *to++ = '\\';
    }
    *to = '\0';
    json_t *string = json_string(text);
    free(text);
    return string;
}

static json_t *declared(const struct ms_tensor *tensor)
{
    json_t *shape = json_array();
    for (unsigned i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    return json_pack("{s:o,s:s,s:o}", "name", escaped(tensor->name), "dtype",
                     ms_dtype_names[tensor->dtype], "shape", shape);
}

bool read_count(const char *text, uint64_t most, uint64_t *count_out)
{
    char *end;
    const unsigned long long count = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || count > most)
        return false;
    *count_out = count;
    return true;
}

/* Parses sizes by name, separated by commas. Returns NULL if the text is something else. */
static json_t *parse_mesh(const char *text)
{
    json_t *mesh = json_object();
    for (;;) {
        char name[64], size[16];
        int used = 0;
        uint64_t ranks;
        if (sscanf(text, "%63[^=,]=%15[0-9]%n", name, size, &used) != 2 ||
            !read_count(size, MS_WORLD_MAX, &ranks) || ranks == 0 ||
            (text[used] != '\0' && text[used] != ',') || json_object_get(mesh, name) != NULL ||
            json_object_size(mesh) == MS_MESH_DIMS_MAX ||
            json_object_set_new(mesh, name, json_integer((json_int_t)ranks)) != 0) {
            json_decref(mesh);
            return NULL;
        }
        if (text[used] == '\0')
            return mesh;
        text += used + 1;
    }
}

/* Reports one that is not known. */
static bool is_known(const char *strategy)
{
    struct ms_nearest nearest = {.text = strategy};
    const char *const *known = strategies;
    for (; *known != NULL && strcmp(*known, strategy) != 0; known++)
        ms_nearest_try(&nearest, *known);
    if (*known != NULL)
        return true;
    usage_fault("--strategy: expected " STRATEGIES ", found %s%s%s%s", strategy,
                nearest.word != NULL ? "; did you mean " : "",
                nearest.word != NULL ? nearest.word : "", nearest.word != NULL ? "?" : "");
    return false;
}

/* Reports what is wrong with the options. Call maker_cleanup() in any case. */
static bool maker_init(struct maker *maker, const struct options *options)
{
    uint64_t world = 1, product = 1;
    *maker = (struct maker){.strategy = options->strategy != NULL ? options->strategy : "fsdp2",
                            .units = json_object()};
    const bool is_tp = strcmp(maker->strategy, "tp") == 0;
    if (!is_known(maker->strategy))
        return false;
    if (options->world != NULL &&
        (!read_count(options->world, MS_WORLD_MAX, &world) || world == 0)) {
        fprintf(stderr, "--world: expected a number from 1 to %d\n", MS_WORLD_MAX);
        return false;
    }
    maker->mesh = options->mesh != NULL
                      ? parse_mesh(options->mesh)
                      : json_pack("{s:I}", is_tp ? "tp" : "dp", (json_int_t)world);
    const char *name;
    json_t *size;
    json_object_foreach(maker->mesh, name, size)
    {
        if (product <= MS_WORLD_MAX)
            product *= (uint64_t)json_integer_value(size);
        if (strcmp(name, "tp") == 0)
            maker->has_tp = strcmp(maker->strategy, "replicate") != 0;
        else if (!is_tp)
            maker->data_dim = name;
    }
    if (maker->mesh == NULL || product > MS_WORLD_MAX) {
        usage_fault("--mesh: expected a size for each dimension, as dp=4,tp=2 (at most %d, and "
                    "%d ranks), found %s",
                    MS_MESH_DIMS_MAX, MS_WORLD_MAX, options->mesh != NULL ? options->mesh : "none");
        return false;
    }
    if (is_tp && !maker->has_tp) {
        fprintf(stderr, "--strategy: tp needs a mesh dimension tp\n");
        return false;
    }
    if (options->world != NULL && product != world)
        fprintf(stderr, "--world: expected the product of the mesh, %" PRIu64 "\n", product);
    return options->world == NULL || product == world;
}

static void maker_cleanup(struct maker *maker)
{
    json_decref(maker->mesh);
    json_decref(maker->units);
}

/* Returns NULL if out of memory. */
static json_t *add_placement(const struct maker *maker, const struct rules *rules,
                             const struct ms_tensor *tensor, size_t order, json_t *entry)
{
    json_t *rule = rules_find(rules, order);
    json_t *ranges = json_object_get(rule, "ranges"), *ruled = json_object_get(rule, "placements");
    const int error = ranges != NULL  ? json_object_set(entry, "ranges", ranges)
                      : ruled != NULL ? json_object_set(entry, "placements", ruled)
                      : rule != NULL
                          ? json_object_set_new(entry, "placements", json_object())
                          : json_object_set_new(entry, "placements", placements(maker, tensor));
    return error == 0 ? entry : NULL;
}

/* Writes what the rules decide into the declarations. These are in the order of the checkpoint, so
 * that order and units are the same with and without a rule for a name. Returns NULL if out of
 * memory, which was said. */
static json_t *make_entries(const struct maker *maker, const struct rules *rules,
                            const struct ms_checkpoint *checkpoint)
{
    json_t *entries = json_array();
    bool good = entries != NULL;
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint) && good; i++) {
        const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, i);
        json_t *entry = declared(&tensor);
        good = entry != NULL && json_array_append_new(entries, entry) == 0 &&
               add_placement(maker, rules, &tensor, i, entry) != NULL;
    }
    if (good)
        return entries;
    fputs("metashard-plan: out of memory\n", stderr);
    json_decref(entries);
    return NULL;
}

/* Checks the plan against the checkpoint. Reports a failure and returns NULL. */
static char *make_text(const struct maker *maker, const struct rules *rules,
                       const struct ms_checkpoint *checkpoint)
{
    json_t *entries = make_entries(maker, rules, checkpoint);
    if (entries == NULL)
        return NULL;
    json_t *plan = plan_document(maker->mesh, entries);
    char *text = plan != NULL ? json_dumps(plan, JSON_INDENT(1)) : NULL;
    json_decref(plan);
    json_decref(entries);
    if (!plan_is_good(text, "metashard-plan: the plan that was made", checkpoint)) {
        free(text);
        return NULL;
    }
    return text;
}

char *plan_text(const struct options *options, const char *path,
                struct ms_checkpoint **checkpoint_out, int *status_out)
{
    struct maker maker;
    struct rules rules = {0};
    struct ms_checkpoint *checkpoint = NULL;
    struct ms_fault fault;
    char *text = NULL;
    *status_out = USAGE;
    if (maker_init(&maker, options)) {
        *status_out = BAD;
        if (!ms_checkpoint_open(path, &checkpoint, &fault))
            fprintf(stderr, "%s\n", fault.text);
        else if (rules_init(&rules, options->rules, maker.mesh, checkpoint))
            text = make_text(&maker, &rules, checkpoint);
    }
    rules_cleanup(&rules);
    maker_cleanup(&maker);
    if (text == NULL)
        ms_checkpoint_close(checkpoint);
    else
        *checkpoint_out = checkpoint;
    return text;
}

static int write_text(const char *text, const char *path)
{
    FILE *file = path != NULL ? fopen(path, "we") : stdout;
    bool is_good = file != NULL && fputs(text, file) >= 0 && fputc('\n', file) >= 0;
    if (file != NULL && path != NULL)
        is_good = fclose(file) == 0 && is_good;
    if (!is_good) {
        fprintf(stderr, "%s: cannot be written\n", path != NULL ? path : "stdout");
        return BAD;
    }
    return GOOD;
}

int run_make(const struct options *options)
{
    struct ms_checkpoint *checkpoint;
    int status;
    if (options->strategy == NULL)
        return usage_fault("--strategy: expected " STRATEGIES ", found none");
    if (!is_known(options->strategy))
        return USAGE;
    if (options->mesh == NULL && options->world == NULL)
        return usage_fault("--world: expected the number of ranks, as 8, or --mesh dp=4,tp=2");
    char *text = plan_text(options, options->words.files[0], &checkpoint, &status);
    if (text == NULL)
        return status;
    status = write_text(text, options->output);
    free(text);
    ms_checkpoint_close(checkpoint);
    return status;
}
