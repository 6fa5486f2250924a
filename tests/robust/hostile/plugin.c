/* SPDX-License-Identifier: Apache-2.0 */
/* The job as a plugin, that uses the driver by direct links of its own. */
#include <cuda.h>
#include <stdio.h>

#include "tests/robust/hostile/job.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int plugin_run(const char *path);
EXPORT int plugin_read(unsigned long long address, void *to, size_t bytes);

EXPORT int plugin_run(const char *path)
{
    return job_run(path);
}

/* Reads memory that another part of the process has. */
EXPORT int plugin_read(unsigned long long address, void *to, size_t bytes)
{
    return (int)cuMemcpyDtoH(to, address, bytes);
}
