/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of physical memory that the program has created (cuMemCreate): the shim gives out a
 * number of its own instead of asking the driver. A handle becomes *real* when somebody needs the
 * driver's handle; the program keeps its number.
 *
 * Also the addresses that the program has reserved. The turn of vmm.c guards both.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"

struct ms_handle {
    CUmemGenericAllocationHandle number; /* the program's handle; immutable */
    size_t bytes;                        /* immutable */
    CUmemAllocationProp prop;            /* immutable */
    CUcontext context;                   /* in which the memory is filled; immutable */
    struct ms_pieces pieces; /* the memory while the handle is neither real nor mapped for use */
    CUmemGenericAllocationHandle real; /* with one reference while users > 0; 0: not real */
    unsigned users;                    /* references that the program has */
    unsigned mappings;                 /* in reservations of which the shim keeps a record */
    CUdeviceptr address;               /* the mapping while the handle is not real; 0: none */
};

/* True for numbers that only the shim gives out; no driver's handle looks so. */
static inline bool ms_handle_is_ours(CUmemGenericAllocationHandle number)
{
    return number >> 48 == 0x6d73;
}

/* True if the shim's memory on that device can stand for a handle with these properties. */
bool ms_handle_serves(const CUmemAllocationProp *prop, CUdevice device);

/* Makes a handle to which the program has one reference. NULL if out of memory. */
struct ms_handle *ms_handle_create(size_t bytes, const CUmemAllocationProp *prop,
                                   CUcontext context);

/* The shim's handle with this number. NULL: the number is the driver's, or its handle has ended. */
struct ms_handle *ms_handle_find(CUmemGenericAllocationHandle number);

/* Ends a handle that has neither references nor mappings. */
void ms_handle_end_if_unused(struct ms_handle *handle);

/* Addresses that the program has reserved. */
struct ms_reservation {
    CUdeviceptr address; /* the key in a sorted list */
    size_t bytes;
    bool has_others; /* has mappings that are in no allocation: nothing is deferred there */
};

/* False if out of memory: then nothing is deferred in the reservation. */
bool ms_handle_add_reservation(CUdeviceptr address, size_t bytes);
void ms_handle_remove_reservation(CUdeviceptr address);

/* The reservation in which the range lies. NULL if there is none. */
struct ms_reservation *ms_handle_find_reservation(CUdeviceptr address, size_t bytes);
