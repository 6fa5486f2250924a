/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreement: the ranks of a communicator settle, apart from NCCL, whether one of its operations is done in another
 * way than the program asked for. Either all do so, or none.
 *
 *     the id's maker      ms_agreement_offer    listens, and writes where into the id's last 32 bytes
 *     every rank          ms_agreement_join     64 bytes to the maker, once: the same terms?
 *     every rank          ms_agreement_ask      for each operation: the same one, and can everybody?
 *
 * A question is answered in two rounds (all can; all wait for the word), so a rank that gives up waiting is not left
 * behind by the others. What takes longer than METASHARD_SCATTER_MS ends the agreement: from then on the
 * answer is no. A rank without MetaShard never comes, and is waited for once.
 *
 * An agreement is used by one thread at a time, as its communicator is.
 */
#ifndef METASHARD_RUNTIME_COLLECTIVE_AGREEMENT_H
#define METASHARD_RUNTIME_COLLECTIVE_AGREEMENT_H

#include <stdbool.h>
#include <stdint.h>

struct ms_agreement;

enum { MS_ID_BYTES = 128 };

/* The id was made in this process. Nothing is done where its end is in use. */
void ms_agreement_offer(unsigned char id[MS_ID_BYTES]);

/* What has to be the same everywhere, and, in plan_rank, what the others want to know. */
struct ms_terms {
    uint64_t plan_hash;
    uint32_t world, plan_rank;
};

/*
 * All ranks of a new communicator call it, this one as `rank`. NULL: there is no agreement, and a line says why.
 * plan_ranks_out: by rank.
 */
struct ms_agreement *ms_agreement_join(const unsigned char id[MS_ID_BYTES], uint32_t rank,
                                       uint32_t ranks, const struct ms_terms *terms,
                                       uint32_t *plan_ranks_out);
void ms_agreement_end(struct ms_agreement *agreement); /* may be NULL */

struct ms_question {
    uint64_t sequence, bytes;
    uint32_t root;    /* of the operation */
    uint32_t can;     /* how much the rank can do; of the root, how much all must. 0: nothing */
    uint64_t subject; /* what it is about: the root's word is told to all */
};

/* True: all can do as much as they must; *subject_out is the root's. */
bool ms_agreement_ask(struct ms_agreement *agreement, const struct ms_question *question,
                      uint64_t *subject_out);

#endif
