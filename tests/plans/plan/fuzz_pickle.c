/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the data.pkl of torch.save. */

#include "runtime/base/heap.h"
#include "runtime/base/utf8.h"
#include "runtime/checkpoint/torch_state.h"
#include "tests/plans/plan/fuzz_check.h"
#include "tests/robust/fuzz/fuzz.h"

static void check_view(const struct ms_torch_view *view)
{
    struct ms_tensor again = view->tensor;
    if (again.dims > MS_TENSOR_DIMS_MAX || again.dtype >= MS_DTYPE_COUNT || again.file != NULL ||
        ms_tensor_measure(&again) != NULL || again.bytes != view->tensor.bytes)
        abort();
    if (again.bytes > view->storage_bytes || again.offset > view->storage_bytes - again.bytes)
        abort();
    if (!ms_utf8_is_valid(again.name, strlen(again.name)) ||
        !ms_utf8_is_valid(view->key, strlen(view->key)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {"file", &fault};
    struct ms_arena arena = {0};
    struct ms_torch_state state;
    if (ms_torch_state_read(&reading, (const char *)data, size, &arena, &state)) {
        for (size_t i = 0; i < state.count; i++)
            check_view(&state.views[i]);
        ms_heap_free(state.views);
    } else {
        check_fault(&fault);
    }
    ms_arena_cleanup(&arena);
    return 0;
}
