/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program maps itself: cuMemCreate, cuMemMap and their kin. The program gets a
 * number for a handle of plain device memory, and no memory. The range where it maps the handle,
 * and makes it accessible, is deferred like an allocation. All mappings in one reservation of
 * addresses are one allocation.
 *
 * The shim makes a handle real when the driver's own is needed: when the program exports it, maps
 * it twice or in part, gives it to another device, or unmaps it while its content is alive. The
 * handle's range is then in memory, under that one handle, and stays there.
 *
 * "bool ms_x(..., result_out)" is as in alloc.h. One thread at a time runs these functions
 * (locks.def).
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

/* The properties of the mapped handle, which the program may have released. False if the handle is
 * not the shim's. */
bool ms_vmm_mapping_properties(const struct ms_program_mapping *mapping,
                               CUmemAllocationProp *prop_out);

/* Makes a handle of the shim's real, and replaces its number by the driver's handle. Any other
 * number stays. `exported`: the type of an export, or NULL. CUDA_ERROR_INVALID_VALUE if the handle
 * was not created for such an export. */
CUresult ms_vmm_make_handle_real(CUmemGenericAllocationHandle *handle,
                                 const CUmemAllocationHandleType *exported);

/* Makes all handles real that are mapped in the range. */
CUresult ms_vmm_make_real(CUdeviceptr address, size_t bytes);

bool ms_vmm_map(CUdeviceptr address, size_t bytes, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags,
                CUresult *result_out);
bool ms_vmm_unmap(CUdeviceptr address, size_t bytes, CUresult *result_out);
bool ms_vmm_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count,
                       CUresult *result_out);
bool ms_vmm_get_access(CUdeviceptr address, const CUmemLocation *location,
                       unsigned long long *flags_out, CUresult *result_out);
