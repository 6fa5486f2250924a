/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secure FILE: the job, linked with the shim itself, so that it is there also where a preload is
 * ignored: in a program with raised privileges. Prints whether the kernel calls it one, whether the
 * shim is there, and whether the job was right. As secure-alone it is linked with the driver only.
 */
#include <stdio.h>
#include <sys/auxv.h>

#include "shim/metashard.h"
#include "tests/robust/hostile/job.h"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    printf("secure %lu\nshim %d\n", getauxval(AT_SECURE), metashard_status != NULL);
    return job_run(arguments[1]);
}
