/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that several processes share (SIMCUDA_SHARED): a file with a row for each process, which
 * says how much of each device it has. The rows of processes that have ended do not count.
 */
#include "tools/simcuda/driver/state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROCESSES_MAX = 64 };

struct row {
    _Atomic int32_t pid; /* 0: free */
    _Atomic uint64_t used_bytes[SIM_DEVICES_MAX];
};

static struct row *rows; /* of all processes; NULL: the devices are this process's alone */
static struct row *own;

static bool is_alive(int32_t pid)
{
    return pid != 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

static void take_row(void)
{
    for (int i = 0; i < PROCESSES_MAX && own == NULL; i++) {
        int32_t pid = atomic_load(&rows[i].pid);
        if (is_alive(pid) || !atomic_compare_exchange_strong(&rows[i].pid, &pid, getpid()))
            continue;
        own = &rows[i];
        for (int device = 0; device < SIM_DEVICES_MAX; device++)
            atomic_store(&own->used_bytes[device], 0);
    }
}

void sim_shared_open(const char *path)
{
    const size_t bytes = PROCESSES_MAX * sizeof(*rows);
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *mapped = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0)
        mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    rows = mapped != MAP_FAILED ? mapped : NULL;
    if (rows != NULL)
        take_row();
    if (own == NULL)
        sim_complain("SIMCUDA_SHARED: %s cannot be used: %s", path, strerror(errno));
}

size_t sim_shared_others(CUdevice device)
{
    size_t bytes = 0;
    for (int i = 0; own != NULL && i < PROCESSES_MAX; i++) {
        if (&rows[i] != own && is_alive(atomic_load(&rows[i].pid)))
            bytes += atomic_load(&rows[i].used_bytes[device]);
    }
    return bytes;
}

void sim_shared_set(CUdevice device, size_t used_bytes)
{
    if (own != NULL)
        atomic_store(&own->used_bytes[device], used_bytes);
}
