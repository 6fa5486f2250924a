/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/start/start.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/calls/file_writes.h"
#include "runtime/config/torch_allocator.h"
#include "runtime/control/control.h"
#include "runtime/driver/flags.h"
#include "runtime/kernel/rules.h"
#include "runtime/memory/publish.h"
#include "runtime/shard/active_plan.h"
#include "runtime/source/lease.h"
#include "runtime/source/source.h"
#include "runtime/start/exit_report.h"
#include "runtime/state/state.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char **start_environment;

static void become_inert(void)
{
    memset(&ms_hot, 0, sizeof(ms_hot));
}

static void start(void)
{
    ms_config_read(&ms_config, start_environment);
    if (!ms_config.enabled)
        return;
    /* If the kernel cannot wipe the page (before Linux 4.14), fork() at least is covered. */
    if (madvise(&ms_hot, sizeof(ms_hot), MADV_WIPEONFORK) != 0)
        pthread_atfork(NULL, NULL, become_inert);
    ms_allocator_warn(start_environment);
    ms_state_start(&ms_config);
    ms_publish_set_namer(ms_shard_name_of);
    ms_source_start();
    ms_lease_start(ms_config.leases ? ms_answer_file_write : NULL);
    ms_source_set_snapshot_limit(ms_config.snapshot_bytes);
    ms_rules_read(ms_config.kernel_rules);
    ms_log(MS_DEBUG, "started: deferring allocations of %llu bytes and more",
           (unsigned long long)ms_config.min_bytes);
    atomic_store(&ms_hot.started, 1);
    ms_control_start();
}

void ms_start(char **environment)
{
    if (ms_is_started())
        return;
    start_environment = environment;
    pthread_once(&once, start);
}

void ms_finish(void)
{
    if (!ms_is_started())
        return;
    ms_report(&ms_config);
    ms_state_end();
    if (ms_config.dump_path[0] != '\0')
        ms_report_dump(ms_config.dump_path);
    ms_log_finish();
}
