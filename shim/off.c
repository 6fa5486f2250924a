/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/off.h"

#include "runtime/config/config.h"

static bool off; /* immutable after the constructor */

__attribute__((constructor)) static void read_switch(void)
{
    off = ms_config_is_off();
}

bool ms_is_off(void)
{
    return off;
}
