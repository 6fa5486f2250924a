/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system in user space with one file, /checkpoint: the file at SERVED, by its name, as a
 * server has it. A deleted file is a stale handle there, as on NFS. The kernel keeps attributes
 * for KEPT_SECONDS. With KEPT_PAGES it also keeps pages, whatever the attributes say. With NO_TIMES
 * the file has none.
 */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *served;

static int get_attributes(const char *name, struct stat *stat_out,
                          __attribute__((unused)) struct fuse_file_info *file)
{
    if (strcmp(name, "/") == 0) {
        *stat_out = (struct stat){.st_mode = S_IFDIR | 0755, .st_nlink = 2};
        return 0;
    }
    if (strcmp(name, "/checkpoint") != 0)
        return -ENOENT;
    if (stat(served, stat_out) != 0)
        return -ESTALE;
    if (getenv("NO_TIMES") != NULL)
        stat_out->st_mtim = stat_out->st_ctim = (struct timespec){0};
    return 0;
}

static int open_file(__attribute__((unused)) const char *name, struct fuse_file_info *file)
{
    const int descriptor = open(served, O_RDONLY | O_CLOEXEC);
    file->fh = (uint64_t)descriptor;
    return descriptor >= 0 ? 0 : -ESTALE;
}

static int close_file(__attribute__((unused)) const char *name, struct fuse_file_info *file)
{
    return close((int)file->fh);
}

static int read_file(__attribute__((unused)) const char *name, char *buffer, size_t bytes,
                     off_t offset, struct fuse_file_info *file)
{
    struct stat now;
    if (fstat((int)file->fh, &now) != 0 || now.st_nlink == 0)
        return -ESTALE;
    const ssize_t got = pread((int)file->fh, buffer, bytes, offset);
    return got >= 0 ? (int)got : -errno;
}

static void *start(struct fuse_conn_info *connection, struct fuse_config *config)
{
    config->attr_timeout = config->entry_timeout = atof(getenv("KEPT_SECONDS"));
    config->kernel_cache = getenv("KEPT_PAGES") != NULL;
    if (config->kernel_cache)
        connection->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
    return NULL;
}

int main(int count, char **arguments)
{
    static const struct fuse_operations operations = {.getattr = get_attributes,
                                                      .open = open_file,
                                                      .release = close_file,
                                                      .read = read_file,
                                                      .init = start};
    served = getenv("SERVED");
    return fuse_main(count, arguments, &operations, NULL);
}
