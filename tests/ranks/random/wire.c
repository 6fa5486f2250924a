/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of NCCL. One is drawn as a whole (`struct wire`), with what every rank reads and
 * writes; what a rank would read and has not written, it fills first. Several make a group, on
 * tensors that differ.
 */
#include "tests/ranks/random/random.h"

#include <stdio.h>

enum kind {
    BCAST, /* in place, by the old name */
    BROADCAST,
    REDUCE,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SCATTER_BY_SENDS, /* as PyTorch scatters: uneven pieces, the root's own by a copy */
    SHIFT,            /* each to the next */
    MESSAGE,          /* from the root to the one behind it */
    KIND_COUNT
};
static const char *const kind_names[] = {"bcast",      "broadcast",      "reduce",     "all-reduce",
                                         "all-gather", "reduce-scatter", "all-to-all", "gather",
                                         "scatter",    "sends",          "shift",      "message"};

struct wire {
    enum kind kind;
    const struct family *family;
    int root_draw; /* the root's rank in a communicator is this modulo its size */
    size_t count;  /* elements; of all ranks together for SCATTER_BY_SENDS */
    size_t element;
    ncclDataType_t type;
    ncclRedOp_t op;
    struct tensor *from, *to; /* the same: in place */
    size_t from_at, to_at;
    CUstream stream;
};

static int place_of(const struct wire *wire, int rank)
{
    return wire->family->place[rank];
}

static int size_at(const struct wire *wire, int rank)
{
    return wire->family->size[rank];
}

static int root_at(const struct wire *wire, int rank)
{
    return wire->root_draw % size_at(wire, rank);
}

static bool is_root(const struct wire *wire, int rank)
{
    return place_of(wire, rank) == root_at(wire, rank);
}

static bool is_behind_root(const struct wire *wire, int rank)
{
    return place_of(wire, rank) == (root_at(wire, rank) + 1) % size_at(wire, rank);
}

/* Where a piece of SCATTER_BY_SENDS begins: the last ones have less, or nothing. */
static size_t piece_begin(const struct wire *wire, int rank, int piece)
{
    const size_t size = (size_t)size_at(wire, rank);
    const size_t begin = (wire->count + size - 1) / size * (size_t)piece;
    return begin < wire->count ? begin : wire->count;
}

static size_t piece_count(const struct wire *wire, int rank, int piece)
{
    return piece_begin(wire, rank, piece + 1) - piece_begin(wire, rank, piece);
}

/* --- what a rank reads and writes, in elements */

struct part {
    size_t at, count;
};

static struct part read_part(const struct wire *wire, int rank)
{
    const size_t all = wire->count * (size_t)size_at(wire, rank);
    const bool in_place = wire->from == wire->to;
    switch (wire->kind) {
    case BCAST:
    case BROADCAST:
        return (struct part){0, is_root(wire, rank) ? wire->count : 0};
    case ALL_GATHER:
        return (struct part){in_place ? wire->count * (size_t)place_of(wire, rank) : 0,
                             wire->count};
    case GATHER:
        return (struct part){in_place && is_root(wire, rank)
                                 ? wire->count * (size_t)place_of(wire, rank)
                                 : 0,
                             wire->count};
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return (struct part){0, all};
    case SCATTER:
        return (struct part){0, is_root(wire, rank) ? all : 0};
    case SCATTER_BY_SENDS:
    case MESSAGE:
        return (struct part){0, is_root(wire, rank) ? wire->count : 0};
    default:
        return (struct part){0, wire->count};
    }
}

static struct part written_part(const struct wire *wire, int rank)
{
    const size_t all = wire->count * (size_t)size_at(wire, rank);
    const bool in_place = wire->from == wire->to;
    switch (wire->kind) {
    case REDUCE:
        return (struct part){0, is_root(wire, rank) ? wire->count : 0};
    case ALL_GATHER:
    case ALL_TO_ALL:
        return (struct part){0, all};
    case GATHER:
        return (struct part){0, is_root(wire, rank) ? all : 0};
    case REDUCE_SCATTER:
        return (struct part){in_place ? wire->count * (size_t)place_of(wire, rank) : 0,
                             wire->count};
    case SCATTER:
        return (struct part){in_place && is_root(wire, rank)
                                 ? wire->count * (size_t)place_of(wire, rank)
                                 : 0,
                             wire->count};
    case SCATTER_BY_SENDS:
        return (struct part){0, piece_count(wire, rank, place_of(wire, rank))};
    case MESSAGE:
        return (struct part){0, is_behind_root(wire, rank) ? wire->count : 0};
    default:
        return (struct part){0, wire->count};
    }
}

static struct range range_read(const struct wire *wire, int rank)
{
    const struct part part = read_part(wire, rank);
    return (struct range){wire->from, wire->from_at + part.at * wire->element,
                          part.count * wire->element};
}

static struct range range_written(const struct wire *wire, int rank)
{
    const struct part part = written_part(wire, rank);
    return (struct range){wire->to, wire->to_at + part.at * wire->element,
                          part.count * wire->element};
}

/* --- drawing one */

static bool may_be_in_place(enum kind kind)
{
    return kind <= REDUCE_SCATTER || kind == GATHER || kind == SCATTER;
}

/* How many times `count` the larger buffer holds. */
static size_t most_times(const struct wire *wire)
{
    const bool is_of_all = wire->kind >= ALL_GATHER && wire->kind <= SCATTER;
    return is_of_all ? (size_t)family_most(wire->family) : 1;
}

static size_t draw_place(size_t elements, size_t used)
{
    return common_one_in(2) ? 0 : random_common(elements - used + 1);
}

static bool draw_sizes(struct wire *wire)
{
    const size_t from = wire->from->bytes / wire->element, to = wire->to->bytes / wire->element;
    const size_t least = from < to ? from : to;
    const size_t most = least / most_times(wire);
    if (most == 0)
        return false;
    wire->count = common_one_in(2) ? most : 1 + random_common(most);
    const size_t used = wire->count * most_times(wire);
    wire->to_at = draw_place(to, used) * wire->element;
    wire->from_at = wire->from == wire->to ? wire->to_at : draw_place(from, used) * wire->element;
    return true;
}

static bool draw_wire(struct wire *wire)
{
    static const struct {
        ncclDataType_t type;
        size_t element;
    } types[] = {{ncclUint8, 1}, {ncclUint8, 1}, {ncclInt32, 4}, {ncclUint64, 8}};
    static const enum kind usual[] = {BCAST, BCAST, BROADCAST, SCATTER_BY_SENDS};
    static const ncclRedOp_t ops[] = {ncclSum, ncclSum, ncclMax, ncclMin, ncclProd};
    const uint64_t type = random_common(4);
    *wire = (struct wire){
        .kind = common_one_in(2) ? usual[random_common(4)] : (enum kind)random_common(KIND_COUNT),
        .family = family_draw(),
        .root_draw = (int)random_common(MAX_RANKS),
        .type = types[type].type,
        .element = types[type].element,
        .op = ops[random_common(5)],
        .to = tensor_draw(),
    };
    const bool in_place = wire->kind == BCAST || common_one_in(2);
    wire->from = may_be_in_place(wire->kind) && in_place ? wire->to : tensor_draw();
    /* NCCL wants the buffers of all ranks registered, or none. */
    if (wire->to == NULL || wire->from == NULL || !tensor_may_be_sent(wire->from) ||
        (wire->to->registered == NULL) != (wire->from->registered == NULL) ||
        (wire->from == wire->to && !may_be_in_place(wire->kind)) ||
        (wire->kind == MESSAGE && program.ranks == 1) || !draw_sizes(wire))
        return false;
    wire->from->is_claimed = wire->to->is_claimed = true;
    return true;
}

/* --- running it */

static bool takes_part(const struct wire *wire, int rank)
{
    const struct family *family = wire->family;
    return family->class[rank] >= 0 && !(wire->kind == MESSAGE && family->size[rank] == 1);
}

/* Prepares the sent bytes and the fetched ones, by this rank alone. */
static void make_ready(struct wire *wire)
{
    for (int rank = 0; rank < program.ranks; rank++) {
        if (!takes_part(wire, rank))
            continue;
        const struct range read = range_read(wire, rank);
        if (range_is_known(&read, &read.tensor->known[rank]))
            continue;
        if (rank == program.rank)
            local_fill(&read);
        range_know(&read, rank);
    }
    wire->stream = stream_draw();
}

static void wait_for_tensors(const struct wire *wire)
{
    const struct range from = {wire->from, 0, 0}, to = {wire->to, 0, 0};
    range_begin(&from, wire->stream);
    range_begin(&to, wire->stream);
}

static void send_pieces(const struct wire *wire, char *from, char *to)
{
    const int self = program.rank, place = place_of(wire, self), root = root_at(wire, self);
    const size_t own = piece_count(wire, self, place);
    program_nccl(ncclGroupStart(), "ncclGroupStart");
    if (place != root && own > 0)
        program_nccl(ncclRecv(to, own, wire->type, root, wire->family->comm, wire->stream),
                     "ncclRecv");
    for (int peer = 0; place == root && peer < size_at(wire, self); peer++) {
        const size_t count = piece_count(wire, self, peer);
        char *piece = from + piece_begin(wire, self, peer) * wire->element;
        if (peer != place && count > 0)
            program_nccl(ncclSend(piece, count, wire->type, peer, wire->family->comm, wire->stream),
                         "ncclSend");
        if (peer == place && count > 0)
            program_cuda(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)piece,
                                           count * wire->element, wire->stream),
                         "cuMemcpyDtoDAsync");
    }
    program_nccl(ncclGroupEnd(), "ncclGroupEnd");
}

static ncclResult_t shift(const struct wire *wire, const char *from, char *to)
{
    const int size = size_at(wire, program.rank), place = place_of(wire, program.rank);
    program_nccl(ncclGroupStart(), "ncclGroupStart");
    program_nccl(ncclSend(from, wire->count, wire->type, (place + 1) % size, wire->family->comm,
                          wire->stream),
                 "ncclSend");
    program_nccl(ncclRecv(to, wire->count, wire->type, (place + size - 1) % size,
                          wire->family->comm, wire->stream),
                 "ncclRecv");
    return ncclGroupEnd();
}

static ncclResult_t message(const struct wire *wire, const char *from, char *to)
{
    const int self = program.rank, root = root_at(wire, self);
    if (is_root(wire, self))
        return ncclSend(from, wire->count, wire->type, (root + 1) % size_at(wire, self),
                        wire->family->comm, wire->stream);
    if (is_behind_root(wire, self))
        return ncclRecv(to, wire->count, wire->type, root, wire->family->comm, wire->stream);
    return ncclSuccess;
}

static void issue(const struct wire *wire)
{
    const struct range read = range_read(wire, program.rank);
    const struct range written = range_written(wire, program.rank);
    char *from = (char *)range_address(&read), *to = (char *)range_address(&written);
    const size_t count = wire->count;
    const int root = root_at(wire, program.rank);
    ncclComm_t comm = wire->family->comm;
    CUstream stream = wire->stream;
    ncclResult_t result = ncclSuccess;
    switch (wire->kind) {
    case BCAST:
        result = ncclBcast(to, count, wire->type, root, comm, stream);
        break;
    case BROADCAST:
        result = ncclBroadcast(from, to, count, wire->type, root, comm, stream);
        break;
    case REDUCE:
        result = ncclReduce(from, is_root(wire, program.rank) ? to : NULL, count, wire->type,
                            wire->op, root, comm, stream);
        break;
    case ALL_REDUCE:
        result = ncclAllReduce(from, to, count, wire->type, wire->op, comm, stream);
        break;
    case ALL_GATHER:
        result = ncclAllGather(from, to, count, wire->type, comm, stream);
        break;
    case REDUCE_SCATTER:
        result = ncclReduceScatter(from, to, count, wire->type, wire->op, comm, stream);
        break;
    case ALL_TO_ALL:
        result = ncclAlltoAll(from, to, count, wire->type, comm, stream);
        break;
    case GATHER:
        result = ncclGather(from, to, count, wire->type, root, comm, stream);
        break;
    case SCATTER:
        result = ncclScatter(from, to, count, wire->type, root, comm, stream);
        break;
    case SCATTER_BY_SENDS:
        send_pieces(wire, from, to);
        break;
    case SHIFT:
        result = shift(wire, from, to);
        break;
    case MESSAGE:
        result = message(wire, from, to);
        break;
    case KIND_COUNT:
        break;
    }
    program_nccl(result, kind_names[wire->kind]);
}

static void finish(const struct wire *wire)
{
    const struct range from = {wire->from, 0, 0}, to = {wire->to, 0, 0};
    if (takes_part(wire, program.rank)) {
        range_end(&from, wire->stream);
        range_end(&to, wire->stream);
    }
    for (int rank = 0; rank < program.ranks; rank++) {
        if (!takes_part(wire, rank))
            continue;
        const struct range written = range_written(wire, rank);
        range_know(&written, rank);
    }
    wire->from->is_claimed = wire->to->is_claimed = false;
}

static void tell(const struct wire *wire)
{
    printf("%d %s of %zu in %d, root %d: tensor %d at %zu, to %d at %zu, %zu bytes each\n",
           program.operation, kind_names[wire->kind], wire->count, (int)(wire->family - families),
           wire->root_draw, (int)(wire->from - tensors), wire->from_at, (int)(wire->to - tensors),
           wire->to_at, wire->element);
}

static void run(struct wire *wires, int count, bool as_group)
{
    for (int i = 0; i < count; i++) {
        tell(&wires[i]);
        make_ready(&wires[i]);
    }
    if (program.is_careful) {
        tensors_wait();
        families_expect_no_error();
    }
    for (int i = 0; i < count; i++)
        wait_for_tensors(&wires[i]);
    if (as_group)
        program_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < count; i++) {
        if (takes_part(&wires[i], program.rank))
            issue(&wires[i]);
    }
    if (as_group)
        program_nccl(ncclGroupEnd(), "ncclGroupEnd");
    for (int i = 0; i < count; i++)
        family_wait(wires[i].family);
    for (int i = 0; i < count; i++)
        finish(&wires[i]);
}

void wire_one(void)
{
    struct wire wire;
    if (draw_wire(&wire))
        run(&wire, 1, false);
}

/* A rank that one of the messages is not for must not see another order of communicators than the
 * rest. */
static void sort_by_family(struct wire *wires, int count)
{
    for (int i = 1; i < count; i++) {
        const struct wire wire = wires[i];
        int at = i;
        for (; at > 0 && wires[at - 1].family > wire.family; at--)
            wires[at] = wires[at - 1];
        wires[at] = wire;
    }
}

/* Communicators that block and others do not mix in a group. */
static bool is_alike(const struct wire *first, const struct wire *wire)
{
    if (first->family->does_not_block == wire->family->does_not_block)
        return true;
    wire->from->is_claimed = wire->to->is_claimed = false;
    return false;
}

void wire_group(void)
{
    enum { MOST = 4 };
    struct wire wires[MOST];
    int count = 0;
    for (int tries = 0; tries < MOST; tries++)
        count += draw_wire(&wires[count]) && is_alike(&wires[0], &wires[count]);
    sort_by_family(wires, count);
    if (count > 0)
        run(wires, count, true);
}

void wire_broadcast_whole(struct tensor *tensor, int root)
{
    struct wire wire = {.kind = common_one_in(2) ? BCAST : BROADCAST,
                        .family = &families[0],
                        .root_draw = root,
                        .count = tensor->bytes,
                        .element = 1,
                        .type = ncclUint8,
                        .from = tensor,
                        .to = tensor};
    run(&wire, 1, false);
}

/* --- as PyTorch's coalesced broadcast: concatenate, broadcast, copy back */

static size_t draw_parts(struct tensor *parts[3], size_t *bytes_out)
{
    size_t count = 0;
    *bytes_out = 0;
    for (int tries = 0; tries < 3; tries++) {
        struct tensor *tensor = tensor_draw();
        if (tensor == NULL)
            continue;
        tensor->is_claimed = true;
        *bytes_out += tensor->bytes;
        parts[count++] = tensor;
    }
    for (size_t i = 0; i < count; i++)
        parts[i]->is_claimed = false;
    return count;
}

void wire_coalesced(void)
{
    struct tensor *parts[3], *bucket = tensor_free_slot();
    size_t bytes;
    const int root = (int)random_common((uint64_t)program.ranks);
    const size_t count = draw_parts(parts, &bytes);
    if (bucket == NULL || count == 0)
        return;
    tensor_create(bucket, bytes);
    size_t at = 0;
    for (size_t i = 0; i < count; at += parts[i++]->bytes) {
        const struct range part = {parts[i], 0, parts[i]->bytes};
        const struct range place = {bucket, at, parts[i]->bytes};
        const bool is_whole =
            range_is_known(&part, &parts[i]->known[root]) && tensor_may_be_sent(parts[i]);
        if (program.rank == root && !is_whole)
            local_fill(&part);
        range_know(&part, root);
        /* Also on ranks that have not written all of the part: it is overwritten below. */
        local_copy(&place, &part);
        range_know(&place, root);
    }
    wire_broadcast_whole(bucket, root);
    at = 0;
    for (size_t i = 0; i < count; at += parts[i++]->bytes) {
        const struct range part = {parts[i], 0, parts[i]->bytes};
        const struct range place = {bucket, at, parts[i]->bytes};
        local_copy(&part, &place);
        for (int rank = 0; rank < program.ranks; rank++)
            range_know(&part, rank);
    }
    tensor_destroy(bucket);
}

/* --- captures, and registered buffers */

static CUgraphExec capture(const struct wire *wire)
{
    CUgraph graph;
    CUgraphExec executable;
    program_cuda(cuStreamBeginCapture(wire->stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                 "cuStreamBeginCapture");
    issue(wire);
    program_cuda(cuStreamEndCapture(wire->stream, &graph), "cuStreamEndCapture");
    program_cuda(cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
    program_cuda(cuGraphDestroy(graph), "cuGraphDestroy");
    return executable;
}

void wire_captured(void)
{
    static CUstream stream;
    struct wire wire;
    const uint64_t replays = 1 + random_common(2);
    if (stream == NULL)
        program_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (!draw_wire(&wire))
        return;
    if (wire.family->does_not_block) {
        wire.from->is_claimed = wire.to->is_claimed = false;
        return;
    }
    printf("captured, %d times: ", (int)replays);
    tell(&wire);
    make_ready(&wire);
    wire.stream = stream;
    tensors_wait();
    families_expect_no_error();
    if (!takes_part(&wire, program.rank)) {
        finish(&wire);
        return;
    }
    CUgraphExec executable = capture(&wire);
    for (uint64_t i = 0; i < replays; i++)
        program_cuda(cuGraphLaunch(executable, stream), "cuGraphLaunch");
    program_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
    program_cuda(cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    finish(&wire);
}

void wire_register(void)
{
    struct tensor *tensor = tensor_free_slot();
    const size_t bytes = tensor_random_bytes();
    if (tensor == NULL)
        return;
    tensor_create(tensor, bytes);
    program_nccl(ncclCommRegister(families[0].comm, (void *)tensor->address, bytes,
                                  &tensor->registered),
                 "ncclCommRegister");
    printf("%d register %d: %zu\n", program.operation, (int)(tensor - tensors), bytes);
}

/* All ranks, and all that they have queued. */
void wire_barrier(void)
{
    struct tensor *tensor = &tensors[0];
    if (tensor->address == 0)
        tensor_create(tensor, 4);
    struct wire wire = {.kind = ALL_REDUCE,
                        .family = &families[0],
                        .count = 1,
                        .element = 1,
                        .type = ncclUint8,
                        .op = ncclSum,
                        .from = tensor,
                        .to = tensor};
    tensors_wait();
    families_expect_no_error();
    run(&wire, 1, false);
    tensors_wait();
    families_expect_no_error();
}
