/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan make: an entry for each tensor of a checkpoint. */
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/metashard-plan.h"

static const char *const strategies[] = {"fsdp2", "tp", "fsdp1", "zero3", "replicate", NULL};

struct maker {
    const char *strategy;
    json_t *mesh;
    const char *data_dim; /* the strategy's own mesh dimension; NULL: none */
    bool has_tp;
    json_t *units; /* of fsdp1: dtype of each */
};

/* The part of a name that says what the tensor is, and the dimension that tensor parallelism cuts. */
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

/* Up to the first number among the name's parts: "model.layers.0"; else "root". */
static json_t *unit_of(const struct maker *maker, const struct ms_tensor *tensor)
{
    const char *name = tensor->name, *dtype = ms_dtype_names[tensor->dtype];
    char unit[512] = "root";
    for (const char *part = name; part != NULL; part = strchr(part, '.')) {
        part += *part == '.';
        const size_t digits = strspn(part, "0123456789");
        if (digits > 0 && part[digits] == '.') {
            snprintf(unit, sizeof(unit), "%.*s", (int)(part + digits - name), name);
            break;
        }
    }
    json_t *first = json_object_get(maker->units, unit);
    if (first == NULL)
        json_object_set_new(maker->units, unit, json_string(dtype));
    else if (strcmp(json_string_value(first), dtype) != 0) /* a unit has one dtype */
        return json_sprintf("%s/%s", unit, dtype);
    return json_string(unit);
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

static json_t *declared(const struct maker *maker, const struct ms_tensor *tensor)
{
    json_t *shape = json_array();
    for (unsigned i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    return json_pack("{s:o,s:s,s:o,s:o}", "name", escaped(tensor->name), "dtype",
                     ms_dtype_names[tensor->dtype], "shape", shape, "placements",
                     placements(maker, tensor));
}

/* A rule for this very name becomes its declaration: a name has one entry. */
static void add_entry(json_t *entries, size_t rules, json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    for (size_t i = 0; i < rules && name != NULL; i++) {
        json_t *rule = json_array_get(entries, i);
        const char *other = json_string_value(json_object_get(rule, "name"));
        if (other != NULL && strcmp(other, name) == 0) {
            json_object_del(entry, "placements");
            json_object_update(rule, entry);
            json_decref(entry);
            return;
        }
    }
    json_array_append_new(entries, entry);
}

static json_t *parse_mesh(const char *text)
{
    json_t *mesh = json_object();
    while (*text != '\0') {
        char name[64], size[16];
        int used = 0;
        uint64_t ranks;
        if (sscanf(text, "%63[^=,]=%15[0-9]%n", name, size, &used) != 2 ||
            !read_count(size, MS_WORLD_MAX, &ranks) || ranks == 0 ||
            (text[used] != '\0' && text[used] != ',') || json_object_get(mesh, name) != NULL) {
            json_decref(mesh);
            return NULL;
        }
        json_object_set_new(mesh, name, json_integer((json_int_t)ranks));
        text += used + (text[used] == ',');
    }
    return mesh;
}

static bool set_mesh(struct maker *maker, const struct options *options)
{
    uint64_t world = 1, product = 1;
    const bool is_tp = strcmp(maker->strategy, "tp") == 0;
    if (options->world != NULL && (!read_count(options->world, MS_WORLD_MAX, &world) || world == 0))
        return false;
    maker->mesh = options->mesh != NULL
                      ? parse_mesh(options->mesh)
                      : json_pack("{s:I}", is_tp ? "tp" : "dp", (json_int_t)world);
    const char *name;
    json_t *size;
    json_object_foreach(maker->mesh, name, size)
    {
        product *= (uint64_t)json_integer_value(size);
        if (product > MS_WORLD_MAX)
            return false;
        if (strcmp(name, "tp") == 0)
            maker->has_tp = strcmp(maker->strategy, "replicate") != 0;
        else if (!is_tp)
            maker->data_dim = name;
    }
    return maker->mesh != NULL && (options->world == NULL || product == world);
}

/* The rules go before the strategy's entries, so they decide. NULL: it was said why. */
static json_t *read_rules(const char *path)
{
    json_error_t error;
    if (path == NULL)
        return json_array();
    json_t *rules = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (rules == NULL)
        fprintf(stderr, "%s:%d:%d: %s\n", path, error.line, error.column, error.text);
    else if (!json_is_array(rules))
        fprintf(stderr, "%s: expected a list of entries\n", path);
    if (rules != NULL && !json_is_array(rules)) {
        json_decref(rules);
        return NULL;
    }
    return rules;
}

char *plan_text(const struct options *options, const struct ms_checkpoint *checkpoint,
                int *status_out)
{
    struct maker maker = {.strategy = options->strategy != NULL ? options->strategy : "fsdp2"};
    const char *const *known = strategies;
    while (*known != NULL && strcmp(*known, maker.strategy) != 0)
        known++;
    *status_out = USAGE;
    if (*known == NULL || !set_mesh(&maker, options)) {
        fputs("metashard-plan: expected a known strategy, and a mesh whose product is the world\n",
              stderr);
        json_decref(maker.mesh);
        return NULL;
    }
    *status_out = NOT_VALID;
    json_t *entries = read_rules(options->rules);
    char *text = NULL;
    if (entries != NULL) {
        const struct ms_tensor *tensors = ms_checkpoint_tensors(checkpoint);
        const size_t rules = json_array_size(entries);
        maker.units = json_object();
        for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++)
            add_entry(entries, rules, declared(&maker, &tensors[i]));
        json_t *plan = json_pack("{s:s,s:O,s:o}", "format", "metashard-plan/1", "mesh", maker.mesh,
                                 "tensors", entries);
        text = json_dumps(plan, JSON_INDENT(1));
        json_decref(plan);
        json_decref(maker.units);
    }
    json_decref(maker.mesh);
    return text;
}

/* A plan that does not hold for this checkpoint is not written. */
static bool is_good(const char *text, const char *file, const struct ms_checkpoint *checkpoint)
{
    struct ms_plan *plan = NULL;
    struct ms_layout *layout = NULL;
    struct ms_fault fault;
    const bool good = ms_plan_parse(text, strlen(text), file, &plan, &fault) &&
                      ms_layout_create(plan, checkpoint, &layout, &fault);
    if (!good)
        fprintf(stderr, "%s\n", fault.text);
    ms_layout_destroy(layout);
    ms_plan_destroy(plan);
    return good;
}

static int write_text(const char *text, const char *path)
{
    FILE *file = path != NULL ? fopen(path, "we") : stdout;
    if (file == NULL || fputs(text, file) < 0 || fputc('\n', file) < 0 ||
        (path != NULL && fclose(file) != 0)) {
        fprintf(stderr, "%s: cannot be written\n", path != NULL ? path : "stdout");
        return NOT_VALID;
    }
    return GOOD;
}

int run_make(const struct options *options)
{
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    if (options->strategy == NULL || (options->mesh == NULL && options->world == NULL))
        return USAGE;
    if (!ms_checkpoint_open(options->files[0], &checkpoint, &fault)) {
        fprintf(stderr, "%s\n", fault.text);
        return NOT_VALID;
    }
    int status = NOT_VALID;
    char *text = plan_text(options, checkpoint, &status);
    if (text != NULL &&
        is_good(text, options->rules != NULL ? options->rules : options->files[0], checkpoint))
        status = write_text(text, options->out);
    free(text);
    ms_checkpoint_close(checkpoint);
    return status;
}
