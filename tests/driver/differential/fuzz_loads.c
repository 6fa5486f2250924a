/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of one file that are loaded, read and loaded again, in a few places: bytes that are in
 * memory may be copied from there, but a place may hold another tensor by now.
 */
#include "tests/driver/differential/fuzz.h"

/* The shim remembers no place of less than 256 KiB. */
enum { TENSORS = 2, PLACES = 2, STEPS_LEAST = 4, STEPS_MOST = 24 };
enum {
    LEAST = 256 << 10,
    MOST = 480 << 10,
    SHIFT_MOST = 5000,
    FILE_BYTES = 991336
}; /* of tensors */
enum { PLACE_BYTES = MOST + SHIFT_MOST };

struct tensor {
    const unsigned char *from;
    size_t bytes;
};
/* An allocation, one of the pool, or a mapping in addresses that the program keeps: there it comes
 * again and again at one address. */
enum kind { ALLOCATED, POOLED, MAPPED, KINDS };
struct place {
    enum kind kind;
    CUdeviceptr reserved, at; /* 0: none */
    size_t shift;             /* of the tensor within it */
    const struct tensor *tensor;
};

static size_t draw_bytes(void)
{
    return LEAST + fuzz_below(MOST - LEAST);
}

static struct tensor draw_tensor(size_t bytes)
{
    const size_t at = fuzz_below(FILE_BYTES - bytes);
    fuzz_say("  a tensor of %zu bytes at %zu\n", bytes, at);
    return (struct tensor){fuzz_buffers[FUZZ_FILE] + at, bytes};
}

static size_t mapped_bytes(void)
{
    const size_t granule = fuzz_granule();
    return (PLACE_BYTES + granule - 1) / granule * granule;
}

static void map(struct place *place)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc desc = {.location = prop.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    if (place->reserved == 0)
        SEE(CALL(cuMemAddressReserve)(&place->reserved, mapped_bytes(), 0, 0, 0));
    place->at = place->reserved;
    SEE(CALL(cuMemCreate)(&handle, mapped_bytes(), &prop, 0));
    SEE(CALL(cuMemMap)(place->at, mapped_bytes(), 0, handle, 0));
    SEE(CALL(cuMemRelease)(handle));
    SEE(CALL(cuMemSetAccess)(place->at, mapped_bytes(), &desc, 1));
}

static void make(struct place *place)
{
    if (place->kind == MAPPED)
        map(place);
    else if (place->kind == POOLED)
        SEE(CALL(cuMemAllocAsync)(&place->at, PLACE_BYTES, fuzz_stream(false)));
    else
        SEE(CALL(cuMemAlloc_v2)(&place->at, PLACE_BYTES));
}

static void read_place(const struct place *place)
{
    if (place->tensor != NULL)
        fuzz_read(place->at + place->shift, place->tensor->bytes);
}

static void free_place(struct place *place)
{
    fuzz_wait();
    if (place->at == 0)
        return;
    if (place->kind == MAPPED)
        SEE(CALL(cuMemUnmap)(place->at, mapped_bytes()));
    else if (place->kind == POOLED)
        SEE(CALL(cuMemFreeAsync)(place->at, fuzz_stream(false)));
    else
        SEE(CALL(cuMemFree_v2)(place->at));
    place->at = 0;
    place->tensor = NULL;
}

static void load(struct place *place, const struct tensor *tensor)
{
    const bool twin = fuzz_one_in(2);
    static const char *const names[KINDS] = {"an allocation", "memory of the pool", "a mapping"};
    fuzz_say("  into %s, %zu bytes at %zu\n", names[place->kind], tensor->bytes, place->shift);
    place->tensor = tensor;
    if (fuzz_one_in(2))
        SEE_NOW(twin, cuMemcpyHtoD_v2, place->at + place->shift, tensor->from, tensor->bytes);
    else
        SEE_QUEUED(twin, cuMemcpyHtoDAsync_v2, place->at + place->shift, tensor->from,
                   tensor->bytes);
}

static void draw_places(struct place places[PLACES])
{
    for (int i = 0; i < PLACES; i++)
        places[i] = (struct place){.kind = fuzz_one_in(2) ? MAPPED : (enum kind)fuzz_below(MAPPED),
                                   .shift = fuzz_below(SHIFT_MOST)};
}

static void end_place(struct place *place)
{
    read_place(place);
    free_place(place);
    if (place->reserved != 0)
        SEE(CALL(cuMemAddressFree)(place->reserved, mapped_bytes()));
}

static void load_again(void)
{
    struct tensor tensors[TENSORS];
    struct place places[PLACES];
    size_t bytes = draw_bytes();
    for (int i = 0; i < TENSORS; i++, bytes = fuzz_one_in(2) ? bytes : draw_bytes())
        tensors[i] = draw_tensor(bytes);
    draw_places(places);
    for (size_t steps = STEPS_LEAST + fuzz_below(STEPS_MOST - STEPS_LEAST); steps > 0; steps--) {
        struct place *place = &places[fuzz_below(PLACES)];
        if (!fuzz_one_in(4))
            free_place(place);
        if (place->at == 0)
            make(place);
        load(place, &tensors[fuzz_below(TENSORS)]);
        if (!fuzz_one_in(4))
            read_place(place);
    }
    for (int i = 0; i < PLACES; i++)
        end_place(&places[i]);
}

const struct fuzz_operation fuzz_loads[] = {
    {"load again", load_again, 8},
    {NULL, NULL, 0},
};
