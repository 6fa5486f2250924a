/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as the kept result of a self-check: what is believed would be written so again. */

#include "runtime/selfcheck/selfcheck_internal.h"
#include "tests/robust/fuzz/fuzz.h"

static void check_report(const struct ms_check_report *report)
{
    require(report->unmet < MS_FACT_BIT(MS_FACT_COUNT));
    require((report->unmet & MS_FACT_BIT(MS_FACT_RESOLVER)) == 0);
    require(report->refused == 0 && report->unknown == 0 && !report->is_stuck);
    for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++) {
        const char *end = memchr(report->seen[fact], '\0', MS_SEEN_BYTES);
        require(end != NULL);
        for (const char *at = report->seen[fact]; at < end; at++)
            require(*at >= ' ' && *at <= '~');
    }
}

/* An input begins behind the head, which has the version of this build. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct ms_selfcheck_subject subject = {"00ff", "13000 580.65.06", "5e3c1c0e"};
    struct ms_check_report report = {0};
    char again[MS_SELFCHECK_TEXT_BYTES];
    ms_selfcheck_print(&subject, &report, again);
    const size_t head = (size_t)(strstr(again, "memory ") - again);
    char *text = malloc(head + size + 1);
    require(text != NULL && head > sizeof("metashard self-check\n"));
    memcpy(text, again, head);
    if (size > 0)
        memcpy(text + head, data, size);
    text[head + size] = '\0';
    memset(&report, 0x5a, sizeof(report));
    if (ms_selfcheck_parse(&subject, text, &report)) {
        check_report(&report);
        ms_selfcheck_print(&subject, &report, again);
        require(strcmp(again, text) == 0);
    }
    text[head - 1] = ' ';
    require(!ms_selfcheck_parse(&subject, text, &report));
    free(text);
    return 0;
}
