/* SPDX-License-Identifier: Apache-2.0 */
/* The text in which the report of a self-check is kept for other processes. */
#pragma once

#include "runtime/selfcheck/checks.h"

/* What a report is valid for. */
struct ms_check_subject {
    char device[40]; /* its UUID, as hexadecimal digits */
    char driver[64]; /* the version of the driver, and of its kernel module if it says so */
    char boot[40];
};

/* False if the driver cannot name the device: nothing is kept then. */
bool ms_check_subject_find(CUdevice device, struct ms_check_subject *subject_out);

/* False unless all of the text is a report of that subject. */
bool ms_check_kept_read(const struct ms_check_subject *subject, struct ms_check_report *report_out);
void ms_check_kept_write(const struct ms_check_subject *subject,
                         const struct ms_check_report *report);
