/* SPDX-License-Identifier: Apache-2.0 */
/* Start, settings, the first line of every call, injected faults, the call log. */
#include "tools/simcuda/driver/hook.h"
#include "tools/simcuda/driver/state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

extern const int sim_built_version; /* profile.c: the only object that differs between libraries */

enum { FIRST_WITHOUT_LIMIT = 13000 }; /* sim_driver_version */
enum { FAULTS_MAX = 64, LINE_MAX_BYTES = 512 };

enum { ANY_ENTRY = -1 };

struct fault {
    int entry; /* or ANY_ENTRY: of all that SIMCUDA_FAULT_CALLER calls */
    unsigned nth;
    CUresult result;
    bool is_sticky;
    atomic_uint seen;
};

static pthread_once_t configured = PTHREAD_ONCE_INIT;
static struct fault faults[FAULTS_MAX];
static int fault_count;
static bool has_any_fault; /* one of ANY_ENTRY */
static char fault_caller[64], fault_report[SIM_PATH_BYTES];
static uint64_t fault_path; /* 0: any */
static int log_file = -1, fault_trace = -1;
char sim_stats_path[SIM_PATH_BYTES];
static pid_t owner; /* the process that called cuInit */

static atomic_bool is_initialised, is_forked, is_finished;
static atomic_int sticky_error;

/* --- settings */

/* The value of a variable, or what SIM_SETTINGS says of it; NULL: neither is there. Ends with a
 * blank or with the text. */
static const char *find_setting(const char *name)
{
    const char *text = getenv(name);
    if (text != NULL && text[0] != '\0')
        return text;
    const char *all = getenv("SIM_SETTINGS");
    const size_t length = strlen(name);
    while (all != NULL && *all != '\0') {
        if (strncmp(all, name, length) == 0 && all[length] == '=')
            return all + length + 1;
        all += strcspn(all, " ");
        all += strspn(all, " ");
    }
    return NULL;
}

static unsigned long setting(const char *name, unsigned long lowest, unsigned long highest,
                             unsigned long otherwise)
{
    const char *text = find_setting(name);
    if (text == NULL)
        return otherwise;
    char *end;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno == 0 && end != text && (*end == '\0' || *end == ' ') && text[0] != '-' &&
        value >= lowest && value <= highest)
        return value;
    sim_complain("%s is \"%s\", expected a number from %lu to %lu; %lu is used", name, text, lowest,
                 highest, otherwise);
    return otherwise;
}

/* Puts the process id for %p. */
static bool expand_path(const char *name, char *path_out)
{
    const char *text = getenv(name);
    size_t at = 0;
    if (text == NULL || text[0] == '\0')
        return false;
    for (; *text != '\0' && at < SIM_PATH_BYTES - 1; text++) {
        if (text[0] == '%' && text[1] == 'p') {
            const int length = snprintf(path_out + at, SIM_PATH_BYTES - at, "%ld", (long)getpid());
            at += (size_t)length;
            text++;
        } else {
            path_out[at++] = *text;
        }
    }
    if (*text != '\0' || at >= SIM_PATH_BYTES) {
        sim_complain("%s is too long; it is not used", name);
        return false;
    }
    path_out[at] = '\0';
    return true;
}

static int find_entry(const char *name)
{
    for (int i = 0; i < SIM_ENTRY_COUNT; i++) {
        if (strcmp(sim_entry_names[i], name) == 0)
            return i;
    }
    return -1;
}

/* One of <function>:<nth>=<number>, or *:<nth>=<number>; a ! behind it makes the error sticky. */
static bool read_fault(char *text)
{
    char *const colon = strchr(text, ':');
    char *const equals = colon == NULL ? NULL : strchr(colon, '=');
    if (equals == NULL || fault_count == FAULTS_MAX)
        return false;
    *colon = '\0';
    *equals = '\0';
    char *nth_end;
    char *result_end;
    struct fault *fault = &faults[fault_count];
    const bool is_any = strcmp(text, "*") == 0 && fault_caller[0] != '\0';
    fault->entry = is_any ? ANY_ENTRY : find_entry(text);
    const unsigned long nth = strtoul(colon + 1, &nth_end, 10);
    const unsigned long result = strtoul(equals + 1, &result_end, 10);
    const bool is_number = nth_end > colon + 1 && result_end > equals + 1;
    fault->nth = (unsigned)nth;
    fault->result = (CUresult)result;
    fault->is_sticky = *result_end == '!';
    result_end += fault->is_sticky;
    if (!is_number || (!is_any && fault->entry < 0) || *nth_end != '\0' || nth == 0 ||
        nth > UINT32_MAX || *result_end != '\0' || result > CUDA_ERROR_UNKNOWN)
        return false;
    fault_count++;
    has_any_fault |= is_any;
    return true;
}

static void read_faults(void)
{
    const char *text = getenv("SIMCUDA_FAULTS");
    const char *caller = getenv("SIMCUDA_FAULT_CALLER");
    snprintf(fault_caller, sizeof(fault_caller), "%s", caller != NULL ? caller : "");
    if (!expand_path("SIMCUDA_FAULT_REPORT", fault_report))
        fault_report[0] = '\0';
    const char *wanted = getenv("SIMCUDA_FAULT_PATH");
    fault_path = wanted != NULL ? strtoull(wanted, NULL, 16) : 0;
    char path[SIM_PATH_BYTES];
    if (expand_path("SIMCUDA_FAULT_TRACE", path))
        fault_trace = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    while (text != NULL && text[0] != '\0') {
        char one[LINE_MAX_BYTES];
        const size_t length = strcspn(text, ",");
        snprintf(one, sizeof(one), "%.*s", (int)length, text);
        if (!read_fault(one))
            sim_complain("SIMCUDA_FAULTS: \"%.*s\" is not understood and not used (expected "
                         "<function>:<nth>=<number>)",
                         (int)length, text);
        text += length + (text[length] == ',');
    }
}

static void fork_prepare(void)
{
    pthread_mutex_lock(&sim_lock);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&sim_lock);
}

static void fork_child(void)
{
    if (atomic_load(&is_initialised))
        atomic_store(&is_forked, true);
    pthread_mutex_unlock(&sim_lock);
}

/* Names with commas between them. */
static unsigned read_broken(void)
{
    static const char *const names[] = {
#define SIM_BREAK(id, name) #name,
#include "tools/simcuda/driver/broken.def"
#undef SIM_BREAK
    };
    unsigned broken = 0;
    const char *text = getenv("SIMCUDA_BREAK");
    while (text != NULL && text[0] != '\0') {
        const size_t length = strcspn(text, ",");
        unsigned found = 0;
        for (unsigned i = 0; i < SIM_BROKEN_COUNT; i++)
            found |=
                strlen(names[i]) == length && strncmp(names[i], text, length) == 0 ? 1u << i : 0;
        if (found == 0)
            sim_complain("SIMCUDA_BREAK: \"%.*s\" is not understood and not used", (int)length,
                         text);
        broken |= found;
        text += length + (text[length] == ',');
    }
    return broken;
}

/* SIMCUDA_PROFILE, as the driver says it. 12 and 13 are their last versions that are simulated. */
static int read_version(void)
{
    static const struct {
        const char *text;
        int version;
    } versions[] = {{"12", 12090},   {"12.4", 12040}, {"12.9", 12090}, {"13", 13000},
                    {"13.0", 13000}, {"13.1", 13010}, {"13.2", 13020}, {"13.3", 13030},
                    {"13.4", 13040}, {"13.5", 13050}};
    const char *text = find_setting("SIMCUDA_PROFILE");
    const size_t length = text == NULL ? 0 : strcspn(text, " ");
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        if (strlen(versions[i].text) == length && strncmp(versions[i].text, text, length) == 0)
            return versions[i].version;
    }
    if (length > 0)
        sim_complain(
            "SIMCUDA_PROFILE is \"%.*s\", expected 12.4, 12.9 or 13.0 to 13.5; it is not used",
            (int)length, text);
    return 0;
}

static void configure(void)
{
    char path[SIM_PATH_BYTES];
    sim_config.devices = (int)setting("SIMCUDA_DEVICES", 1, SIM_DEVICES_MAX, 1);
    sim_config.memory_bytes = setting("SIMCUDA_MEMORY_MIB", 2, (size_t)1 << 20, 8192) << 20;
    sim_config.granule_bytes = (size_t)64 << 10;
    const size_t wanted = setting("SIMCUDA_GRANULE_KIB", 64, 32768, 2048) << 10;
    while (sim_config.granule_bytes < wanted)
        sim_config.granule_bytes *= 2;
    sim_config.low_addresses = setting("SIMCUDA_LOW", 0, 1, 0) == 1;
    sim_config.hints = (enum sim_hints)setting("SIMCUDA_HINTS", 0, 2, SIM_HINTS_HONOURED);
    sim_config.pageable = setting("SIMCUDA_PAGEABLE", 0, 1, 0) == 1;
    sim_config.poison = (unsigned)setting("SIMCUDA_POISON", 0, 2, 0);
    sim_config.delay_us = (unsigned)setting("SIMCUDA_DELAY_US", 0, 10 * 1000 * 1000, 0);
    sim_config.eager = setting("SIMCUDA_EAGER", 0, 1, 0) == 1;
    sim_config.is_behind = setting("SIMCUDA_BEHIND", 0, 1, 0) == 1;
    sim_config.reads_late = setting("SIMCUDA_LATE", 0, 1, 0) == 1;
    sim_config.others_leave_bytes = setting("SIMCUDA_OTHERS", 0, (size_t)1 << 20, 0) << 20;
    sim_config.jitter_us = (unsigned)setting("SIMCUDA_JITTER_US", 0, 1000 * 1000, 0);
    sim_config.frees_anywhere = setting("SIMCUDA_FREE_ANYWHERE", 0, 1, 0) == 1;
    sim_config.driver_version = read_version();
    sim_config.is_dry = setting("SIMCUDA_DRY", 0, 2, 0) != 0;
    sim_config.computes = setting("SIMCUDA_DRY", 0, 2, 0) == 2;
    sim_config.capability = (int)setting("SIMCUDA_CAPABILITY", 70, 129, 90);
    sim_config.multiprocessors = (int)setting("SIMCUDA_MULTIPROCESSORS", 1, 1024, 4);
    sim_config.context_bytes = setting("SIMCUDA_CONTEXT_MIB", 0, (size_t)1 << 20, 0) << 20;
    sim_config.broken = read_broken();
    sim_config.has_switch = setting("SIMCUDA_MULTICAST", 0, 1, 0) == 1;
    read_faults();
    if (expand_path("SIMCUDA_LOG", path)) {
        log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (log_file < 0)
            sim_complain("SIMCUDA_LOG: %s cannot be opened: %s", path, strerror(errno));
    }
    if (expand_path("SIMCUDA_SHARED", path))
        sim_shared_open(path);
    if (!expand_path("SIMCUDA_STATS", sim_stats_path))
        sim_stats_path[0] = '\0';
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

uint64_t sim_settings_hash(void)
{
    Dl_info own;
    struct stat file = {0};
    struct sim_config settings;
    uint64_t hash = UINT64_C(1469598103934665603); /* FNV-1a */
    if (dladdr((void *)(uintptr_t)&sim_settings_hash, &own) != 0 && own.dli_fname != NULL)
        stat(own.dli_fname, &file);
    memcpy(&settings, &sim_config, sizeof(settings)); /* with its padding, which is zero */
    for (size_t i = 0; i < sizeof(settings); i++)
        hash = (hash ^ ((const unsigned char *)&settings)[i]) * UINT64_C(1099511628211);
    hash = (hash ^ (uint64_t)file.st_mtim.tv_sec) * UINT64_C(1099511628211);
    return (hash ^ (uint64_t)file.st_mtim.tv_nsec) * UINT64_C(1099511628211);
}

/* --- the first line of every call */

static void log_call(enum sim_entry entry, const char *note)
{
    char line[LINE_MAX_BYTES];
    int length = snprintf(line, sizeof(line), "%s%s%s\n", sim_entry_names[entry],
                          note == NULL ? "" : " ", note == NULL ? "" : note);
    if (length >= (int)sizeof(line)) {
        length = (int)sizeof(line) - 1;
        line[length - 1] = '\n';
    }
    /* One write: lines of several threads do not mix. */
    if (write(log_file, line, (size_t)length) < 0)
        return;
}

struct search {
    const void *driver; /* where this library begins */
    const void *caller; /* where the chosen one does; NULL: the call is not its */
    /* Hash of the chosen one's places on the stack, and of the place that called it. */
    uint64_t path;
};

/* The first frame that is not the simulator's own is the caller's; for a path those behind it, to
 * the first other. */
static _Unwind_Reason_Code look_at_frame(struct _Unwind_Context *context, void *argument)
{
    struct search *search = argument;
    const uintptr_t place = _Unwind_GetIP(context);
    Dl_info info;
    if (dladdr((void *)place, &info) == 0 || info.dli_fname == NULL)
        return _URC_END_OF_STACK;
    if (info.dli_fbase == search->driver && search->caller == NULL)
        return _URC_NO_REASON;
    const char *name = strrchr(info.dli_fname, '/');
    if (search->caller == NULL &&
        strstr(name != NULL ? name : info.dli_fname, fault_caller) != NULL)
        search->caller = info.dli_fbase;
    if (search->caller == NULL)
        return _URC_END_OF_STACK;
    search->path = (search->path ^ (place - (uintptr_t)info.dli_fbase)) * UINT64_C(1099511628211);
    const bool is_wanted = fault_trace >= 0 || fault_path != 0;
    return is_wanted && info.dli_fbase == search->caller ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static bool is_called_by_chosen(uint64_t *path_out)
{
    Dl_info own;
    struct search search = {.path = UINT64_C(1469598103934665603)}; /* FNV-1a */
    if (dladdr((void *)(uintptr_t)&is_called_by_chosen, &own) == 0)
        return false;
    search.driver = own.dli_fbase;
    _Unwind_Backtrace(look_at_frame, &search);
    *path_out = search.path;
    return search.caller != NULL;
}

static void trace_call(enum sim_entry entry, unsigned number, uint64_t path)
{
    char line[LINE_MAX_BYTES];
    if (fault_trace < 0)
        return;
    const int length = snprintf(line, sizeof(line), "%u %s %016llx\n", number,
                                sim_entry_names[entry], (unsigned long long)path);
    if (write(fault_trace, line, (size_t)length) < 0)
        sim_complain("SIMCUDA_FAULT_TRACE: %s", strerror(errno));
}

/* A line for who injects: this call failed. */
static void report_fault(enum sim_entry entry)
{
    const int file = fault_report[0] == '\0'
                         ? -1
                         : open(fault_report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    dprintf(file, "%s\n", sim_entry_names[entry]);
    close(file);
}

static CUresult injected_fault(enum sim_entry entry)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t path = 0;
    const bool is_chosen =
        has_any_fault && is_called_by_chosen(&path) && (fault_path == 0 || path == fault_path);
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (fault->entry != (int)entry && !(fault->entry == ANY_ENTRY && is_chosen))
            continue;
        const unsigned number = atomic_fetch_add(&fault->seen, 1) + 1;
        if (fault->entry == ANY_ENTRY)
            trace_call(entry, number, path);
        if (number != fault->nth)
            continue;
        result = fault->result;
        if (fault->is_sticky)
            atomic_store(&sticky_error, fault->result);
        report_fault(entry);
    }
    return result;
}

static CUresult enter(enum sim_entry entry, const char *note)
{
    if (atomic_load(&is_forked))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (atomic_load(&is_finished))
        return CUDA_ERROR_DEINITIALIZED;
    pthread_once(&configured, configure);
    if (log_file >= 0)
        log_call(entry, note);
    if (sim_thread.is_worker)
        return CUDA_ERROR_NOT_PERMITTED;
    sim_gate_pass(entry);
    return fault_count > 0 ? injected_fault(entry) : CUDA_SUCCESS;
}

CUresult sim_enter_early(enum sim_entry entry)
{
    return enter(entry, NULL);
}

CUresult sim_enter_early_noted(enum sim_entry entry, const char *format, ...)
{
    char note[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(note, sizeof(note), format, args);
    va_end(args);
    return enter(entry, note);
}

CUresult sim_enter_query(enum sim_entry entry)
{
    const CUresult result = enter(entry, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    return atomic_load(&is_initialised) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sim_enter(enum sim_entry entry)
{
    const CUresult result = sim_enter_query(entry);
    return result != CUDA_SUCCESS ? result : sim_sticky_error();
}

CUresult sim_sticky_error(void)
{
    return (CUresult)atomic_load(&sticky_error);
}

void sim_fault_locked(CUdeviceptr address, size_t bytes, const char *what)
{
    sim_stats.illegal_accesses++;
    atomic_store(&sticky_error, CUDA_ERROR_ILLEGAL_ADDRESS);
    sim_complain("illegal access by %s: 0x%llx, %zu bytes", what, address, bytes);
    pthread_cond_broadcast(&sim_progress);
}

void sim_fault(CUdeviceptr address, size_t bytes, const char *what)
{
    pthread_mutex_lock(&sim_lock);
    sim_fault_locked(address, bytes, what);
    pthread_mutex_unlock(&sim_lock);
}

/* --- the end */

bool sim_is_used(void)
{
    return !atomic_load(&is_forked) && atomic_load(&is_initialised) && owner == getpid();
}

void sim_finish(void)
{
    atomic_store(&is_finished, true);
}

/* --- entry points */

int sim_stub_refuse(int entry);

int sim_stub_refuse(int entry)
{
    const CUresult result = sim_enter((enum sim_entry)entry);
    return (int)(result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED);
}

/* A library with the exports of a driver before 13.0 is never newer than they are. */
int sim_driver_version(void)
{
    const int wanted = sim_config.driver_version;
    const bool is_older = sim_built_version < FIRST_WITHOUT_LIMIT;
    return wanted == 0 || (is_older && wanted > sim_built_version) ? sim_built_version : wanted;
}

CUresult cuInit(unsigned int Flags)
{
    const CUresult result = sim_enter_early(SIM_ENTRY_cuInit);
    if (result != CUDA_SUCCESS)
        return result;
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    owner = getpid();
    atomic_store(&is_initialised, true);
    pthread_mutex_unlock(&sim_lock);
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *driverVersion)
{
    const CUresult result = sim_enter_early(SIM_ENTRY_cuDriverGetVersion);
    /* It is a fact of the library: a forked child can ask for it too. */
    if (result != CUDA_SUCCESS && !atomic_load(&is_forked))
        return result;
    if (driverVersion == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = sim_driver_version();
    return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    const CUresult result = sim_enter_early(SIM_ENTRY_cuGetExportTable);
    if (result != CUDA_SUCCESS)
        return result;
    if (ppExportTable == NULL || pExportTableId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *ppExportTable = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
