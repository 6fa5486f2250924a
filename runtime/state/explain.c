/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/explain.h"

#include <stdio.h>
#include <string.h>

#include "runtime/state/kernel_name.h"

const char ms_state_kind_names[MS_BYTES_KIND_COUNT][MS_STATE_KIND_NAME_BYTES] = {
    "undefined", "dead", "fill", "file", "snapshot", "launch", "parked", "absent", "resident"};

static const char kind_names[MS_EVENT_KIND_COUNT][20] = {
    [MS_EVENT_NONE] = "none",
    [MS_EVENT_ALLOCATE] = "allocate",
    [MS_EVENT_FREE] = "free",
    [MS_EVENT_RECORD] = "record",
    [MS_EVENT_MATERIALISE] = "materialise",
    [MS_EVENT_REPLAY] = "replay",
    [MS_EVENT_EVICT] = "evict",
    [MS_EVENT_PRESSURE] = "pressure",
    [MS_EVENT_PIN] = "pin",
    [MS_EVENT_PLAN] = "plan",
    [MS_EVENT_REMOTE_READ] = "out-of-plan read",
    [MS_EVENT_FALLBACK] = "fallback",
    [MS_EVENT_SETTLE] = "settle",
    [MS_EVENT_FAIL] = "fail",
    [MS_EVENT_DIFFER] = "differ",
};

/*
 * A sentence has %c for the call and %k for the kernel (or whatever else the event's text is). No
 * sentence suggests a rule for a kernel: its name and its pointers do not show whether it reads
 * what it writes, and a wrong rule is silent.
 */
static const struct {
    char text[48];
    const char *sentence; /* NULL: nothing to explain */
} reasons[MS_REASON_COUNT] = {
    [MS_REASON_CALL] = {"the call needs the bytes", NULL},
    [MS_REASON_SEALED] =
        {"a call that is not modelled",
         "%c is not modelled, so everything deferred was loaded into memory first. If the "
         "program makes such calls only after its weights are sharded, more stays deferred; "
         "docs/entry-points.md lists them."},
    [MS_REASON_NO_RULE] =
        {"a kernel without a rule",
         "The kernel %k used these tensors, so they are in memory: normal where the program "
         "computes. Where it only initialises or loads, launch it after the weights are sharded; "
         "or, if you know its source, kernel-rules.txt says what a rule in METASHARD_KERNEL_RULES "
         "promises. "
         "A wrong rule gives wrong bytes."},
    [MS_REASON_RULE_MISSED] =
        {"a launch that does not fit its rule",
         "A launch of the kernel %k was not recorded, though a rule names it: its pointers were "
         "not those that the rule's class allows, something of its block was in memory already, "
         "or its stream was busy. METASHARD_LOG=debug logs the blocks. The cost is memory only."},
    [MS_REASON_PARAMETERS] =
        {"a launch with unknown parameters",
         "The driver does not report the parameters of a kernel that %c launched, so "
         "everything deferred was loaded into memory; a driver of CUDA 12.4 or later reports "
         "them."},
    [MS_REASON_HOST_REACH] =
        {"a kernel that reaches host memory",
         "The kernel %k was given an address of host memory, which may hold the address of any "
         "block, so everything deferred was loaded into memory. Launch it after the weights "
         "are sharded, or give it device memory."},
    [MS_REASON_UNBOUNDED] =
        {"addresses of host memory in device memory",
         "An address of host memory that kernels can read was copied to the device, so each "
         "launch (here %k) may reach any block, and forces everything into memory. Do such "
         "copies after the weights are sharded."},
    [MS_REASON_GLOBALS] =
        {"a managed variable",
         "A module has a __managed__ variable, through which kernels (here %k) may reach any "
         "block, so each launch forces everything into memory. Load that module after the "
         "weights are sharded."},
    [MS_REASON_BUSY_STREAM] =
        {"a stream that is busy",
         "%c was not recorded, because the stream had queued work that might come before it: its "
         "bytes went straight into memory. With a cuStreamSynchronize before loading, it can be "
         "recorded."},
    [MS_REASON_SNAPSHOT_LIMIT] =
        {"host copies at their limit",
         "%c copied bytes that are in no mapped file, and METASHARD_SNAPSHOT_BYTES was used up, "
         "so they went straight into memory. Raise METASHARD_SNAPSHOT_BYTES, or load from mapped "
         "files (safetensors, torch.load(mmap=True))."},
    [MS_REASON_PIECES] =
        {"a block in very many pieces",
         "%c wrote a block that has more than 131072 separate pieces, more than one for each "
         "512 KiB, so this block was loaded into memory. Larger writes keep it deferred; "
         "METASHARD_EXCLUDE with the size of its allocation leaves that to the driver."},
    [MS_REASON_EXPORT] =
        {"memory that is exported",
         "%c needs physical memory, so the whole allocation was loaded into memory, for good. "
         "METASHARD_EXCLUDE with the allocation's size leaves it to the driver."},
    [MS_REASON_UNLOAD] =
        {"code that is unloaded",
         "%c unloads code of recorded launches, so they were run at once. Unload modules after "
         "the weights are sharded."},
    [MS_REASON_SETTLE] = {"loading has ended", NULL},
    [MS_REASON_PREFETCH] = {"the plan gives it to this rank", NULL},
    [MS_REASON_PRESSURE] = {"out of device memory", NULL},
    [MS_REASON_OVERCOMMIT] =
        {"too much overcommit",
         "An allocation was refused, because with it the program would have more than "
         "METASHARD_OVERCOMMIT times the device's memory, or, as it computes already, more than "
         "the device has. Raise METASHARD_OVERCOMMIT if most of it is never used."},
    [MS_REASON_NO_MEMORY] =
        {"a call that found no device memory",
         "%c failed: what it needs does not fit into device memory, and nothing was left to "
         "evict. More ranks, a plan (METASHARD_PLAN), or a later use of whole tensors reduce the "
         "need."},
    [MS_REASON_REMOTE_READ] =
        {"a read outside of the plan",
         "%c read tensor %k, which the plan gives to other ranks; the read took memory. Change "
         "the program to use only its own part, or change the plan; "
         "METASHARD_PLAN_MODE=enforce makes such calls fail where they happen."},
    [MS_REASON_HANDED_OUT] = {"a block handed out after loading", NULL},
    [MS_REASON_FILE_WRITE] =
        {"a file that the program is about to change",
         "%c changes a file of which bytes were copied to the device and had no memory there "
         "yet, so everything that comes from the file was loaded into memory first. To keep it "
         "deferred, write another file and rename it over this one."},
    [MS_REASON_PAGEABLE_REACH] =
        {"a parameter that may be a host address",
         "A parameter of the kernel %k is the address of readable memory of the process, or a "
         "number that looks like one. This device reads such memory (HMM or ATS), which may "
         "hold the address of any block, so everything deferred was loaded into memory. Launch "
         "it after the weights are sharded, or give it device memory."},
    [MS_REASON_UNMATCHED] = {"no tensor of the program matches this entry", NULL},
    [MS_REASON_AMBIGUOUS] = {"more than one block matches this entry", NULL},
    [MS_REASON_UNEXAMINED] =
        {"work that was queued before",
         "%c got memory at once, because work was queued that the shim had not examined, and that "
         "may find the new address before it ends. With a cuCtxSynchronize before loading, it can "
         "be deferred."},
    [MS_REASON_BYPASSED] =
        {"another library stands before MetaShard",
         "%k stands before MetaShard and hands on the driver's own functions, so MetaShard did not "
         "see all calls, and deferred nothing. Put libmetashard.so first in LD_PRELOAD."},
};

const char *ms_reason_text(uint32_t reason)
{
    return reason < MS_REASON_COUNT && reasons[reason].text[0] != '\0' ? reasons[reason].text : "?";
}

const char *ms_event_reason_text(uint32_t kind, uint32_t reason)
{
    return reason == MS_REASON_CALL && kind != MS_EVENT_MATERIALISE ? "" : ms_reason_text(reason);
}

const char *ms_event_kind_name(uint32_t kind)
{
    return kind < MS_EVENT_KIND_COUNT ? kind_names[kind] : "?";
}

const char *ms_check_state_name(uint32_t state)
{
    static const char *const names[MS_CHECK_STATE_COUNT] = {[MS_CHECK_NONE] = "none",
                                                            [MS_CHECK_RUN] = "run",
                                                            [MS_CHECK_KEPT] = "kept",
                                                            [MS_CHECK_INCOMPLETE] = "incomplete",
                                                            [MS_CHECK_OFF] = "off"};
    return state < MS_CHECK_STATE_COUNT ? names[state] : "?";
}

/* Cuts a name that is longer than MOST. */
bool ms_explain(enum ms_reason reason, const char *call, const char *text, char *sentence_out,
                size_t bytes)
{
    enum { MOST = 140 };
    if (reason >= MS_REASON_COUNT || reasons[reason].sentence == NULL)
        return false;
    if (call == NULL || call[0] == '\0')
        call = "a call";
    char kernel[256] = "whose name is not known";
    if (text != NULL && text[0] != '\0')
        ms_kernel_name_shorten(text, kernel, sizeof(kernel));
    size_t used = 0;
    for (const char *at = reasons[reason].sentence; *at != '\0' && used < bytes;) {
        const char *name = at[0] != '%' ? NULL : at[1] == 'c' ? call : kernel;
        const int length = name != NULL ? MOST : (int)strcspn(at, "%");
        used += (size_t)snprintf(sentence_out + used, bytes - used, "%.*s%s", length,
                                 name != NULL ? name : at,
                                 name != NULL && strlen(name) > MOST ? "..." : "");
        at += name != NULL ? 2 : length;
    }
    return true;
}
