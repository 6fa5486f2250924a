/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/plan_internal.h"

#include <string.h>

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
                        json_t *object, struct ms_plan *plan)
{
    if (!json_is_object(object) || json_object_size(object) < 1 ||
        json_object_size(object) > MS_MESH_DIMS_MAX)
        return ms_fault_at(reading, place, "expected an object of 1 to 8 named sizes");
    struct ms_mesh *mesh = &plan->mesh;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const struct ms_place at = {place, key, 0};
        uint64_t size;
        if (key[0] == '\0')
            return ms_fault_at(reading, &at, "expected a name for the dimension");
        if (!ms_json_count(reading, &at, value, 1, MS_WORLD_MAX, &size))
            return false;
        mesh->name[mesh->dims] = ms_arena_string(&plan->arena, key, strlen(key));
        if (mesh->name[mesh->dims] == NULL)
            return ms_fault_at(reading, &at, "out of memory");
        mesh->size[mesh->dims++] = (uint32_t)size;
    }
    return ms_mesh_number(mesh) ||
           ms_fault_at(reading, place, "expected a world of at most %d ranks", MS_WORLD_MAX);
}

static bool parse_world(const struct ms_fault_context *reading, json_t *document,
                        struct ms_mesh *mesh)
{
    json_t *value = json_object_get(document, "world_size");
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

static bool parse_coordinates(const struct ms_fault_context *reading, json_t *value,
                              struct ms_plan *plan)
{
    const struct ms_mesh *mesh = &plan->mesh;
    const struct ms_place place = {NULL, "coordinates", 0};
    const size_t count = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    if ((!json_is_array(value) && !json_is_object(value)) || count != mesh->dims)
        return ms_fault_at(reading, &place, "expected one index for each of %u mesh dimensions",
                           mesh->dims);
    for (unsigned i = 0; i < mesh->dims; i++) {
        json_t *index =
            json_is_array(value) ? json_array_get(value, i) : json_object_get(value, mesh->name[i]);
        const struct ms_place at = {&place, json_is_array(value) ? NULL : mesh->name[i], i};
        uint64_t coordinate;
        if (!ms_json_count(reading, &at, index, 0, mesh->size[i] - 1, &coordinate))
            return false;
        plan->rank += (uint32_t)coordinate * mesh->stride[i];
    }
    return true;
}

static bool parse_rank(const struct ms_fault_context *reading, json_t *document,
                       struct ms_plan *plan)
{
    json_t *rank = json_object_get(document, "rank");
    json_t *coordinates = json_object_get(document, "coordinates");
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

bool ms_mesh_parse(const struct ms_fault_context *reading, json_t *document, struct ms_plan *plan)
{
    json_t *sizes = json_object_get(document, "mesh");
    const struct ms_place at = {NULL, "mesh", 0};
    return (sizes == NULL || parse_sizes(reading, &at, sizes, plan)) &&
           parse_world(reading, document, &plan->mesh) && parse_rank(reading, document, plan);
}
