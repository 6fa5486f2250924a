/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/probe.h"

#include <string.h>
#include <time.h>

/*
 * The lowest PTX version and target that every driver with VMM support still compiles. Spinning on
 * the global timer, in nanoseconds, needs no knowledge of clock rates.
 */
static const char ptx[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry probe_spin(.param .u64 spin_ns)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b64 %rd<5>;\n"
    "    ld.param.u64 %rd1, [spin_ns];\n"
    "    mov.u64 %rd2, %globaltimer;\n"
    "again:\n"
    "    mov.u64 %rd3, %globaltimer;\n"
    "    sub.u64 %rd4, %rd3, %rd2;\n"
    "    setp.lt.u64 %p1, %rd4, %rd1;\n"
    "    @%p1 bra again;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry probe_store(.param .u64 store_address, .param .u32 store_value)\n"
    "{\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [store_address];\n"
    "    ld.param.u32 %r1, [store_value];\n"
    "    cvta.to.global.u64 %rd2, %rd1;\n"
    "    st.global.u32 [%rd2], %r1;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry probe_layout(.param .u64 layout_a, .param .u32 layout_b,\n"
    "                             .param .align 8 .b8 layout_c[24], .param .u8 layout_d)\n"
    "{\n"
    "    ret;\n"
    "}\n";

static CUmodule module;

static CUresult load(void)
{
    if (module != NULL)
        return CUDA_SUCCESS;
    if (probe_kernel_file != NULL)
        return CU(cuModuleLoad, &module, probe_kernel_file);
    return CU(cuModuleLoadData, &module, ptx);
}

CUfunction probe_kernel(const char *name)
{
    CUfunction function = NULL;
    probe_require("loading the probe's kernels", load());
    TRY(cuModuleGetFunction, &function, module, name);
    return function;
}

/* On one thread. */
static CUresult launch(const char *name, CUstream stream, void **parameters, void **extra)
{
    return CU(cuLaunchKernel, probe_kernel(name), 1, 1, 1, 1, 1, 1, 0, stream, parameters, extra);
}

static CUresult spin(CUstream stream, uint64_t ns)
{
    return launch("probe_spin", stream, (void *[]){&ns}, NULL);
}

CUresult probe_kernel_store(CUdeviceptr address, uint32_t value, CUstream stream)
{
    return launch("probe_store", stream, (void *[]){&address, &value}, NULL);
}

bool busy_kernel_available(void)
{
    static int known; /* 0: not asked yet, 1: no, 2: yes */
    CUfunction function;
    if (known != 0)
        return known == 2;
    known = 1;
    if (load() != CUDA_SUCCESS)
        return false;
    if (CU(cuModuleGetFunction, &function, module, "probe_spin") != CUDA_SUCCESS)
        return false;
    /* A driver may take the launch and do nothing. */
    const int64_t start_ns = probe_clock_ns();
    if (spin(NULL, 4000000) == CUDA_SUCCESS && CU(cuStreamSynchronize, NULL) == CUDA_SUCCESS &&
        probe_clock_ns() - start_ns > 3000000)
        known = 2;
    return known == 2;
}

enum busy_kind busy_best(void)
{
    return busy_kernel_available() ? BUSY_KERNEL : BUSY_HOST_FUNCTION;
}

void busy_print(size_t unused)
{
    js_string("busy_with", busy_kernel_available() ? "kernel" : "host_function");
}

static void CUDA_CB sleep_on_stream(void *milliseconds)
{
    const long ms = (long)(intptr_t)milliseconds;
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

void busy_start(CUstream stream, enum busy_kind kind, int milliseconds)
{
    if (kind == BUSY_KERNEL)
        probe_require("cuLaunchKernel", spin(stream, (uint64_t)milliseconds * 1000000));
    else
        TRY(cuLaunchHostFunc, stream, sleep_on_stream, (void *)(intptr_t)milliseconds);
}

static void print_layout(size_t unused)
{
    const CUfunction function = probe_kernel("probe_layout");
    js_open_list("parameters");
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; result == CUDA_SUCCESS && i < 8; i++) {
        size_t offset = 0, bytes = 0;
        result = CU(cuFuncGetParamInfo, function, i, &offset, &bytes);
        if (result == CUDA_SUCCESS)
            js_format(NULL, "%zu+%zu", offset, bytes);
    }
    js_close();
    js_result("past_the_last", result);
    js_result("size_pointer_null", CU(cuFuncGetParamInfo, function, 0, &(size_t){0}, NULL));
}

static void print_query_cost(size_t unused)
{
    static struct samples samples;
    const CUfunction function = probe_kernel("probe_layout");
    size_t offset, bytes;
    for (int i = 0; i < 200; i++)
        TIMED(&samples, cuFuncGetParamInfo, function, 1, &offset, &bytes);
    js_us("first_call_us", samples.ns[0]);
    samples_print(&samples, "all_calls");
}

/* Packed parameters with bytes past the last parameter, and with too few bytes. */
static void launch_packed(size_t unused)
{
    const CUdeviceptr word = probe_alloc(4);
    struct {
        CUdeviceptr address;
        uint32_t value, padding;
    } packed = {.address = word, .value = 0x600df00d};
    for (size_t bytes = 12; bytes <= 16; bytes += 4) {
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                         &bytes, CU_LAUNCH_PARAM_END};
        char key[32] = "buffer_of_12";
        key[11] = bytes == 12 ? '2' : '6';
        js_result(key, launch("probe_store", NULL, NULL, extra));
    }
    uint32_t seen = 0;
    TRY(cuMemcpyDtoH_v2, &seen, word, sizeof(seen));
    js_bool("stored", seen == packed.value);
}

static void launch_layout(size_t unused)
{
    unsigned char words[24] = {0}, byte = 0;
    void *parameters[] = {words, words, words, &byte};
    js_result("result", launch("probe_layout", NULL, parameters, NULL));
    js_result("synchronize", CU(cuCtxSynchronize));
}

static void print_state(const char *result_key, const char *state_key)
{
    CUfunctionLoadingState state = 0;
    js_result(result_key, CU(cuFuncIsLoaded, &state, probe_kernel("probe_layout")));
    js_int(state_key, (int)state);
}

static void print_before(size_t unused)
{
    const char *name = NULL;
    js_bool("kernels_run", busy_kernel_available());
    print_state("is_loaded_before", "loading_state_before");
    js_result("name_result", CU(cuFuncGetName, &name, probe_kernel("probe_layout")));
    js_string("name", name != NULL ? name : "");
}

static void print_after(size_t unused)
{
    print_state("is_loaded_after", "loading_state_after");
}

const struct probe_row section_parameters[] = {
    {NULL, print_before},
    {"layout", print_layout},
    {"query_cost", print_query_cost},
    {"packed_launch", launch_packed},
    {"launch", launch_layout},
    {NULL, print_after},
    {NULL},
};
