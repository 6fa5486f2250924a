/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/device.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "runtime/base/launcher.h"
#include "runtime/base/log.h"
#include "runtime/base/version.h"
#include "runtime/config/config.h"
#include "runtime/driver/flags.h"
#include "runtime/state/counters.h"
#include "runtime/state/state.h"

/* The start-up line of the log, once for each device that the program uses. */
static void log_start(CUdevice device, const char *name)
{
    const struct ms_launched launched = ms_launcher_read(false);
    char of[64] = "";
    int version = 0;
    if (ms_driver.driver_get_version == NULL ||
        ms_driver.driver_get_version(&version) != CUDA_SUCCESS)
        version = 0;
    if (launched.has_rank && launched.world != UINT32_MAX)
        snprintf(of, sizeof(of), ", rank %" PRIu32 " of %" PRIu32, launched.rank, launched.world);
    ms_log(MS_INFO, "MetaShard %s on device %d, %s, driver of CUDA %d.%d%s", ms_version, device,
           name[0] != '\0' ? name : "without a name", version / 1000, version % 1000 / 10, of);
}

void ms_device_publish(CUdevice device)
{
    static _Atomic uint64_t asked;
    char name[120] = "";
    size_t bytes;
    const uint64_t bit = UINT64_C(1) << (device & 63);
    const bool is_logged = ms_config.log.level >= MS_INFO;
    if ((!ms_is_recorded() && !is_logged) || (atomic_fetch_or(&asked, bit) & bit) != 0)
        return;
    if (ms_driver.device_get_name != NULL &&
        ms_driver.device_get_name(name, sizeof(name), device) == CUDA_SUCCESS)
        ms_state_set_device((uint32_t)device, &(struct ms_device_facts){.name = name});
    if (ms_driver.device_total_mem(&bytes, device) == CUDA_SUCCESS)
        ms_counter_add(MS_COUNT_DEVICE_BYTES, bytes);
    if (is_logged)
        log_start(device, name);
}
