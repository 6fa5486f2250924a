/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as the header of a safetensors file. An input is the bytes of data behind it, as 8
 * bytes, the lowest first, and the header. */

#include "tests/plans/plan/fuzz_check.h"
#include "tests/robust/fuzz/fuzz.h"

static const char *const plans[] = {
    "{\"format\":\"metashard-plan/1\",\"mesh\":{\"dp\":3,\"tp\":2},\"tensors\":["
    "{\"name\":\"*weight*\",\"placements\":{\"tp\":{\"shard\":0},\"dp\":{\"shard\":0}}},"
    "{\"name\":\"*b*\",\"placements\":[{\"flat\":\"fsdp1\",\"unit\":\"u\"}]},"
    "{\"name\":\"*\",\"placements\":{\"tp\":{\"flat\":\"zero3\"}}}]}",
    "{\"format\":\"metashard-plan/1\",\"world_size\":1048576,\"tensors\":["
    "{\"name\":\"*\",\"placements\":[{\"flat\":\"zero3\"}]}]}",
};

/* The data is the tensors, one behind the other, and nothing else. */
static void check_tensors(const struct ms_checkpoint *checkpoint, size_t header_bytes,
                          uint64_t data_bytes)
{
    uint64_t end = 8 + header_bytes;
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint); i++) {
        const struct ms_tensor tensor = ms_checkpoint_tensor(checkpoint, i);
        if (tensor.offset != end || tensor.dims > MS_TENSOR_DIMS_MAX || tensor.bytes > INT64_MAX ||
            tensor.name == NULL)
            abort();
        end += tensor.bytes;
    }
    if (end != 8 + header_bytes + data_bytes)
        abort();
}

static void use(const struct ms_checkpoint *checkpoint, const char *text)
{
    struct ms_plan *plan;
    struct ms_layout *layout;
    struct ms_fault fault;
    if (!ms_plan_parse(text, strlen(text), "plan", &plan, &fault))
        abort();
    if (ms_layout_create(plan, checkpoint, &layout, &fault)) {
        check_layout(layout);
        ms_layout_destroy(layout);
    } else {
        check_fault(&fault);
    }
    ms_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ms_checkpoint *checkpoint;
    struct ms_fault fault;
    uint64_t data_bytes = 0;
    if (size < 8)
        return 0;
    for (int i = 7; i >= 0; i--)
        data_bytes = data_bytes << 8 | data[i];
    data_bytes &= INT64_MAX / 2; /* no file is larger */
    if (!open_header(data + 8, size - 8, data_bytes, &checkpoint, &fault)) {
        check_fault(&fault);
        return 0;
    }
    check_tensors(checkpoint, size - 8, data_bytes);
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
        use(checkpoint, plans[i]);
    ms_checkpoint_close(checkpoint);
    return 0;
}
