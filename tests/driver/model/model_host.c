/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory to copy from and to: pinned, plain, memory that goes at once. */
#include "tests/driver/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PINNED = 8 << 20, PINNED_ROOM = 3 << 20 };

static _Thread_local unsigned char *pinned, *plain;
static _Thread_local size_t pinned_used;

/* --- memory */

bool model_has_pinned(void)
{
    return pinned_used + PINNED_ROOM <= PINNED;
}

void model_pinned_unused(void)
{
    pinned_used = 0;
}

unsigned char *model_pinned(size_t bytes)
{
    if (pinned_used + bytes > PINNED)
        abort();
    unsigned char *out = pinned + pinned_used;
    pinned_used += (bytes + 63) / 64 * 64;
    return out;
}

/* One byte again and again, or random words. */
void model_draw_content(unsigned char *bytes, size_t count)
{
    if (model_one_in(4)) {
        memset(bytes, (int)model_below(256), count);
        return;
    }
    uint64_t word = model_random();
    for (size_t i = 0; i < count; i += sizeof(word)) {
        word = word * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(bytes + i, &word, count - i < sizeof(word) ? count - i : sizeof(word));
    }
}

void model_host_begin(void)
{
    plain = malloc(MODEL_MOST);
    OK(cuMemHostAlloc((void **)&pinned, PINNED, 0));
    model_files_begin();
}

/* --- sources */

struct model_source model_source(size_t bytes, bool is_async)
{
    struct model_source source = {0};
    /* Bytes that the driver reads late stay as they are. */
    const bool stays = is_async && model_reads_late;
    switch (model_below(5)) {
    case 0:
    case 1:
        source.bytes = model_in_file(bytes);
        return source;
    case 2:
        source.bytes = model_pinned(bytes);
        model_draw_content((unsigned char *)source.bytes, bytes);
        return source;
    case 3:
        source.passing_bytes = bytes;
        source.passing =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (source.passing == MAP_FAILED)
            model_fail("no memory");
        model_draw_content(source.passing, bytes);
        source.bytes = source.passing;
        if (stays) {
            munmap(source.passing, bytes);
            source.passing = NULL;
            source.bytes = model_pinned(bytes);
            model_draw_content((unsigned char *)source.bytes, bytes);
        }
        return source;
    default:
        source.bytes = stays ? model_pinned(bytes) : plain;
        source.is_plain = !stays;
        model_draw_content((unsigned char *)source.bytes, bytes);
        return source;
    }
}

void model_source_used(struct model_source source, size_t bytes)
{
    if (source.is_plain)
        memset(plain, 0x5a, bytes);
    if (source.passing != NULL)
        munmap(source.passing, source.passing_bytes);
}
