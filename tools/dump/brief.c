/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump show --brief: what a run was worth, in a few lines. */
#include <inttypes.h>
#include <stdlib.h>

#include "runtime/state/explain.h"
#include "tools/dump/line.h"
#include "tools/dump/merge.h"

/* The process that took the most memory. */
static const struct ms_snapshot *worst_of(const struct view *view)
{
    const struct ms_snapshot *worst = &view->processes[0];
    for (size_t i = 1; i < view->count; i++) {
        const struct ms_snapshot *other = &view->processes[i];
        if (totals_of(other).of[TOTAL_BACKED_PEAK] > totals_of(worst).of[TOTAL_BACKED_PEAK])
            worst = other;
    }
    return worst;
}

/* Of the process that was worst, if there are several. */
static void show_peak(const struct view *view, const char *of, uint64_t with, uint64_t without)
{
    const struct ms_snapshot *worst = worst_of(view);
    char who[64] = "";
    if (view->count > 1)
        snprintf(who, sizeof(who), " of %s%s, the worst of %zu processes",
                 has_rank(worst) ? "rank " : "one", rank_text(worst, ""), view->count);
    if (without > 0)
        line(PLAIN, "peak of device memory%s%s: %s instead of %s (%+.0f %%)", of, who,
             bytes_text(with), bytes_text(without),
             100.0 * ((double)with - (double)without) / (double)without);
}

/* A program that computes takes what it did without MetaShard: loading has a peak of its own. */
static void show_peaks(const struct view *view)
{
    const struct ms_snapshot *worst = worst_of(view);
    const struct totals totals = totals_of(worst);
    const uint64_t loaded = ms_snapshot_figure(worst, "loaded_backed_bytes_peak");
    if (loaded > 0)
        show_peak(view, " while it loaded", loaded,
                  ms_snapshot_figure(worst, "loaded_live_bytes_peak"));
    if (loaded < totals.of[TOTAL_BACKED_PEAK] || loaded == 0)
        show_peak(view, loaded > 0 ? " in all" : "", totals.of[TOTAL_BACKED_PEAK],
                  totals.of[TOTAL_LIVE_PEAK]);
}

/* What could not stay deferred and has the most bytes. */
static void show_largest_cause(const struct view *view)
{
    size_t count, at = 0;
    struct ms_state_cause *causes = view_causes(view, &count);
    while (at < count && causes[at].kind != MS_EVENT_FALLBACK)
        at++;
    if (at < count)
        line(PLAIN, "could not stay deferred: %s, %" PRIu64 " times, for %s%s%s (%s)",
             bytes_text(causes[at].bytes), causes[at].count, causes[at].call,
             causes[at].text[0] != '\0' ? " of " : "", causes[at].text,
             ms_reason_text(causes[at].reason));
    free(causes);
}

void show_brief(const struct view *view)
{
    show_peaks(view);
    show_largest_cause(view);
}
