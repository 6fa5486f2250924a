/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the driver whether each fact (facts.def) holds on a device: by copies and sets in memory of
 * its own, whose bytes it then compares. It launches nothing, and touches no memory of others.
 */
#pragma once

#include "runtime/driver/facts.h"

enum { MS_SEEN_BYTES = 112 };

struct ms_check_report {
    uint32_t unmet;   /* facts that do not hold */
    uint32_t refused; /* of these: because a call returned an error, which it may not do again */
    uint32_t
        unknown;   /* facts that were not asked: memory was short, the device busy, a call failed */
    bool is_stuck; /* the device did not finish, so its memory could not be given back */
    char seen[MS_FACT_COUNT][MS_SEEN_BYTES]; /* what was seen of those that do not hold */
};

/*
 * `context` is the current one, of the device. Takes three granules for some milliseconds; none if
 * little memory is free. Waits for its own streams only, for a second at most. The resolver is not
 * asked here.
 */
void ms_checks_run(CUcontext context, CUdevice device, struct ms_check_report *report_out);
