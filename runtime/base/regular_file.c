/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int ms_regular_file_open(const char *path, struct stat *stat_out)
{
    char link[40];
    int file = -1, error = 0;
    const int found = open(path, O_PATH | O_CLOEXEC);
    if (found < 0)
        return -1;
    /* Not /proc/self, the main thread's: this thread may have its own descriptor table. */
    snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", found);
    if (fstat(found, stat_out) != 0 ||
        (S_ISREG(stat_out->st_mode) && (file = open(link, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0))
        error = errno;
    close(found);
    errno = error;
    return file;
}
