/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program maps itself: cuMemCreate, cuMemMap and their kin. A handle of plain
 * device memory gets a number and no memory. Where it is mapped and made accessible, the range is
 * deferred as an allocation is. All mappings in one reservation of addresses are one allocation.
 *
 * A handle is made real when the driver's own is needed: it is exported, mapped twice or in part,
 * given to another device, or unmapped while its content is alive. Its range is then in memory, by
 * that one handle, and stays there.
 *
 * "bool ms_x(..., result_out)" is as in alloc.h. One thread at a time does any of this (locks.def).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/driver/driver.h"
#include "runtime/memory/backing.h"

/* The program has reserved addresses. */
void ms_vmm_reserved(CUdeviceptr address, size_t bytes);
bool ms_vmm_free_addresses(CUdeviceptr address, size_t bytes, CUresult *result_out);

bool ms_vmm_defer(size_t bytes, const CUmemAllocationProp *prop,
                  CUmemGenericAllocationHandle *handle_out, CUresult *result_out);
bool ms_vmm_release(CUmemGenericAllocationHandle handle, CUresult *result_out);
bool ms_vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle_out,
                   CUresult *result_out);
bool ms_vmm_handle_properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp *prop_out,
                              CUresult *result_out);

/* Of the handle that is mapped there, which may be released. False if it is not ours. */
bool ms_vmm_mapping_properties(const struct ms_program_mapping *mapping,
                               CUmemAllocationProp *prop_out);

/* Replaces the number of a handle of ours by the driver's, which it then has. Any other stays. So
 * does, for an export of a type, one that was not created for that: the driver refuses it. */
CUresult ms_vmm_make_handle_real(CUmemGenericAllocationHandle *handle,
                                 const CUmemAllocationHandleType *exported);

/* The same for all handles that are mapped in the range. */
CUresult ms_vmm_make_real(CUdeviceptr address, size_t bytes);

bool ms_vmm_map(CUdeviceptr address, size_t bytes, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags,
                CUresult *result_out);
bool ms_vmm_unmap(CUdeviceptr address, size_t bytes, CUresult *result_out);
bool ms_vmm_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count,
                       CUresult *result_out);
bool ms_vmm_get_access(CUdeviceptr address, const CUmemLocation *location,
                       unsigned long long *flags_out, CUresult *result_out);
