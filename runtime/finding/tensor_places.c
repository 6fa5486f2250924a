/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/finding/tensor_places.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/array.h"
#include "runtime/base/heap.h"
#include "runtime/base/pages.h"
#include "runtime/files/file.h"
#include "runtime/files/file_read.h"

/* The format allows headers of 100 MB. */
enum { MAX_HEADER_BYTES = 100 * 1000 * 1000 };

static const char *skip(const char *at, char wanted)
{
    while (isspace((unsigned char)*at))
        at++;
    return *at == wanted ? at + 1 : NULL;
}

/* Reads ":[begin,end]" after a key. Wrong numbers do no harm: the bytes there are compared. */
static bool read_offsets(const char *at, uint64_t *begin_out, uint64_t *end_out)
{
    char *end;
    at = skip(at, ':');
    at = at != NULL ? skip(at, '[') : NULL;
    if (at == NULL)
        return false;
    *begin_out = strtoull(at, &end, 10);
    at = skip(end, ',');
    if (at == NULL)
        return false;
    *end_out = strtoull(at, &end, 10);
    return skip(end, ']') != NULL;
}

static bool add_tensor(struct ms_tensor_places *header, uint64_t offset, uint64_t bytes)
{
    if (!MS_ARRAY_GROW(header->tensors, header->count, header->capacity))
        return false;
    header->tensors[header->count++] = (struct ms_tensor_place){.offset = offset, .bytes = bytes};
    return true;
}

/* The tensors' bytes are data_bytes bytes of the file, from data_at on. */
static void read_text(struct ms_tensor_places *header, const char *text, uint64_t data_at,
                      uint64_t data_bytes)
{
    static const char key[] = "\"data_offsets\"";
    for (const char *at = text; (at = strstr(at, key)) != NULL;) {
        uint64_t begin, end;
        at += strlen(key);
        if (read_offsets(at, &begin, &end) && begin < end && end <= data_bytes &&
            !add_tensor(header, data_at + begin, end - begin))
            return;
    }
}

bool ms_tensor_places_is_start(const unsigned char start[MS_TENSOR_PLACES_START],
                               uint64_t *length_out)
{
    memcpy(length_out, start, sizeof(*length_out)); /* little-endian, like this machine */
    return start[8] == '{' && *length_out >= 2 && *length_out <= MAX_HEADER_BYTES;
}

void ms_tensor_places_read(const struct ms_file *file, struct ms_tensor_places *header)
{
    struct ms_file_failure failure;
    unsigned char start[MS_TENSOR_PLACES_START];
    uint64_t length;
    const uint64_t all_bytes = (uint64_t)ms_file_stat(file)->st_size;
    if (all_bytes < sizeof(start) || !ms_file_read_now(file, 0, start, sizeof(start), &failure) ||
        !ms_tensor_places_is_start(start, &length) || length > all_bytes - 8)
        return;
    struct ms_pages text = {0};
    if (!ms_pages_grow(&text, length + 1)) /* room for a zero at the end */
        return;
    if (ms_file_read_now(file, 8, text.memory, length, &failure))
        read_text(header, text.memory, 8 + length, all_bytes - 8 - length);
    ms_pages_cleanup(&text);
}
