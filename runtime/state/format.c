/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/format.h"

static const size_t record_bytes[MS_SECTION_COUNT] = {
    [MS_SECTION_PROCESS] = sizeof(struct ms_state_process),
    [MS_SECTION_PLAN] = sizeof(struct ms_state_plan),
    [MS_SECTION_OPTIONS] = sizeof(struct ms_state_option),
    [MS_SECTION_FIGURES] = sizeof(uint64_t),
    [MS_SECTION_FIGURE_NAMES] = sizeof(struct ms_state_figure_name),
    [MS_SECTION_DEVICES] = sizeof(struct ms_state_device),
    [MS_SECTION_FILES] = sizeof(struct ms_state_file),
    [MS_SECTION_CAUSES] = sizeof(struct ms_state_cause),
    [MS_SECTION_SAMPLES] = sizeof(struct ms_state_sample),
    [MS_SECTION_BLOCKS] = sizeof(struct ms_state_block),
    [MS_SECTION_EVENTS] = sizeof(struct ms_state_event),
};

/* Records have no padding, which compilers may lay out differently, and are copied by words. */
_Static_assert(sizeof(struct ms_state_process) == 1512, "");
_Static_assert(sizeof(struct ms_state_plan) == 568, "");
_Static_assert(sizeof(struct ms_state_device) == 512, "");
_Static_assert(sizeof(struct ms_state_file) == 512, "");
_Static_assert(sizeof(struct ms_state_sample) == 64, "");
_Static_assert(sizeof(struct ms_state_block) == 376, "");
_Static_assert(sizeof(struct ms_state_event) == 256, "");
_Static_assert(sizeof(struct ms_state_cause) == 1024, "");

size_t ms_format_record_bytes(enum ms_state_section section)
{
    return record_bytes[section];
}
