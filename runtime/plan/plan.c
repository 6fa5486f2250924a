/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/launcher.h"
#include "runtime/plan/plan_internal.h"

/* --- the mesh */

/* Sets world and strides from the sizes. False: the world is too large. */
static bool number_ranks(struct ms_mesh *mesh)
{
    uint64_t world = 1;
    for (unsigned i = mesh->dims; i-- > 0;) {
        mesh->stride[i] = (uint32_t)world;
        world *= mesh->size[i];
        if (world > MS_WORLD_MAX)
            return false;
    }
    mesh->world = (uint32_t)world;
    return true;
}

static bool parse_sizes(const struct ms_fault_context *reading, const struct ms_place *place,
                        const char *object, struct ms_plan *plan)
{
    const size_t count = ms_json_size(object);
    if (!ms_json_is_object(object) || count < 1 || count > MS_MESH_DIMS_MAX)
        return ms_fault_at(reading, place, "expected an object of 1 to 8 named sizes");
    struct ms_mesh *mesh = &plan->mesh;
    struct ms_json_walk walk = {.in = object};
    while (ms_json_next(&walk)) {
        const char *name = ms_json_text(walk.key, &plan->arena);
        uint64_t size;
        if (name == NULL)
            return ms_fault_at(reading, place, "out of memory");
        const struct ms_place at = {place, name, 0};
        if (name[0] == '\0')
            return ms_fault_at(reading, &at, "expected a name for the dimension");
        if (!ms_json_count(reading, &at, walk.value, 1, MS_WORLD_MAX, &size))
            return false;
        mesh->name[mesh->dims] = name;
        mesh->size[mesh->dims++] = (uint32_t)size;
    }
    return number_ranks(mesh) ||
           ms_fault_at(reading, place, "expected a world of at most %d ranks", MS_WORLD_MAX);
}

static bool parse_world(const struct ms_fault_context *reading, const char *value,
                        struct ms_mesh *mesh)
{
    const struct ms_place at = {NULL, "world_size", 0};
    uint64_t world;
    if (value == NULL && mesh->dims == 0)
        return ms_fault_at(reading, NULL, "expected mesh or world_size");
    if (value == NULL)
        return true;
    if (!ms_json_count(reading, &at, value, 1, MS_WORLD_MAX, &world))
        return false;
    if (mesh->dims > 0)
        return world == mesh->world ||
               ms_fault_at(reading, &at, "expected the product of the mesh, %u", mesh->world);
    *mesh = (struct ms_mesh){.dims = 1, .name = {"world"}, .size = {(uint32_t)world}};
    return number_ranks(mesh);
}

/* Finds the index along a dimension, in a list by place, in an object by name; NULL: missing. */
static const char *find_coordinate(const char *value, const struct ms_mesh *mesh, unsigned dim)
{
    struct ms_json_walk walk = {.in = value};
    for (unsigned i = 0; ms_json_next(&walk); i++) {
        if (walk.key != NULL ? ms_json_is_text(walk.key, mesh->name[dim]) : i == dim)
            return walk.value;
    }
    return NULL;
}

static bool parse_coordinates(const struct ms_fault_context *reading, const char *value,
                              struct ms_plan *plan)
{
    const struct ms_mesh *mesh = &plan->mesh;
    const struct ms_place place = {NULL, "coordinates", 0};
    if ((!ms_json_is_list(value) && !ms_json_is_object(value)) || ms_json_size(value) != mesh->dims)
        return ms_fault_at(reading, &place, "expected one index for each of %u mesh dimensions",
                           mesh->dims);
    for (unsigned i = 0; i < mesh->dims; i++) {
        const struct ms_place at = {&place, ms_json_is_list(value) ? NULL : mesh->name[i], i};
        uint64_t coordinate;
        if (!ms_json_count(reading, &at, find_coordinate(value, mesh, i), 0, mesh->size[i] - 1,
                           &coordinate))
            return false;
        plan->rank += (uint32_t)coordinate * mesh->stride[i];
    }
    return true;
}

static bool parse_rank(const struct ms_fault_context *reading, const char *rank,
                       const char *coordinates, struct ms_plan *plan)
{
    const struct ms_place at = {NULL, "rank", 0};
    plan->has_rank = rank != NULL || coordinates != NULL;
    if (rank != NULL && coordinates != NULL)
        return ms_fault_at(reading, &at, "expected rank or coordinates, found both");
    if (coordinates != NULL)
        return parse_coordinates(reading, coordinates, plan);
    uint64_t number = 0;
    if (rank != NULL && !ms_json_count(reading, &at, rank, 0, plan->mesh.world - 1, &number))
        return false;
    plan->rank = (uint32_t)number;
    return true;
}

/* --- the document */

static bool parse_document(struct ms_plan_parser *parser, const char *document)
{
    enum { FORMAT, MESH, WORLD_SIZE, RANK, COORDINATES, TENSORS, KEYS };
    static const char *const keys[] = {"format",      "mesh",    "world_size", "rank",
                                       "coordinates", "tensors", NULL};
    const struct ms_place at_format = {NULL, "format", 0}, at_mesh = {NULL, "mesh", 0};
    const struct ms_fault_context *reading = parser->reading;
    struct ms_plan *plan = parser->plan;
    const char *values[KEYS];
    if (!ms_json_members(reading, NULL, document, keys, values,
                         "format, mesh, world_size, rank, coordinates and tensors"))
        return false;
    if (!ms_json_is_text(values[FORMAT], "metashard-plan/1"))
        return ms_fault_at(reading, &at_format, "expected \"metashard-plan/1\"");
    return (values[MESH] == NULL || parse_sizes(reading, &at_mesh, values[MESH], plan)) &&
           parse_world(reading, values[WORLD_SIZE], &plan->mesh) &&
           parse_rank(reading, values[RANK], values[COORDINATES], plan) &&
           ms_entry_parse_all(parser, values[TENSORS]);
}

bool ms_plan_parse(const char *text, size_t bytes, const char *file, struct ms_plan **plan_out,
                   struct ms_fault *fault)
{
    const struct ms_fault_context reading = {file, fault};
    const char *document;
    if (!ms_json_check(&reading, text, bytes, &document))
        return false;
    struct ms_plan_parser parser = {.reading = &reading,
                                    .plan = ms_heap_zalloc(sizeof(*parser.plan))};
    const bool is_good = parser.plan != NULL ? parse_document(&parser, document)
                                             : ms_fault_at(&reading, NULL, "out of memory");
    ms_hash_set_cleanup(&parser.known_terms);
    if (!is_good) {
        ms_plan_destroy(parser.plan);
        return false;
    }
    ms_forms_end(&parser.plan->forms);
    *plan_out = parser.plan;
    return true;
}

bool ms_plan_read(const char *path, struct ms_plan **plan_out, struct ms_fault *fault)
{
    struct ms_pages text;
    size_t bytes;
    if (!ms_json_read_file(path, MS_JSON_MAX_BYTES, &text, &bytes, fault))
        return false;
    const bool is_good = ms_plan_parse(text.memory, bytes, path, plan_out, fault);
    ms_pages_cleanup(&text);
    return is_good;
}

void ms_plan_destroy(struct ms_plan *plan)
{
    if (plan == NULL)
        return;
    ms_arena_cleanup(&plan->arena);
    ms_pages_cleanup(&plan->entries);
    ms_pages_cleanup(&plan->terms);
    ms_forms_cleanup(&plan->forms);
    ms_hash_set_cleanup(&plan->exact);
    ms_pages_cleanup(&plan->others);
    ms_heap_free(plan);
}

bool ms_plan_resize(struct ms_plan *plan, unsigned mesh_dim, uint32_t size)
{
    for (uint32_t i = 0; i < plan->terms_count; i++) {
        if (((const struct ms_terms *)plan->terms.memory)[i].ranges != NULL)
            return false;
    }
    struct ms_mesh mesh = plan->mesh;
    mesh.size[mesh_dim] = size;
    if (!number_ranks(&mesh))
        return false;
    plan->mesh = mesh;
    plan->has_rank = false;
    return true;
}

/* --- this process's rank */

/* Reads a number of at most nine digits, and nothing else. */
static bool read_number(const char *name, const char *text, uint32_t *number_out,
                        struct ms_fault *fault)
{
    uint32_t number = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && number < 100000000; at++)
        number = number * 10 + (uint32_t)(*at - '0');
    if (*at != '\0' || at == text)
        return ms_fault_set(fault, "%s: expected a number, found %s", name, text);
    *number_out = number;
    return true;
}

bool ms_plan_find_rank(const struct ms_plan *plan, uint32_t *rank_out, bool *is_given_out,
                       struct ms_fault *fault)
{
    const uint32_t world = plan->mesh.world;
    *rank_out = plan->rank;
    *is_given_out = plan->has_rank;
    if (plan->has_rank)
        return true;
    for (size_t i = 0; i < MS_LAUNCHERS; i++) {
        const char *rank = secure_getenv(ms_launchers[i].rank),
                   *size = secure_getenv(ms_launchers[i].size);
        uint32_t ranks = world, number = 0;
        if (rank == NULL)
            continue;
        *is_given_out = true;
        if (!read_number(ms_launchers[i].rank, rank, &number, fault) ||
            (size != NULL && !read_number(ms_launchers[i].size, size, &ranks, fault)))
            return false;
        if (ranks != world)
            return ms_fault_set(fault, "%s: expected the plan's %u, found %u", ms_launchers[i].size,
                                world, ranks);
        if (number >= world)
            return ms_fault_set(fault, "%s: expected a rank below %u, found %u",
                                ms_launchers[i].rank, world, number);
        *rank_out = number;
        return true;
    }
    return ms_fault_set(fault, "rank: expected rank or coordinates in the plan, or RANK, "
                               "OMPI_COMM_WORLD_RANK, SLURM_PROCID or PMI_RANK in the environment");
}
