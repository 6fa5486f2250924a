/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the active plan: what was found, and what was not. */
#include <stdio.h>

#include "runtime/base/heap.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/shard/named_tensors.h"
#include "runtime/shard/shard_internal.h"
#include "runtime/state/state.h"

static void add_tensor(struct ms_state_plan *facts, const struct ms_sheet *sheet, size_t given)
{
    const size_t position = sheet->positions[given];
    facts->tensors++;
    facts->planned_bytes += ms_layout_tensor(sheet->layout, position).bytes;
    facts->owned_bytes += ms_placement_bytes(sheet->placement, position);
}

/* Counts each tensor that was found in the program's memory. */
MS_HOLDS(ms_shard.lock) static void add_seen_locked(struct ms_state_plan *facts)
{
    for (size_t i = 0; ms_shard_has_sheet_locked() && i < ms_shard.known_count; i++) {
        if (ms_shard.is_seen[i])
            add_tensor(facts, &ms_shard.sheet, i);
    }
    for (size_t i = 0; ms_shard_has_sheet_locked() && i < ms_named_tensors_count(); i++) {
        if (ms_named_tensors_at(i)->is_seen)
            add_tensor(facts, &ms_shard.sheet, ms_shard.known_count + i);
    }
    for (size_t i = 0; ms_shard.unnamed_sheet.layout != NULL && i < ms_shard.unnamed_count; i++) {
        if (ms_shard.unnamed[i].is_seen)
            add_tensor(facts, &ms_shard.unnamed_sheet, i);
    }
}

void ms_summary_describe(struct ms_state_plan *facts_out)
{
    *facts_out = (struct ms_state_plan){.generation = ms_shard_generation(),
                                        .enforced = ms_config.plan_mode == MS_ENFORCE};
    ms_lock_take(&ms_shard.lock);
    if (ms_shard.plan != NULL) {
        snprintf(facts_out->name, sizeof(facts_out->name), "%s", ms_shard.name);
        facts_out->rank = ms_shard.rank;
        facts_out->world = ms_plan_mesh(ms_shard.plan)->world;
        add_seen_locked(facts_out);
    }
    ms_lock_drop(&ms_shard.lock);
}

void ms_summary_publish_facts(const struct ms_state_plan *facts)
{
    ms_state_set_plan(facts);
    if (facts->generation > 0)
        ms_state_set_rank(facts->rank, facts->world, true);
}

void ms_summary_publish(const char *what, uint64_t began)
{
    struct ms_state_plan facts;
    if (!ms_is_recorded())
        return;
    ms_summary_describe(&facts);
    ms_summary_publish_facts(&facts);
    ms_state_event(MS_EVENT_PLAN, 0, 0, facts.owned_bytes, began, what);
}

static void mark_entry(bool *is_met, const struct ms_sheet *sheet, size_t position)
{
    const size_t entry = ms_layout_entry(sheet->layout, position);
    if (entry != SIZE_MAX)
        is_met[entry] = true;
}

/* Marks the entries that decide a tensor of a file, or a named or unnamed one. */
MS_HOLDS(ms_shard.lock) static void mark_entries_locked(bool *is_met)
{
    const size_t given = ms_shard.known_count + ms_named_tensors_count();
    for (size_t i = 0; i < given; i++)
        mark_entry(is_met, &ms_shard.sheet, ms_shard.sheet.positions[i]);
    for (size_t i = 0; ms_shard.unnamed_sheet.layout != NULL && i < ms_shard.unnamed_count; i++) {
        if (ms_shard.unnamed[i].is_selected)
            mark_entry(is_met, &ms_shard.unnamed_sheet, ms_shard.unnamed_sheet.positions[i]);
    }
}

/* True if some tensor matches the entry, though another entry decides it. */
MS_HOLDS(ms_shard.lock) static bool is_met_locked(size_t entry)
{
    const struct ms_layout *layout = ms_shard.sheet.layout;
    for (size_t i = 0; i < ms_layout_count(layout); i++) {
        const struct ms_tensor tensor = ms_layout_tensor(layout, i);
        if (ms_layout_entry_meets(ms_shard.plan, entry, &tensor, i))
            return true;
    }
    return false;
}

MS_HOLDS(ms_shard.lock) static bool is_ambiguous_locked(size_t entry)
{
    for (size_t i = 0; i < ms_shard.ambiguous_count; i++) {
        if (ms_shard.ambiguous[i] == entry)
            return true;
    }
    return false;
}

void ms_summary_visit_unmatched(ms_shard_visitor *visit, void *context)
{
    ms_lock_take(&ms_shard.lock);
    const size_t count = ms_shard_has_sheet_locked() ? ms_plan_count(ms_shard.plan) : 0;
    bool *is_met = ms_heap_zalloc(count + 1);
    if (is_met != NULL && count > 0)
        mark_entries_locked(is_met);
    size_t declared = 0;
    for (size_t i = 0; i < count && is_met != NULL; i++) {
        const bool declares = ms_plan_entry_declares(ms_shard.plan, i);
        /* Only the declaration itself matches. */
        const bool is_unplaced =
            declares && ms_layout_is_declaration(ms_shard.sheet.layout, declared++);
        /* A declaration has an exact name: if it has a place, its tensor matches it. */
        if (!is_ambiguous_locked(i) &&
            (is_unplaced || (!declares && !is_met[i] && !is_met_locked(i))))
            visit(context, i, ms_plan_entry_name(ms_shard.plan, i));
    }
    ms_heap_free(is_met);
    ms_lock_drop(&ms_shard.lock);
}

void ms_summary_visit_ambiguous(ms_shard_visitor *visit, void *context)
{
    ms_lock_take(&ms_shard.lock);
    for (size_t i = 0; i < ms_shard.ambiguous_count; i++)
        visit(context, ms_shard.ambiguous[i],
              ms_plan_entry_name(ms_shard.plan, ms_shard.ambiguous[i]));
    ms_lock_drop(&ms_shard.lock);
}
