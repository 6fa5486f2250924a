/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secure FILE: the job, linked with the shim itself, so that it is there also where a preload is
 * ignored: in a program with raised privileges. Prints whether the kernel calls it one, and whether
 * the job was right.
 */
#include <stdio.h>
#include <sys/auxv.h>

#include "tests/robust/hostile/job.h"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    printf("secure %lu\n", getauxval(AT_SECURE));
    return job_run(arguments[1]);
}
