/* SPDX-License-Identifier: Apache-2.0 */
/* The text in which a report is kept (selfcheck.c), for its tests. */
#pragma once

#include "runtime/selfcheck/checks.h"

enum { MS_SELFCHECK_TEXT_BYTES = 4096 };

/* A report is valid for one device, driver and boot. */
struct ms_selfcheck_subject {
    char device[40]; /* its UUID, as hexadecimal digits */
    char driver[64]; /* the version of the driver, and of its kernel module if that tells */
    char boot[40];
};

/* False unless all of the text is a report of that subject. */
bool ms_selfcheck_parse(const struct ms_selfcheck_subject *subject, const char *text,
                        struct ms_check_report *report_out);

void ms_selfcheck_print(const struct ms_selfcheck_subject *subject,
                        const struct ms_check_report *report, char text[MS_SELFCHECK_TEXT_BYTES]);
