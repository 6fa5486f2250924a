/* SPDX-License-Identifier: Apache-2.0 */
/* A plan in force, for tests of what asks it. */
#pragma once

#include <stdio.h>
#include <string.h>

#include "runtime/shard/shard.h"
#include "tools/simcuda/harness/test.h"

static inline void use_plan_text(const char *text)
{
    struct ms_plan *plan;
    struct ms_fault fault;
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault) ||
        !ms_shard_set(plan, "plan", &fault))
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
}

/* For rank `rank` of 2, which keeps its half of each tensor; one, w, of so many bytes, is
 * declared. */
static inline void use_plan(unsigned rank, size_t bytes)
{
    char text[512];
    snprintf(
        text, sizeof(text),
        "{\"format\": \"metashard-plan/1\", \"mesh\": {\"r\": 2}, \"rank\": %u, \"tensors\": ["
        "{\"name\": \"w\", \"dtype\": \"U8\", \"shape\": [%zu], \"placements\": [{\"shard\": 0}]},"
        "{\"name\": \"*\", \"placements\": [{\"shard\": 0}]}]}",
        rank, bytes);
    use_plan_text(text);
}

/* [address, address + bytes) is the tensor of that name, of bytes. */
static inline void name_tensor(CUdeviceptr address, size_t bytes, const char *name)
{
    struct ms_fault fault;
    struct ms_tensor tensor = {.name = name, .dtype = MS_DTYPE_U8, .dims = 1, .shape = {bytes}};
    CHECK(ms_tensor_measure(&tensor) == NULL);
    if (!ms_shard_name(address, bytes, name, &tensor, &fault))
        ms_test_fail(__FILE__, __LINE__, "%s", fault.text);
}
