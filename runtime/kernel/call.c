/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kernel/call.h"

#include <string.h>

#include "runtime/base/heap.h"
#include "runtime/kernel/strided_loop.h"

/* A list of tensors has 30 KiB of parameters, of which one tensor needs very little: pieces of
 * zeros are not kept. */
enum { MAX_REPLAY_PARAMS = 64, PIECE_BYTES = 28 };

/* Small, because initialising a large model records very many launches. */
struct ms_launch {
    struct ms_counted counted; /* must be first: ms_call_forget casts */
    CUfunction function;
    struct ms_param_layout *layout;
    CUlaunchAttribute *attributes; /* owned; NULL: there are none */
    unsigned grid[3], block[3], shared_bytes;
    uint32_t attribute_count;
    uint32_t pointers[MS_MAX_POINTERS], pointer_count;
    bool extra;           /* the program packed the parameters itself */
    uint32_t bytes;       /* of the packed parameters */
    uint32_t piece_count; /* pieces that are not zeros */
    struct piece {
        uint32_t at;
        unsigned char bytes[PIECE_BYTES];
    } pieces[];
};

_Static_assert(offsetof(struct ms_launch, counted) == 0, "as ms_call_forget wants it");

/* Finds the buffer in `extra`: pairs of a tag and a value, ended by a zero tag. */
static bool read_extra(void **extra, const void **bytes_out, size_t *count_out)
{
    *bytes_out = NULL;
    *count_out = 0;
    for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *bytes_out = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *count_out = *(const size_t *)extra[1];
        else
            return false;
    }
    return *bytes_out != NULL || *count_out == 0;
}

bool ms_call_pack(const struct ms_call *call, const struct ms_param_layout *layout,
                  struct ms_packed *packed_out)
{
    packed_out->heap = NULL;
    if (call->extra != NULL) {
        const void *bytes;
        const bool known = read_extra(call->extra, &bytes, &packed_out->count);
        packed_out->bytes = bytes;
        return known;
    }
    if (!layout->known)
        return false;
    /* The driver refuses a call without the array of parameters, if the kernel has any. */
    packed_out->count = call->params != NULL ? layout->bytes : 0;
    unsigned char *bytes = packed_out->local;
    if (packed_out->count > sizeof(packed_out->local)) {
        bytes = packed_out->heap = ms_heap_alloc(packed_out->count);
        if (bytes == NULL)
            return false;
    }
    size_t end = 0;
    for (uint32_t i = 0; i < layout->count && packed_out->count > 0; i++) {
        const struct ms_param *param = &layout->params[i];
        if (param->offset > end)
            memset(bytes + end, 0, param->offset - end);
        memcpy(bytes + param->offset, call->params[i], param->bytes);
        end = param->offset + param->bytes > end ? param->offset + param->bytes : end;
    }
    packed_out->bytes = bytes;
    return true;
}

bool ms_call_begin(const struct ms_call *call, struct ms_packed *room,
                   struct ms_arguments *arguments_out)
{
    struct ms_param_layout *layout = ms_parameters_take(call->function);
    *arguments_out = (struct ms_arguments){.layout = layout, .packed = room};
    if (layout == NULL)
        return false;
    if (!ms_call_pack(call, layout, room)) {
        ms_counted_drop(&layout->counted);
        return false;
    }
    ms_strided_loop_find_numbers(layout, room, &arguments_out->numbers);
    return true;
}

/* True for attributes that say how to run a kernel, not when. */
static bool is_plain(const CUlaunchAttribute *attribute)
{
#if CUDA_VERSION < 12050
    enum { CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14 };
#endif
    switch ((int)attribute->id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return true;
    default:
        return false;
    }
}

static int function_attribute(const struct ms_call *call, const struct ms_param_layout *layout,
                              CUfunction_attribute attribute, CUdevice device)
{
    int value = 0;
    const CUresult result =
        layout->is_kernel
            ? ms_driver.kernel_get_attribute(&value, attribute, (CUkernel)call->function, device)
            : ms_driver.func_get_attribute(&value, attribute, call->function);
    return result == CUDA_SUCCESS ? value : 0;
}

static bool is_within(CUdevice device, CUdevice_attribute first, const unsigned *extent)
{
    for (int i = 0; i < 3; i++) {
        int limit = 0;
        if (ms_driver.device_get_attribute(&limit, (CUdevice_attribute)(first + i), device) !=
                CUDA_SUCCESS ||
            extent[i] == 0 || extent[i] > (unsigned)limit)
            return false;
    }
    return true;
}

bool ms_call_may_wait(const struct ms_call *call, const struct ms_param_layout *layout,
                      CUdevice device)
{
    if (device < 0 || call->cooperative || layout->count > MAX_REPLAY_PARAMS)
        return false;
    for (unsigned i = 0; i < call->attribute_count; i++) {
        if (!is_plain(&call->attributes[i]))
            return false;
    }
    const uint64_t threads = (uint64_t)call->block[0] * call->block[1] * call->block[2];
    const int most =
        function_attribute(call, layout, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    const int shared =
        function_attribute(call, layout, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, device);
    return is_within(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, call->grid) &&
           is_within(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, call->block) &&
           threads <= (uint64_t)most &&
           (call->shared_bytes == 0 || call->shared_bytes <= (unsigned)shared);
}

/* Keeps the pieces that are not zeros; without room, only counts them. */
static uint32_t keep_pieces(const struct ms_packed *packed, struct piece *pieces)
{
    static const unsigned char zeros[PIECE_BYTES];
    uint32_t count = 0;
    for (size_t at = 0; at < packed->count; at += PIECE_BYTES) {
        const size_t left = packed->count - at;
        const size_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (memcmp(packed->bytes + at, zeros, bytes) == 0)
            continue;
        if (pieces != NULL) {
            pieces[count].at = (uint32_t)at;
            memcpy(pieces[count].bytes, packed->bytes + at, bytes);
        }
        count++;
    }
    return count;
}

static void unpack_pieces(const struct ms_launch *launch, unsigned char *bytes)
{
    memset(bytes, 0, launch->bytes);
    for (uint32_t i = 0; i < launch->piece_count; i++) {
        const struct piece *piece = &launch->pieces[i];
        const size_t left = launch->bytes - piece->at;
        memcpy(bytes + piece->at, piece->bytes, left < PIECE_BYTES ? left : PIECE_BYTES);
    }
}

static void destroy(struct ms_counted *counted)
{
    struct ms_launch *launch = (struct ms_launch *)counted;
    ms_counted_drop(&launch->layout->counted);
    ms_heap_free(launch->attributes);
    ms_heap_free(launch);
}

struct ms_launch *ms_call_record(const struct ms_call *call, struct ms_param_layout *layout,
                                 const struct ms_packed *packed, const size_t *pointers,
                                 size_t pointer_count)
{
    const uint32_t piece_count = keep_pieces(packed, NULL);
    struct ms_launch *launch =
        ms_heap_zalloc(sizeof(*launch) + piece_count * sizeof(*launch->pieces));
    if (launch == NULL)
        return NULL;
    if (call->attribute_count > 0) {
        const size_t bytes = call->attribute_count * sizeof(*launch->attributes);
        launch->attributes = ms_heap_alloc(bytes);
        if (launch->attributes == NULL) {
            ms_heap_free(launch);
            return NULL;
        }
        memcpy(launch->attributes, call->attributes, bytes);
    }
    ms_counted_init(&launch->counted, destroy);
    launch->function = call->function;
    memcpy(launch->grid, call->grid, sizeof(launch->grid));
    memcpy(launch->block, call->block, sizeof(launch->block));
    launch->shared_bytes = call->shared_bytes;
    launch->attribute_count = call->attribute_count;
    launch->layout = layout;
    ms_counted_take(&layout->counted);
    launch->extra = call->extra != NULL;
    for (size_t i = 0; i < pointer_count; i++)
        launch->pointers[i] = (uint32_t)pointers[i];
    launch->pointer_count = (uint32_t)pointer_count;
    launch->bytes = (uint32_t)packed->count;
    launch->piece_count = keep_pieces(packed, launch->pieces);
    return launch;
}

struct ms_launch *ms_call_take(struct ms_launch *launch)
{
    if (atomic_load(&launch->layout->is_forgotten))
        return NULL;
    ms_counted_take(&launch->counted);
    return launch;
}

static CUresult run(const struct ms_launch *launch, void **params, void **extra, CUstream stream)
{
    const unsigned *grid = launch->grid, *block = launch->block;
    if (launch->attribute_count == 0)
        return ms_driver.launch_kernel(launch->function, grid[0], grid[1], grid[2], block[0],
                                       block[1], block[2], launch->shared_bytes, stream, params,
                                       extra);
    const CUlaunchConfig config = {
        .gridDimX = grid[0],
        .gridDimY = grid[1],
        .gridDimZ = grid[2],
        .blockDimX = block[0],
        .blockDimY = block[1],
        .blockDimZ = block[2],
        .sharedMemBytes = launch->shared_bytes,
        .hStream = stream,
        .attrs = launch->attributes,
        .numAttrs = launch->attribute_count,
    };
    return ms_driver.launch_kernel_ex(&config, launch->function, params, extra);
}

/* The driver copies the parameters before the call returns, so they may be temporary. */
CUresult ms_call_run(const struct ms_launch *launch, const uint64_t deltas[MS_MAX_POINTERS],
                     CUstream stream)
{
    unsigned char *bytes = ms_heap_alloc(launch->bytes + 1);
    if (bytes == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    unpack_pieces(launch, bytes);
    for (size_t i = 0; i < launch->pointer_count; i++) {
        uint64_t pointer;
        memcpy(&pointer, bytes + launch->pointers[i], sizeof(pointer));
        pointer += deltas[i];
        memcpy(bytes + launch->pointers[i], &pointer, sizeof(pointer));
    }

    CUresult result;
    if (launch->extra) {
        size_t count = launch->bytes;
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &count,
                         CU_LAUNCH_PARAM_END};
        result = run(launch, NULL, extra, stream);
    } else {
        void *params[MAX_REPLAY_PARAMS + 1];
        for (uint32_t i = 0; i < launch->layout->count; i++)
            params[i] = bytes + launch->layout->params[i].offset;
        result = run(launch, params, NULL, stream);
    }
    ms_heap_free(bytes);
    return result;
}

const char *ms_call_name(const struct ms_launch *launch)
{
    return launch->layout->name;
}
