/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/memory/recorded_launch.h"

#include <stddef.h>

#include "runtime/base/heap.h"
#include "runtime/memory/space.h"

_Static_assert(offsetof(struct ms_recorded_launch, counted) == 0, "as lineage wants it");

/* Recursion ends at MS_MAX_LAUNCH_DEPTH. */
static void destroy(struct ms_counted *counted)
{
    struct ms_recorded_launch *recorded = (struct ms_recorded_launch *)counted;
    ms_lineage_cleanup(&recorded->before);
    if (recorded->input != NULL)
        ms_lineage_cleanup(&recorded->input->lineage);
    ms_heap_free(recorded->input);
    ms_call_forget(recorded->launch);
    ms_heap_free(recorded);
}

struct ms_recorded_launch *ms_recorded_launch_create(void)
{
    struct ms_recorded_launch *recorded = ms_heap_zalloc(sizeof(*recorded));
    if (recorded != NULL)
        ms_counted_init(&recorded->counted, destroy);
    return recorded;
}

static bool is_current(const struct ms_lineage *lineage)
{
    bool is_current = true;
    struct ms_walk walk = ms_lineage_walk_all(lineage);
    for (const struct ms_extent *extent;
         is_current && (extent = ms_lineage_walk_next(&walk)) != NULL;)
        is_current = ms_recorded_launch_is_current(&extent->content);
    return is_current;
}

bool ms_recorded_launch_is_current(const struct ms_content *content)
{
    if (content->kind == MS_SOURCE)
        return ms_source_read_is_current(content->source);
    if (content->kind != MS_LAUNCHED)
        return true;
    const struct ms_recorded_launch *recorded = content->recorded;
    return is_current(&recorded->before) &&
           (recorded->input == NULL || is_current(&recorded->input->lineage));
}
