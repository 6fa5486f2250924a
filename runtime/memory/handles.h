/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of physical memory that the program has created (cuMemCreate) and that the driver has not
 * been asked for: the program gets a number of the shim's own. And the addresses that the program
 * has reserved. Both are guarded by the turn of vmm.c.
 *
 * A handle becomes *real* when somebody needs the driver's own. The program keeps its number.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"

struct ms_handle {
    CUmemGenericAllocationHandle number; /* what the program has; immutable */
    size_t bytes;                        /* immutable */
    CUmemAllocationProp prop;            /* immutable */
    CUcontext context;                   /* in which it is filled; immutable */
    struct ms_pieces pieces; /* its memory while it is not real, and mapped nowhere to be used */
    CUmemGenericAllocationHandle real; /* with one reference while users > 0; 0: not real */
    unsigned users;                    /* references that the program has */
    unsigned mappings;                 /* in reservations of which the shim keeps a record */
    CUdeviceptr address;               /* where it is mapped while it is not real; 0: nowhere */
};

/* True for numbers that only the shim gives out. No driver's handle is one. */
static inline bool ms_handle_is_ours(CUmemGenericAllocationHandle number)
{
    return number >> 48 == 0x6d73;
}

/* A handle with one reference. NULL if out of memory. */
struct ms_handle *ms_handle_create(size_t bytes, const CUmemAllocationProp *prop,
                                   CUcontext context);

/* NULL: it is not ours, or it is gone. */
struct ms_handle *ms_handle_find(CUmemGenericAllocationHandle number);

/* Ends a handle that has neither references nor mappings. */
void ms_handle_end_if_unused(struct ms_handle *handle);

/* Addresses that the program has reserved. */
struct ms_reservation {
    CUdeviceptr address;
    size_t bytes;
    bool has_others; /* memory was mapped there that is in no allocation: nothing is deferred */
};

/* False if out of memory: nothing is deferred there. */
bool ms_handle_add_reservation(CUdeviceptr address, size_t bytes);
void ms_handle_remove_reservation(CUdeviceptr address);

/* The reservation in which the range lies. NULL if there is none. */
struct ms_reservation *ms_handle_find_reservation(CUdeviceptr address, size_t bytes);
