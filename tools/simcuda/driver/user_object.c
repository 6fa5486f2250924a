/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User objects: what a thread of the driver frees when the program and all graphs let go of it. Who
 * lets go of more than he has is refused here, which driver 580 does not notice.
 */
#include "tools/simcuda/driver/graph.h"
#include "tools/simcuda/driver/state.h"

#include <limits.h>
#include <stdlib.h>

struct CUuserObject_st {
    struct CUuserObject_st *next;
    CUhostFn destroy;
    void *data;
    size_t callers, graphs; /* references */
};

static CUuserObject live_objects; /* guarded by sim_lock */

static bool is_count(unsigned count)
{
    return count > 0 && count <= INT_MAX;
}

static CUuserObject find_locked(CUuserObject handle)
{
    CUuserObject object = live_objects;
    while (object != NULL && object != handle)
        object = object->next;
    return object;
}

static void *destroy(void *context)
{
    CUuserObject object = context;
    sim_thread.is_worker = true; /* it may make no driver calls */
    object->destroy(object->data);
    free(object);
    return NULL;
}

static void end_unused_locked(CUuserObject object)
{
    pthread_t thread;
    if (object->callers + object->graphs > 0)
        return;
    CUuserObject *place = &live_objects;
    while (*place != object)
        place = &(*place)->next;
    *place = object->next;
    if (pthread_create(&thread, NULL, destroy, object) != 0)
        abort();
    pthread_detach(thread);
}

static void hold_locked(struct sim_held **list, CUuserObject object, size_t count)
{
    struct sim_held *held = *list;
    while (held != NULL && held->object != object)
        held = held->next;
    if (held == NULL) {
        held = sim_zalloc(sizeof(*held));
        *held = (struct sim_held){.next = *list, .object = object};
        *list = held;
    }
    held->count += count;
    object->graphs += count;
}

struct sim_held *sim_held_copy_locked(const struct sim_held *list)
{
    struct sim_held *copy = NULL;
    for (; list != NULL; list = list->next)
        hold_locked(&copy, list->object, list->count);
    return copy;
}

void sim_held_drop(struct sim_held *list)
{
    pthread_mutex_lock(&sim_lock);
    while (list != NULL) {
        struct sim_held *held = list;
        list = held->next;
        held->object->graphs -= held->count;
        end_unused_locked(held->object);
        free(held);
    }
    pthread_mutex_unlock(&sim_lock);
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy_object,
                            unsigned int initialRefcount, unsigned int flags)
{
    SIM_ENTER(cuUserObjectCreate);
    if (object_out == NULL || destroy_object == NULL || !is_count(initialRefcount) ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    CUuserObject object = sim_zalloc(sizeof(*object));
    object->destroy = destroy_object;
    object->data = ptr;
    object->callers = initialRefcount;
    pthread_mutex_lock(&sim_lock);
    object->next = live_objects;
    live_objects = object;
    pthread_mutex_unlock(&sim_lock);
    *object_out = object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    SIM_ENTER(cuUserObjectRetain);
    pthread_mutex_lock(&sim_lock);
    const bool is_good = is_count(count) && find_locked(object) != NULL;
    if (is_good)
        object->callers += count;
    pthread_mutex_unlock(&sim_lock);
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    SIM_ENTER(cuUserObjectRelease);
    pthread_mutex_lock(&sim_lock);
    const bool is_good = is_count(count) && find_locked(object) != NULL && object->callers >= count;
    if (is_good) {
        object->callers -= count;
        end_unused_locked(object);
    }
    pthread_mutex_unlock(&sim_lock);
    return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sim_held_take_locked(struct sim_held **list, CUuserObject object, unsigned count, bool moves)
{
    if (!is_count(count) || find_locked(object) == NULL || (moves && object->callers < count))
        return false;
    hold_locked(list, object, count);
    object->callers -= moves ? count : 0;
    return true;
}

bool sim_held_give_locked(struct sim_held **list, CUuserObject object, unsigned count)
{
    while (*list != NULL && (*list)->object != object)
        list = &(*list)->next;
    struct sim_held *held = *list;
    if (!is_count(count) || held == NULL || held->count < count)
        return false;
    held->count -= count;
    object->graphs -= count;
    if (held->count == 0) {
        *list = held->next;
        free(held);
    }
    end_unused_locked(object);
    return true;
}
