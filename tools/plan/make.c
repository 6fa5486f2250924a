/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-plan make: an entry for each tensor of a checkpoint. */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/nearest.h"
#include "runtime/base/utf8.h"
#include "runtime/document/json.h"
#include "tools/plan/commands.h"
#include "tools/plan/make_rules.h"

static const char *const strategies[] = {"fsdp2", "tp", "fsdp1", "zero3", "replicate", NULL};
#define STRATEGIES "fsdp2, tp, fsdp1, zero3 or replicate"

/* Tensors that fsdp1 cuts as one. */
struct unit {
    const char *name; /* of a tensor that it begins with, or "root" */
    size_t length;
    enum ms_dtype dtype; /* of the first tensor */
};

struct maker {
    const char *strategy;
    char *mesh_text;
    struct ms_mesh mesh;
    const char *data_dim; /* the strategy's own mesh dimension, or NULL */
    bool has_tp;
    struct ms_hash_set set; /* of the units, by name */
    struct ms_pages units;
    struct plan_writer writer;
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

/* The name up to its first numeric part, as "model.layers.0"; otherwise "root". */
static struct unit unit_of(const struct ms_tensor *tensor)
{
    for (const char *part = tensor->name; part != NULL; part = strchr(part, '.')) {
        part += *part == '.';
        const size_t digits = strspn(part, "0123456789");
        if (digits > 0 && part[digits] == '.')
            return (struct unit){tensor->name, (size_t)(part + digits - tensor->name),
                                 tensor->dtype};
    }
    return (struct unit){"root", strlen("root"), tensor->dtype};
}

struct wanted_unit {
    const struct unit *units;
    struct unit one;
};

static bool is_unit(const void *context, uint32_t number)
{
    const struct wanted_unit *wanted = context;
    const struct unit *unit = &wanted->units[number];
    return unit->length == wanted->one.length &&
           memcmp(unit->name, wanted->one.name, unit->length) == 0;
}

/* The dtype of the unit's first tensor. */
static enum ms_dtype unit_dtype(struct maker *maker, struct unit unit)
{
    const uint64_t hash = ms_hash_set_bytes(unit.name, unit.length);
    const struct wanted_unit wanted = {maker->units.memory, unit};
    const uint32_t found = ms_hash_set_find(&maker->set, hash, is_unit, &wanted);
    if (found != MS_NO_NUMBER)
        return wanted.units[found].dtype;
    const size_t count = maker->set.count;
    if (ms_pages_grow(&maker->units, (count + 1) * sizeof(unit)) &&
        ms_hash_set_add(&maker->set, hash, (uint32_t)count))
        ((struct unit *)maker->units.memory)[count] = unit;
    else
        maker->writer.is_short = true;
    return unit.dtype;
}

static void put_unit(struct maker *maker, struct writer *placement, const struct ms_tensor *tensor)
{
    const struct unit unit = unit_of(tensor);
    const bool is_first = unit_dtype(maker, unit) == tensor->dtype; /* a unit has one dtype */
    char *name;
    if (asprintf(&name, "%.*s%s%s", (int)unit.length, unit.name, is_first ? "" : "/",
                 is_first ? "" : ms_dtype_names[tensor->dtype]) < 0)
        name = NULL;
    plan_writer_text(&maker->writer, placement, "unit", name);
}

static void put_shard(struct writer *placements, const char *mesh_dim, int dim)
{
    struct writer placement = json_begin(placements, mesh_dim, '{', true);
    put_number(&placement, "shard", (uint64_t)dim);
    json_end(&placement, '}');
}

static void put_data_placement(struct maker *maker, struct writer *placements,
                               const struct ms_tensor *tensor)
{
    const bool is_fsdp1 = strcmp(maker->strategy, "fsdp1") == 0;
    if (strcmp(maker->strategy, "fsdp2") == 0 && tensor->dims > 0)
        put_shard(placements, maker->data_dim, 0);
    if (!is_fsdp1 && strcmp(maker->strategy, "zero3") != 0)
        return;
    struct writer placement = json_begin(placements, maker->data_dim, '{', true);
    put_string(&placement, "flat", maker->strategy);
    if (is_fsdp1)
        put_unit(maker, &placement, tensor);
    json_end(&placement, '}');
}

/* Tensor parallelism first: the data dimension cuts what it leaves. */
static void put_placements(struct maker *maker, struct writer *entry,
                           const struct ms_tensor *tensor)
{
    const bool is_cut = ms_dtype_bits[tensor->dtype] >= 8;
    struct writer placements = json_begin(entry, "placements", '{', true);
    if (is_cut && maker->has_tp && tp_dim(tensor) >= 0)
        put_shard(&placements, "tp", tp_dim(tensor));
    if (is_cut && maker->data_dim != NULL)
        put_data_placement(maker, &placements, tensor);
    json_end(&placements, '}');
}

/* As a pattern that only the name matches; free(). NULL: out of memory. */
static char *escaped(const char *name)
{
    char *text = malloc(2 * strlen(name) + 1), *to = text;
    if (text == NULL)
        return NULL;
    for (; *name != '\0'; *to++ = *name++) {
        if (strchr("*?[\\", *name) != NULL)
            *to++ = '\\';
    }
    *to = '\0';
    return text;
}

static void put_declaration(struct maker *maker, struct writer *entry,
                            const struct ms_tensor *tensor)
{
    plan_writer_text(&maker->writer, entry, "name", escaped(tensor->name));
    put_string(entry, "dtype", ms_dtype_names[tensor->dtype]);
    plan_writer_shape(entry, tensor);
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

static bool has_dim(const struct ms_mesh *mesh, const char *name)
{
    unsigned i = 0;
    while (i < mesh->dims && strcmp(mesh->name[i], name) != 0)
        i++;
    return i < mesh->dims;
}

/* Parses sizes by name, separated by commas. The mesh points to the names in the text. */
static bool parse_mesh(char *text, struct ms_mesh *mesh)
{
    for (char *one; (one = strsep(&text, ",")) != NULL; mesh->dims++) {
        const char *name = strsep(&one, "=");
        uint64_t ranks;
        if (*name == '\0' || !ms_utf8_is_valid(name, strlen(name)) || one == NULL ||
            !read_count(one, MS_WORLD_MAX, &ranks) || ranks == 0 ||
            mesh->dims == MS_MESH_DIMS_MAX || has_dim(mesh, name))
            return false;
        mesh->name[mesh->dims] = name;
        mesh->size[mesh->dims] = (uint32_t)ranks;
    }
    return true;
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

/* The mesh of the options, or a single dimension. Sets what the strategy does with it. False: the
 * sizes are no sizes, or too many ranks together. */
static bool set_mesh(struct maker *maker, const struct options *options, uint32_t world)
{
    struct ms_mesh *mesh = &maker->mesh;
    const bool is_tp = strcmp(maker->strategy, "tp") == 0;
    if (options->mesh == NULL)
        *mesh = (struct ms_mesh){.dims = 1, .name = {is_tp ? "tp" : "dp"}, .size = {world}};
    else if ((maker->mesh_text = strdup(options->mesh)) == NULL ||
             !parse_mesh(maker->mesh_text, mesh))
        return false;
    uint64_t product = 1;
    for (unsigned i = 0; i < mesh->dims && product <= MS_WORLD_MAX; i++) {
        product *= mesh->size[i];
        if (strcmp(mesh->name[i], "tp") == 0)
            maker->has_tp = strcmp(maker->strategy, "replicate") != 0;
        else if (!is_tp)
            maker->data_dim = mesh->name[i];
    }
    mesh->world = (uint32_t)product;
    return product <= MS_WORLD_MAX;
}

/* Reports what is wrong with the options. Call maker_cleanup() in any case. */
static bool maker_init(struct maker *maker, const struct options *options)
{
    uint64_t world = 1;
    *maker = (struct maker){.strategy = options->strategy != NULL ? options->strategy : "fsdp2"};
    if (!is_known(maker->strategy))
        return false;
    if (options->world != NULL &&
        (!read_count(options->world, MS_WORLD_MAX, &world) || world == 0)) {
        fprintf(stderr, "--world: expected a number from 1 to %d\n", MS_WORLD_MAX);
        return false;
    }
    if (!set_mesh(maker, options, (uint32_t)world)) {
        usage_fault("--mesh: expected a size for each dimension, as dp=4,tp=2 (at most %d, and "
                    "%d ranks), found %s",
                    MS_MESH_DIMS_MAX, MS_WORLD_MAX, options->mesh);
        return false;
    }
    if (strcmp(maker->strategy, "tp") == 0 && !maker->has_tp) {
        fprintf(stderr, "--strategy: tp needs a mesh dimension tp\n");
        return false;
    }
    if (options->world != NULL && maker->mesh.world != world)
        fprintf(stderr, "--world: expected the product of the mesh, %" PRIu32 "\n",
                maker->mesh.world);
    return options->world == NULL || maker->mesh.world == world;
}

static void maker_cleanup(struct maker *maker)
{
    free(maker->mesh_text);
    ms_hash_set_cleanup(&maker->set);
    ms_pages_cleanup(&maker->units);
}

/* Puts what the rules decide into the declaration of the `order`-th tensor. */
static void put_entry(struct maker *maker, const struct rules *rules,
                      const struct ms_tensor *tensor, size_t order)
{
    static const char *const keys[] = {"ranges", "placements", NULL};
    struct ms_fault fault;
    const struct ms_fault_context reading = {"", &fault};
    const char *rule = rules_find(rules, order), *values[2] = {NULL};
    struct writer entry = json_begin(&maker->writer.entries, NULL, '{', true);
    put_declaration(maker, &entry, tensor);
    if (rule == NULL)
        put_placements(maker, &entry, tensor);
    else if (ms_json_members(&reading, NULL, rule, keys, values, NULL) && values[0] != NULL)
        put_json(&entry, "ranges", values[0]);
    else
        put_json(&entry, "placements", values[1] != NULL ? values[1] : "{}");
    json_end(&entry, '}');
}

/* Checks the plan against the checkpoint. Reports a failure and returns NULL. Entries are in the
 * order of the checkpoint, so that order and units are the same with and without a rule for a name.
 */
static char *make_text(struct maker *maker, const struct rules *rules,
                       const struct ms_checkpoint *checkpoint)
{
    char *text = NULL;
    if (plan_writer_begin(&maker->writer, &maker->mesh)) {
        for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++) {
            const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, i);
            put_entry(maker, rules, &tensor, i);
        }
        text = plan_writer_end(&maker->writer);
    }
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
        else if (rules_init(&rules, options->rules, &maker.mesh, checkpoint))
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
    bool is_good = file != NULL && fputs(text, file) >= 0;
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
