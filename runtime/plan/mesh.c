/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/plan_internal.h"

bool ms_mesh_number(struct ms_mesh *mesh)
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
    struct ms_json_walk walk = ms_json_walk(object);
    while (ms_json_next(&walk)) {
        char *name = ms_arena_text(&plan->arena, ms_json_text_bytes(walk.key) + 1);
        uint64_t size;
        if (name == NULL)
            return ms_fault_at(reading, place, "out of memory");
        ms_json_text(walk.key, name);
        const struct ms_place at = {place, name, 0};
        if (name[0] == '\0')
            return ms_fault_at(reading, &at, "expected a name for the dimension");
        if (!ms_json_count(reading, &at, walk.value, 1, MS_WORLD_MAX, &size))
            return false;
        mesh->name[mesh->dims] = name;
        mesh->size[mesh->dims++] = (uint32_t)size;
    }
    return ms_mesh_number(mesh) ||
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
    return ms_mesh_number(mesh);
}

/* The index along a dimension: in a list by its place, in an object by its name; or NULL. */
static const char *find_coordinate(const char *value, const struct ms_mesh *mesh, unsigned dim)
{
    struct ms_json_walk walk = ms_json_walk(value);
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

bool ms_mesh_parse(const struct ms_fault_context *reading, const struct ms_mesh_values *values,
                   struct ms_plan *plan)
{
    const struct ms_place at = {NULL, "mesh", 0};
    return (values->mesh == NULL || parse_sizes(reading, &at, values->mesh, plan)) &&
           parse_world(reading, values->world_size, &plan->mesh) &&
           parse_rank(reading, values->rank, values->coordinates, plan);
}
