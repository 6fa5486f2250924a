/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/recorded_launch.h"

#include <stddef.h>

#include "runtime/base/heap.h"

_Static_assert(offsetof(struct ms_step, counted) == 0, "as lineage wants it");

/* Recursion ends at MS_MAX_STEP_DEPTH. */
static void destroy(struct ms_counted *counted)
{
    struct ms_step *step = (struct ms_step *)counted;
    ms_lineage_cleanup(&step->before);
    ms_lineage_cleanup(&step->input);
    ms_launch_destroy(step->launch);
    ms_heap_free(step);
}

struct ms_step *ms_step_create(void)
{
    struct ms_step *step = ms_heap_zalloc(sizeof(*step));
    if (step != NULL)
        ms_counted_init(&step->counted, destroy);
    return step;
}

void ms_step_drop(struct ms_step *step)
{
    ms_counted_drop(&step->counted);
}

struct ms_depths ms_step_depths(const struct ms_lineage *lineage, size_t begin, size_t end)
{
    struct ms_depths depths = {0, 0};
    for (size_t at = begin; at < end;) {
        const struct ms_extent extent = ms_lineage_at(lineage, at);
        const struct ms_step *step = extent.content.step;
        at = extent.end;
        if (extent.content.kind != MS_LAUNCHED)
            continue;
        depths.steps = step->depth > depths.steps ? step->depth : depths.steps;
        depths.inputs = step->input_depth > depths.inputs ? step->input_depth : depths.inputs;
    }
    return depths;
}

static bool is_current(const struct ms_lineage *lineage)
{
    for (size_t i = 0; i < lineage->count; i++) {
        if (!ms_content_is_current(&lineage->extents[i].content))
            return false;
    }
    return true;
}

bool ms_content_is_current(const struct ms_content *content)
{
    if (content->kind == MS_SOURCE)
        return ms_source_is_current(content->source);
    if (content->kind != MS_LAUNCHED)
        return true;
    return is_current(&content->step->before) && is_current(&content->step->input);
}
