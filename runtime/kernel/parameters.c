/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/parameters.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/base/lock.h"

_Atomic uint32_t ms_parameters_unloads;

enum { MAX_PARAMS = 4096 };

/* One known handle. A forgotten handle keeps its slot, so that probing goes on. */
struct slot {
    CUfunction function;
    CUlibrary library;              /* of a CUkernel; NULL for functions */
    struct ms_param_layout *layout; /* NULL: not queried yet */
};

static struct {
    struct ms_lock lock; /* guards the rest; not held across driver calls */
    struct slot *slots;  /* open addressing; capacity is a power of two */
    size_t count, capacity;
} table = {.lock = MS_LOCK_INIT(parameters)};

MS_HOLDS(table.lock) static struct slot *probe_locked(CUfunction function)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (size_t)(mixed >> 20) & (table.capacity - 1);
    while (table.slots[at].function != NULL && table.slots[at].function != function)
        at = (at + 1) & (table.capacity - 1);
    return &table.slots[at];
}

MS_HOLDS(table.lock) static struct slot *find_locked(CUfunction function)
{
    if (table.capacity == 0)
        return NULL;
    struct slot *slot = probe_locked(function);
    return slot->function != NULL ? slot : NULL;
}

MS_HOLDS(table.lock) static bool grow_locked(void)
{
    if (2 * (table.count + 1) <= table.capacity)
        return true;
    struct slot *old = table.slots;
    const size_t old_capacity = table.capacity;
    const size_t capacity = old_capacity == 0 ? 256 : 2 * old_capacity;
    struct slot *grown = ms_heap_zalloc(capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    table.slots = grown;
    table.capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].function != NULL)
            *probe_locked(old[i].function) = old[i];
    }
    ms_heap_free(old);
    return true;
}

MS_HOLDS(table.lock) static struct slot *find_or_add_locked(CUfunction function)
{
    struct slot *slot = find_locked(function);
    if (slot != NULL)
        return slot;
    if (!grow_locked())
        return NULL;
    slot = probe_locked(function);
    slot->function = function;
    table.count++;
    return slot;
}

static CUresult ask_param(CUfunction function, bool is_kernel, size_t index, size_t *offset_out,
                          size_t *bytes_out)
{
    return is_kernel
               ? ms_driver.kernel_get_param_info((CUkernel)function, index, offset_out, bytes_out)
               : ms_driver.func_get_param_info(function, index, offset_out, bytes_out);
}

static char *copy_name(CUfunction function, bool is_kernel)
{
    const char *name = NULL;
    const CUresult result = is_kernel ? ms_driver.kernel_get_name(&name, (CUkernel)function)
                                      : ms_driver.func_get_name(&name, function);
    if (result != CUDA_SUCCESS || name == NULL)
        name = "?";
    const size_t bytes = strlen(name) + 1;
    char *copy = ms_heap_alloc(bytes);
    if (copy != NULL)
        memcpy(copy, name, bytes);
    return copy;
}

/* Counts the parameters. Returns false if the driver does not report them: the list ends with
 * INVALID_VALUE, and any other error means that there is no list. */
static bool count_params(CUfunction function, bool is_kernel, uint32_t *count_out)
{
    uint32_t count = 0;
    size_t offset, bytes;
    CUresult result;
    while ((result = ask_param(function, is_kernel, count, &offset, &bytes)) == CUDA_SUCCESS) {
        if (++count == MAX_PARAMS)
            return false;
    }
    *count_out = count;
    return result == CUDA_ERROR_INVALID_VALUE;
}

/* Fills in the parameters. Fails if the driver does not report one of them, which could be a
 * pointer. */
static bool ask_params(CUfunction function, uint32_t count, struct ms_param_layout *layout)
{
    for (uint32_t i = 0; i < count; i++) {
        size_t offset, bytes;
        if (ask_param(function, layout->is_kernel, i, &offset, &bytes) != CUDA_SUCCESS)
            return false;
        layout->params[i] = (struct ms_param){.offset = (uint32_t)offset, .bytes = (uint32_t)bytes};
        if (offset + bytes > layout->bytes)
            layout->bytes = offset + bytes;
        layout->count = i + 1;
    }
    return true;
}

static void destroy(struct ms_counted *counted)
{
    struct ms_param_layout *layout = (struct ms_param_layout *)counted;
    ms_heap_free(layout->name);
    ms_heap_free(layout);
}

static struct ms_param_layout *create(CUfunction function, bool is_kernel)
{
    uint32_t count = 0;
    const bool is_counted = count_params(function, is_kernel, &count);
    struct ms_param_layout *layout =
        ms_heap_zalloc(sizeof(*layout) + (is_counted ? count : 0) * sizeof(layout->params[0]));
    if (layout == NULL)
        return NULL;
    layout->name = copy_name(function, is_kernel);
    if (layout->name == NULL) {
        ms_heap_free(layout);
        return NULL;
    }
    ms_counted_init(&layout->counted, destroy);
    layout->is_kernel = is_kernel;
    layout->known = is_counted && ask_params(function, count, layout);
    layout->rule = ms_rules_match(layout->name);
    return layout;
}

bool ms_parameters_has_word(const struct ms_param_layout *layout, size_t offset)
{
    bool is_inside = !layout->known;
    for (uint32_t i = 0; i < layout->count && !is_inside; i++) {
        const struct ms_param *param = &layout->params[i];
        is_inside = param->offset <= offset && offset + 8 <= param->offset + param->bytes;
    }
    return offset % 8 == 0 && is_inside;
}

struct ms_param_layout *ms_parameters_take(CUfunction function)
{
    ms_lock_take(&table.lock);
    const struct slot *slot = find_locked(function);
    struct ms_param_layout *layout = slot != NULL ? slot->layout : NULL;
    const bool is_kernel = slot != NULL && slot->library != NULL;
    if (layout != NULL)
        ms_counted_take(&layout->counted);
    ms_lock_drop(&table.lock);
    if (layout != NULL)
        return layout;

    layout = create(function, is_kernel);
    if (layout == NULL)
        return NULL;
    ms_lock_take(&table.lock);
    struct slot *free_slot = find_or_add_locked(function);
    if (free_slot != NULL && free_slot->layout == NULL) {
        free_slot->layout = layout;
        ms_counted_take(&layout->counted);
    }
    ms_lock_drop(&table.lock);
    return layout;
}

void ms_parameters_add_kernel(CUkernel kernel, CUlibrary library)
{
    ms_lock_take(&table.lock);
    struct slot *slot = find_or_add_locked((CUfunction)kernel);
    if (slot != NULL)
        slot->library = library;
    ms_lock_drop(&table.lock);
}

void ms_parameters_forget(CUlibrary library)
{
    ms_lock_take(&table.lock);
    for (size_t i = 0; i < table.capacity; i++) {
        struct slot *slot = &table.slots[i];
        if (slot->layout != NULL) {
            atomic_store(&slot->layout->is_forgotten, true);
            ms_counted_drop(&slot->layout->counted);
        }
        slot->layout = NULL;
        if (library != NULL && slot->library == library)
            slot->library = NULL;
    }
    ms_lock_drop(&table.lock);
}
