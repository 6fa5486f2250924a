/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/caller.h"

#include <stddef.h>

_Thread_local const char *ms_caller = NULL;
_Thread_local const char *ms_caller_kernel = NULL;
_Thread_local uint32_t ms_caller_reason = 0;
