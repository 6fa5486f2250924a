/* SPDX-License-Identifier: Apache-2.0 */
/* Code: which handles the runtime is told are kernels, and what runs before code goes. And calls
 * that the shim does not model. */
#include <string.h>

#include "runtime/base/log.h"
#include "runtime/fill/access.h"
#include "runtime/kernel/parameters.h"
#include "shim/seal.h"
#include "tests/unit/between.h"
#include "tests/unit/shim/called_in_order.h"
#include "tests/unit/shim/real_side.h"

#define KERNEL(number) ((CUkernel)(uintptr_t)(0x100 + (number)))
#define LIBRARY ((CUlibrary)0x20)

enum { IN_LIBRARY = 3 };

/* --- what is called: a small letter for the runtime, a large one for the driver */

static unsigned added, enumerated = IN_LIBRARY;
static CUresult answer, prepared, counted;
static const char *caller;

WRAPS(ms_parameters_add_kernel, ms_parameters_forget, ms_access_uses, ms_access_all);
void __wrap_ms_parameters_add_kernel(CUkernel kernel, CUlibrary library)
{
    CHECK(kernel == KERNEL(added) && library == LIBRARY);
    added++;
    note('k');
}

void __wrap_ms_parameters_forget(CUlibrary library)
{
    CHECK(library == LIBRARY || library == NULL);
    note(library == NULL ? 'm' : 'f');
}

CUresult __wrap_ms_access_uses(const struct ms_use *uses, size_t count)
{
    CHECK(count == 1 && uses->begin == 0 && uses->bytes == SIZE_MAX);
    CHECK_EQ(uses->need, MS_NEED_LAUNCHED);
    CHECK_EQ(ms_calls_inside, 1);
    note('a');
    return prepared;
}

CUresult __wrap_ms_access_all(enum ms_reason reason)
{
    CHECK_EQ(reason, MS_REASON_SEALED);
    caller = ms_caller;
    note('A');
    return prepared;
}

const char *ms_entry_symbol(enum ms_entry entry)
{
    return entry == MS_ENTRY_cuModuleUnload ? "cuModuleUnload" : "another";
}

REAL(cuLibraryGetKernel, (CUkernel * kernel_out, CUlibrary library, const char *name),
     CHECK(library == LIBRARY && strcmp(name, "name") == 0);
     *kernel_out = KERNEL(0); note('G'); return answer)
REAL(cuLibraryEnumerateKernels, (CUkernel * kernels, unsigned count, CUlibrary library),
     CHECK(library == LIBRARY);
     for (unsigned i = 0; i < count && i < enumerated; i++) kernels[i] = KERNEL(i); note('E');
     return answer)
REAL(cuLibraryGetKernelCount, (unsigned *count_out, CUlibrary library), CHECK(library == LIBRARY);
     *count_out = enumerated; note('C'); return counted)
REAL(cuModuleUnload, (CUmodule module), CHECK(module == (CUmodule)0x30); note('U'); return answer)
REAL(cuLibraryUnload, (CUlibrary library), CHECK(library == LIBRARY); note('L'); return answer)

/* --- kernels */

MS_TEST(a_kernel_that_was_got_is_told)
{
    CUkernel kernel = NULL;
    CHECK_EQ(cuLibraryGetKernel(&kernel, LIBRARY, "name"), CUDA_SUCCESS);
    CHECK(kernel == KERNEL(0));
    must_have("G"); /* the shim has not started */
    own_something(false);
    CHECK_EQ(cuLibraryGetKernel(&kernel, LIBRARY, "name"), CUDA_SUCCESS);
    must_have("Gk");
    answer = CUDA_ERROR_NOT_FOUND;
    CHECK_EQ(cuLibraryGetKernel(&kernel, LIBRARY, "name"), CUDA_ERROR_NOT_FOUND);
    must_have("G");
}

/* The driver fills what there is, of what the program has room for. */
MS_TEST(kernels_of_a_list_are_told_as_far_as_it_is_filled)
{
    CUkernel kernels[IN_LIBRARY + 1];
    CHECK_EQ(cuLibraryEnumerateKernels(kernels, IN_LIBRARY, LIBRARY), CUDA_SUCCESS);
    must_have("E");
    own_something(false);
    for (unsigned room = 0; room <= IN_LIBRARY + 1; room++) {
        memset(kernels, 0, sizeof(kernels));
        added = 0;
        CHECK_EQ(cuLibraryEnumerateKernels(kernels, room, LIBRARY), CUDA_SUCCESS);
        CHECK_EQ(added, room < IN_LIBRARY ? room : IN_LIBRARY);
        memset(order, 0, sizeof(order));
    }
    counted = CUDA_ERROR_INVALID_HANDLE;
    CHECK_EQ(cuLibraryEnumerateKernels(kernels, IN_LIBRARY, LIBRARY), CUDA_SUCCESS);
    must_have("EC");
    answer = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQ(cuLibraryEnumerateKernels(kernels, IN_LIBRARY, LIBRARY), CUDA_ERROR_INVALID_VALUE);
    must_have("E");
}

/* --- code that goes */

STORY_ALONE(recorded_launches_run_before_code_goes,
            EQUALS(cuModuleUnload((CUmodule)0x30), CUDA_SUCCESS),
            EQUALS(cuLibraryUnload(LIBRARY), CUDA_SUCCESS), must_have("UL"), own_something(false),
            EQUALS(cuModuleUnload((CUmodule)0x30), CUDA_SUCCESS), must_have("amU"),
            EQUALS(cuLibraryUnload(LIBRARY), CUDA_SUCCESS), must_have("afL"),
            answer = CUDA_ERROR_INVALID_HANDLE,
            EQUALS(cuLibraryUnload(LIBRARY), CUDA_ERROR_INVALID_HANDLE), must_have("afL"))

STORY_ALONE(code_whose_launches_fail_stays, own_something(true),
            prepared = CUDA_ERROR_OUT_OF_MEMORY,
            EQUALS(cuModuleUnload((CUmodule)0x30), CUDA_ERROR_OUT_OF_MEMORY),
            EQUALS(cuLibraryUnload(LIBRARY), CUDA_ERROR_OUT_OF_MEMORY), must_have("aa"))

/* --- calls that are not modelled */

MS_TEST(a_call_that_is_not_modelled_brings_all_in_first)
{
    struct ms_sealed sealed = ms_seal_enter(MS_ENTRY_cuModuleUnload);
    CHECK(sealed.result == CUDA_SUCCESS && sealed.real == (void *)real_cuModuleUnload);
    must_have(""); /* nothing is deferred */
    atomic_store(&ms_hot.deferred, 1);
    sealed = ms_seal_enter(MS_ENTRY_cuModuleUnload | MS_FIND_ONLY);
    CHECK(sealed.result == CUDA_SUCCESS && sealed.real == (void *)real_cuModuleUnload);
    must_have("");
    prepared = CUDA_ERROR_OUT_OF_MEMORY;
    sealed = ms_seal_enter(MS_ENTRY_cuModuleUnload);
    CHECK(sealed.result == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(sealed.real == (void *)real_cuModuleUnload);
    CHECK(strcmp(caller, "cuModuleUnload") == 0);
    must_have("A");
}

/* Entries that only newer drivers have. */
STORY_ALONE(a_function_without_a_name_is_found_and_sealed_as_well,
            atomic_store(&ms_hot.deferred, 1), ms_real[MS_ENTRY_COUNT] = (void *)ms_missing,
            IS(ms_seal_enter(MS_ENTRY_COUNT).real == (void *)ms_missing),
            IS(strcmp(caller, "an unknown function") == 0), must_have("A"))
