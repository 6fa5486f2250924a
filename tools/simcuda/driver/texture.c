/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texture and surface objects: their descriptions, kept. Nothing is sampled, but a kernel can
 * find the memory of a linear texture in its handle, as in a tensor map.
 */
#include "tools/simcuda/driver/kernel.h"
#include "tools/simcuda/driver/shape.h"

#include <stdlib.h>
#include <string.h>

struct object {
    struct object *next;
    unsigned long long handle;
    bool is_surface, has_view;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
};
static struct object *objects; /* guarded by sim_lock */

static struct object **find_locked(unsigned long long handle, bool is_surface)
{
    struct object **place = &objects;
    while (*place != NULL && ((*place)->handle != handle || (*place)->is_surface != is_surface))
        place = &(*place)->next;
    return place;
}

static CUresult check_resource(const CUDA_RESOURCE_DESC *resource, bool is_surface)
{
    struct sim_array_layout layout;
    if (resource->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return sim_array_get(resource->res.array.hArray, &layout) == CUDA_SUCCESS
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_LINEAR:
        return !is_surface && resource->res.linear.devPtr != 0 ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_PITCH2D:
        return !is_surface && resource->res.pitch2D.devPtr != 0 ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult create(unsigned long long *handle_out, const CUDA_RESOURCE_DESC *resource,
                       const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
    const bool is_surface = texture == NULL;
    CUdevice device;
    CUresult result = sim_current_device(&device);
    if (result != CUDA_SUCCESS)
        return result;
    if (handle_out == NULL || resource == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_resource(resource, is_surface);
    /* A view is of an array. */
    if (result == CUDA_SUCCESS && view != NULL && resource->resType != CU_RESOURCE_TYPE_ARRAY)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    struct object *object = sim_zalloc(sizeof(*object));
    object->is_surface = is_surface;
    object->resource = *resource;
    object->has_view = view != NULL;
    if (texture != NULL)
        object->texture = *texture;
    if (view != NULL)
        object->view = *view;
    object->handle = resource->resType == CU_RESOURCE_TYPE_LINEAR
                         ? simcuda_hide(resource->res.linear.devPtr)
                         : (uintptr_t)object;
    pthread_mutex_lock(&sim_lock);
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&sim_lock);
    *handle_out = object->handle;
    return CUDA_SUCCESS;
}

static CUresult destroy(unsigned long long handle, bool is_surface)
{
    pthread_mutex_lock(&sim_lock);
    struct object **place = find_locked(handle, is_surface);
    struct object *object = *place;
    if (object != NULL)
        *place = object->next;
    pthread_mutex_unlock(&sim_lock);
    free(object);
    return object != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A copy of the object; its handle is 0 when there is none. */
static struct object look(unsigned long long handle, bool is_surface)
{
    pthread_mutex_lock(&sim_lock);
    const struct object *found = *find_locked(handle, is_surface);
    const struct object copy = found != NULL ? *found : (struct object){0};
    pthread_mutex_unlock(&sim_lock);
    return copy;
}

CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                           const CUDA_TEXTURE_DESC *pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    SIM_ENTER(cuTexObjectCreate);
    return pTexDesc == NULL ? CUDA_ERROR_INVALID_VALUE
                            : create(pTexObject, pResDesc, pTexDesc, pResViewDesc);
}

CUresult cuTexObjectDestroy(CUtexObject texObject)
{
    SIM_ENTER(cuTexObjectDestroy);
    return destroy(texObject, false);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject)
{
    SIM_ENTER(cuTexObjectGetResourceDesc);
    const struct object object = look(texObject, false);
    if (pResDesc == NULL || object.handle == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pResDesc = object.resource;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject)
{
    SIM_ENTER(cuTexObjectGetTextureDesc);
    const struct object object = look(texObject, false);
    if (pTexDesc == NULL || object.handle == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pTexDesc = object.texture;
    return CUDA_SUCCESS;
}

/* An error when none was specified. */
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc,
                                        CUtexObject texObject)
{
    SIM_ENTER(cuTexObjectGetResourceViewDesc);
    const struct object object = look(texObject, false);
    if (pResViewDesc == NULL || object.handle == 0 || !object.has_view)
        return CUDA_ERROR_INVALID_VALUE;
    *pResViewDesc = object.view;
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc)
{
    SIM_ENTER(cuSurfObjectCreate);
    return create(pSurfObject, pResDesc, NULL, NULL);
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject)
{
    SIM_ENTER(cuSurfObjectDestroy);
    return destroy(surfObject, true);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject)
{
    SIM_ENTER(cuSurfObjectGetResourceDesc);
    const struct object object = look(surfObject, true);
    if (pResDesc == NULL || object.handle == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pResDesc = object.resource;
    return CUDA_SUCCESS;
}
