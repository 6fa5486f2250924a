/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/driver/flags.h"

#include <stddef.h>

struct ms_hot ms_hot;

_Static_assert(offsetof(struct ms_hot, deferred) == MS_HOT_DEFERRED, "the thunks read it");
_Static_assert(offsetof(struct ms_hot, gated) == MS_HOT_GATED, "the thunks write it");
_Static_assert(offsetof(struct ms_hot, owned) % 8 == 0 &&
                   offsetof(struct ms_hot, gated_copies) == offsetof(struct ms_hot, owned) + 4,
               "one load of both");
_Static_assert(sizeof(struct ms_hot) == MS_HOT_PAGE, "a page of its own");
