/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running what was launched, on the stream's thread. Collectives are rings in the order of ranks;
 * blocks travel as
 *
 *     reduce-scatter: block b starts at rank b + 1, every rank adds its own, rank b has the sum
 *     all-gather: every rank sends its block, and then what came in
 *     broadcast, reduce: one chain that begins at, or behind, and ends before, or at, the root
 */
#include "tools/simcuda/nccl/internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* One collective while it runs. */
struct ring {
    struct nc_wait wait;
    const struct nc_op *op;
    struct nc_reduction reduction;
    int next, before; /* ranks */
    size_t element;   /* bytes */
};

static int rank_at(const struct ncclComm *comm, int distance)
{
    const int n = comm->nranks;
    return ((comm->rank + distance) % n + n) % n;
}

static struct nc_rank *own_rank(const struct ncclComm *comm)
{
    return &comm->segment->ranks[comm->rank];
}

/* --- what an operation touches */

int nc_op_touches(const struct nc_op *op, struct nc_touch touches_out[2])
{
    const int n = op->comm->nranks;
    const bool is_root = op->comm->rank == op->root;
    const size_t one = op->count * nc_type_bytes(op->type);
    const size_t all = one * (size_t)n;
    struct nc_touch send = {op->send, one, false};
    struct nc_touch recv = {op->recv, one, true};
    int count = 0;
    if ((op->kind == NC_BROADCAST && !is_root) || op->kind == NC_RECV)
        send.bytes = 0;
    if ((op->kind == NC_REDUCE && !is_root) || op->kind == NC_SEND)
        recv.bytes = 0;
    if (op->kind == NC_BROADCAST && is_root && op->send == op->recv)
        recv.bytes = 0;
    if (op->kind == NC_REDUCE_SCATTER)
        send.bytes = all;
    if (op->kind == NC_ALL_GATHER)
        recv.bytes = all;
    if (send.bytes > 0)
        touches_out[count++] = send;
    if (recv.bytes > 0)
        touches_out[count++] = recv;
    return count;
}

static ncclResult_t check_memory(const struct nc_op *op)
{
    struct nc_touch touches[2];
    const int count = nc_op_touches(op, touches);
    for (int i = 0; i < count; i++) {
        if (nc_cuda.can_touch(touches[i].begin, touches[i].bytes, touches[i].write))
            continue;
        nc_cuda.fault(touches[i].begin, touches[i].bytes, nc_kind_names[op->kind]);
        return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

static ncclResult_t check_registration(const struct nc_op *op)
{
    for (int i = 0; i < op->pieces_count; i++) {
        struct simcuda_piece piece;
        if (nc_cuda.find_piece(op->pieces[i].address, &piece) &&
            piece.identity == op->pieces[i].identity)
            continue;
        nc_say("%s rank %d: %s: the registered buffer at 0x%llx has other memory than when it was "
               "registered",
               op->comm->name, op->comm->rank, nc_kind_names[op->kind], op->pieces[i].address);
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

/* --- comparing */

static void report_row(const struct ncclComm *comm, int rank, const struct nc_row *row)
{
    nc_say("  rank %d: %s of %llu bytes of %s, operator %d, root %d, %d of %d in its group%s%s",
           rank, nc_kind_names[row->kind], (unsigned long long)row->bytes,
           nc_type_name((ncclDataType_t)row->type), row->op, row->root, row->group_place + 1,
           row->group_size, row->registered ? ", registered" : "",
           row->captured ? ", captured" : "");
    (void)comm;
}

static void report_mismatch(const struct ncclComm *comm, uint64_t seq)
{
    nc_say("%s: ranks differ in collective %llu (seen by rank %d):", comm->name,
           (unsigned long long)seq, comm->rank);
    for (int rank = 0; rank < comm->nranks; rank++) {
        const struct nc_rank *other = &comm->segment->ranks[rank];
        if (atomic_load(&other->begun) > seq)
            report_row(comm, rank, &other->rows[seq % NC_LOG_ROWS]);
        else
            nc_say("  rank %d: not there yet", rank);
    }
}

/* A row is written again only when all have left it behind. */
static ncclResult_t wait_for_row(struct ring *ring)
{
    struct ncclComm *comm = ring->wait.comm;
    for (int rank = 0; rank < comm->nranks;) {
        const uint32_t bell = nc_bell(comm);
        if (atomic_load(&comm->segment->ranks[rank].ended) + NC_LOG_ROWS > ring->wait.seq)
            rank++;
        else
            NC_TRY(nc_wait(&ring->wait, bell));
    }
    return ncclSuccess;
}

/* The later of any two ranks sees the row of the other. */
static ncclResult_t compare(struct ring *ring)
{
    struct ncclComm *comm = ring->wait.comm;
    const struct nc_op *op = ring->op;
    const uint64_t seq = ring->wait.seq;
    struct nc_row *own = &own_rank(comm)->rows[seq % NC_LOG_ROWS];
    NC_TRY(wait_for_row(ring));
    *own = (struct nc_row){
        .seq = seq,
        .bytes = op->count * ring->element,
        .kind = (int)op->kind,
        .type = (int)op->type,
        .op = (int)op->op,
        .root = op->root,
        .group_size = op->group_size,
        .group_place = op->group_place,
        .registered = op->registered,
        .captured = op->captured,
    };
    atomic_store(&own_rank(comm)->begun, seq + 1);
    for (int rank = 0; nc_settings()->strict && rank < comm->nranks; rank++) {
        const struct nc_rank *other = &comm->segment->ranks[rank];
        int none = ncclSuccess;
        if (atomic_load(&other->begun) <= seq ||
            memcmp(&other->rows[seq % NC_LOG_ROWS], own, sizeof(*own)) == 0)
            continue;
        if (atomic_compare_exchange_strong(&comm->segment->error, &none, ncclInvalidUsage))
            report_mismatch(comm, seq);
        nc_comm_fail_all(comm, ncclInvalidUsage);
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

/* --- moving bytes */

static void wait_for_peer(const struct ncclComm *comm, int peer)
{
    atomic_store(&own_rank(comm)->now_peer, peer);
}

/* Sends to the next rank and receives from the one before, side by side. */
static ncclResult_t exchange(struct ring *ring, const unsigned char *out, size_t out_bytes,
                             unsigned char *in, size_t in_bytes)
{
    struct ncclComm *comm = ring->wait.comm;
    atomic_fetch_add(&nc_fifo(comm, NC_LANE_RING, comm->rank, ring->next)->payload, out_bytes);
    while (out_bytes > 0 || in_bytes > 0) {
        const uint32_t bell = nc_bell(comm);
        const size_t sent = nc_fifo_put(comm, NC_LANE_RING, ring->next, out, out_bytes);
        const size_t got = nc_fifo_get(comm, NC_LANE_RING, ring->before, in, in_bytes);
        out += sent;
        out_bytes -= sent;
        in += got;
        in_bytes -= got;
        if (sent > 0 || got > 0) {
            nc_wait_progress(&ring->wait);
            continue;
        }
        wait_for_peer(comm, in_bytes > 0 ? ring->before : ring->next);
        NC_TRY(nc_wait(&ring->wait, bell));
    }
    return ncclSuccess;
}

static ncclResult_t put(struct ring *ring, const void *bytes, size_t count)
{
    return exchange(ring, bytes, count, NULL, 0);
}

static ncclResult_t get(struct ring *ring, void *bytes, size_t count)
{
    return exchange(ring, NULL, 0, bytes, count);
}

/* --- rings */

/* This rank's input, as the operator wants it. */
static void load_own(const struct ring *ring, CUdeviceptr from, void *to, size_t bytes)
{
    if (bytes == 0)
        return;
    memcpy(to, (const void *)from, bytes);
    if (ring->reduction.is_scaled)
        nc_scale(ring->op->type, ring->reduction.scalar, to, bytes / ring->element);
}

static void store_result(const struct ring *ring, CUdeviceptr to, void *values, size_t bytes)
{
    if (bytes == 0)
        return;
    if (ring->reduction.divisor > 0)
        nc_divide(ring->op->type, ring->reduction.divisor, values, bytes / ring->element);
    memcpy((void *)to, values, bytes);
}

/* Blocks of equal size, the last ones shorter or empty. */
struct blocks {
    CUdeviceptr begin;
    size_t block, total; /* bytes */
};

static CUdeviceptr block_begin(const struct blocks *blocks, int index)
{
    return blocks->begin + (size_t)index * blocks->block;
}

static size_t block_bytes(const struct blocks *blocks, int index)
{
    const size_t begin = (size_t)index * blocks->block;
    if (begin >= blocks->total)
        return 0;
    return blocks->total - begin < blocks->block ? blocks->total - begin : blocks->block;
}

/* values has room for three blocks. The reduced block of this rank goes to `to`. */
static ncclResult_t reduce_scatter(struct ring *ring, const struct blocks *from, CUdeviceptr to,
                                   unsigned char *values)
{
    const struct ncclComm *comm = ring->wait.comm;
    unsigned char *out = values;
    unsigned char *in = values + from->block;
    unsigned char *own = values + 2 * from->block;
    int block = rank_at(comm, -1);
    load_own(ring, block_begin(from, block), out, block_bytes(from, block));
    for (int step = 1; step < comm->nranks; step++) {
        const int next = rank_at(comm, -1 - step);
        const size_t bytes = block_bytes(from, next);
        NC_TRY(exchange(ring, out, block_bytes(from, block), in, bytes));
        load_own(ring, block_begin(from, next), own, bytes);
        nc_combine(ring->op->type, ring->reduction.op, in, own, bytes / ring->element);
        unsigned char *swapped = out;
        out = in;
        in = swapped;
        block = next;
    }
    store_result(ring, to, out, block_bytes(from, comm->rank));
    return ncclSuccess;
}

/*
 * This rank's block lies at `own`. The rank forwards received bytes from private memory, or,
 * when the buffer is registered, from the buffer itself. values has room for two blocks.
 */
static ncclResult_t all_gather(struct ring *ring, CUdeviceptr own, const struct blocks *to,
                               unsigned char *values)
{
    const struct ncclComm *comm = ring->wait.comm;
    const unsigned char *out = (const unsigned char *)own;
    int block = comm->rank;
    for (int step = 1; step < comm->nranks; step++) {
        const int next = rank_at(comm, -step);
        const size_t bytes = block_bytes(to, next);
        unsigned char *in = values + (size_t)(step % 2) * to->block;
        NC_TRY(exchange(ring, out, block_bytes(to, block), in, bytes));
        if (bytes > 0)
            memcpy((void *)block_begin(to, next), in, bytes);
        out = ring->op->registered ? (const unsigned char *)block_begin(to, next) : in;
        block = next;
    }
    return ncclSuccess;
}

static ncclResult_t run_reduce_scatter(struct ring *ring, unsigned char *values)
{
    const size_t bytes = ring->op->count * ring->element;
    const struct blocks from = {ring->op->send, bytes, bytes * (size_t)ring->wait.comm->nranks};
    return reduce_scatter(ring, &from, ring->op->recv, values);
}

static ncclResult_t run_all_gather(struct ring *ring, unsigned char *values)
{
    const struct nc_op *op = ring->op;
    const size_t bytes = op->count * ring->element;
    const struct blocks to = {op->recv, bytes, bytes * (size_t)op->comm->nranks};
    const CUdeviceptr own = block_begin(&to, op->comm->rank);
    NC_TRY(all_gather(ring, op->send, &to, values));
    if (own != op->send)
        memmove((void *)own, (const void *)op->send, bytes);
    return ncclSuccess;
}

static size_t shared_block(const struct ring *ring)
{
    const size_t ranks = (size_t)ring->wait.comm->nranks;
    return (ring->op->count + ranks - 1) / ranks * ring->element;
}

static ncclResult_t run_all_reduce(struct ring *ring, unsigned char *values)
{
    const struct nc_op *op = ring->op;
    const size_t total = op->count * ring->element;
    const struct blocks from = {op->send, shared_block(ring), total};
    const struct blocks to = {op->recv, from.block, total};
    const CUdeviceptr own = block_begin(&to, op->comm->rank);
    NC_TRY(reduce_scatter(ring, &from, own, values));
    return all_gather(ring, own, &to, values);
}

static size_t chunk_at(size_t total, size_t at)
{
    return total - at < NC_CHUNK_BYTES ? total - at : NC_CHUNK_BYTES;
}

/* Registered: everything arrives in the buffer, and is forwarded from there. */
static ncclResult_t forward_from_buffer(struct ring *ring, bool is_last)
{
    const struct nc_op *op = ring->op;
    const size_t total = op->count * ring->element;
    NC_TRY(get(ring, (void *)op->recv, total));
    return is_last ? ncclSuccess : put(ring, (const void *)op->recv, total);
}

static ncclResult_t run_broadcast(struct ring *ring, unsigned char *values)
{
    const struct nc_op *op = ring->op;
    const size_t total = op->count * ring->element;
    const bool is_root = op->comm->rank == op->root;
    const bool is_last = ring->next == op->root;
    if (is_root) {
        NC_TRY(put(ring, (const void *)op->send, total));
        if (op->send != op->recv)
            memmove((void *)op->recv, (const void *)op->send, total);
        return ncclSuccess;
    }
    if (op->registered)
        return forward_from_buffer(ring, is_last);
    for (size_t at = 0; at < total; at += NC_CHUNK_BYTES) {
        const size_t bytes = chunk_at(total, at);
        NC_TRY(get(ring, values, bytes));
        memcpy((unsigned char *)op->recv + at, values, bytes);
        if (!is_last)
            NC_TRY(put(ring, values, bytes));
    }
    return ncclSuccess;
}

static ncclResult_t run_reduce(struct ring *ring, unsigned char *values)
{
    const struct nc_op *op = ring->op;
    const size_t total = op->count * ring->element;
    const bool is_root = op->comm->rank == op->root;
    const bool is_first = ring->before == op->root;
    unsigned char *own = values + NC_CHUNK_BYTES;
    for (size_t at = 0; at < total; at += NC_CHUNK_BYTES) {
        const size_t bytes = chunk_at(total, at);
        load_own(ring, op->send + at, own, bytes);
        if (is_first || op->comm->nranks == 1)
            memcpy(values, own, bytes);
        else
            NC_TRY(get(ring, values, bytes));
        if (!is_first && op->comm->nranks > 1)
            nc_combine(op->type, ring->reduction.op, values, own, bytes / ring->element);
        if (is_root)
            store_result(ring, op->recv + at, values, bytes);
        else
            NC_TRY(put(ring, values, bytes));
    }
    return ncclSuccess;
}

/* --- one operation */

static void pause_us(uint64_t us)
{
    const struct timespec pause = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    if (us > 0)
        nanosleep(&pause, NULL);
}

/* Delays or breaks this operation as the environment wants. */
static ncclResult_t meddle(struct ncclComm *comm)
{
    const uint64_t nth = comm->runs++;
    unsigned value;
    if (nc_settings()->delay_us > 0)
        pause_us(nc_mix(nth * 64 + (uint64_t)comm->rank) % nc_settings()->delay_us);
    switch (nc_fault_find(comm, nth, false, &value)) {
    case NC_FAULT_KILL:
        kill(getpid(), SIGKILL);
        return ncclInternalError;
    case NC_FAULT_DELAY:
        pause_us(value);
        return ncclSuccess;
    case NC_FAULT_ASYNC:
        nc_say("%s rank %d: operation %llu fails as wanted", comm->name, comm->rank,
               (unsigned long long)nth);
        return (ncclResult_t)value;
    default:
        return ncclSuccess;
    }
}

static ncclResult_t begin(const struct nc_op *op)
{
    struct ncclComm *comm = op->comm;
    nc_log("SIMNCCL_LOG", "comm %d rank %d %s count %zu %s op %d root %d%s%s", comm->number,
           comm->rank, nc_kind_names[op->kind], op->count, nc_type_name(op->type), (int)op->op,
           op->root, op->registered ? " registered" : "", op->captured ? " captured" : "");
    atomic_store(&own_rank(comm)->now_bytes, op->count * nc_type_bytes(op->type));
    atomic_store(&own_rank(comm)->now_peer, -1);
    atomic_store(&own_rank(comm)->now_kind, (int)op->kind + 1);
    NC_TRY(meddle(comm));
    NC_TRY(check_registration(op));
    return check_memory(op);
}

static ncclResult_t load_scalar(struct ring *ring)
{
    struct nc_reduction *reduction = &ring->reduction;
    if (reduction->scalar_address == 0)
        return ncclSuccess;
    if (!nc_cuda.can_touch(reduction->scalar_address, ring->element, false)) {
        nc_cuda.fault(reduction->scalar_address, ring->element, "reading a scalar");
        return ncclUnhandledCudaError;
    }
    memcpy(reduction->scalar, (const void *)reduction->scalar_address, ring->element);
    return ncclSuccess;
}

static size_t room_for(const struct ring *ring)
{
    switch (ring->op->kind) {
    case NC_ALL_REDUCE:
        return 3 * shared_block(ring);
    case NC_REDUCE_SCATTER:
    case NC_ALL_GATHER:
        return 3 * ring->op->count * ring->element;
    default:
        return 2 * NC_CHUNK_BYTES;
    }
}

static ncclResult_t run_ring(struct ring *ring)
{
    typedef ncclResult_t runner(struct ring *, unsigned char *);
    static runner *const runners[NC_KINDS] = {
        [NC_ALL_REDUCE] = run_all_reduce,
        [NC_BROADCAST] = run_broadcast,
        [NC_REDUCE] = run_reduce,
        [NC_ALL_GATHER] = run_all_gather,
        [NC_REDUCE_SCATTER] = run_reduce_scatter,
    };
    NC_TRY(compare(ring));
    NC_TRY(load_scalar(ring));
    unsigned char *values = nc_zalloc(room_for(ring));
    const ncclResult_t result = runners[ring->op->kind](ring, values);
    free(values);
    return result;
}

static ncclResult_t run_collective(const struct nc_op *op)
{
    struct ncclComm *comm = op->comm;
    struct ring ring = {
        .wait = {.comm = comm,
                 .is_collective = true,
                 .seq = atomic_load(&own_rank(comm)->begun),
                 .what = nc_kind_names[op->kind]},
        .op = op,
        .reduction = op->reduction,
        .next = rank_at(comm, 1),
        .before = rank_at(comm, -1),
        .element = nc_type_bytes(op->type),
    };
    NC_TRY(begin(op));
    nc_wait_progress(&ring.wait);
    NC_TRY(run_ring(&ring));
    atomic_store(&own_rank(comm)->ended, ring.wait.seq + 1);
    nc_ring_all(comm);
    return ncclSuccess;
}

/* --- sends and receives: all of a batch at once, in order for each peer */

struct header {
    uint64_t bytes;
    int64_t type;
};
struct message {
    const struct nc_op *op;
    struct header header;
    size_t head;  /* bytes of the header; 0: none is sent */
    size_t moved; /* of header and payload */
    size_t total;
    uint64_t end; /* of a send: the place in the FIFO behind it */
    bool is_moved, is_done;
};
struct peers {
    struct nc_wait wait;
    struct message *messages;
    size_t count;
    bool *waited; /* by rank */
};

static unsigned char *payload(const struct message *message)
{
    return (unsigned char *)(message->op->kind == NC_SEND ? message->op->send : message->op->recv);
}

static ncclResult_t check_header(struct message *message)
{
    const struct nc_op *op = message->op;
    const uint64_t wanted = op->count * nc_type_bytes(op->type);
    if (message->header.bytes == wanted && message->header.type == (int64_t)op->type)
        return ncclSuccess;
    nc_say("%s: rank %d receives %llu bytes of %s from rank %d, which sends %llu bytes of %s",
           op->comm->name, op->comm->rank, (unsigned long long)wanted, nc_type_name(op->type),
           op->root, (unsigned long long)message->header.bytes,
           nc_type_name((ncclDataType_t)message->header.type));
    nc_comm_fail_all(op->comm, ncclInvalidUsage);
    return ncclInvalidUsage;
}

/* One piece, of the header or of the payload. */
static size_t move_piece(struct message *message)
{
    struct ncclComm *comm = message->op->comm;
    const bool is_head = message->moved < message->head;
    unsigned char *at = is_head ? (unsigned char *)&message->header + message->moved
                                : payload(message) + (message->moved - message->head);
    const size_t bytes = (is_head ? message->head : message->total) - message->moved;
    if (bytes == 0)
        return 0;
    if (message->op->kind == NC_RECV)
        return nc_fifo_get(comm, NC_LANE_PEER, message->op->root, at, bytes);
    const size_t sent = nc_fifo_put(comm, NC_LANE_PEER, message->op->root, at, bytes);
    if (!is_head)
        atomic_fetch_add(&nc_fifo(comm, NC_LANE_PEER, comm->rank, message->op->root)->payload,
                         sent);
    return sent;
}

static ncclResult_t move(struct message *message, bool *progress)
{
    for (size_t moved; (moved = move_piece(message)) > 0;) {
        message->moved += moved;
        *progress = true;
        if (message->op->kind == NC_RECV && moved > 0 && message->head > 0 &&
            message->moved == message->head)
            NC_TRY(check_header(message));
    }
    message->is_moved = message->moved == message->total;
    if (message->is_moved && message->op->kind == NC_SEND)
        message->end = atomic_load(
            &nc_fifo(message->op->comm, NC_LANE_PEER, message->op->comm->rank, message->op->root)
                 ->written);
    return ncclSuccess;
}

/* A send is over when the other side has taken it; NCCL itself may be quicker. */
static bool is_over(const struct message *message)
{
    const struct nc_op *op = message->op;
    if (!message->is_moved || op->kind == NC_RECV || !nc_settings()->strict)
        return message->is_moved;
    const struct nc_fifo *fifo = nc_fifo(op->comm, NC_LANE_PEER, op->comm->rank, op->root);
    return atomic_load(&fifo->read) >= message->end;
}

static bool is_behind_another(const struct peers *peers, size_t index)
{
    const struct nc_op *op = peers->messages[index].op;
    for (size_t i = 0; i < index; i++) {
        const struct nc_op *other = peers->messages[i].op;
        if (!peers->messages[i].is_moved && other->kind == op->kind && other->root == op->root)
            return true;
    }
    return false;
}

static ncclResult_t move_all(struct peers *peers, bool *progress, bool *done_out)
{
    *done_out = true;
    memset(peers->waited, 0, (size_t)peers->wait.comm->nranks * sizeof(peers->waited[0]));
    for (size_t i = 0; i < peers->count; i++) {
        struct message *message = &peers->messages[i];
        if (!message->is_moved && !is_behind_another(peers, i))
            NC_TRY(move(message, progress));
        if (!message->is_done && is_over(message)) {
            message->is_done = true;
            *progress = true;
        }
        if (message->is_done)
            continue;
        *done_out = false;
        peers->waited[message->op->root] = true;
        wait_for_peer(peers->wait.comm, message->op->root);
    }
    return ncclSuccess;
}

static ncclResult_t run_messages(struct peers *peers)
{
    bool done = false;
    while (!done) {
        const uint32_t bell = nc_bell(peers->wait.comm);
        bool progress = false;
        NC_TRY(move_all(peers, &progress, &done));
        if (progress)
            nc_wait_progress(&peers->wait);
        else if (!done)
            NC_TRY(nc_wait(&peers->wait, bell));
    }
    return ncclSuccess;
}

static ncclResult_t add_message(struct peers *peers, const struct nc_op *op)
{
    const uint64_t bytes = op->count * nc_type_bytes(op->type);
    const size_t head = nc_settings()->strict ? sizeof(struct header) : 0;
    struct message *message = &peers->messages[peers->count++];
    *message = (struct message){.op = op, .head = head, .total = head + bytes};
    if (op->kind == NC_SEND)
        message->header = (struct header){bytes, (int64_t)op->type};
    return begin(op);
}

/* The nth send to oneself goes to the nth receive. */
static ncclResult_t copy_to_self(const struct nc_op *send, struct nc_op **recvs, size_t count,
                                 size_t *next)
{
    while (*next < count &&
           (recvs[*next]->kind != NC_RECV || recvs[*next]->root != recvs[*next]->comm->rank))
        (*next)++;
    const struct nc_op *recv = recvs[(*next)++];
    const size_t bytes = send->count * nc_type_bytes(send->type);
    NC_TRY(begin(send));
    NC_TRY(begin(recv));
    if (bytes != recv->count * nc_type_bytes(recv->type)) {
        nc_say("%s rank %d: a send of %zu bytes to oneself meets a receive of %zu",
               send->comm->name, send->comm->rank, bytes, recv->count * nc_type_bytes(recv->type));
        return ncclInvalidUsage;
    }
    if (send->send != recv->recv && bytes > 0)
        memmove((void *)recv->recv, (const void *)send->send, bytes);
    return ncclSuccess;
}

static ncclResult_t start_messages(struct peers *peers, struct nc_op **ops, size_t count)
{
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
        const bool is_self = ops[i]->root == ops[i]->comm->rank;
        if (!is_self)
            NC_TRY(add_message(peers, ops[i]));
        else if (ops[i]->kind == NC_SEND)
            NC_TRY(copy_to_self(ops[i], ops, count, &next));
    }
    return ncclSuccess;
}

static ncclResult_t run_peers(struct ncclComm *comm, struct nc_op **ops, size_t count)
{
    struct peers peers = {.wait = {.comm = comm, .what = "Send or Recv"}};
    peers.messages = nc_zalloc(count * sizeof(peers.messages[0]));
    peers.waited = nc_zalloc((size_t)comm->nranks * sizeof(peers.waited[0]));
    peers.wait.peers = peers.waited;
    nc_wait_progress(&peers.wait);
    ncclResult_t result = start_messages(&peers, ops, count);
    if (result == ncclSuccess)
        result = run_messages(&peers);
    free(peers.waited);
    free(peers.messages);
    return result;
}

/* --- batches */

/* A dry run looks at nothing that large. All ranks know, so all run one of no elements. */
static void leave_out_large(struct nc_batch *batch)
{
    const size_t most = (size_t)nc_settings()->moved_mib << 20;
    for (size_t i = 0; most != 0 && i < batch->count; i++) {
        if (batch->ops[i]->count * nc_type_bytes(batch->ops[i]->type) > most)
            batch->ops[i]->count = 0;
    }
}

static ncclResult_t run_ops(struct nc_batch *batch)
{
    size_t at = 0;
    leave_out_large(batch);
    for (; nc_settings()->mirror && at < batch->count; at++)
        nc_mirror_run(batch, batch->ops[at]);
    for (; at < batch->count; at++) {
        if (batch->ops[at]->kind == NC_SEND || batch->ops[at]->kind == NC_RECV)
            break;
        NC_TRY(run_collective(batch->ops[at]));
    }
    return at == batch->count ? ncclSuccess
                              : run_peers(batch->comm, batch->ops + at, batch->count - at);
}

static void wait_briefly(struct ncclComm *comm)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += 20 * 1000 * 1000;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&comm->turned, &comm->lock, &limit);
}

/*
 * One batch of a communicator runs at a time, in the order of launching, whatever their streams
 * are. A replay of a graph runs when nothing else does.
 */
static bool take_turn(struct nc_batch *batch)
{
    struct ncclComm *comm = batch->comm;
    pthread_mutex_lock(&comm->lock);
    while (atomic_load(&comm->stop) == NC_RUN && !nc_cuda.is_over() &&
           (comm->is_running || (batch->has_ticket && comm->turn != batch->ticket)))
        wait_briefly(comm);
    const bool may_run = atomic_load(&comm->stop) == NC_RUN && !nc_cuda.is_over();
    comm->is_running |= may_run;
    pthread_mutex_unlock(&comm->lock);
    return may_run;
}

static bool take_skipped_locked(struct ncclComm *comm)
{
    for (struct nc_skipped **link = &comm->skipped; *link != NULL; link = &(*link)->next) {
        struct nc_skipped *skipped = *link;
        if (skipped->ticket == comm->turn) {
            *link = skipped->next;
            free(skipped);
            return true;
        }
    }
    return false;
}

static void give_ticket_back_locked(struct nc_batch *batch)
{
    struct ncclComm *comm = batch->comm;
    struct nc_skipped *skipped = nc_zalloc(sizeof(*skipped));
    *skipped = (struct nc_skipped){comm->skipped, batch->ticket};
    comm->skipped = skipped;
    batch->has_ticket = false;
    while (take_skipped_locked(comm))
        comm->turn++;
    pthread_cond_broadcast(&comm->turned);
}

static void end_turn(struct nc_batch *batch)
{
    struct ncclComm *comm = batch->comm;
    atomic_store(&own_rank(comm)->now_kind, 0);
    pthread_mutex_lock(&comm->lock);
    comm->is_running = false;
    if (batch->has_ticket)
        give_ticket_back_locked(batch);
    pthread_cond_broadcast(&comm->turned);
    pthread_mutex_unlock(&comm->lock);
}

void nc_batch_run(void *data)
{
    struct nc_batch *batch = data;
    struct ncclComm *comm = batch->comm;
    if (!take_turn(batch))
        return;
    nc_comm_listen(comm);
    if (atomic_load(&comm->async_error) == ncclSuccess) {
        const ncclResult_t result = run_ops(batch);
        /* Stopped by its own program: that is no error. */
        if (result != ncclSuccess && atomic_load(&comm->stop) == NC_RUN)
            nc_comm_fail(comm, result);
    }
    end_turn(batch);
}

/* A batch that never ran leaves the other ranks alone, unless it was wanted. */
void nc_batch_destroy(void *data)
{
    struct nc_batch *batch = data;
    struct ncclComm *comm = batch->comm;
    if (batch->has_ticket) {
        pthread_mutex_lock(&comm->lock);
        give_ticket_back_locked(batch);
        pthread_mutex_unlock(&comm->lock);
        if (atomic_load(&comm->stop) == NC_RUN)
            nc_comm_fail(comm, ncclUnhandledCudaError);
    }
    for (size_t i = 0; i < batch->count; i++) {
        nc_comm_drop(batch->ops[i]->comm);
        free(batch->ops[i]);
    }
    free(batch->ops);
    free(batch);
    nc_comm_drop(comm);
}
