/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a page holds, reading it ends with a snapshot that the tool can show, or with one
 * line. */
#include <sys/mman.h>
#include <unistd.h>

#include "tools/dump/dump.h"
#include "tests/robust/fuzz/fuzz.h"

static bool is_clean(const char *text)
{
    for (; *text != '\0'; text++) {
        const unsigned char *at = (const unsigned char *)text;
        if (*at < 0x20 || *at == 0x7f || (*at == 0xc2 && at[1] < 0xa0) ||
            (*at == 0xe2 && at[1] == 0x80 && at[2] >= 0xa8 && at[2] <= 0xae))
            return false;
    }
    return true;
}

static void check_snapshot(const struct ms_snapshot *snapshot)
{
    require(snapshot->sample_count > 0);
    require(is_clean(snapshot->process.command) && is_clean(snapshot->plan.name));
    for (size_t i = 1; i < snapshot->sample_count; i++)
        require(snapshot->samples[i].time_ns > snapshot->samples[i - 1].time_ns);
    for (size_t i = 0; i < snapshot->block_count; i++)
        require(snapshot->blocks[i].file <= snapshot->file_count &&
                is_clean(snapshot->blocks[i].name));
    for (size_t i = 0; i < snapshot->event_count; i++)
        require(snapshot->events[i].sequence % 2 == 0 && is_clean(snapshot->events[i].text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    struct ms_snapshot snapshot;
    struct ms_fault fault;
    const int file = memfd_create("page", MFD_CLOEXEC);
    require(file >= 0 && write(file, data, size) == (ssize_t)size);
    if (nowhere == NULL)
        nowhere = fopen("/dev/null", "we");
    if (ms_snapshot_read_file(file, "page", &snapshot, &fault)) {
        check_snapshot(&snapshot);
        struct view view = {&snapshot, 1};
        write_json(nowhere, &view, SIZE_MAX, SIZE_MAX);
        ms_snapshot_cleanup(&snapshot);
    } else {
        require(fault.text[0] != '\0' && is_clean(fault.text));
    }
    close(file);
    return 0;
}
