/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the simulated NCCL; simnccl.h is what users see. settings.c: environment, reports.
 * driver.c: reaching the driver. number.c: arithmetic of the data types. segment.c: what ranks
 * share, waiting for each other. comm.c: the object; life.c: how it is made and ends; rendezvous.c:
 * how its ranks meet. group.c: groups and launching; calls.c: the entry points of operations;
 * run.c: executing them. registration.c, window.c; mirror.c: one rank alone that stands for all.
 *
 * Locks. comm->lock guards the order of batches (tickets), registrations and operators of one rank;
 * its holder waits only for the lock's own condition. Memory that ranks share is atomic.
 */
#pragma once

#include <cuda.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/simcuda/driver/hook.h"

/* As in NCCL: a weak public function, and its pnccl twin at the same address. */
#define NC_API(name)                                                           \
    extern __typeof__(name) name __attribute__((weak, visibility("default"))); \
    extern __typeof__(name) p##name __attribute__((alias(#name), visibility("default")))

#define NC_TRY(call)                         \
    do {                                     \
        const ncclResult_t result_ = (call); \
        if (result_ != ncclSuccess)          \
            return result_;                  \
    } while (0)

/* --- settings.c */

struct nc_settings {
    int version;
    bool strict;
    bool graph_register; /* NCCL_GRAPH_REGISTER */
    bool check_pointers; /* NCCL_CHECK_POINTERS */
    unsigned shuffle;
    unsigned delay_us;
    unsigned timeout_ms;
    bool mirror;
    unsigned mirror_mib; /* of the device's memory, for each communicator */
    unsigned moved_mib;  /* of an operation; a larger one moves nothing; 0: all do */
};
const struct nc_settings *nc_settings(void);
enum nc_fault { NC_FAULT_NONE, NC_FAULT_KILL, NC_FAULT_DELAY, NC_FAULT_ASYNC, NC_FAULT_ERROR };
enum nc_fault nc_fault_find(const struct ncclComm *comm, uint64_t nth, bool is_call,
                            unsigned *value_out);
/*
 * First line of what a fault can be asked of: the error of SIMNCCL_FAULTS=*:..., when this is the
 * call that is meant.
 */
ncclResult_t nc_enter(const char *name, const void *return_address);
#define NC_ENTER() \
    NC_TRY(nc_enter(__func__, __builtin_extract_return_addr(__builtin_return_address(0))))
/* One line "simnccl: ..." on stderr, kept for ncclGetLastError. */
void nc_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *nc_last_words(void);
/* A line for the file that the variable names; nothing without it. */
void nc_log(const char *variable, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *nc_zalloc(size_t bytes);
uint64_t nc_now_ns(void);
uint64_t nc_mix(uint64_t value); /* one step of a pseudo-random sequence */

/* --- driver.c */

struct nc_driver {
#define NC_DRIVER(name, version) __typeof__(name) *name;
#include "tools/simcuda/nccl/driver.def"
#undef NC_DRIVER
    simcuda_submit_function *submit;
    simcuda_can_touch_function *can_touch;
    simcuda_fault_function *fault;
    simcuda_is_over_function *is_over;
    simcuda_find_piece_function *find_piece;
};
extern struct nc_driver nc_cuda;
/* The driver is there and a context is current: the thread's, or the primary one of device 0. */
ncclResult_t nc_driver_enter(void);
ncclResult_t nc_driver_done(CUresult result, const char *what);

/* --- number.c */

size_t nc_type_bytes(ncclDataType_t type); /* 0: no such type */
const char *nc_type_name(ncclDataType_t type);
/* A reduction: scale every input, combine with `op`, divide the result. */
struct nc_reduction {
    ncclRedOp_t op; /* ncclSum, ncclProd, ncclMax or ncclMin */
    bool is_scaled;
    CUdeviceptr scalar_address; /* not 0: read the scalar there when it runs */
    unsigned char scalar[8];
    uint64_t divisor; /* 0: none; integers only */
};
/* into[i] = into[i] op from[i]. Memory of any alignment. */
void nc_combine(ncclDataType_t type, ncclRedOp_t op, void *into, const void *from, size_t count);
void nc_scale(ncclDataType_t type, const void *scalar, void *values, size_t count);
void nc_divide(ncclDataType_t type, uint64_t divisor, void *values, size_t count);
/* The average over so many ranks, in the way of NCCL: 1/n first, or for integers a division
 * last. */
void nc_average(ncclDataType_t type, int ranks, struct nc_reduction *reduction_out);

/* --- segment.c */

enum { NC_LANE_RING, NC_LANE_PEER, NC_LANES };
enum { NC_LOG_ROWS = 256, NC_EXCHANGE_BYTES = 192, NC_EXCHANGES = 2 };
#define NC_FIFO_BYTES ((size_t)256 << 10)
#define NC_CHUNK_BYTES ((size_t)64 << 10)

enum nc_kind {
    NC_ALL_REDUCE,
    NC_BROADCAST,
    NC_REDUCE,
    NC_ALL_GATHER,
    NC_REDUCE_SCATTER,
    NC_ALL_TO_ALL,
    NC_GATHER,
    NC_SCATTER,
    NC_SEND,
    NC_RECV,
    NC_KINDS
};
extern const char *const nc_kind_names[NC_KINDS];

/* The facts that ranks compare; all must be equal. */
struct nc_row {
    uint64_t seq;
    uint64_t bytes;
    int32_t kind, type, op, root;
    int32_t group_size, group_place; /* collectives of this communicator in the group */
    int32_t registered, captured;
};

enum nc_state { NC_ABSENT, NC_READY, NC_LEFT, NC_GONE }; /* GONE: dead, aborted, failed */

struct nc_rank {
    _Alignas(64) _Atomic uint32_t bell; /* futex: something this rank may wait for has changed */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t state;
    _Atomic int pid;
    int device;
    _Atomic uint64_t begun; /* collectives whose row is written */
    _Atomic uint64_t ended; /* collectives that are over here */
    _Atomic uint64_t exchanged[NC_EXCHANGES];
    unsigned char exchange[NC_EXCHANGES][2][NC_EXCHANGE_BYTES];
    _Atomic int now_kind; /* for reports: what runs, 1 more than its number; 0: nothing */
    _Atomic int now_peer; /* whom it waits for, -1: nobody */
    _Atomic uint64_t now_bytes;
    struct nc_row rows[NC_LOG_ROWS];
};

struct nc_fifo {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Atomic uint64_t payload; /* bytes without headers, of all time */
    unsigned char bytes[NC_FIFO_BYTES];
};

/* The memory file of a communicator: this, the ranks, then the FIFOs by lane, source, target. */
struct nc_segment {
    uint64_t magic;
    unsigned char nonce[16];
    uint64_t ids_hash; /* of all ids of the communicator: they must be the same on all ranks */
    uint32_t nranks;   /* 0 until the first rank comes; guarded by the file's lock */
    _Atomic uint32_t attached;
    _Atomic int error; /* of the whole communicator */
    struct nc_rank ranks[];
};
size_t nc_segment_bytes(int nranks);
struct nc_fifo *nc_fifo(const struct ncclComm *comm, int lane, int from, int to);

/* Without waiting; return how many bytes it were. */
size_t nc_fifo_put(struct ncclComm *comm, int lane, int to, const void *bytes, size_t count);
size_t nc_fifo_get(struct ncclComm *comm, int lane, int from, void *bytes, size_t count);
bool nc_fifo_is_empty(const struct ncclComm *comm, int lane, int to);

void nc_ring(struct ncclComm *comm, int rank);
void nc_ring_all(struct ncclComm *comm);
uint32_t nc_bell(const struct ncclComm *comm);

/* One thing that waits. deadline_ns moves with every progress. */
struct nc_wait {
    struct ncclComm *comm;
    uint64_t deadline_ns;
    const bool *peers;   /* by rank, those that it waits for; NULL: all */
    bool is_collective;  /* then a rank that is through with operation `seq` may be gone */
    bool ignores_errors; /* of the communicator: for what has to work after them */
    uint64_t seq;
    const char *what;
};
void nc_wait_progress(struct nc_wait *wait);
/* Notes which processes have ended. */
void nc_find_dead(struct ncclComm *comm);

/* A descriptor that tells whether that process has ended; -1 with errno: it cannot be watched, or
 * is gone. */
int nc_watch(int process);
bool nc_has_ended(int watch);
/*
 * Sleeps until the bell is not `bell` any more, or a short while. Anything but ncclSuccess: give
 * up; the reason was reported and is the communicator's asynchronous error, if it is one.
 */
ncclResult_t nc_wait(struct nc_wait *wait, uint32_t bell);
/* Marks this rank as failed: others do not wait for it. The first error stays. */
void nc_comm_fail(struct ncclComm *comm, ncclResult_t error);
/* Fails every rank of the communicator. */
void nc_comm_fail_all(struct ncclComm *comm, ncclResult_t error);
/* Takes over the error of the whole communicator, if there is one. */
void nc_comm_listen(struct ncclComm *comm);
void nc_report_all(void); /* what every rank of every communicator is doing */
/*
 * Every rank of who[] gives `bytes` and gets all of theirs, in the order of who[]. `which` 0: all
 * ranks take part; 1: those that survive.
 */
ncclResult_t nc_exchange(struct ncclComm *comm, int which, const int *who, int count,
                         const void *mine, size_t bytes, void *all_out, bool ignores_errors);

/* --- comm.c, rendezvous.c */

struct nc_registration {
    struct nc_registration *next;
    struct ncclComm *comm; /* whose list has it */
    CUdeviceptr begin;
    size_t bytes;
    uint64_t identity;
    CUmemGenericAllocationHandle handle; /* retained; 0: memory without one */
};
struct nc_operator {
    bool used;
    ncclDataType_t type;
    struct nc_reduction reduction;
};

enum nc_stop { NC_RUN, NC_REVOKED, NC_ABORTED };

struct ncclComm {
    uint64_t magic;
    atomic_int references; /* the program's, queued work's, jobs' */
    int number;            /* in the order in which this process made them */
    int rank, nranks;
    int device;
    int version; /* what ncclGetVersion says */
    bool blocking;
    bool finalized;
    bool destroyed; /* by the program */
    char name[64];
    CUcontext context;
    CUevent event;
    struct nc_segment *segment;
    size_t segment_bytes;
    int *peers;             /* of nc_watch, -1: this process */
    atomic_int async_error; /* ncclResult_t */
    atomic_int jobs;        /* running in the background */
    atomic_bool suspended;
    atomic_int stop;   /* enum nc_stop */
    uint64_t calls;    /* of operations */
    uint64_t runs;     /* of operations; of the batch that has its turn */
    uint64_t launches; /* of batches with several collectives: for the shuffle */
    pthread_mutex_t lock;
    pthread_cond_t turned;
    uint64_t next_ticket, turn; /* of batches, in the order of launching; guarded by lock */
    struct nc_skipped {
        struct nc_skipped *next;
        uint64_t ticket;
    } * skipped;                           /* tickets that need no turn; guarded by lock */
    bool is_running;                       /* guarded by lock */
    struct nc_registration *registrations; /* guarded by lock */
    struct nc_operator *operators;         /* guarded by lock */
    int operators_count;
    struct ncclComm *next; /* of all of the process; guarded by a lock of segment.c */
};

struct ncclComm *nc_comm_create(int nranks, int rank, const ncclConfig_t *config,
                                const struct ncclComm *parent);
void nc_comm_keep(struct ncclComm *comm);
void nc_comm_drop(struct ncclComm *comm);
void nc_comm_list(struct ncclComm *comm); /* in and out of nc_report_all */
void nc_comm_unlist(struct ncclComm *comm);
/* ncclInvalidArgument for what is no communicator. */
ncclResult_t nc_comm_check(const struct ncclComm *comm, const char *call);
/* ... and for one that is not ready; its asynchronous error, if it has one. */
ncclResult_t nc_comm_ready(struct ncclComm *comm, const char *call);

ncclResult_t nc_id_create(ncclUniqueId *id_out);
/* A communicator made from another: its ranks are these ranks of the parent. */
struct nc_origin {
    struct ncclComm *parent;
    const int *members;
};
/* Waits until all ranks of the id are there; ncclRemoteError when one of the origin (NULL: none)
 * has gone before. */
ncclResult_t nc_join(struct ncclComm *comm, const ncclUniqueId *ids, int count,
                     const struct nc_origin *origin);
void nc_leave(struct ncclComm *comm);

/* --- group.c */

struct nc_op {
    struct nc_op *next;
    struct ncclComm *comm; /* holds a reference */
    CUstream stream;
    enum nc_kind kind;
    CUdeviceptr send, recv;
    size_t count; /* as in the call */
    ncclDataType_t type;
    int root; /* or the peer */
    struct nc_reduction reduction;
    ncclRedOp_t op; /* as in the call */
    bool registered;
    struct nc_registered_piece {
        CUdeviceptr address;
        uint64_t identity;
    } pieces[2];
    int pieces_count;
    bool captured;
    int group_size, group_place;
};

/* Work of a communicator that is not an operation: joining, splitting, windows. */
struct nc_job {
    struct nc_job *next;
    struct ncclComm *comm; /* holds a reference */
    CUcontext context;
    ncclResult_t (*run)(struct nc_job *job);
    void (*cleanup)(struct nc_job *job); /* frees the job */
    ncclResult_t result;
    pthread_t thread;
};
/* Both own what they are given. Inside a group: kept for its end. */
ncclResult_t nc_group_add_op(struct nc_op *op);
ncclResult_t nc_group_add_job(struct nc_job *job);
bool nc_group_is_open(void);
/* Inside a group an error of a call is the error of the group. */
ncclResult_t nc_group_note(ncclResult_t result);
ncclResult_t nc_group_start_quietly(void);
ncclResult_t nc_group_end_quietly(void);

/* --- run.c */

/* The operations of one communicator in one launch: collectives first, in order, then sends and
 * receives. */
struct nc_batch {
    struct ncclComm *comm; /* holds a reference */
    struct nc_op **ops;
    size_t count;
    bool captured;
    bool has_ticket; /* not captured, and its turn is not over */
    uint64_t ticket;
};
void nc_batch_run(void *batch);
void nc_batch_destroy(void *batch);
/* The bytes an operation reads and writes: up to two ranges. */
struct nc_touch {
    CUdeviceptr begin;
    size_t bytes;
    bool write;
};
int nc_op_touches(const struct nc_op *op, struct nc_touch touches_out[2]);

/* --- mirror.c */

/* Instead of meeting the others, and of running an operation with them. */
ncclResult_t nc_mirror_join(struct ncclComm *comm);
void nc_mirror_run(const struct nc_batch *batch, const struct nc_op *op);
/* The buffers that a communicator of several ranks has on the device. */
ncclResult_t nc_mirror_take_buffers(const struct ncclComm *comm);

/* --- registration.c */

/* Fills in `registered` and what the addresses are backed by. */
void nc_registration_apply(struct nc_op *op);
void nc_registrations_end(struct ncclComm *comm);
/* The program's address of what a handle registers. */
ncclResult_t nc_registration_begin(struct ncclComm *comm, const void *handle, void **begin_out);
