/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's functions as a program calls them: what is prepared before, what is noted behind, and what
 * NCCL gets. NCCL, and what collects operations, are the test's. */
#include "shim/nccl_wrappers.h"

#include <pthread.h>
#include <string.h>

#include "runtime/collective/collective.h"
#include "runtime/collective/communicator.h"
#include "runtime/config/config.h"
#include "runtime/fill/access.h"
#include "runtime/state/caller.h"
#include "shim/nccl_real.h"
#include "shim/off.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/called_in_order.h"

#define COMM ((ncclComm_t)0x100)
#define CHILD ((ncclComm_t)0x200)
#define STREAM ((cudaStream_t)0x300)
enum { RANKS = 4, ROOT = 1, INT32 = 2, COUNT = 10, BYTES = 4 * COUNT };
static char sent[64], received[64];

/* --- what is called */

static struct ms_operation prepared;
static CUresult preparing; /* its answer */
static CUstream called_on;
static int depth_of_groups;

WRAPS(ms_collective_prepare, ms_collective_called, ms_collective_group, ms_access_export);

CUresult __wrap_ms_collective_prepare(const struct ms_operation *operation)
{
    note('p');
    prepared = *operation;
    return preparing;
}

void __wrap_ms_collective_called(CUstream stream)
{
    note('c');
    called_on = stream;
}

void __wrap_ms_collective_group(bool begins)
{
    note('g');
    depth_of_groups += begins ? 1 : -1;
}

static CUresult exporting;
static size_t exported_bytes;
static bool has_one_handle;

CUresult __wrap_ms_access_export(CUdeviceptr address, size_t bytes, bool *is_one_handle_out)
{
    note('e');
    CHECK_EQ(address, (uintptr_t)received);
    exported_bytes = bytes;
    *is_one_handle_out = has_one_handle;
    return exporting;
}

/* --- NCCL */

static enum ms_nccl_id id; /* of the call that it got */
static ncclResult_t answer;
static ncclComm_t made; /* what it gives */
static void (*inside)(void);
static int cancellation; /* while it runs */

static ncclResult_t enter(enum ms_nccl_id called)
{
    note('n');
    id = called;
    CHECK(ms_nccl_is_inside(NULL) && ms_nccl_is_calling());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancellation);
    pthread_setcancelstate(cancellation, NULL);
    if (inside != NULL)
        inside();
    return answer;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define MS_NCCL(name, parameters, arguments)   \
    static ncclResult_t take_##name parameters \
    {                                          \
        return enter(MS_NCCL_##name);          \
    }
#include "shim/nccl.def"
#undef MS_NCCL

static ncclResult_t make_rank(ncclComm_t *comm, int ranks, ncclUniqueId unique, int rank)
{
    *comm = made;
    return enter(MS_NCCL_ncclCommInitRank);
}

static ncclResult_t make_rank_config(ncclComm_t *comm, int ranks, ncclUniqueId unique, int rank,
                                     ncclConfig_t *config)
{
    *comm = made;
    return enter(MS_NCCL_ncclCommInitRankConfig);
}

static ncclResult_t make_rank_scalable(ncclComm_t *comm, int ranks, int rank, int ids,
                                       ncclUniqueId *unique, ncclConfig_t *config)
{
    *comm = made;
    return enter(MS_NCCL_ncclCommInitRankScalable);
}

static ncclResult_t make_all(ncclComm_t *comm, int count, const int *devices)
{
    for (int i = 0; i < count; i++)
        comm[i] = (ncclComm_t)(uintptr_t)(0x1000 + i);
    return enter(MS_NCCL_ncclCommInitAll);
}

static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *child,
                          ncclConfig_t *config)
{
    CHECK(comm == COMM && color == 5 && key == 6);
    if (child != NULL)
        *child = made;
    return enter(MS_NCCL_ncclCommSplit);
}

static ncclResult_t shrink(ncclComm_t comm, int *left_out, int count, ncclComm_t *child,
                           ncclConfig_t *config, int flags)
{
    CHECK(comm == COMM && left_out == NULL && count == 7);
    *child = made;
    return enter(MS_NCCL_ncclCommShrink);
}

static ncclResult_t grow(ncclComm_t comm, int ranks, const ncclUniqueId *unique, int rank,
                         ncclComm_t *child, ncclConfig_t *config)
{
    CHECK(comm == COMM && ranks == 8 && unique == NULL && rank == 9);
    *child = made;
    return enter(MS_NCCL_ncclCommGrow);
}
#pragma GCC diagnostic pop

static ncclResult_t send_to(const void *buffer, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream)
{
    CHECK(buffer == sent && count == COUNT && type == INT32 && peer == 3 && comm == COMM);
    CHECK(stream == STREAM);
    return enter(MS_NCCL_ncclSend);
}

static ncclResult_t receive(void *buffer, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream)
{
    CHECK(buffer == sent && count == COUNT && type == INT32 && peer == 3 && comm == COMM);
    CHECK(stream == STREAM);
    return enter(MS_NCCL_ncclRecv);
}

static int size_of_comm = RANKS, rank_in_comm = ROOT;
static ncclResult_t size_answer, rank_answer;

static ncclResult_t get_count(ncclComm_t comm, int *count)
{
    CHECK(comm == COMM || comm == CHILD);
    CHECK(ms_nccl_is_inside(NULL));
    *count = size_of_comm;
    return size_answer;
}

static ncclResult_t get_rank(ncclComm_t comm, int *rank)
{
    CHECK(comm == COMM || comm == CHILD);
    CHECK(ms_nccl_is_inside(NULL));
    *rank = rank_in_comm;
    return rank_answer;
}

static struct ms_nccl nccl, first;
static bool is_nccls_own, has_nccl, is_off;
static ncclComm_t asked_for;

const struct ms_nccl *ms_nccl_at(const void *address)
{
    (void)address;
    return is_nccls_own ? &nccl : NULL;
}

const struct ms_nccl *ms_nccl_of(ncclComm_t comm, const void *return_address)
{
    CHECK(return_address != NULL);
    asked_for = comm;
    return has_nccl ? &nccl : NULL;
}

const struct ms_nccl *ms_nccl_detect(const void *function)
{
    return function == sent ? &first : &nccl;
}

bool ms_nccl_is_first(const struct ms_nccl *copy)
{
    return copy == &first;
}

void ms_nccl_add_comm(ncclComm_t comm, const struct ms_nccl *copy)
{
    CHECK(comm != NULL && copy == &nccl);
    note('a');
}

void ms_nccl_forget_comm(ncclComm_t comm)
{
    CHECK(comm == COMM);
    note('f');
}

bool ms_is_off(void)
{
    return is_off;
}

static void start(void)
{
    nccl = (struct ms_nccl){.functions = {
#define MS_NCCL(name, parameters, arguments) [MS_NCCL_##name] = (void *)take_##name,
#include "shim/nccl.def"
#undef MS_NCCL
                            }};
    nccl.functions[MS_NCCL_ncclCommInitRank] = (void *)make_rank;
    nccl.functions[MS_NCCL_ncclCommInitRankConfig] = (void *)make_rank_config;
    nccl.functions[MS_NCCL_ncclCommInitRankScalable] = (void *)make_rank_scalable;
    nccl.functions[MS_NCCL_ncclCommInitAll] = (void *)make_all;
    nccl.functions[MS_NCCL_ncclCommSplit] = (void *)split;
    nccl.functions[MS_NCCL_ncclCommShrink] = (void *)shrink;
    nccl.functions[MS_NCCL_ncclCommGrow] = (void *)grow;
    nccl.functions[MS_NCCL_ncclSend] = (void *)send_to;
    nccl.functions[MS_NCCL_ncclRecv] = (void *)receive;
    nccl.comm_count = (void *)get_count;
    nccl.comm_user_rank = (void *)get_rank;
    has_nccl = has_one_handle = true;
    made = CHILD;
    ms_config.nccl_register = true;
    atomic_store(&ms_hot.started, 1);
    atomic_store(&ms_hot.owned, 1);
    atomic_store(&ms_hot.deferred, 1);
    ms_log_open(MS_ERROR, "/dev/null");
}

/* The call was left as it was found. */
static void end(void)
{
    int before;
    CHECK(!ms_nccl_is_inside(NULL) && !ms_nccl_is_calling());
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    CHECK_EQ(before, PTHREAD_CANCEL_ENABLE);
    CHECK_EQ(ms_calls_inside, 0);
}
#define NCCL_TEST(name) MS_TEST_BETWEEN(start, end, name)

static void know_comm(int rank, bool is_blocking)
{
    ms_communicator_set(COMM, &(struct ms_communicator){RANKS, rank, is_blocking, MS_MET});
}

/* --- collectives */

enum collective {
    REDUCE,
    BCAST,
    BROADCAST,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    COLLECTIVES
};

static ncclResult_t call(enum collective which, bool has_config, const void *from, void *to,
                         size_t count, int type, cudaStream_t stream)
{
    switch (which) {
    case REDUCE:
        return has_config ? ncclReduceConfig(from, to, count, type, 0, ROOT, COMM, stream, NULL)
                          : ncclReduce(from, to, count, type, 0, ROOT, COMM, stream);
    case BCAST:
        return ncclBcast(to, count, type, ROOT, COMM, stream);
    case BROADCAST:
        return has_config ? ncclBroadcastConfig(from, to, count, type, ROOT, COMM, stream, NULL)
                          : ncclBroadcast(from, to, count, type, ROOT, COMM, stream);
    case ALL_REDUCE:
        return has_config ? ncclAllReduceConfig(from, to, count, type, 0, COMM, stream, NULL)
                          : ncclAllReduce(from, to, count, type, 0, COMM, stream);
    case REDUCE_SCATTER:
        return has_config ? ncclReduceScatterConfig(from, to, count, type, 0, COMM, stream, NULL)
                          : ncclReduceScatter(from, to, count, type, 0, COMM, stream);
    case ALL_GATHER:
        return has_config ? ncclAllGatherConfig(from, to, count, type, COMM, stream, NULL)
                          : ncclAllGather(from, to, count, type, COMM, stream);
    case ALL_TO_ALL:
        return has_config ? ncclAlltoAllConfig(from, to, count, type, COMM, stream, NULL)
                          : ncclAlltoAll(from, to, count, type, COMM, stream);
    case GATHER:
        return has_config ? ncclGatherConfig(from, to, count, type, ROOT, COMM, stream, NULL)
                          : ncclGather(from, to, count, type, ROOT, COMM, stream);
    default:
        return has_config ? ncclScatterConfig(from, to, count, type, ROOT, COMM, stream, NULL)
                          : ncclScatter(from, to, count, type, ROOT, COMM, stream);
    }
}

/* How often `count` elements are read and written, by the root and by others. */
static const struct {
    size_t root_reads, others_read, root_writes, others_write;
    bool sends, receives, gathers;
} expected[COLLECTIVES] = {[REDUCE] = {1, 1, 1, 0, false, false},
                           [BCAST] = {1, 0, 0, 1, true, true},
                           [BROADCAST] = {1, 0, 1, 1, true, true},
                           [ALL_REDUCE] = {1, 1, 1, 1, false, false},
                           [REDUCE_SCATTER] = {RANKS, RANKS, 1, 1, false, false},
                           [ALL_GATHER] = {1, 1, RANKS, RANKS, true, false, true},
                           [ALL_TO_ALL] = {RANKS, RANKS, RANKS, RANKS, false, false},
                           [GATHER] = {1, 1, RANKS, 0, false, false},
                           [SCATTER] = {RANKS, 0, 1, 1, true, false}};

#define BOTH(name)                             \
    {                                          \
        MS_NCCL_##name, MS_NCCL_##name##Config \
    }
static const enum ms_nccl_id ids[COLLECTIVES][2] = {[REDUCE] = BOTH(ncclReduce),
                                                    [BCAST] = {MS_NCCL_ncclBcast,
                                                               MS_NCCL_ncclBcast},
                                                    [BROADCAST] = BOTH(ncclBroadcast),
                                                    [ALL_REDUCE] = BOTH(ncclAllReduce),
                                                    [REDUCE_SCATTER] = BOTH(ncclReduceScatter),
                                                    [ALL_GATHER] = BOTH(ncclAllGather),
                                                    [ALL_TO_ALL] = BOTH(ncclAlltoAll),
                                                    [GATHER] = BOTH(ncclGather),
                                                    [SCATTER] = BOTH(ncclScatter)};

static void check_collective(enum collective which, bool has_config, bool is_root)
{
    know_comm(is_root ? ROOT : ROOT + 1, is_root);
    CHECK_EQ(call(which, has_config, sent, received, COUNT, INT32, STREAM), ncclSuccess);
    must_have("pnc");
    CHECK(prepared.read == (which == BCAST ? received : sent) && prepared.written == received);
    CHECK_EQ(prepared.read_bytes,
             BYTES * (is_root ? expected[which].root_reads : expected[which].others_read));
    CHECK_EQ(prepared.written_bytes,
             BYTES * (is_root ? expected[which].root_writes : expected[which].others_write));
    CHECK_EQ(prepared.sends, expected[which].sends);
    CHECK_EQ(prepared.receives, expected[which].receives);
    CHECK_EQ(prepared.gathers, expected[which].gathers);
    CHECK_EQ(prepared.ranks, RANKS);
    CHECK_EQ(prepared.rank, is_root ? ROOT : ROOT + 1);
    CHECK_EQ(prepared.is_late, !is_root);
    CHECK(called_on == STREAM && asked_for == COMM);
    CHECK_EQ(id, has_config ? ids[which][1] : ids[which][0]);
    CHECK_EQ(cancellation, PTHREAD_CANCEL_DISABLE);
}

NCCL_TEST(a_collective_reads_and_writes_as_its_kind_does)
{
    for (int which = 0; which < COLLECTIVES; which++) {
        for (int i = 0; i < 4; i++)
            check_collective((enum collective)which, i / 2 == 1, i % 2 == 1);
    }
}

STORY_BETWEEN(start, end, the_default_stream_is_the_legacy_one, know_comm(ROOT, true),
              call(ALL_REDUCE, false, sent, received, COUNT, INT32, NULL),
              IS(called_on == CU_STREAM_LEGACY))

NCCL_TEST(each_type_has_its_bytes)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    know_comm(ROOT, true);
    for (int type = 0; type < 12; type++) {
        call(ALL_REDUCE, false, sent, received, 3, type, STREAM);
        CHECK_EQ(prepared.read_bytes, 3 * bytes[type]);
        CHECK_EQ(prepared.written_bytes, 3 * bytes[type]);
    }
}

static void must_prepare_everything(void)
{
    must_have("pnc");
    CHECK(prepared.read == NULL && prepared.written == NULL);
    CHECK(prepared.read_bytes == SIZE_MAX && prepared.written_bytes == 0);
}

NCCL_TEST(an_operation_of_unknown_size_prepares_everything)
{
    know_comm(ROOT, true);
    static const struct {
        enum collective which;
        size_t count;
        int type;
    } cases[] = {{ALL_REDUCE, COUNT, 12},
                 {ALL_REDUCE, COUNT, -1},
                 {ALL_REDUCE, SIZE_MAX / 4 + 1, INT32},
                 {ALL_GATHER, SIZE_MAX / 4, INT32}, /* of each rank */
                 {REDUCE_SCATTER, SIZE_MAX / 4, INT32}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        call(cases[i].which, false, sent, received, cases[i].count, cases[i].type, STREAM);
        must_prepare_everything();
    }
}

NCCL_TEST(a_collective_of_nothing_prepares_nothing)
{
    know_comm(ROOT, true);
    call(ALL_REDUCE, false, sent, received, 0, INT32, STREAM);
    must_have("nc");
    call(ALL_REDUCE, false, sent, received, 0, 12, STREAM); /* NCCL refuses it */
    must_have("nc");
}

STORY_BETWEEN(start, end, a_single_rank_in_place_broadcasts_nothing,
              ms_communicator_set(COMM, &(struct ms_communicator){1, 0, true, MS_MET}),
              call(BROADCAST, false, received, received, COUNT, INT32, STREAM), must_have("nc"),
              call(BCAST, false, NULL, received, COUNT, INT32, STREAM), must_have("nc"),
              call(BROADCAST, false, sent, received, COUNT, INT32, STREAM), must_have("pnc"),
              call(ALL_REDUCE, false, received, received, COUNT, INT32, STREAM), must_have("pnc"),
              know_comm(ROOT, true),
              call(BROADCAST, false, received, received, COUNT, INT32, STREAM), must_have("pnc"))

NCCL_TEST(an_operation_prepares_nothing_without_anything_deferred)
{
    know_comm(ROOT, true);
    atomic_store(&ms_hot.deferred, 0);
    call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
    must_have("nc");
    CHECK_EQ(ncclSend(sent, COUNT, INT32, 3, COMM, STREAM), ncclSuccess);
    must_have("nc");
    atomic_store(&ms_hot.captures, 1); /* what is captured runs later */
    call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
    must_have("pnc");
}

NCCL_TEST(an_operation_that_cannot_be_prepared_is_not_called)
{
    know_comm(ROOT, true);
    preparing = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK_EQ(call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM), ncclUnhandledCudaError);
    must_have("pc"); /* what was held is let go */
    CHECK_EQ(ncclSend(sent, COUNT, INT32, 3, COMM, STREAM), ncclUnhandledCudaError);
    must_have("pc");
    CHECK_EQ(ncclRecv(sent, COUNT, INT32, 3, COMM, STREAM), ncclUnhandledCudaError);
    must_have("p");
    CHECK_EQ(ncclPutSignal(sent, COUNT, INT32, 3, NULL, 0, 0, 0, 0, COMM, STREAM),
             ncclUnhandledCudaError);
    must_have("p");
}

STORY_BETWEEN(start, end, nccls_answer_is_the_programs, know_comm(ROOT, true),
              answer = ncclInvalidUsage,
              EQUALS(call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM),
                     ncclInvalidUsage),
              must_have("pnc"))

/* --- whose call it is */

static void call_all(void)
{
    ncclComm_t comm = NULL, two[2];
    ncclWindow_t window = NULL;
    void *handle = NULL;
    const ncclUniqueId unique = {""};
    call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
    ncclSend(sent, COUNT, INT32, 3, COMM, STREAM);
    ncclRecv(sent, COUNT, INT32, 3, COMM, STREAM);
    ncclGroupStart();
    ncclGroupEnd();
    ncclCommInitRank(&comm, RANKS, unique, ROOT);
    ncclCommInitAll(two, 2, NULL);
    ncclCommSplit(COMM, 5, 6, &comm, NULL);
    ncclCommRegister(COMM, received, BYTES, &handle);
    ncclCommWindowRegister(COMM, received, BYTES, &window, 0);
    ncclCommDestroy(COMM);
}

NCCL_TEST(calls_that_are_not_the_programs_go_straight_on)
{
    static const char straight[] = "nnnnnnnnnnn";
    know_comm(ROOT, true);
    ms_caller = "before";
    ms_config.nccl_register = false;
    is_off = true;
    call_all();
    must_have(straight);
    is_off = false;
    is_nccls_own = true;
    call_all();
    must_have(straight);
    is_nccls_own = false;
    atomic_store(&ms_hot.started, 0);
    call_all();
    must_have(straight);
    CHECK(strcmp(ms_caller, "before") == 0);
    struct ms_communicator found;
    CHECK(ms_communicator_find(COMM, &found) && !ms_communicator_find(CHILD, &found));
}

static void call_again(void)
{
    inside = NULL;
    ncclRecv(sent, COUNT, INT32, 3, COMM, STREAM);
}

STORY_BETWEEN(start, end, a_call_inside_of_a_call_goes_straight_on, know_comm(ROOT, true),
              inside = call_again, ncclSend(sent, COUNT, INT32, 3, COMM, STREAM), must_have("pnnc"),
              IS(strcmp(ms_caller, "ncclSend") == 0), ncclRecv(sent, COUNT, INT32, 3, COMM, STREAM),
              must_have("pn"))

STORY_BETWEEN(start, end, a_call_that_no_nccl_has_is_an_error, know_comm(ROOT, true),
              ms_caller = "before", has_nccl = false, EQUALS(ncclGroupStart(), ncclSystemError),
              has_nccl = true, nccl.functions[MS_NCCL_ncclAllReduce] = NULL,
              EQUALS(call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM),
                     ncclSystemError),
              must_have(""), IS(strcmp(ms_caller, "before") == 0))

STORY_BETWEEN(start, end, a_caller_in_nccl_is_inside, IS(!ms_nccl_is_inside(sent)),
              is_nccls_own = true, IS(ms_nccl_is_inside(sent) && !ms_nccl_is_calling()),
              is_nccls_own = false)

/* --- communicators that are asked */

/* Earlier bytes on the stack are no answer. */
static __attribute__((noinline)) void fill_stack(char value)
{
    volatile char stack[4096];
    for (size_t i = 0; i < sizeof(stack); i++)
        stack[i] = value;
}

NCCL_TEST(a_communicator_of_a_call_that_is_not_looked_at_is_not_asked)
{
    struct ms_communicator found;
    nccl.comm_count = NULL;
    is_off = true;
    call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
    must_have("n");
    is_off = false;
    atomic_store(&ms_hot.deferred, 0);
    call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
    must_have("nc");
    nccl.comm_count = (void *)get_count;
    call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
    must_have("nc");
    atomic_store(&ms_hot.deferred, 1);
    is_off = true;
    call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
    must_have("n");
    is_off = false;
    CHECK(!ms_communicator_find(COMM, &found));
}

STORY_BETWEEN(start, end, a_send_while_nothing_is_deferred_is_not_late,
              atomic_store(&ms_hot.deferred, 0), atomic_store(&ms_hot.captures, 1),
              EQUALS(ncclSend(sent, COUNT, INT32, 3, COMM, STREAM), ncclSuccess), must_have("pnc"),
              IS(!prepared.is_late))

NCCL_TEST(a_communicator_that_is_not_known_is_asked_once)
{
    struct ms_communicator found;
    fill_stack(1);
    CHECK_EQ(call(SCATTER, false, sent, received, COUNT, INT32, STREAM), ncclSuccess);
    must_have("pnc");
    CHECK_EQ(prepared.read_bytes, RANKS * BYTES);
    CHECK(prepared.is_late);
    CHECK(ms_communicator_find(COMM, &found));
    CHECK(found.ranks == RANKS && found.rank == ROOT && !found.is_blocking);
    CHECK_EQ(found.origin, MS_MET);
    rank_answer = ncclInternalError; /* not asked any more */
    call(SCATTER, false, sent, received, COUNT, INT32, STREAM);
    CHECK_EQ(prepared.read_bytes, RANKS * BYTES);
}

NCCL_TEST(a_communicator_that_does_not_answer_prepares_everything)
{
    struct ms_communicator found;
    for (int i = 0; i < 4; i++) {
        size_answer = i == 0 ? ncclInternalError : ncclSuccess;
        rank_answer = i == 1 ? ncclInternalError : ncclSuccess;
        nccl.comm_count = i == 2 ? NULL : (void *)get_count;
        nccl.comm_user_rank = i == 3 ? NULL : (void *)get_rank;
        call(ALL_REDUCE, false, sent, received, COUNT, INT32, STREAM);
        must_prepare_everything();
        CHECK(!ms_communicator_find(COMM, &found));
    }
}

/* --- point to point */

NCCL_TEST(a_send_reads_its_buffer_and_a_receive_writes_its_own)
{
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            know_comm(ROOT, i == 2);
        CHECK_EQ(ncclSend(sent, COUNT, INT32, 3, COMM, STREAM), ncclSuccess);
        must_have("pnc");
        CHECK(prepared.read == sent && prepared.read_bytes == BYTES && prepared.sends);
        CHECK(prepared.written == NULL && prepared.written_bytes == 0 && !prepared.receives);
        CHECK_EQ(prepared.is_late, i < 2);
    }
    CHECK_EQ(ncclRecv(sent, COUNT, INT32, 3, COMM, STREAM), ncclSuccess);
    must_have("pn");
    CHECK(prepared.written == sent && prepared.written_bytes == BYTES && !prepared.sends);
    CHECK(prepared.read == NULL && prepared.read_bytes == 0);
    CHECK_EQ(ncclPutSignal(sent, COUNT, INT32, 3, NULL, 0, 0, 0, 0, COMM, STREAM), ncclSuccess);
    must_have("pn");
    CHECK(prepared.read == sent && prepared.read_bytes == BYTES && prepared.written_bytes == 0);
}

NCCL_TEST(a_scalar_in_device_memory_is_read)
{
    ncclRedOp_t operation;
    CHECK_EQ(ncclRedOpCreatePreMulSum(&operation, sent, INT32, NCCL_SCALAR_DEVICE, COMM),
             ncclSuccess);
    must_have("pn");
    CHECK(prepared.read == sent && prepared.read_bytes == 4 && prepared.written_bytes == 0);
    CHECK_EQ(ncclRedOpCreatePreMulSum(&operation, sent, INT32, 1, COMM), ncclSuccess);
    must_have("n");
}

/* --- groups */

NCCL_TEST(a_group_counts_when_it_has_begun)
{
    CHECK_EQ(ncclGroupStart(), ncclSuccess);
    must_have("ng");
    CHECK_EQ(depth_of_groups, 1);
    answer = ncclInternalError;
    CHECK_EQ(ncclGroupEnd(), ncclInternalError); /* ended all the same */
    must_have("ng");
    CHECK_EQ(depth_of_groups, 0);
    CHECK_EQ(ncclGroupStart(), ncclInternalError);
    must_have("n");
    CHECK_EQ(depth_of_groups, 0);
}

/* --- communicators that are made */

static ncclConfig_t config_of(int blocking)
{
    return (ncclConfig_t){.size = sizeof(ncclConfig_t), .blocking = blocking};
}

static ncclResult_t make(int way, ncclConfig_t *config)
{
    static ncclComm_t comm;
    const ncclUniqueId unique = {""};
    comm = NULL;
    return way == 0   ? ncclCommInitRank(&comm, RANKS, unique, ROOT)
           : way == 1 ? ncclCommInitRankConfig(&comm, RANKS, unique, ROOT, config)
                      : ncclCommInitRankScalable(&comm, RANKS, ROOT, 1, NULL, config);
}

static void must_know(bool is_known, bool is_blocking)
{
    struct ms_communicator found;
    must_have(is_known ? "na" : "n");
    CHECK_EQ(ms_communicator_find(CHILD, &found), is_known);
    CHECK(!is_known || (found.ranks == RANKS && found.rank == ROOT && found.origin == MS_MADE));
    CHECK(!is_known || found.is_blocking == is_blocking);
    CHECK_EQ(cancellation, PTHREAD_CANCEL_ENABLE); /* it waits for others while it holds nothing */
    ms_communicator_set(CHILD, NULL);
}

NCCL_TEST(a_communicator_is_known_by_its_size_and_rank)
{
    for (int way = 0; way < 3; way++) {
        answer = ncclSuccess;
        CHECK_EQ(make(way, NULL), ncclSuccess);
        must_know(true, true);
        answer = ncclInProgress;
        CHECK_EQ(make(way, NULL), ncclInProgress);
        must_know(true, way != 0);
        answer = ncclInvalidArgument;
        CHECK_EQ(make(way, NULL), ncclInvalidArgument);
        must_know(false, false);
        answer = ncclSuccess;
        made = NULL; /* in a group */
        CHECK_EQ(make(way, NULL), ncclSuccess);
        must_know(false, false);
        made = CHILD;
    }
}

NCCL_TEST(a_configuration_says_whether_calls_block)
{
    static const struct {
        int blocking;
        size_t less; /* of its size */
        bool blocks;
    } cases[] = {{0, 0, false}, {1, 0, true}, {INT32_MIN, 0, true}, {0, 8, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ncclConfig_t config = config_of(cases[i].blocking);
        config.size -= cases[i].less;
        make(1, &config);
        must_know(true, cases[i].blocks);
        make(2, &config);
        must_know(true, cases[i].blocks);
    }
    ncclConfig_t exact = config_of(0);
    exact.size = offsetof(ncclConfig_t, blocking) + sizeof(int);
    make(1, &exact);
    must_know(true, false);
    exact.size--;
    make(1, &exact);
    must_know(true, true);
}

/* None of them is the rank of a plan. */
NCCL_TEST(all_communicators_of_one_process_are_known_by_their_copy_alone)
{
    ncclComm_t comms[3];
    struct ms_communicator found;
    CHECK_EQ(ncclCommInitAll(comms, 3, NULL), ncclSuccess);
    must_have("naaa");
    CHECK(!ms_communicator_find(comms[0], &found));
    answer = ncclInProgress;
    CHECK_EQ(ncclCommInitAll(comms, 1, NULL), ncclInProgress);
    must_have("na");
    answer = ncclInternalError;
    CHECK_EQ(ncclCommInitAll(comms, 3, NULL), ncclInternalError);
    must_have("n");
}

static ncclResult_t make_child(int way, ncclConfig_t *config)
{
    ncclComm_t comm = NULL;
    return way == 0   ? ncclCommSplit(COMM, 5, 6, &comm, config)
           : way == 1 ? ncclCommShrink(COMM, NULL, 7, &comm, config, 0)
                      : ncclCommGrow(COMM, 8, NULL, 9, &comm, config);
}

static void must_have_child(int way, ncclConfig_t *config, const char *calls, bool is_known)
{
    struct ms_communicator found;
    fill_stack(0);
    CHECK_EQ(make_child(way, config), answer);
    must_have(calls);
    CHECK_EQ(ms_communicator_find(CHILD, &found), is_known);
    CHECK(!is_known || (found.ranks == RANKS && found.rank == ROOT && found.is_blocking &&
                        found.origin == MS_SPLIT_OFF));
    CHECK_EQ(cancellation, PTHREAD_CANCEL_ENABLE);
    ms_communicator_set(CHILD, NULL);
}

NCCL_TEST(a_child_that_blocks_is_asked_at_once)
{
    ncclConfig_t late = config_of(0);
    for (int way = 0; way < 3; way++) {
        know_comm(0, true);
        must_have_child(way, NULL, "na", true);
        must_have_child(way, &late, "na", false);
        rank_answer = ncclInternalError;
        must_have_child(way, NULL, "na", false);
        rank_answer = ncclSuccess;
        know_comm(0, false);
        must_have_child(way, NULL, "na", false);
        ms_communicator_set(COMM, NULL);
        must_have_child(way, NULL, "na", false);
    }
}

NCCL_TEST(a_split_that_makes_no_child_is_not_known)
{
    know_comm(0, true);
    for (int way = 0; way < 3; way++) {
        made = NULL; /* no rank of it: NCCL_SPLIT_NOCOLOR */
        must_have_child(way, NULL, "n", false);
        made = CHILD;
        answer = ncclInvalidUsage;
        must_have_child(way, NULL, "n", false);
        answer = ncclInProgress;
        must_have_child(way, NULL, "n", false);
        answer = ncclSuccess;
    }
    CHECK_EQ(ncclCommSplit(COMM, 5, 6, NULL, NULL), ncclSuccess);
    must_have("n");
}

NCCL_TEST(a_communicator_is_forgotten_before_it_ends)
{
    struct ms_communicator found;
    for (int i = 0; i < 3; i++) {
        know_comm(ROOT, true);
        answer = ncclInternalError;
        CHECK_EQ(i == 0   ? ncclCommDestroy(COMM)
                 : i == 1 ? ncclCommAbort(COMM)
                          : ncclCommFinalize(COMM),
                 ncclInternalError);
        must_have(i < 2 ? "fn" : "n");
        CHECK_EQ(ms_communicator_find(COMM, &found), i == 2);
        CHECK_EQ(cancellation, PTHREAD_CANCEL_ENABLE);
    }
}

/* --- memory that NCCL keeps */

static ncclResult_t keep_buffer(int way)
{
    void *handle = NULL;
    ncclWindow_t window = NULL;
    return way == 0 ? ncclCommRegister(COMM, received, BYTES, &handle)
                    : ncclCommWindowRegister(COMM, received, BYTES, &window, 0);
}

NCCL_TEST(a_buffer_that_nccl_keeps_is_brought_into_memory)
{
    for (int way = 0; way < 2; way++) {
        has_one_handle = way == 0; /* a warning, no more */
        CHECK_EQ(keep_buffer(way), ncclSuccess);
        must_have("en");
        CHECK_EQ(exported_bytes, BYTES);
        exporting = CUDA_ERROR_OUT_OF_MEMORY;
        CHECK_EQ(keep_buffer(way), ncclUnhandledCudaError);
        must_have("e");
        exporting = CUDA_SUCCESS;
        atomic_store(&ms_hot.owned, 0);
        CHECK_EQ(keep_buffer(way), ncclSuccess);
        must_have("n");
        atomic_store(&ms_hot.owned, 1);
    }
}

NCCL_TEST(a_registration_can_be_declined)
{
    void *handle = sent;
    ms_config.nccl_register = false;
    CHECK_EQ(ncclCommRegister(COMM, received, BYTES, &handle), ncclSuccess);
    must_have("");
    CHECK(handle == NULL);
    CHECK_EQ(keep_buffer(1), ncclSuccess); /* a window is what the program asked for */
    must_have("en");
    CHECK_EQ(ncclCommRegister(COMM, received, BYTES, NULL), ncclSuccess); /* NCCL refuses it */
    must_have("en");
}

/* --- looking up */

NCCL_TEST(only_functions_of_the_first_copy_are_replaced)
{
    CHECK(ms_nccl_substitute(sent, "ncclAllReduce") == (void *)ncclAllReduce);
    CHECK(ms_nccl_substitute(sent, "ncclGroupEnd") == (void *)ncclGroupEnd);
    CHECK(ms_nccl_substitute(received, "ncclAllReduce") == received);
    CHECK(ms_nccl_substitute(sent, "ncclGetVersion") == sent);
}
