/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a plan: alone, and over a checkpoint. */

#include "tests/plans/plan/fuzz_check.h"
#include "tests/robust/fuzz/fuzz.h"

static const char header[] =
    "{\"a\":{\"dtype\":\"BF16\",\"shape\":[12,4],\"data_offsets\":[0,96]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[96,120]},"
    "\"f4\":{\"dtype\":\"F4\",\"shape\":[4,2],\"data_offsets\":[120,124]},"
    "\"layers.0.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[8,3,5],\"data_offsets\":[124,364]},"
    "\"none\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[364,364]},"
    "\"one\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[364,372]}}";

static void use(const struct ms_plan *plan, const struct ms_checkpoint *checkpoint)
{
    struct ms_layout *layout;
    struct ms_fault fault;
    if (!ms_layout_create(plan, checkpoint, &layout, &fault)) {
        check_fault(&fault);
        return;
    }
    check_layout(layout);
    ms_layout_destroy(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    struct ms_plan *plan;
    if (checkpoint == NULL && !open_header(header, strlen(header), 372, &checkpoint, &fault))
        abort();
    if (!ms_plan_parse((const char *)data, size, "plan", &plan, &fault)) {
        check_fault(&fault);
        return 0;
    }
    use(plan, NULL);
    use(plan, checkpoint);
    if (ms_plan_resize(plan, 0, 3)) {
        use(plan, NULL);
        use(plan, checkpoint);
    }
    ms_plan_destroy(plan);
    return 0;
}
