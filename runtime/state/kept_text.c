/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/kept_text.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/quiet.h"
#include "runtime/state/page.h"

/* The first folder that can be used, as for the page. Its descriptor, or -1. */
static int open_folder(const struct ms_config *config)
{
    char path[MS_PATH_BYTES], why[256];
    int folder = -1;
    if (getauxval(AT_SECURE) != 0)
        return -1;
    for (unsigned i = 0; folder < 0 && ms_state_folder(config, i, path); i++)
        folder = ms_state_open_folder(path, why);
    return folder;
}

static bool is_own(int file)
{
    struct stat stat;
    return fstat(file, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == geteuid() &&
           (stat.st_mode & 022) == 0;
}

bool ms_kept_text_read(const struct ms_config *config, const char *name, char *text_out,
                       size_t bytes)
{
    const int folder = open_folder(config);
    if (folder < 0)
        return false;
    const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(folder);
    if (file < 0)
        return false;
    const ssize_t got = is_own(file) ? read(file, text_out, bytes) : -1;
    close(file);
    if (got < 0 || (size_t)got == bytes)
        return false;
    text_out[got] = '\0';
    return true;
}

void ms_kept_text_write(const struct ms_config *config, const char *name, const char *text)
{
    char hidden[64];
    struct ms_quiet quiet;
    const size_t bytes = strlen(text);
    const int folder = open_folder(config);
    if (folder < 0)
        return;
    snprintf(hidden, sizeof(hidden), MS_STATE_HIDDEN_PREFIX "%d-text", (int)getpid());
    const int file =
        openat(folder, hidden, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0) {
        ms_quiet_begin(&quiet);
        const bool is_whole = write(file, text, bytes) == (ssize_t)bytes;
        ms_quiet_end(&quiet, !is_whole);
        close(file);
        if (!is_whole || renameat(folder, hidden, folder, name) != 0)
            unlinkat(folder, hidden, 0);
    }
    close(folder);
}
