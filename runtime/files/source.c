/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/source.h"

#include "runtime/files/file_internal.h"

_Static_assert(offsetof(struct ms_source, counted) == 0, "as lineage wants it");

void ms_source_take(struct ms_source *source)
{
    ms_counted_take(&source->counted);
}

void ms_source_drop(struct ms_source *source)
{
    ms_counted_drop(&source->counted);
}

bool ms_source_is_file(const struct ms_source *source)
{
    return source->is_file;
}
