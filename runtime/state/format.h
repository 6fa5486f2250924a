/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state page: the layout of the file in which a process that uses CUDA publishes its state
 * (state.h writes it, snapshot.h reads it). The file is mapped shared, so its content survives when
 * the process is killed.
 *
 *     | header | process | plan | options | figures and their names | devices | files | causes |
 *     | samples (ring) | blocks (table) | events (ring) |
 *
 * All numbers are of fixed width and little-endian; texts are UTF-8, cut to fit, and end with a
 * zero. The header has the offset, number and size of each section's records. Any change of a
 * record or of a field's meaning must raise MS_STATE_VERSION: readers of another version refuse the
 * file. Reserved bytes are zero, and may become a field in which zero means unknown.
 *
 * Records that begin with `sequence` may be written at any time. The sequence is even while the
 * record is whole, odd while it is being written, and 0 before the first write. A reader must
 * discard a record whose sequence is odd, or differs before and after reading. The process and the
 * plan have two records each, and the one with the greater sequence counts: so one record is whole
 * even if the process was killed in the middle of a write.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MS_STATE_MAGIC "metashrd"
enum { MS_STATE_VERSION = 3, MS_STATE_MARK = 0x01020304 };
enum { MS_STATE_LEAST_BYTES = 512 << 10, MS_STATE_MOST_BYTES = 1 << 30 };

enum ms_state_section {
    MS_SECTION_PROCESS,
    MS_SECTION_PLAN,
    MS_SECTION_OPTIONS,
    MS_SECTION_FIGURES,
    MS_SECTION_FIGURE_NAMES, /* as many as figures */
    MS_SECTION_DEVICES,      /* by number */
    MS_SECTION_FILES,
    MS_SECTION_CAUSES,
    MS_SECTION_SAMPLES,
    MS_SECTION_BLOCKS,
    MS_SECTION_EVENTS,
    MS_SECTION_COUNT
};

struct ms_state_span {
    uint64_t offset, count, record_bytes;
};

struct ms_state_header {
    char magic[8];
    uint32_t version, mark; /* MS_STATE_MARK; reads differently in another byte order */
    uint64_t total_bytes;
    uint64_t section_count;
    struct ms_state_span sections[MS_SECTION_COUNT];
};

#define MS_STATE_NO_RANK UINT32_MAX

struct ms_state_process {
    uint64_t sequence;
    uint64_t pid;
    uint64_t start_ticks;   /* of the process, since the boot: field 22 of /proc/PID/stat */
    uint64_t pid_namespace; /* its inode */
    uint64_t uid;
    uint64_t started_ns;           /* realtime: when the page was made */
    uint64_t started_monotonic_ns; /* the same moment; all other times count from it */
    uint64_t ended_ns;             /* 0: it has not ended, or not by exit */
    uint32_t rank, world;          /* MS_STATE_NO_RANK: not known */
    char job[24];                  /* the launcher's name for it, cut to fit; "": not known */
    char version[32];              /* of MetaShard */
    char boot[40];                 /* /proc/sys/kernel/random/boot_id */
    char host[64];
    char command[1024]; /* arguments, with spaces between them */
    char folder[256];
};

struct ms_state_plan {
    uint64_t sequence;
    uint64_t generation; /* the number of plans so far; 0: none */
    uint64_t tensors, planned_bytes, owned_bytes;
    uint32_t rank, world;
    uint32_t enforced, reserved;
    char name[512];
};

/* Written once, before the page has its name. */
struct ms_state_option {
    char name[48], value[464];
};
struct ms_state_figure_name {
    char text[48];
};
/* The result of the self-check of a device. Add at the end; explain.c has the names. */
enum ms_check_state {
    MS_CHECK_NONE,       /* nothing was deferred there yet */
    MS_CHECK_RUN,        /* this process has run the check */
    MS_CHECK_KEPT,       /* an earlier process has */
    MS_CHECK_INCOMPLETE, /* memory was short, or the device busy */
    MS_CHECK_OFF,
    MS_CHECK_STATE_COUNT
};
struct ms_state_device {
    uint64_t sequence;
    char name[120];
    uint32_t check;       /* enum ms_check_state */
    uint32_t steps_aside; /* nothing is deferred there */
    char unmet[376];      /* facts that do not hold, "; " between them: names and observations */
};

/* A file that bytes of blocks come from. */
struct ms_state_file {
    uint64_t sequence;
    char path[504];
};

/* Bytes of the process at one moment. */
struct ms_state_sample {
    uint64_t sequence;
    uint64_t time_ns;
    uint64_t live_bytes;     /* requested, and not freed yet */
    uint64_t deferred_bytes; /* live bytes that are not in device memory */
    uint64_t backed_bytes;   /* physical memory */
    uint64_t h2d_bytes;      /* copied to the device until then */
    uint64_t reserved[2];
};

/* Where the bytes of a block come from (lineage.h). */
enum ms_state_kind {
    MS_BYTES_UNDEFINED,
    MS_BYTES_DEAD,
    MS_BYTES_FILL,
    MS_BYTES_FILE,
    MS_BYTES_SNAPSHOT,
    MS_BYTES_LAUNCH,
    MS_BYTES_PARKED,
    MS_BYTES_ABSENT,
    MS_BYTES_RESIDENT,
    MS_BYTES_KIND_COUNT
};

enum ms_state_block_flag {
    MS_BLOCK_PART = 1,   /* of the allocation with the same id, which a caching allocator carved */
    MS_BLOCK_CARVED = 2, /* an allocation that has parts */
};

/* An allocation, or a part of one. bytes is the sum of kind_bytes. Parts have no backed_bytes. */
struct ms_state_block {
    uint64_t sequence;
    uint64_t id; /* of the allocation; 0: the record is not in use */
    uint64_t address, bytes, backed_bytes;
    uint64_t kind_bytes[MS_BYTES_KIND_COUNT];
    uint64_t deferred_bytes; /* neither resident nor cached nor dead */
    uint64_t cached_bytes;   /* in device memory, and restorable */
    uint64_t remote_bytes;   /* given to other ranks by a plan */
    uint64_t allocated_ns;
    uint64_t changed_ns;
    uint64_t file_offset;
    uint32_t file; /* 1 + the index of the file that its bytes come, or came, from; 0: none */
    uint32_t device, flags;
    uint32_t backed_reason; /* enum ms_reason: why it first got memory, with the call */
    char backed_call[80];
    char name[120]; /* of the tensor, if it is known */
};

/* Kinds of events. Add at the end; explain.c has the names. */
enum ms_event_kind {
    MS_EVENT_NONE,
    MS_EVENT_ALLOCATE,
    MS_EVENT_FREE,
    MS_EVENT_RECORD,      /* a write or a launch was recorded instead of run */
    MS_EVENT_MATERIALISE, /* bytes were put into device memory */
    MS_EVENT_REPLAY,      /* a recorded launch was run */
    MS_EVENT_EVICT,       /* device memory was freed */
    MS_EVENT_PRESSURE,    /* out of device memory */
    MS_EVENT_PIN,         /* host memory was pinned, or an allocation was materialised to stay */
    MS_EVENT_PLAN,        /* a plan became active, or was carried out */
    MS_EVENT_REMOTE_READ, /* a read of remote bytes */
    MS_EVENT_FALLBACK,    /* something was not deferred, or everything was materialised */
    MS_EVENT_SETTLE,
    MS_EVENT_FAIL,   /* a call of the program failed */
    MS_EVENT_DIFFER, /* METASHARD=verify: bytes are not what the program wrote */
    MS_EVENT_KIND_COUNT
};

/* Why an event happened; runtime/state/explain.h has a sentence for each. Add at the end. */
enum ms_reason {
    MS_REASON_CALL, /* the call needs the bytes */
    MS_REASON_SEALED,
    MS_REASON_NO_RULE,
    MS_REASON_RULE_MISSED,
    MS_REASON_PARAMETERS,
    MS_REASON_HOST_REACH,
    MS_REASON_UNBOUNDED,
    MS_REASON_GLOBALS,
    MS_REASON_BUSY_STREAM,
    MS_REASON_SNAPSHOT_LIMIT,
    MS_REASON_PIECES,
    MS_REASON_EXPORT,
    MS_REASON_UNLOAD,
    MS_REASON_SETTLE,
    MS_REASON_PREFETCH,
    MS_REASON_PRESSURE,
    MS_REASON_OVERCOMMIT,
    MS_REASON_NO_MEMORY,
    MS_REASON_REMOTE_READ,
    MS_REASON_HANDED_OUT,
    MS_REASON_FILE_WRITE,
    MS_REASON_PAGEABLE_REACH,
    MS_REASON_UNMATCHED, /* an entry of a plan */
    MS_REASON_AMBIGUOUS,
    MS_REASON_UNEXAMINED,
    MS_REASON_BYPASSED, /* calls did not come here; the text is the path of a library */
    MS_REASON_COUNT
};

/* Event n (from 0) has the sequence 2n + 2, and its index is n modulo the ring's size. */
struct ms_state_event {
    uint64_t sequence;
    uint64_t time_ns;     /* of its end */
    uint64_t duration_ns; /* 0: not measured */
    uint64_t block;       /* id; 0: none, or many */
    uint64_t address, bytes;
    uint32_t kind, reason;
    uint32_t thread, reserved;
    char call[64];  /* the driver function that the program was in */
    char text[128]; /* the kernel, the tensor, or a clause */
};

/* The sums over events of one kind, reason, call and text; "loaded": of the events until the
 * program had loaded (MS_GAUGE_LOADED_NS). */
struct ms_state_cause {
    uint64_t sequence;
    uint64_t count, bytes, duration_ns;
    uint64_t first_ns, last_ns;
    uint32_t kind, reason;
    uint64_t loaded_bytes;
    char call[64];
    char text[304];
    uint64_t loaded_count, loaded_duration_ns;
    char sentence[576]; /* "" if there is nothing to explain */
};

/* The size of one record of a section. */
size_t ms_format_record_bytes(enum ms_state_section section);
