/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/peers.h"

/* Bit p of peers[d]: device p may reach memory of device d. */
static _Atomic uint64_t peers[MS_MAX_DEVICES];

void ms_peers_set(CUdevice device, CUdevice peer, bool enabled)
{
    if (device < 0 || device >= MS_MAX_DEVICES || peer < 0 || peer >= MS_MAX_DEVICES)
        return;
    const uint64_t bit = UINT64_C(1) << peer;
    if (enabled)
        atomic_fetch_or(&peers[device], bit);
    else
        atomic_fetch_and(&peers[device], ~bit);
}

uint64_t ms_peers_of(CUdevice device)
{
    return atomic_load(&peers[device]);
}
