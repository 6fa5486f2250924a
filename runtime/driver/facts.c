/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/facts.h"

#include <stdatomic.h>

#define STEP_ASIDE true
#define GO_ON false

const struct ms_fact_row ms_facts[MS_FACT_COUNT] = {
#define MS_FACT(id, name, fault, level, without, remedy) {#name, fault, remedy, level, without},
#include "runtime/driver/facts.def"
#undef MS_FACT
};

static const uint32_t steps_aside = 0
#define MS_FACT(id, name, fault, level, without, remedy) \
    | ((without) ? MS_FACT_BIT(MS_FACT_##id) : 0)
#include "runtime/driver/facts.def"
#undef MS_FACT
    ;

static _Atomic uint32_t unmet_of[MS_EVERY_DEVICE + 1];

bool ms_fact_holds(CUdevice device, enum ms_fact fact)
{
    return (atomic_load_explicit(&unmet_of[device], memory_order_relaxed) & MS_FACT_BIT(fact)) == 0;
}

bool ms_facts_allow(CUdevice device)
{
    return (atomic_load_explicit(&unmet_of[device], memory_order_relaxed) & steps_aside) == 0;
}

void ms_facts_set_unmet(CUdevice device, uint32_t unmet)
{
    atomic_store(&unmet_of[device], unmet);
    atomic_fetch_or(&unmet_of[MS_EVERY_DEVICE], unmet);
}
