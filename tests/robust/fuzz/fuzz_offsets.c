/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a file that a program has mapped, in which the shim looks for the places of tensors:
 * each lies in the file, behind the header. */
#include <sys/stat.h>

#include "runtime/files/file.h"
#include "runtime/files/file_read.h"
#include "runtime/finding/tensor_places.h"
#include "tools/simcuda/harness/wraps.h"
#include "tests/robust/fuzz/fuzz.h"

enum { TENSOR_TEXT_BYTES = 20 }; /* the least text of a tensor */

/* --- the file (meson.build) */

static struct {
    const uint8_t *data;
    struct stat stat;
} file;

WRAPS(ms_file_stat, ms_file_read_now);
const struct stat *__wrap_ms_file_stat(const struct ms_file *source)
{
    (void)source;
    return &file.stat;
}

bool __wrap_ms_file_read_now(const struct ms_file *source, uint64_t offset, void *buffer,
                             size_t bytes, struct ms_file_failure *failure_out)
{
    const uint64_t size = (uint64_t)file.stat.st_size;
    (void)source, (void)failure_out;
    require(offset <= size && bytes <= size - offset);
    memcpy(buffer, file.data + offset, bytes);
    return true;
}

/* --- */

static void check_header(const struct ms_tensor_places *header, const uint8_t *data, size_t size)
{
    uint64_t length = 0;
    if (header->count == 0)
        return;
    require(size > MS_TENSOR_PLACES_START && header->count <= size / TENSOR_TEXT_BYTES);
    memcpy(&length, data, sizeof(length));
    for (size_t i = 0; i < header->count; i++) {
        const struct ms_tensor_place *place = &header->tensors[i];
        require(place->bytes > 0 && place->offset >= 8 + length && place->offset < size &&
                place->bytes <= size - place->offset);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ms_tensor_places header = {0};
    file.data = data;
    file.stat.st_size = (off_t)size;
    ms_tensor_places_read(NULL, &header);
    check_header(&header, data, size);
    ms_tensor_places_cleanup(&header);
    return 0;
}
