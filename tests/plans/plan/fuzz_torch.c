/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a file of torch.save. */
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/heap.h"
#include "runtime/checkpoint/torch_file.h"
#include "runtime/checkpoint/zip.h"
#include "tests/plans/plan/fuzz_check.h"
#include "tests/robust/fuzz/fuzz.h"

static int in_file(const uint8_t *data, size_t size)
{
    const int file = memfd_create("fuzz", MFD_CLOEXEC);
    if (file < 0 || (size > 0 && write(file, data, size) != (ssize_t)size))
        abort();
    return file;
}

/* No two records share a byte, and each is found by its name. */
static void check_zip(const struct ms_fault_context *reading, int file, const uint8_t *data,
                      size_t size)
{
    struct ms_zip zip;
    if (!ms_zip_read(reading, file, size, &zip)) {
        check_fault(reading->fault);
        return;
    }
    uint8_t *taken = calloc(size + 1, 1);
    for (size_t i = 0; i < zip.count; i++) {
        const struct ms_zip_record *record = &zip.records[i];
        if (record->offset > size || record->bytes > size - record->offset ||
            record->header >= record->offset || memcmp(data + record->header, "PK\3\4", 4) != 0 ||
            ms_zip_find(&zip, record->name) != record)
            abort();
        for (uint64_t byte = record->header; byte < record->offset + record->bytes; byte++) {
            if (taken[byte]++ != 0)
                abort();
        }
    }
    free(taken);
    ms_arena_cleanup(&zip.arena);
}

static void check_tensors(const struct ms_torch_tensors *torch, size_t size)
{
    for (size_t i = 0; i < torch->count; i++) {
        const struct ms_tensor *tensor = &torch->tensors[i];
        if (tensor->offset > size || tensor->bytes > size - tensor->offset ||
            tensor->dims > MS_TENSOR_DIMS_MAX || tensor->name == NULL || tensor->file == NULL ||
            (i > 0 && torch->tensors[i - 1].offset > tensor->offset))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ms_fault fault;
    const struct ms_fault_context reading = {"file", &fault};
    struct ms_arena arena = {0};
    struct ms_torch_tensors torch;
    const int file = in_file(data, size);
    check_zip(&reading, file, data, size);
    if (ms_torch_file_read(&reading, file, size, &arena, &torch)) {
        check_tensors(&torch, size);
        ms_heap_free(torch.tensors);
    } else {
        check_fault(&fault);
    }
    ms_arena_cleanup(&arena);
    close(file);
    return 0;
}
