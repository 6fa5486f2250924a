/* SPDX-License-Identifier: Apache-2.0 */
/* The facts that hold for a device (facts.def): all, until the self-check finds otherwise. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/log.h"
#include "runtime/driver/driver.h"

enum ms_fact {
#define MS_FACT(id, name, fault, level, without, remedy) MS_FACT_##id,
#include "runtime/driver/facts.def"
#undef MS_FACT
    MS_FACT_COUNT
};

struct ms_fact_row {
    char name[16], fault[80], remedy[128];
    enum ms_log_level level;
    bool steps_aside;
};
extern const struct ms_fact_row ms_facts[MS_FACT_COUNT];

/* One bit for each fact. */
#define MS_FACT_BIT(fact) (UINT32_C(1) << (fact))

/* MS_EVERY_DEVICE: the fact holds on all checked devices. */
enum { MS_EVERY_DEVICE = MS_MAX_DEVICES };
bool ms_fact_holds(CUdevice device, enum ms_fact fact);

/* True if the shim may defer allocations of the device. */
bool ms_facts_allow(CUdevice device);

/* Sets the facts, as bits, that do not hold on a device below MS_MAX_DEVICES. */
void ms_facts_set_unmet(CUdevice device, uint32_t unmet);
