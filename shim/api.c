/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of metashard.h. */
#define METASHARD_API
#include "shim/metashard.h"

#include "runtime/base/thread.h"
#include "runtime/base/version.h"
#include "runtime/control/control.h"
#include "runtime/control/suspension.h"
#include "runtime/fill/settle.h"
#include "runtime/shard/placement_query.h"
#include "runtime/shard/shard.h"
#include "shim/cancellation.h"
#include "shim/off.h"

/* The fault of the thread's last call. Threads without memory for one share a fault. */
static struct ms_fault *fault(void)
{
    static struct ms_fault shared;
    struct ms_fault *own = ms_thread_memory(MS_THREAD_FAULT, sizeof(*own));
    return own != NULL ? own : &shared;
}

const char *metashard_error(void)
{
    return fault()->text;
}

const char *metashard_version(void)
{
    return ms_version;
}

/* Returns the result of a function of metashard.h. */
static int end(bool is_good)
{
    return is_good ? 0 : -1;
}

static bool is_on(void)
{
    fault()->text[0] = '\0';
    return !ms_is_off() || ms_fault_set(fault(), "METASHARD is off");
}

int metashard_plan_file(const char *path)
{
    MS_ENTER("metashard_plan_file");
    return end(is_on() && (path != NULL || ms_fault_set(fault(), "expected a path")) &&
               ms_control_file(path, fault()));
}

int metashard_plan_text(const char *json, size_t bytes)
{
    MS_ENTER("metashard_plan_text");
    return end(is_on() && (json != NULL || ms_fault_set(fault(), "expected a text")) &&
               ms_control_text(json, bytes, "metashard_plan_text", fault()));
}

static bool make_tensor(struct ms_tensor *tensor, const char *dtype, const uint64_t *shape,
                        unsigned dims)
{
    *tensor = (struct ms_tensor){.dims = dims};
    if (dtype == NULL || !ms_tensor_find_dtype(dtype, &tensor->dtype))
        return ms_fault_set(fault(), "expected a dtype of safetensors, found %s",
                            dtype != NULL ? dtype : "none");
    if (dims > MS_TENSOR_DIMS_MAX || (dims > 0 && shape == NULL))
        return ms_fault_set(fault(), "expected a shape of at most %d dimensions, found %u",
                            MS_TENSOR_DIMS_MAX, dims);
    for (unsigned i = 0; i < dims; i++)
        tensor->shape[i] = shape[i];
    const char *wrong = ms_tensor_measure(tensor);
    return wrong == NULL || ms_fault_set(fault(), "%s", wrong);
}

int metashard_name(uint64_t address, size_t bytes, const char *name, const char *dtype,
                   const uint64_t *shape, unsigned dims)
{
    MS_ENTER("metashard_name");
    struct ms_tensor tensor;
    return end(is_on() &&
               ((name != NULL && name[0] != '\0') || ms_fault_set(fault(), "expected a name")) &&
               make_tensor(&tensor, dtype, shape, dims) &&
               ms_shard_name(address, bytes, name, &tensor, fault()));
}

int metashard_unname(uint64_t address, size_t bytes)
{
    MS_ENTER("metashard_unname");
    return end(is_on() && ms_placement_query_unname(address, bytes, fault()));
}

int metashard_materialise(void)
{
    MS_ENTER("metashard_materialise");
    const bool is_good = is_on();
    if (is_good)
        ms_settle_now("the program asked for it");
    return end(is_good);
}

int metashard_suspend(const char *folder, char *text, size_t bytes)
{
    MS_ENTER("metashard_suspend");
    return end(is_on() && ms_suspension_begin(folder, text, text != NULL ? bytes : 0, fault()));
}

int metashard_resume(void)
{
    MS_ENTER("metashard_resume");
    return end(is_on() && ms_suspension_end(fault()));
}

size_t metashard_status(char *text, size_t bytes)
{
    MS_ENTER("metashard_status");
    return ms_control_status(text, bytes);
}
