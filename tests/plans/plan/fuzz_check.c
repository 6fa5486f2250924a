/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plans/plan/fuzz_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/plan/placement.h"
#include "runtime/plan/placement.h"

enum { RANGES_MAX = 2000, CENSUS_RANKS_MAX = 4096 };

#define MUST(condition)                                                                \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "# %s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/* Bytes of the UTF-8 character; 0: there is none. Overlong forms are not looked for. */
static size_t character_bytes(const unsigned char *text)
{
    const size_t bytes = text[0] < 0x80   ? 1
                         : text[0] < 0xc2 ? 0
                         : text[0] < 0xe0 ? 2
                         : text[0] < 0xf0 ? 3
                         : text[0] < 0xf5 ? 4
                                          : 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return bytes;
}

void check_fault(const struct ms_fault *fault)
{
    const size_t length = strnlen(fault->text, sizeof(fault->text));
    MUST(length > 0 && length < sizeof(fault->text));
    const unsigned char *at = (const unsigned char *)fault->text;
    for (size_t bytes; *at != '\0'; at += bytes) {
        bytes = character_bytes(at);
        MUST(bytes > 0 && *at >= 0x20 && *at != 0x7f && (*at != 0xc2 || at[1] >= 0xa0));
        MUST(*at != 0xe2 || at[1] != 0x80 || at[2] < 0xa8 || at[2] > 0xae);
    }
}

/* Ascending, not empty, not touching, in the tensor, and as many bytes as was said. */
static void check_ranges(const struct ms_placement *placement, const struct ms_layout *layout,
                         size_t index)
{
    static struct ms_cursor cursor;
    const struct ms_tensor tensor = ms_layout_at(layout, index).tensor;
    struct ms_range range;
    uint64_t end = 0, bytes = 0;
    int count = 0;
    ms_placement_begin(&cursor, placement, index);
    for (; count < RANGES_MAX && ms_placement_next(&cursor, &range); count++) {
        MUST(range.begin < range.end && range.end <= tensor.bytes);
        MUST(count == 0 || range.begin > end);
        end = range.end;
        bytes += range.end - range.begin;
    }
    MUST(count == RANGES_MAX || bytes == ms_placement_bytes(placement, index));
    MUST(bytes <= ms_placement_bytes(placement, index));
}

static void check_rank(const struct ms_layout *layout, uint32_t rank,
                       const struct ms_census *census)
{
    struct ms_placement *placement = ms_placement_create(layout, rank);
    uint64_t total = 0;
    MUST(placement != NULL);
    for (size_t i = 0; i < layout->count; i++) {
        MUST(ms_placement_bytes(placement, i) <= ms_layout_at(layout, i).tensor.bytes);
        total += ms_placement_bytes(placement, i);
        if (i < 64)
            check_ranges(placement, layout, i);
    }
    MUST(total == ms_placement_total(placement));
    if (census != NULL) {
        MUST(census->bytes[rank] == total);
        MUST(census->padding[rank] == ms_placement_padding(placement));
    }
    ms_placement_destroy(placement);
}

/* The slow way: one entry after the other. */
static void check_entry(const struct ms_layout *layout, size_t index)
{
    const struct ms_plan *plan = layout->plan;
    const size_t seen = ms_layout_at(layout, index).entry;
    const size_t end = seen != SIZE_MAX ? seen : plan->count;
    const struct ms_tensor tensor = ms_layout_at(layout, index).tensor;
    MUST(seen == SIZE_MAX || ms_entry_meets(plan, seen, &tensor, index));
    for (size_t i = 0; i < end; i++)
        MUST(!ms_entry_meets(plan, i, &tensor, index));
}

void check_layout(const struct ms_layout *layout)
{
    const uint32_t world = layout->plan->mesh.world;
    struct ms_census census;
    const bool has_census = world <= CENSUS_RANKS_MAX;
    for (size_t i = 0; i < layout->count && i < 64; i++)
        check_entry(layout, i);
    if (has_census) {
        MUST(ms_census_init(&census, layout));
        MUST(census.world == world);
    }
    const uint32_t ranks[] = {0, 1, world / 3, world / 2, world - 1};
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        if (ranks[i] < world)
            check_rank(layout, ranks[i], has_census ? &census : NULL);
    }
    if (has_census)
        ms_census_cleanup(&census);
}

bool open_header(const void *header, size_t bytes, uint64_t data_bytes,
                 struct ms_checkpoint **checkpoint_out, struct ms_fault *fault)
{
    const uint64_t length = bytes;
    char path[64];
    const int file = memfd_create("header", MFD_CLOEXEC);
    MUST(file >= 0 && write(file, &length, 8) == 8 &&
         write(file, header, bytes) == (ssize_t)bytes &&
         ftruncate(file, (off_t)(8 + bytes + data_bytes)) == 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const bool is_good = ms_checkpoint_open(path, checkpoint_out, fault);
    close(file);
    return is_good;
}
