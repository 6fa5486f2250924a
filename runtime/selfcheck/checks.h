/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the driver whether each fact (facts.def) holds on a device: makes copies and sets in memory
 * of its own, and compares the bytes. Launches nothing, and touches no memory of others. */
#pragma once

#include "runtime/driver/facts.h"

enum { MS_SEEN_BYTES = 112 };

struct ms_check_report {
    uint32_t unmet;   /* facts that do not hold */
    uint32_t refused; /* unmet facts for which a call returned an error, and may not do so again */
    uint32_t
        unknown;   /* facts that were not asked: memory was short, the device busy, a call failed */
    bool is_stuck; /* the device did not finish, so its memory could not be given back */
    char seen[MS_FACT_COUNT][MS_SEEN_BYTES]; /* for each fact that does not hold, the observation */
};

/*
 * `context` is current, and of the device. Takes three granules for some milliseconds; none if
 * little memory is free. Waits for its own streams only, for a second at most. The resolver is not
 * asked here.
 */
void ms_checks_run(CUcontext context, CUdevice device, struct ms_check_report *report_out);
