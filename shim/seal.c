/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/seal.h"

#include "runtime/base/log.h"
#include "runtime/fill/access.h"
#include "shim/quick.h"

struct ms_sealed ms_seal_enter(uint32_t index)
{
    const uint32_t entry = index & ~MS_FIND_ONLY;
    struct ms_sealed sealed = {.result = CUDA_SUCCESS,
                               .real = __atomic_load_n(&ms_real[entry], __ATOMIC_ACQUIRE)};
    if (sealed.real == NULL)
        sealed.real = ms_real_get((enum ms_entry)entry);
    if (entry != index)
        return sealed;
    MS_ENTER(entry < MS_ENTRY_COUNT ? ms_entry_symbol(entry) : "an unknown function");
    if (!ms_defers_any())
        return sealed;
    ms_log(MS_DEBUG, "%s is not modelled: everything deferred is materialised", ms_caller);
    sealed.result = ms_access_all(MS_REASON_SEALED);
    return sealed;
}
