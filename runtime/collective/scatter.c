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
#include "runtime/machine/sizes.h"
#include "runtime/start.h"

/* Rows. A rank's columns are read by kernels, which must not meet what is absent in granules that have memory. */
enum { MAX_RANGES = 1 };

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
    struct ms_placement **placements; /* by rank; NULL: not made yet */
    uint32_t plan_ranks[];            /* by rank */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list; held across nothing */
static struct scatter *scatters;
static _Atomic uint32_t count; /* of the list */

/* --- communicators */

static void destroy(struct scatter *scatter)
{
    ms_agreement_end(scatter->agreement);
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
    return scatter->sizes != NULL && scatter->placements != NULL;
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
    struct ms_terms terms = {.min_bytes = ms_config.min_bytes};
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

/* Only where the size alone decides it, and in few pieces. */
static bool find_part(struct scatter *scatter, uint32_t rank, uint64_t bytes,
                      struct ms_ranges *ranges)
{
    if (scatter->placements[rank] == NULL)
        scatter->placements[rank] = ms_placement_create(scatter->layout, scatter->plan_ranks[rank]);
    const struct ms_placement *placement = scatter->placements[rank];
    return placement != NULL && ms_sizes_ours(scatter->sizes, placement, bytes, ranges) &&
           ms_sizes_agree(scatter->sizes, placement, bytes, ranges) && ranges->count <= MAX_RANGES;
}

/* Of the root all ranks, of another its own. */
static bool find_parts(struct scatter *scatter, const struct ms_broadcast *broadcast,
                       struct ms_parts *parts)
{
    const bool is_root = scatter->rank == (uint32_t)broadcast->root;
    bool is_good = true;
    parts->count = scatter->ranks;
    parts->ranges = ms_heap_zalloc(scatter->ranks * sizeof(*parts->ranges));
    if (parts->ranges == NULL) {
        parts->count = 0;
        return false;
    }
    for (uint32_t i = 0; i < scatter->ranks && is_good; i++) {
        if (is_root || i == scatter->rank)
            is_good = find_part(scatter, i, broadcast->bytes, &parts->ranges[i]);
    }
    return is_good;
}

/* Only of memory of ours is it known that the rest of it is not there. */
static bool can_take_part(const struct ms_broadcast *broadcast, bool is_root)
{
    return broadcast->can && atomic_load_explicit(&ms_hot.captures, memory_order_relaxed) == 0 &&
           (is_root || ms_can_receive_parts(broadcast->address, broadcast->bytes));
}

bool ms_scatter_decide(const struct ms_broadcast *broadcast, struct ms_parts *parts_out)
{
    *parts_out = (struct ms_parts){0};
    struct scatter *scatter = find(broadcast->handle);
    if (scatter == NULL || broadcast->root < 0 || broadcast->root >= broadcast->self.ranks ||
        broadcast->bytes < ms_config.min_bytes || !ms_sizes_has(scatter->sizes, broadcast->bytes))
        return false;
    const bool is_root = scatter->rank == (uint32_t)broadcast->root;
    const struct ms_question question = {.sequence = scatter->sequence++,
                                         .bytes = broadcast->bytes,
                                         .root = (uint32_t)broadcast->root,
                                         .can = can_take_part(broadcast, is_root) &&
                                                find_parts(scatter, broadcast, parts_out)};
    if (ms_agreement_ask(scatter->agreement, &question)) {
        ms_count(MS_COUNT_SCATTERS, 1);
        return true;
    }
    ms_log(MS_INFO, "METASHARD_SCATTER: broadcast %" PRIu64 " of %" PRIu64 " bytes stays one",
           question.sequence, question.bytes);
    ms_parts_cleanup(parts_out);
    return false;
}
