/* SPDX-License-Identifier: Apache-2.0 */
/* The files that metashard-dump writes. */
#include <errno.h>
#include <string.h>

#include "tools/dump/dump.h"

bool is_standard(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

static bool failed(const char *path)
{
    fprintf(stderr, "metashard-dump: %s cannot be written: %s\n", path,
            errno != 0 ? strerror(errno) : "out of memory");
    return false;
}

bool write_output(const char *path, const struct view *view,
                  bool (*write)(FILE *file, const struct view *view))
{
    const bool is_own = !is_standard(path);
    errno = 0;
    FILE *file = !is_own ? stdout : fopen(path, "w");
    if (file == NULL)
        return failed(path);
    bool is_good = write(file, view) && fflush(file) == 0 && ferror(file) == 0;
    const int error = errno;
    if (is_own && fclose(file) != 0)
        is_good = false;
    else
        errno = error;
    return is_good || failed(path);
}
