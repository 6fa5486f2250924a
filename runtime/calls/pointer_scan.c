/* SPDX-License-Identifier: Apache-2.0 */

#include "runtime/calls/pointer_scan.h"

#include "runtime/calls/host_memory.h"
#include "runtime/calls/word_scan.h"
#include "runtime/memory/far_address.h"

bool ms_pointer_scan_is_possible(const struct ms_arguments *arguments, size_t at, uint64_t word)
{
    const struct ms_range *numbers = &arguments->numbers;
    if (at < numbers->end && at + sizeof(word) > numbers->begin)
        return false;
    return ms_address_is_far(word) || ms_parameters_has_word(arguments->layout, at);
}

/* Words that may be pointers, looked up together, under one lock. An address that means nothing
 * then means nothing for the rest of the scan: the parameters were there before. */
struct batch {
    struct ms_pointed all[16];
    size_t count;
};
enum { BATCH = sizeof(((struct batch *)0)->all) / sizeof(struct ms_pointed) };

static bool is_known(const struct ms_pointer_scan *reach, const struct ms_allocation_facts *block)
{
    size_t at = 0;
    while (at < reach->count && (reach->hits[at].block.address != block->address ||
                                 reach->hits[at].block.bytes != block->bytes))
        at++;
    return at < reach->count;
}

/* Leaves out further pointers to a known block from MANY hits on: no rule is about so many
 * pointers. */
static void add_hits(const struct ms_pointed *hits, size_t count, struct ms_pointer_scan *reach)
{
    enum { MANY = MS_MAX_HITS / 2 };
    for (size_t i = 0; i < count; i++) {
        if (reach->count >= MANY && is_known(reach, &hits[i].block))
            continue;
        if (reach->count < MS_MAX_HITS)
            reach->hits[reach->count++] = hits[i];
        else
            reach->everything = true;
    }
}

/* Adds the batch's hits. Returns addresses around the last word that mean nothing. */
static struct ms_range look_up(struct batch *batch, const struct ms_range *bounds,
                               struct ms_pointer_scan *reach)
{
    const struct ms_range *host = &bounds[MS_WORD_HOST];
    struct ms_range nothing, no_host = {0, host->end > host->begin ? 0 : UINT64_MAX};
    for (size_t i = 0; i < batch->count; i++) {
        if (!ms_word_is_in(&no_host, batch->all[i].pointer))
            no_host = ms_host_memory_gap(batch->all[i].pointer);
        reach->everything |= no_host.end == no_host.begin;
    }
    const size_t found = ms_space_find_all_pointed(batch->all, batch->count, &nothing);
    add_hits(batch->all, found, reach);
    batch->count = 0;
    nothing.begin = nothing.begin > no_host.begin ? nothing.begin : no_host.begin;
    nothing.end = nothing.end < no_host.end ? nothing.end : no_host.end;
    return nothing.end > nothing.begin ? nothing : (struct ms_range){0, 0};
}

void ms_pointer_scan_find(const struct ms_arguments *arguments, struct ms_pointer_scan *reach_out)
{
    struct ms_range bounds[MS_WORD_WINDOWS];
    struct ms_words words;
    struct batch batch;
    size_t at, most = 1; /* in a batch: the first word may say that all others mean nothing */
    uint64_t word;
    ms_pointer_scan_bounds(bounds);
    batch.count = reach_out->count = 0;
    reach_out->everything = false;
    ms_word_scan_begin(&words, arguments->packed->bytes, arguments->packed->count, bounds);
    while (!reach_out->everything && ms_word_scan_next(&words, &at, &word)) {
        if (!ms_pointer_scan_is_possible(arguments, at, word))
            continue;
        batch.all[batch.count].offset = at;
        batch.all[batch.count++].pointer = word;
        if (batch.count == most) {
            words.skipped = look_up(&batch, bounds, reach_out);
            most = 2 * most < BATCH ? 2 * most : BATCH;
        }
    }
    if (batch.count > 0)
        look_up(&batch, bounds, reach_out);
}
