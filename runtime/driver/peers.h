/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices may reach the memory of which others (cuCtxEnablePeerAccess). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/driver/driver.h"

/*
 * Gives `peer` access to memory of `device` from now on, or takes it. The caller then calls
 * ms_backing_apply_access for every allocation of that device.
 */
void ms_peers_set(CUdevice device, CUdevice peer, bool enabled);

/* Bit p: device p may reach memory of the device. */
uint64_t ms_peers_of(CUdevice device);

/* The device can reach its own memory too. */
static inline bool ms_peers_reach(CUdevice device, CUdevice by)
{
    return device == by || (ms_peers_of(device) >> by & 1) != 0;
}
