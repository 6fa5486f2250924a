/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries with arguments on the stack. The exported symbol is a thunk in assembly. While nothing is
 * deferred it jumps to the driver, otherwise here, with the program's arguments untouched.
 */
#pragma once

#include "shim/entries.h"

extern __typeof__(cuLaunchKernel) ms_guarded_cuLaunchKernel;
extern __typeof__(cuLaunchKernel_ptsz) ms_guarded_cuLaunchKernel_ptsz;
extern __typeof__(cuLaunchCooperativeKernel) ms_guarded_cuLaunchCooperativeKernel;
extern __typeof__(cuLaunchCooperativeKernel_ptsz) ms_guarded_cuLaunchCooperativeKernel_ptsz;
