/* SPDX-License-Identifier: Apache-2.0 */
/* metashard-dump show --brief: what a run was worth, in a few lines. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/explain.h"
#include "tools/dump/line.h"
#include "tools/dump/merge.h"

/* Shows the process that took the most, by the names of both figures. Nothing if there is none. */
static void show_peak(const struct view *view, const char *of, const char *figure,
                      const char *figure_without)
{
    const struct ms_snapshot *worst = view_worst(view, figure);
    const uint64_t with = ms_snapshot_figure(worst, figure);
    const uint64_t without = ms_snapshot_figure(worst, figure_without);
    char who[64] = "";
    size_t count = 0; /* a launcher may have a page, and has no memory */
    for (size_t p = 0; p < view->count; p++)
        count += ms_snapshot_figure(&view->processes[p], "live_bytes_peak") > 0;
    if (count > 1)
        snprintf(who, sizeof(who), " of %s%s, the worst of %zu processes",
                 has_rank(worst) ? "rank " : "one", rank_text(worst, ""), count);
    if (without > 0)
        line(PLAIN, "peak of device memory%s%s: %s instead of %s (%+.0f %%)", of, who,
             bytes_text(with), bytes_text(without),
             100.0 * ((double)with - (double)without) / (double)without);
}

/* A program that computes takes what it did without MetaShard: loading has a peak of its own. */
static void show_peaks(const struct view *view)
{
    static const char loaded[] = "loaded_backed_bytes_peak", all[] = "backed_bytes_peak";
    const uint64_t while_loading = ms_snapshot_figure(view_worst(view, loaded), loaded);
    const uint64_t in_all = ms_snapshot_figure(view_worst(view, all), all);
    if (while_loading > 0)
        show_peak(view, " while it loaded", loaded, "loaded_live_bytes_peak");
    if (while_loading < in_all || while_loading == 0)
        show_peak(view, while_loading > 0 ? " in all, of what was deferred," : "", all,
                  "live_bytes_peak");
}

/* Shows the fallback of the most bytes while the program loaded, if it has a granule or more.
 * After loading comes the program's work, which needs its memory. */
static void show_largest_cause(const struct view *view)
{
    enum { GRANULE = 2 << 20 };
    size_t count, at = 0;
    struct ms_state_cause *causes = view_causes(view, LOADING, &count);
    while (at < count && causes[at].kind != MS_EVENT_FALLBACK)
        at++;
    if (at < count && causes[at].bytes >= GRANULE)
        line(PLAIN, "could not stay deferred: %s, %" PRIu64 " times, for %s%s%s (%s)",
             bytes_text(causes[at].bytes), causes[at].count, causes[at].call,
             causes[at].text[0] != '\0' ? " of " : "", causes[at].text,
             ms_reason_text(causes[at].reason));
    free(causes);
}

void show_missing(const struct view *view)
{
    const char *missing = view_missing_ranks(view);
    if (missing[0] != '\0')
        line(YELLOW, "no state page of rank %s: it was removed, or is on another machine", missing);
}

void show_bypassed(const struct view *view)
{
    size_t count;
    struct ms_state_cause *causes = view_causes(view, WHOLE_RUN, &count);
    for (size_t i = 0; i < count; i++) {
        if (causes[i].reason == MS_REASON_BYPASSED)
            paragraph(YELLOW, 0, causes[i].sentence);
    }
    free(causes);
}

void show_brief(const struct view *view)
{
    show_bypassed(view);
    show_peaks(view);
    show_missing(view);
    show_largest_cause(view);
}
