/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that each thread copies from, and those who change it while memory comes from it: the
 * thread, children of fork and vfork, and host functions.
 */
#include "tests/driver/model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 20, CHILD_SECONDS = 60 };

static _Thread_local unsigned char *file, *written; /* mapped */
static _Thread_local unsigned char *in_memory;      /* what was read of it */

/* --- four tensors of a checkpoint, and bytes behind them */

static const char header[] =
    "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[256,64],\"data_offsets\":[0,65536]},"
    "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[100,333],\"data_offsets\":[65536,132136]},"
    "\"c.weight\":{\"dtype\":\"U8\",\"shape\":[40,1000],\"data_offsets\":[132136,172136]},"
    "\"d.weight\":{\"dtype\":\"F32\",\"shape\":[512,400],\"data_offsets\":[172136,991336]}}";
enum { BEGIN = 8 + sizeof(header) - 1, FILE_END = BEGIN + 991336 };

static void path_of(char path[4096], const char *end)
{
    snprintf(path, 4096, "%s/model-%d-%u.safetensors%s", model_folder, (int)getpid(), model_thread,
             end);
}

static void draw_file(unsigned char bytes[FILE_BYTES])
{
    const uint64_t length = sizeof(header) - 1, none = 0;
    model_draw_content(bytes, FILE_BYTES);
    memcpy(bytes, model_has_names() ? &length : &none, sizeof(length));
    memcpy(bytes + 8, header, length);
}

const unsigned char *model_in_file(size_t bytes)
{
    static const size_t tensors[] = {0, 65536, 132136, 172136};
    size_t at = model_below(FILE_END - bytes);
    if (model_one_in(2))
        at = BEGIN + tensors[model_below(4)];
    const unsigned char *from = model_one_in(4) ? written : model_one_in(3) ? in_memory : file;
    return from + (at + bytes > FILE_END ? 0 : at);
}

static void unmap_file(void)
{
    if (file != NULL)
        munmap(file, FILE_BYTES);
    if (written != NULL)
        munmap(written, FILE_BYTES);
    file = written = NULL;
}

/* In parts, some too small to be noted. And the program may change what it has read. */
static void read_file(int descriptor)
{
    if (in_memory == NULL)
        in_memory = malloc(FILE_BYTES);
    for (size_t done = 0; done < FILE_END;) {
        const size_t left = FILE_END - done, most = 1 + model_below(FILE_END);
        const ssize_t got = model_one_in(2) ? pread(descriptor, in_memory + done,
                                                    most < left ? most : left, (off_t)done)
                                            : read(descriptor, in_memory + done, left);
        if (got < 0)
            model_fail("the file cannot be read");
        done += got == 0 ? left : (size_t)got;
        lseek(descriptor, (off_t)done, SEEK_SET);
    }
    if (model_one_in(2))
        model_draw_content(in_memory + BEGIN + model_below(900000), 3000);
}

static void map_file(void)
{
    char path[4096];
    path_of(path, "");
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    unmap_file();
    read_file(descriptor);
    file = mmap(NULL, FILE_BYTES, PROT_READ, model_one_in(2) ? MAP_PRIVATE : MAP_SHARED, descriptor,
                0);
    written = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (file == MAP_FAILED || written == MAP_FAILED)
        model_fail("%s cannot be mapped", path);
    for (int i = 0; i < 4; i++)
        model_draw_content(written + BEGIN + model_below(900000), 3000);
}

/* --- changes: drawn, then made by whoever it is, who may do no more than a child of vfork */

enum way {
    IN_PLACE,
    EMPTIED, /* in place, and empty in between */
    REPLACED,
    DELETED /* and written again */
};
struct change {
    char path[4096], next[4096];
    unsigned char *bytes;
    enum way way;
    bool is_old; /* so that a later write would show */
    int error;
};

static int write_file(const struct change *change, const char *path, int flags)
{
    const struct timespec times[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    const int descriptor = open(path, O_WRONLY | O_CLOEXEC | flags, 0600);
    if (descriptor < 0)
        return errno;
    int error = write(descriptor, change->bytes, FILE_END) == FILE_END ? 0 : EIO;
    if (change->is_old && futimens(descriptor, times) != 0)
        error = errno;
    close(descriptor);
    return error;
}

/* 0 or an error number */
static int carry_out(const struct change *change)
{
    int error;
    switch (change->way) {
    case IN_PLACE:
        return write_file(change, change->path, 0);
    case EMPTIED:
        return write_file(change, change->path, O_TRUNC);
    case DELETED:
        return unlink(change->path) != 0 ? errno
                                         : write_file(change, change->path, O_CREAT | O_EXCL);
    default:
        error = write_file(change, change->next, O_CREAT | O_TRUNC);
        return error == 0 && rename(change->next, change->path) != 0 ? errno : error;
    }
}

/* So that memory comes from the file when it changes. */
static void load_some(void)
{
    const struct model_range range = model_own_range(MODEL_MOST, 1);
    const unsigned char *bytes = model_in_file(range.bytes);
    model_order(range, CU_STREAM_LEGACY);
    OK(cuMemcpyHtoD(model_address(range), bytes, range.bytes));
    model_write(range, bytes);
    model_done(range, CU_STREAM_LEGACY);
}

static struct change draw_change(enum way least, enum way most)
{
    struct change change = {.bytes = malloc(FILE_BYTES),
                            .way = least + (enum way)model_below((size_t)(most - least) + 1),
                            .is_old = model_one_in(2)};
    draw_file(change.bytes);
    path_of(change.path, "");
    path_of(change.next, ".next");
    if (model_reads_late)
        model_wait();
    for (int i = 0; i < 6; i++)
        load_some();
    if (change.way >= REPLACED && model_one_in(2))
        unmap_file();
    return change;
}

static void end_change(struct change *change)
{
    if (change->error != 0)
        model_fail("%s cannot be changed (way %d): %s", change->path, (int)change->way,
                   strerror(change->error));
    free(change->bytes);
    if (change->way >= REPLACED)
        map_file();
}

void model_files_begin(void)
{
    struct change first = {.bytes = malloc(FILE_BYTES), .way = REPLACED, .is_old = model_one_in(2)};
    draw_file(first.bytes);
    path_of(first.path, "");
    path_of(first.next, ".next");
    first.error = carry_out(&first);
    end_change(&first);
}

/* --- who changes it */

static void change_file(void)
{
    struct change change = draw_change(IN_PLACE, REPLACED);
    change.error = carry_out(&change);
    end_change(&change);
}

static int error_of_child(pid_t child)
{
    int status = 0;
    if (waitpid(child, &status, 0) != child)
        return errno;
    if (WIFSIGNALED(status))
        model_fail("the child that opens the file ends with signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static void change_by_fork(void)
{
    struct change change = draw_change(IN_PLACE, DELETED);
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS); /* one that waits for ever ends */
        _exit(carry_out(&change));
    }
    change.error = error_of_child(child);
    end_change(&change);
}

static void change_by_vfork(void)
{
    struct change change = draw_change(IN_PLACE, DELETED);
    const pid_t child = vfork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        _exit(carry_out(&change));
    }
    change.error = error_of_child(child);
    end_change(&change);
}

static void delete_file(void)
{
    struct change change = draw_change(DELETED, DELETED);
    change.error = carry_out(&change);
    end_change(&change);
}

static void CUDA_CB carry_out_late(void *argument)
{
    struct change *change = argument;
    change->error = carry_out(change);
}

static void change_by_host_function(void)
{
    struct change change = draw_change(IN_PLACE, DELETED);
    const CUstream stream = model_own_stream();
    model_launch_host_function(stream, carry_out_late, &change);
    OK(cuStreamSynchronize(stream));
    end_change(&change);
}

const struct model_operation model_files[] = {
    {"change the file", change_file, 3},
    {"delete the file", delete_file, 3},
    {"a child of fork changes the file", change_by_fork, 2},
    {"a child of vfork changes the file", change_by_vfork, 2},
    {"a host function changes the file", change_by_host_function, 2},
    {NULL, NULL, 0},
};
