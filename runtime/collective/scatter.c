/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/scatter.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "runtime/base/heap.h"
#include "runtime/base/log.h"
#include "runtime/collective/agreement.h"
#include "runtime/diag/counters.h"
#include "runtime/hot.h"
#include "runtime/machine/receive.h"
#include "runtime/machine/shard.h"
#include "runtime/machine/space.h"
#include "runtime/machine/sizes.h"
#include "runtime/start.h"

/* Of one rank's part; its lineage has two extents for each (record.h). */
enum { MAX_RANGES = 4000 };

/* Of all ranks together. */
enum { WINDOW_BYTES = 32 << 20, PIECE_UNIT = 4096 };

enum { MAX_NAME = 1024 };

/* Fewer bytes are broadcast sooner than a question is answered. */
enum { WORTH_ASKING = 32 << 10 };

/* One communicator. */
struct scatter {
    struct scatter *next;
    const void *handle;
    struct ms_agreement *agreement;
    uint32_t rank, ranks;
    uint64_t sequence;
    struct ms_plan *plan;
    struct ms_layout *layout;
    struct ms_sizes *sizes;
    struct ms_placement **placements; /* by rank; NULL: not made yet. Its own is there */
    struct ms_window window;
    uint32_t plan_ranks[]; /* by rank */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list; held across nothing */
static struct scatter *scatters;
static _Atomic uint32_t count; /* of the list */

/* --- communicators */

static void destroy(struct scatter *scatter)
{
    ms_agreement_end(scatter->agreement);
    ms_window_close(&scatter->window);
    for (uint32_t i = 0; scatter->placements != NULL && i < scatter->ranks; i++)
        ms_placement_destroy(scatter->placements[i]);
    ms_heap_free(scatter->placements);
    ms_sizes_destroy(scatter->sizes);
    ms_layout_destroy(scatter->layout);
    ms_plan_destroy(scatter->plan);
    ms_heap_free(scatter);
}

/* The plan alone, without what this rank has seen of files and names. */
static bool lay_out(struct scatter *scatter)
{
    struct ms_fault fault;
    if (!ms_layout_create(scatter->plan, NULL, &scatter->layout, &fault)) {
        scatter->layout = NULL;
        return false;
    }
    scatter->sizes = ms_sizes_create(scatter->layout);
    scatter->placements = ms_heap_zalloc(scatter->ranks * sizeof(*scatter->placements));
    if (scatter->sizes == NULL || scatter->placements == NULL)
        return false;
    scatter->placements[scatter->rank] =
        ms_placement_create(scatter->layout, scatter->plan_ranks[scatter->rank]);
    return scatter->placements[scatter->rank] != NULL;
}

static struct scatter *create(const void *handle, const struct ms_communicator *self,
                              struct ms_terms *terms)
{
    const uint32_t ranks = (uint32_t)self->ranks;
    struct scatter *scatter =
        ms_heap_zalloc(sizeof(*scatter) + ranks * sizeof(*scatter->plan_ranks));
    if (scatter == NULL)
        return NULL;
    scatter->handle = handle;
    scatter->rank = (uint32_t)self->rank;
    scatter->ranks = ranks;
    scatter->plan = ms_shard_take_plan(&terms->plan_rank);
    scatter->plan_ranks[scatter->rank] = terms->plan_rank;
    if (scatter->plan != NULL && ms_config.receive_parts && lay_out(scatter)) {
        terms->plan_hash = ms_plan_hash(scatter->plan);
        terms->world = ms_plan_mesh(scatter->plan)->world;
    }
    return scatter;
}

static bool are_ranks_of_plan(const struct scatter *scatter, const struct ms_terms *terms)
{
    for (uint32_t i = 0; i < scatter->ranks; i++) {
        if (scatter->plan_ranks[i] >= terms->world)
            return false;
    }
    return true;
}

/* A rank without a plan says so, so that the others need not wait for it. */
void ms_scatter_join(const void *handle, const unsigned char id[128],
                     const struct ms_communicator *self)
{
    struct ms_terms terms = {0};
    if (!ms_config.scatter || self->ranks < 2 || !self->is_blocking)
        return;
    struct scatter *scatter = create(handle, self, &terms);
    if (scatter == NULL)
        return;
    scatter->agreement =
        ms_agreement_join(id, scatter->rank, scatter->ranks, &terms, scatter->plan_ranks);
    if (scatter->agreement == NULL || terms.plan_hash == 0 || !are_ranks_of_plan(scatter, &terms)) {
        destroy(scatter);
        return;
    }
    ms_log(MS_INFO, "METASHARD_SCATTER: %" PRIu32 " ranks have agreed on plan %016" PRIx64,
           scatter->ranks, terms.plan_hash);
    pthread_mutex_lock(&lock);
    scatter->next = scatters;
    scatters = scatter;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&lock);
}

void ms_scatter_forget(const void *handle)
{
    struct scatter *found = NULL;
    if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&lock);
    for (struct scatter **at = &scatters; *at != NULL && found == NULL; at = &(*at)->next) {
        if ((*at)->handle == handle) {
            found = *at;
            *at = found->next;
            atomic_fetch_sub(&count, 1);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found != NULL)
        destroy(found);
}

void ms_scatter_offer(unsigned char id[128])
{
    if (ms_config.scatter)
        ms_agreement_offer(id);
}

bool ms_scatter_is_used(void)
{
    return atomic_load_explicit(&count, memory_order_relaxed) != 0;
}

/* A communicator is used by one thread at a time, and not destroyed meanwhile. */
static struct scatter *find(const void *handle)
{
    if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
        return NULL;
    pthread_mutex_lock(&lock);
    struct scatter *at = scatters;
    while (at != NULL && at->handle != handle)
        at = at->next;
    pthread_mutex_unlock(&lock);
    return at;
}

/* --- one broadcast */

void ms_parts_cleanup(struct ms_parts *parts)
{
    for (uint32_t i = 0; i < parts->count; i++)
        ms_ranges_cleanup(&parts->ranges[i]);
    ms_heap_free(parts->ranges);
    *parts = (struct ms_parts){0};
}

static const struct ms_placement *placement_of(struct scatter *scatter, uint32_t rank)
{
    if (scatter->placements[rank] == NULL)
        scatter->placements[rank] = ms_placement_create(scatter->layout, scatter->plan_ranks[rank]);
    return scatter->placements[rank];
}

/* True when every rank keeps the same of each tensor of that size. */
static bool is_told_by_size(struct scatter *scatter, uint64_t bytes)
{
    bool is_told = true;
    for (uint32_t i = 0; i < scatter->ranks && is_told; i++) {
        const struct ms_placement *placement = placement_of(scatter, i);
        struct ms_ranges ours = {0};
        is_told = placement != NULL && ms_sizes_ours(scatter->sizes, placement, bytes, &ours) &&
                  ms_sizes_agree(scatter->sizes, placement, bytes, &ours);
        ms_ranges_cleanup(&ours);
    }
    return is_told;
}

/* The root's: by what it has there; or, where that is not known, by the size. */
static bool find_tensor(struct scatter *scatter, const struct ms_broadcast *broadcast,
                        size_t *tensor_out)
{
    char name[MAX_NAME];
    struct ms_allocation *allocation = ms_space_claim(broadcast->address);
    bool is_known = false;
    if (allocation != NULL) {
        const size_t begin = (size_t)(broadcast->address - allocation->address);
        is_known =
            broadcast->bytes <= allocation->bytes - begin &&
            ms_shard_whole_tensor(allocation, begin, begin + broadcast->bytes, name, sizeof(name));
    }
    ms_space_release(allocation);
    if (is_known && ms_sizes_find(scatter->sizes, broadcast->bytes, name, tensor_out))
        return true;
    return is_told_by_size(scatter, broadcast->bytes) &&
           ms_sizes_find(scatter->sizes, broadcast->bytes, NULL, tensor_out);
}

static bool find_part(struct scatter *scatter, uint32_t rank, size_t tensor,
                      struct ms_ranges *ranges)
{
    const struct ms_placement *placement = placement_of(scatter, rank);
    struct ms_cursor cursor;
    struct ms_range range;
    bool is_good = placement != NULL;
    if (is_good)
        ms_cursor_init(&cursor, placement, tensor);
    while (is_good && ms_cursor_next(&cursor, &range))
        is_good = ranges->count < MAX_RANGES && ms_ranges_add(ranges, range.begin, range.end);
    return is_good;
}

static size_t piece_of(uint32_t ranks, uint64_t bytes)
{
    const uint64_t most = bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES;
    return (most / ranks + PIECE_UNIT) / PIECE_UNIT * PIECE_UNIT;
}

static bool init_parts(const struct scatter *scatter, uint64_t bytes, struct ms_parts *parts)
{
    *parts = (struct ms_parts){0};
    parts->ranges = ms_heap_zalloc(scatter->ranks * sizeof(*parts->ranges));
    if (parts->ranges == NULL)
        return false;
    parts->count = scatter->ranks;
    parts->piece = piece_of(scatter->ranks, bytes);
    return true;
}

/* What a rank can do, or, the root, all must (agreement.h). Pieces are sent one after the other, so not in a group, where
 * nothing is sent until its end. */
enum { CANNOT, CAN_ONE, CAN_PIECES };

static bool is_any_packed(const struct ms_parts *parts, uint32_t root)
{
    bool is_packed = false;
    for (uint32_t i = 0; i < parts->count; i++)
        is_packed |= i != root && ms_part_is_packed(&parts->ranges[i]);
    return is_packed;
}

static bool open_window(struct scatter *scatter, const struct ms_broadcast *broadcast,
                        struct ms_parts *parts)
{
    struct ms_block_facts facts;
    if (broadcast->is_in_group || !ms_space_look_up(broadcast->address, &facts) ||
        ms_window_open(&scatter->window, facts.context, facts.device, parts->piece * parts->count,
                       broadcast->stream) != CUDA_SUCCESS)
        return false;
    parts->window = &scatter->window;
    return true;
}

/* The root: everybody's part. */
static uint32_t find_parts(struct scatter *scatter, const struct ms_broadcast *broadcast,
                           size_t *tensor_out, struct ms_parts *parts)
{
    bool is_good =
        find_tensor(scatter, broadcast, tensor_out) && init_parts(scatter, broadcast->bytes, parts);
    for (uint32_t i = 0; i < scatter->ranks && is_good; i++)
        is_good = find_part(scatter, i, *tensor_out, &parts->ranges[i]);
    if (!is_good)
        return CANNOT;
    if (!is_any_packed(parts, scatter->rank))
        return CAN_ONE;
    return open_window(scatter, broadcast, parts) ? CAN_PIECES : CANNOT;
}

/* Of another: only of memory of ours is it known that the rest of it is not there. */
static uint32_t can_take(const struct ms_broadcast *broadcast)
{
    if (!ms_can_receive_parts(broadcast->address, broadcast->bytes))
        return CANNOT;
    return broadcast->is_in_group ? CAN_ONE : CAN_PIECES;
}

/* What came over the wire is an index only if it is one here. */
static bool is_tensor(const struct scatter *scatter, uint64_t tensor, uint64_t bytes)
{
    return tensor < ms_layout_count(scatter->layout) &&
           ms_layout_tensor(scatter->layout, tensor)->bytes == bytes;
}

/* All have agreed. Without parts the call has to fail: the others go on. */
static void find_own_part(struct scatter *scatter, uint64_t bytes, uint64_t tensor,
                          struct ms_parts *parts)
{
    if (is_tensor(scatter, tensor, bytes) && init_parts(scatter, bytes, parts) &&
        find_part(scatter, scatter->rank, tensor, &parts->ranges[scatter->rank]))
        return;
    ms_log(MS_ERROR,
           "METASHARD_SCATTER: memory is out, or the root names no tensor of %" PRIu64 " bytes",
           bytes);
    ms_parts_cleanup(parts);
}

bool ms_scatter_decide(const struct ms_broadcast *broadcast, struct ms_parts *parts_out)
{
    *parts_out = (struct ms_parts){0};
    struct scatter *scatter = find(broadcast->handle);
    if (scatter == NULL || broadcast->root < 0 || broadcast->root >= broadcast->self.ranks ||
        broadcast->bytes < WORTH_ASKING || !ms_sizes_has(scatter->sizes, broadcast->bytes))
        return false;
    const bool is_root = scatter->rank == (uint32_t)broadcast->root;
    size_t tensor = 0;
    uint64_t subject = 0;
    uint32_t can = CANNOT;
    if (broadcast->can && atomic_load_explicit(&ms_hot.captures, memory_order_relaxed) == 0)
        can = is_root ? find_parts(scatter, broadcast, &tensor, parts_out) : can_take(broadcast);
    const struct ms_question question = {.sequence = scatter->sequence++,
                                         .bytes = broadcast->bytes,
                                         .root = (uint32_t)broadcast->root,
                                         .can = can,
                                         .subject = tensor};
    if (!ms_agreement_ask(scatter->agreement, &question, &subject)) {
        ms_log(MS_INFO, "METASHARD_SCATTER: broadcast %" PRIu64 " of %" PRIu64 " bytes stays one",
               question.sequence, question.bytes);
        ms_parts_cleanup(parts_out);
        return false;
    }
    if (!is_root)
        find_own_part(scatter, broadcast->bytes, subject, parts_out);
    ms_count(MS_COUNT_SCATTERS, 1);
    return true;
}
