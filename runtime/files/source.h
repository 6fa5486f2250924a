/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: the bytes behind deferred data that are not a simple pattern. A source is either a
 * *file* that the program had mapped, or a *snapshot*: a host copy, taken because the program may
 * change its buffer. Reference-counted; immutable after creation; usable from any thread.
 */
#pragma once

#include <stdbool.h>

struct ms_source;

void ms_source_take(struct ms_source *source);
void ms_source_drop(struct ms_source *source);

bool ms_source_is_file(const struct ms_source *source);
