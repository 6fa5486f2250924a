/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/kept_files.h"

#include <stdatomic.h>
#include <stddef.h>

#include "runtime/files/lease.h"

static const uint64_t kept_ns = UINT64_C(500) * 1000 * 1000;

static struct ms_kept_file *first;
_Atomic bool ms_kept_files_any;

static void add(struct ms_kept_file *kept)
{
    kept->next = first;
    kept->link = &first;
    if (first != NULL)
        first->link = &kept->next;
    first = kept;
    if (!atomic_exchange(&ms_kept_files_any, true))
        ms_lease_wake();
}

static void remove_one(struct ms_kept_file *kept)
{
    *kept->link = kept->next;
    if (kept->next != NULL)
        kept->next->link = kept->link;
    atomic_store(&ms_kept_files_any, first != NULL);
}

void ms_kept_files_set(struct ms_kept_file *kept, struct ms_file *file)
{
    struct ms_file *before = kept->file;
    if (before != NULL && file == NULL)
        remove_one(kept);
    if (before == NULL && file != NULL)
        add(kept);
    kept->file = file;
    ms_kept_files_use(kept);
    if (before != NULL)
        ms_file_drop(before);
}

void ms_kept_files_let_go(void)
{
    const uint64_t now = ms_clock_ns(CLOCK_MONOTONIC);
    struct ms_kept_file *kept = first, *next;
    for (; kept != NULL; kept = next) {
        next = kept->next;
        if (now >= atomic_load_explicit(&kept->used_ns, memory_order_relaxed) + kept_ns)
            ms_kept_files_set(kept, NULL);
    }
}
