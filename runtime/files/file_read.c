/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/files/file_read.h"

#include <errno.h>
#include <stdatomic.h>

#include "runtime/files/descriptor.h"
#include "runtime/files/file_internal.h"
#include "runtime/files/trust.h"

/* No source is really const: only ms_change_keep sees how many reads there are. */
ssize_t ms_file_read_by(const struct ms_file *file, int descriptor, void *buffer, size_t bytes,
                        uint64_t offset)
{
    _Atomic unsigned *under_read = &((struct ms_file *)file)->under_read;
    atomic_fetch_add(under_read, 1);
    const int copy = atomic_load(&file->copy);
    const ssize_t got = ms_descriptor_read(copy >= 0 ? copy : descriptor, buffer, bytes, offset);
    const int error = errno;
    atomic_fetch_sub(under_read, 1);
    errno = error;
    return got;
}

void ms_file_read_explain(const struct ms_file *file, uint64_t offset, size_t bytes, int error,
                          struct ms_file_failure *failure_out)
{
    if (atomic_load(&file->state) != MS_FILE_IS_LOST && error == 0 &&
        !ms_trust_check(file, failure_out))
        return;
    const bool is_lost = atomic_load(&file->state) == MS_FILE_IS_LOST;
    *failure_out =
        (struct ms_file_failure){.file = file,
                                 .kind = is_lost ? MS_FAILURE_GIVEN_UP : MS_FAILURE_UNREADABLE,
                                 .offset = offset,
                                 .bytes = bytes,
                                 .error = error};
}

static bool read_open(const struct ms_file *file, uint64_t offset, void *buffer, size_t bytes,
                      struct ms_file_failure *failure_out)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = ms_file_read_by(file, file->descriptor, (unsigned char *)buffer + done,
                                            bytes - done, offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            ms_file_read_explain(file, offset + done, bytes - done, got < 0 ? errno : 0,
                                 failure_out);
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

bool ms_file_read_now(const struct ms_file *file, uint64_t offset, void *buffer, size_t bytes,
                      struct ms_file_failure *failure_out)
{
    if (!ms_file_begin_use(file, failure_out))
        return false;
    const bool is_read = read_open(file, offset, buffer, bytes, failure_out);
    ms_file_end_use(file);
    return is_read;
}
