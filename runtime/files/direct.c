/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

#include "runtime/files/descriptor.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/file_thread.h"

static bool fits_alignment(int descriptor)
{
#ifdef STATX_DIOALIGN
    struct statx known;
    if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &known) == 0 &&
        (known.stx_mask & STATX_DIOALIGN) != 0)
        return known.stx_dio_offset_align > 0 &&
               MS_DIRECT_BLOCK % known.stx_dio_offset_align == 0 && known.stx_dio_mem_align > 0 &&
               MS_DIRECT_BLOCK % known.stx_dio_mem_align == 0;
#endif
    return true;
}

int ms_direct_open(const struct ms_file *file)
{
    char path[40];
    if (!ms_file_thread_has_own_table()) /* closing it would end locks */
        return MS_DIRECT_REFUSED;
    snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", file->descriptor);
    const int descriptor = ms_descriptor_open(path, O_RDONLY | O_DIRECT);
    if (descriptor < 0)
        return errno == EINVAL ? MS_DIRECT_REFUSED : MS_DIRECT_NO_ROOM;
    /* The last quarter of the limit is for what the file thread needs. */
    const bool has_room = ms_descriptor_leaves_room(descriptor, 3);
    if (has_room && fits_alignment(descriptor))
        return descriptor;
    ms_descriptor_close(descriptor);
    return has_room ? MS_DIRECT_REFUSED : MS_DIRECT_NO_ROOM;
}

int ms_direct_left(const struct ms_file *file)
{
    return atomic_load(&file->direct);
}

/* Not to a file whose descriptors come and go, nor to one that was let go, which happens in this
 * thread, too. Uses at most a quarter of the limit, so that there is room for other files. No file
 * is really const. */
bool ms_direct_leave(const struct ms_file *file, int descriptor)
{
    int none = MS_DIRECT_NOT_OPENED;
    return file->stays_open && !file->is_let_go && ms_descriptor_leaves_room(descriptor, 1) &&
           atomic_compare_exchange_strong(&((struct ms_file *)file)->direct, &none, descriptor);
}
