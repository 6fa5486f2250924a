/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIMCUDA_DRY: a device that gives memory and computes nothing, for programs whose memory is asked
 * for and not their numbers. Kernels do nothing, and neither do fills and copies but small ones, so
 * device memory that nobody writes costs the host nothing. Copies between host and device are made
 * up to SIM_DRY_BYTES, as sizes and messages are, those within devices and fills up to
 * SIM_DRY_WITHIN_BYTES; larger ones leave what they would write as it is. A kernel needs neither a
 * host version nor a layout, and PTX and cubins are modules. SIMCUDA_DRY=2 leaves nothing out, and
 * runs kernels that have host versions.
 */
#include "tools/simcuda/driver/module.h"
#include "tools/simcuda/driver/state.h"

bool sim_is_dry(void)
{
    return sim_config.is_dry;
}

bool sim_leaves_out(void)
{
    return sim_config.is_dry && !sim_config.computes;
}

int sim_capability(void)
{
    return sim_config.capability;
}

SIMCUDA_KERNEL(sim_dry_kernel)
{
}
