/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/sums.h"

#include "runtime/base/checksum.h"
#include "runtime/files/file_internal.h"

enum { PART = MS_SUMS_PART };

/* The lowest bit of a sum. */
static const uint64_t seen = 1;

uint64_t ms_sums_make(const void *part)
{
    const uint64_t sum = ms_checksum(part, PART) & ~seen;
    return sum != 0 ? sum : 2;
}

static _Atomic uint64_t *place_of(const struct ms_file *file, uint64_t number)
{
    _Atomic uint64_t *sums = atomic_load_explicit(&file->sums, memory_order_acquire);
    return sums != NULL && number < (uint64_t)file->recorded.st_size / PART ? &sums[number] : NULL;
}

uint64_t ms_sums_get(const struct ms_file *file, uint64_t number, bool *is_seen_out)
{
    _Atomic uint64_t *place = place_of(file, number);
    const uint64_t sum = place != NULL ? atomic_load(place) : 0;
    *is_seen_out = (sum & seen) != 0;
    return sum & ~seen;
}

void ms_sums_set_seen(const struct ms_file *file, uint64_t number)
{
    _Atomic uint64_t *place = place_of(file, number);
    if (place != NULL)
        atomic_fetch_or(place, seen);
}

/* Pages without sums take no memory. */
static bool make_room(struct ms_file *file)
{
    const size_t parts = (size_t)file->recorded.st_size / PART;
    if (atomic_load(&file->sums) != NULL)
        return true;
    if (parts == 0 || !ms_pages_grow(&file->sum_pages, parts * sizeof(uint64_t)))
        return false;
    atomic_store_explicit(&file->sums, file->sum_pages.memory, memory_order_release);
    return true;
}

bool ms_sums_add(struct ms_file *file, uint64_t first_number, const uint64_t *sums, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (sums[i] == 0)
            continue;
        if (!make_room(file))
            return false;
        uint64_t none = 0;
        _Atomic uint64_t *place = place_of(file, first_number + i);
        if (place != NULL)
            atomic_compare_exchange_strong(place, &none, sums[i]);
    }
    return true;
}

bool ms_sums_any(const struct ms_file *file)
{
    return atomic_load(&file->sums) != NULL;
}

void ms_sums_cleanup(struct ms_file *file)
{
    ms_pages_cleanup(&file->sum_pages);
}
