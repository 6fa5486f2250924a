/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     metashard self-check
 *     version 0.1.0
 *     driver 13000 580.65.06
 *     device 73696d756c617465642d637564612d00
 *     boot 5e3c1c0e-...
 *     memory holds
 *     ...
 *     hint is not so: 0x302000000 was reserved
 *     end
 *
 * A result is kept as a text, one file a device, with a line for each fact but the resolver's. Any
 * other text is no report.
 */
#include "runtime/selfcheck/selfcheck.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/lock.h"
#include "runtime/base/quiet.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/selfcheck/checks.h"
#include "runtime/selfcheck/selfcheck_internal.h"
#include "runtime/state/page.h"
#include "runtime/state/process.h"
#include "runtime/state/state.h"

#define HOLDS "holds\n"
#define UNMET "is not so: "
#define END "end\n"

/* Other threads wait for the check of their device, so that all of a program's allocations are
 * treated alike. */
static struct ms_lock lock = MS_LOCK_INIT(selfcheck);
static _Atomic bool is_checked[MS_MAX_DEVICES];
static unsigned attempts[MS_MAX_DEVICES] MS_GUARDED_BY(lock);

static ms_resolver_check *resolver;

/* --- a report as a text */

/* Reads the version of NVIDIA's kernel module, which may change without a boot. "": no module. */
static void read_module_version(char *text, size_t bytes)
{
    const int file = open("/sys/module/nvidia/version", O_RDONLY | O_CLOEXEC);
    const ssize_t got = file >= 0 ? read(file, text, bytes - 1) : 0;
    if (file >= 0)
        close(file);
    text[got > 0 ? got : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

/* False if the driver cannot name the device: nothing is kept then. */
static bool find_subject(CUdevice device, struct ms_selfcheck_subject *subject_out)
{
    CUuuid uuid;
    int version;
    char module[40];
    struct ms_process_identity identity;
    ms_process_identify(&identity);
    if (ms_driver.device_get_uuid(&uuid, device) != CUDA_SUCCESS ||
        ms_driver.driver_get_version(&version) != CUDA_SUCCESS || identity.boot[0] == '\0')
        return false;
    for (size_t i = 0; i < sizeof(uuid.bytes); i++)
        snprintf(subject_out->device + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
    read_module_version(module, sizeof(module));
    snprintf(subject_out->driver, sizeof(subject_out->driver), "%d %s", version, module);
    memcpy(subject_out->boot, identity.boot, sizeof(subject_out->boot));
    return true;
}

static int put_head(const struct ms_selfcheck_subject *subject, char *text, size_t bytes)
{
    return snprintf(text, bytes,
                    "metashard self-check\nversion %s\ndriver %s\ndevice %s\nboot %s\n",
                    METASHARD_VERSION, subject->driver, subject->device, subject->boot);
}

/* Moves *at behind the word. False if it is not there. */
static bool skip(const char **at, const char *word)
{
    const size_t length = strlen(word);
    const bool is_there = strncmp(*at, word, length) == 0;
    *at += is_there ? length : 0;
    return is_there;
}

/* Reads the rest of the line, which must be of printable characters. */
static bool read_seen(const char **at, char seen[MS_SEEN_BYTES])
{
    const size_t length = strcspn(*at, "\n");
    if (length >= MS_SEEN_BYTES || (*at)[length] != '\n')
        return false;
    for (size_t i = 0; i < length; i++) {
        if ((*at)[i] < ' ' || (*at)[i] > '~')
            return false;
    }
    memcpy(seen, *at, length);
    seen[length] = '\0';
    *at += length + 1;
    return true;
}

static bool read_fact(const char **at, enum ms_fact fact, struct ms_check_report *report)
{
    if (!skip(at, ms_facts[fact].name) || !skip(at, " "))
        return false;
    if (skip(at, HOLDS))
        return true;
    report->unmet |= MS_FACT_BIT(fact);
    return skip(at, UNMET) && read_seen(at, report->seen[fact]);
}

bool ms_selfcheck_parse(const struct ms_selfcheck_subject *subject, const char *text,
                        struct ms_check_report *report_out)
{
    char head[MS_SELFCHECK_TEXT_BYTES];
    const char *at = text;
    put_head(subject, head, sizeof(head));
    *report_out = (struct ms_check_report){0};
    if (!skip(&at, head))
        return false;
    for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++) {
        if (fact != MS_FACT_RESOLVER && !read_fact(&at, fact, report_out))
            return false;
    }
    return strcmp(at, END) == 0;
}

void ms_selfcheck_print(const struct ms_selfcheck_subject *subject,
                        const struct ms_check_report *report, char text[MS_SELFCHECK_TEXT_BYTES])
{
    size_t used = (size_t)put_head(subject, text, MS_SELFCHECK_TEXT_BYTES);
    for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++) {
        const bool is_unmet = (report->unmet & MS_FACT_BIT(fact)) != 0;
        if (fact != MS_FACT_RESOLVER)
            used += (size_t)snprintf(text + used, MS_SELFCHECK_TEXT_BYTES - used,
                                     is_unmet ? "%s " UNMET "%s\n" : "%s " HOLDS,
                                     ms_facts[fact].name, report->seen[fact]);
    }
    snprintf(text + used, MS_SELFCHECK_TEXT_BYTES - used, END);
}

/* --- the files of the texts, beside the state pages, which outlive the process */

static void name_of(const struct ms_selfcheck_subject *subject, char name[64])
{
    snprintf(name, 64, ".selfcheck-%s", subject->device);
}

static bool is_own(int file)
{
    struct stat stat;
    return fstat(file, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == geteuid() &&
           (stat.st_mode & 022) == 0;
}

/* False if there is no text, or the text is too long, or another user could have written it. */
static bool read_report(const struct ms_selfcheck_subject *subject,
                        struct ms_check_report *report_out)
{
    char name[64], text[MS_SELFCHECK_TEXT_BYTES];
    const int folder = ms_page_open_folder(&ms_config);
    if (folder < 0)
        return false;
    name_of(subject, name);
    const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(folder);
    if (file < 0)
        return false;
    const ssize_t got = is_own(file) ? read(file, text, sizeof(text)) : -1;
    close(file);
    if (got < 0 || (size_t)got == sizeof(text))
        return false;
    text[got] = '\0';
    return ms_selfcheck_parse(subject, text, report_out);
}

/* Writes the text whole or not at all. Errors are silent: the next process finds no text. */
static void write_report(const struct ms_selfcheck_subject *subject,
                         const struct ms_check_report *report)
{
    char hidden[64], name[64], text[MS_SELFCHECK_TEXT_BYTES];
    struct ms_quiet quiet;
    const int folder = ms_page_open_folder(&ms_config);
    if (folder < 0)
        return;
    ms_selfcheck_print(subject, report, text);
    name_of(subject, name);
    snprintf(hidden, sizeof(hidden), MS_STATE_HIDDEN_PREFIX "%d-text", (int)getpid());
    const int file =
        openat(folder, hidden, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0) {
        ms_quiet_begin(&quiet);
        const size_t bytes = strlen(text);
        const bool is_whole = write(file, text, bytes) == (ssize_t)bytes;
        ms_quiet_end(&quiet, !is_whole);
        close(file);
        if (!is_whole || renameat(folder, hidden, folder, name) != 0)
            unlinkat(folder, hidden, 0);
    }
    close(folder);
}

/* --- checking */

void ms_selfcheck_set_resolver(ms_resolver_check *check)
{
    resolver = check;
}

/* Asks again if a call has failed, because the next attempt may succeed. */
static void run(CUcontext context, CUdevice device, struct ms_check_report *report_out)
{
    const uint64_t began = ms_clock_ns(CLOCK_MONOTONIC);
    ms_checks_run(context, device, report_out);
    if (report_out->refused != 0)
        ms_checks_run(context, device, report_out);
    ms_log(MS_DEBUG, "the self-check of device %d took %.1f ms", device,
           (double)(ms_clock_ns(CLOCK_MONOTONIC) - began) / 1e6);
}

static enum ms_check_state check(CUcontext context, CUdevice device,
                                 struct ms_check_report *report_out)
{
    struct ms_selfcheck_subject subject;
    *report_out = (struct ms_check_report){0};
    if (ms_config.self_check == MS_SELF_CHECK_OFF)
        return MS_CHECK_OFF;
    const bool is_named = find_subject(device, &subject);
    if (is_named && ms_config.self_check == MS_SELF_CHECK_ON && read_report(&subject, report_out))
        return MS_CHECK_KEPT;
    run(context, device, report_out);
    if (report_out->unknown != 0)
        return MS_CHECK_INCOMPLETE;
    if (is_named)
        write_report(&subject, report_out);
    return MS_CHECK_RUN;
}

/* One line for each fact that does not hold. */
static void publish(CUdevice device, enum ms_check_state state,
                    const struct ms_check_report *report)
{
    char text[MS_FACT_COUNT * (MS_SEEN_BYTES + 24)] = "";
    size_t used = 0;
    for (enum ms_fact fact = 0; fact < MS_FACT_COUNT; fact++) {
        const struct ms_fact_row *row = &ms_facts[fact];
        if ((report->unmet & MS_FACT_BIT(fact)) == 0)
            continue;
        ms_log(row->level == MS_WARN ? MS_WARN : MS_INFO,
               "self-check of device %d: %s (%s: %s): %s", device, row->fault, row->name,
               report->seen[fact], row->remedy);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s: %s", used > 0 ? "; " : "",
                                 row->name, report->seen[fact]);
    }
    const struct ms_device_facts facts = {.check = state,
                                          .steps_aside = !ms_facts_allow(device),
                                          .unmet = text};
    ms_state_set_device((uint32_t)device, &facts);
}

MS_HOLDS(lock) static void check_locked(CUcontext context, CUdevice device)
{
    enum { MOST_ATTEMPTS = 16 };
    struct ms_check_report report;
    const enum ms_check_state state = check(context, device, &report);
    if (state != MS_CHECK_OFF && resolver != NULL &&
        !resolver(report.seen[MS_FACT_RESOLVER], MS_SEEN_BYTES))
        report.unmet |= MS_FACT_BIT(MS_FACT_RESOLVER);
    ms_facts_set_unmet(device, report.unmet);
    publish(device, state, &report);
    /* The event of a context is not asked again: work of the program may be queued for long. */
    const uint32_t unknown = report.unknown & ~MS_FACT_BIT(MS_FACT_CONTEXT_EVENT);
    if (unknown == 0 || report.is_stuck || !ms_facts_allow(device) ||
        ++attempts[device] == MOST_ATTEMPTS)
        atomic_store_explicit(&is_checked[device], true, memory_order_release);
}

bool ms_selfcheck_allows(CUcontext context, CUdevice device)
{
    if (!atomic_load_explicit(&is_checked[device], memory_order_acquire)) {
        ms_lock_take(&lock);
        if (!atomic_load_explicit(&is_checked[device], memory_order_relaxed) && !ms_is_capturing())
            check_locked(context, device);
        ms_lock_drop(&lock);
    }
    return ms_facts_allow(device);
}
